//! A paused task starts nothing until it is resumed, and its clocks stand still.

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::event::Change;
use standfast_domain::hold::HoldReason;
use standfast_domain::ids::StepId;
use standfast_domain::time::{Span, Time};

use super::Case;
use crate::world::Seen;

/// What ends a step whose total time is over, as its event says.
const TIME_OVER: &str = "its total time is used up";

/// One pause.
struct Pause {
    /// From the line of the trace that brought it to the line of the commit that ended it.
    lines: (u64, u64),
    /// From when to when, by the store's clock.
    times: (Time, Time),
}

impl Case<'_> {
    pub(super) fn pauses(&mut self) {
        let pauses = self.all_pauses();
        for ((step, attempt), granted) in self.claims.clone() {
            let within =
                |pause: &&Pause| pause.lines.0 < granted.moment && granted.moment < pause.lines.1;
            if let Some(pause) = pauses.iter().find(within) {
                let lines = pause.lines;
                self.fault(format!("`{step}` attempt {attempt} was claimed in a pause, {lines:?}"));
            }
        }
        for pause in &pauses {
            let held = |seen: &Seen| {
                let within = pause.lines.0 < seen.moment && seen.moment < pause.lines.1;
                within && matches!(seen.event.change, Change::StepReady { .. })
            };
            if self.events.iter().any(held) {
                self.world.trace.count("held back by a pause");
            }
        }
        self.clocks_stand(&pauses);
    }

    /// Pauses overlap: whoever made one, a task is paused until the last is over. What ends the
    /// task ends them.
    fn all_pauses(&self) -> Vec<Pause> {
        let mut pauses = Vec::new();
        let (mut holds, mut since) = (BTreeSet::new(), None);
        let last = self.events.last().map_or(Time(0), |seen| seen.event.at);
        for Seen { moment, commit, event, .. } in &self.events {
            match &event.change {
                Change::TaskHeld { hold } if hold.reason == HoldReason::Paused => {
                    holds.insert(hold.by.clone());
                    since.get_or_insert((*moment, event.at));
                    continue;
                }
                Change::TaskReleased { reason: HoldReason::Paused, by } => {
                    holds.remove(by);
                }
                Change::StopRequested { .. }
                | Change::TaskFailing { .. }
                | Change::TaskEnded { .. } => holds.clear(),
                _ => continue,
            }
            if let Some((line, at)) = since.take_if(|_| holds.is_empty()) {
                pauses.push(Pause { lines: (line, *commit), times: (at, event.at) });
            }
        }
        if let Some((line, at)) = since {
            pauses.push(Pause { lines: (line, u64::MAX), times: (at, last) });
        }
        pauses
    }

    /// A deadline, a timer and a total time run only while the task is not paused. A process that
    /// remembers a time from before the store's clock was put back is ahead of the others, by no
    /// more than the clock has moved; where one of them begins a wait and another ends it, the
    /// wait is shorter by that, and by nothing else.
    fn clocks_stand(&mut self, pauses: &[Pause]) {
        let mut begun: BTreeMap<StepId, Time> = BTreeMap::new();
        let born = self.events.first().map_or(Time(0), |seen| seen.event.at);
        let (mut skips, mut cleans) = (None, None);
        for Seen { moment, elapsed, event, .. } in self.events.clone() {
            let slack = self.world.faults.clocks_apart_before(elapsed);
            let ran = |from: Time| {
                let paused = pauses.iter().map(|pause| {
                    let (first, last) = (pause.times.0.max(from), pause.times.1.min(event.at));
                    if first < last { last.since(first).0 } else { 0 }
                });
                Span(event.at.since(from).0.saturating_sub(paused.sum()))
            };
            // What struck at the very moment of the pause was over before it.
            let stands = |pause: &Pause| {
                pause.lines.0 < moment && moment < pause.lines.1 && pause.times.0 < event.at
            };
            let paused = pauses.iter().any(stands);
            match &event.change {
                Change::FinallyStarted { .. } => cleans = Some(event.at),
                Change::StepHeld { step, hold } if hold.reason == HoldReason::Timer => {
                    let promise = self.promises.get(step.as_str());
                    let cleans = cleans.filter(|_| promise.is_some_and(|step| step.finally));
                    begun.insert(step.clone(), cleans.unwrap_or(event.at));
                }
                Change::HoldAnswered { step, reason: HoldReason::Timer, .. } => {
                    skips.clone_from(step);
                }
                Change::TimerFired { step } if skips.take().as_ref() == Some(step) => {}
                Change::TimerFired { step } => {
                    let waits = self.promises.get(step.as_str()).and_then(|step| step.waits);
                    let waited = begun.get(step).map(|from| ran(*from).to_std());
                    if waits > waited.map(|waited| waited + slack) {
                        self.fault(format!("`{step}` waits for {waits:?} and did for {waited:?}"));
                    }
                }
                Change::DeadlinePassed => {
                    let ran = ran(born).to_std();
                    if self.drawn.deadline().is_some_and(|within| ran + slack < within) {
                        self.fault(format!("its deadline passed after {ran:?}"));
                    }
                }
                Change::StepFailed { step, message, .. } if message == TIME_OVER && paused => {
                    self.fault(format!("the time of `{step}` was over in a pause"));
                }
                _ => {}
            }
        }
    }
}
