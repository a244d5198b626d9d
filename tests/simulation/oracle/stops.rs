//! After a stop nothing of the stopped work starts, and nothing is committed but what its mode
//! allows; a stopped attempt is over; the report names what the last plan named.

use std::collections::BTreeSet;

use standfast_domain::event::Change;
use standfast_domain::ids::StepId;
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::{MAIN_EFFECT, NotLanded, StopMode};
use standfast_domain::stop_plan::{Became, Item, Settled, Settlement, Subject};

use super::Case;
use crate::stops::{compare, drained};
use crate::world::Seen;

impl Case<'_> {
    pub(super) fn stops(&mut self) {
        self.nothing_starts_after_a_stop();
        self.nothing_is_committed_after_a_stop();
        self.attempts_end_once();
        self.who_wanted_an_attempt_stopped();
    }

    /// True for what a stop or a failure of the task ends: neither cleans up nor undoes.
    fn is_stoppable(&self, step: &StepId) -> bool {
        let finally = self.promises.get(step.as_str()).is_some_and(|promise| promise.finally);
        !finally && step.undone().is_none()
    }

    /// What ends the plan's steps is stored in one commit, and no claim of one is stored after.
    fn nothing_starts_after_a_stop(&mut self) {
        let ends = |seen: &&Seen| {
            matches!(seen.event.change, Change::StopRequested { .. } | Change::TaskFailing { .. })
        };
        let Some(closed) = self.events.iter().find(ends).map(|seen| seen.moment) else { return };
        for ((step, attempt), granted) in self.claims.clone() {
            if granted.moment > closed && self.is_stoppable(&step) {
                self.fault(format!("`{step}` attempt {attempt} was claimed after a stop"));
            }
        }
        for start in self.starts.clone() {
            let step = StepId::new(start.step.clone()).unwrap();
            let late = self.told.stopped.is_some_and(|told| told < start.moment);
            if late && self.is_stoppable(&step) {
                self.world.trace.count("start under way at a stop");
            }
        }
    }

    /// A drain lets attempts succeed that ran already; a halt and an undo let nothing succeed.
    /// Nothing becomes ready, runs anew or passes a time under any; once the epoch has risen,
    /// no attempt of the plan ends.
    fn nothing_is_committed_after_a_stop(&mut self) {
        let (mut mode, mut raised) = (None, false);
        for Seen { event, .. } in self.events.clone() {
            match &event.change {
                Change::StopRequested { mode: asked, .. } => mode = Some(*asked),
                Change::StopStrengthened { mode: asked, .. } => {
                    if raised || mode.is_none_or(|known| known >= *asked) {
                        self.fault(format!("a stop with {mode:?} was strengthened to {asked:?}"));
                    }
                    mode = Some(*asked);
                }
                Change::EpochRaised { .. } => raised = true,
                _ => {}
            }
            let Some(mode) = mode else { continue };
            let step = match &event.change {
                Change::StepSucceeded { step, .. } if raised || mode != StopMode::Drain => step,
                Change::AttemptFailed { step, .. } if raised => step,
                Change::StepReady { step, .. }
                | Change::RetryScheduled { step, .. }
                | Change::TimerFired { step }
                | Change::RoundOpened { by: step, .. } => step,
                _ => continue,
            };
            if self.is_stoppable(step) {
                let text = format!("`{step}` went on after a stop with {mode:?}: {event:?}");
                self.fault(text);
            }
        }
    }

    /// What is told of an attempt that has ended is not taken.
    fn attempts_end_once(&mut self) {
        let mut ended = BTreeSet::new();
        for Seen { event, .. } in self.events.clone() {
            let (Change::StepSucceeded { step, attempt, .. }
            | Change::AttemptFailed { step, attempt, .. }) = &event.change
            else {
                continue;
            };
            if !ended.insert((step.clone(), *attempt)) {
                self.fault(format!("attempt {attempt} of `{step}` has ended twice"));
            }
        }
    }

    fn who_wanted_an_attempt_stopped(&mut self) {
        for Seen { event, .. } in self.events.clone() {
            let Change::AttemptFailed { step, attempt, class, charged, message, .. } =
                &event.change
            else {
                continue;
            };
            if *class != FailureClass::Cancelled || !message.starts_with("stopped by ") {
                continue;
            }
            self.world.trace.count("attempt stopped");
            if *charged || !self.told.stopped_attempts.contains(&(step.clone(), *attempt)) {
                self.fault(format!("nobody wanted attempt {attempt} of `{step}` stopped so"));
            }
        }
    }

    /// The report after the end names what the last plan named, and nothing of it is uncertain
    /// that is known to have happened.
    pub fn settles(&mut self, planned: &[Item], settlement: &Settlement) {
        self.world.trace.count("settlement compared");
        let mut faults = Vec::new();
        compare(planned, settlement, &drained(&self.events), &mut faults);
        faults.into_iter().for_each(|fault| self.fault(fault));
        let landed: Vec<(StepId, String, u32)> = self.landed().into_keys().collect();
        for settled in &settlement.items {
            self.became_what_it_became(settled);
            let Subject::Effect { step, name, generation } = &settled.item.subject else {
                continue;
            };
            let known = landed.contains(&(step.clone(), name.clone(), *generation));
            let stands = matches!(
                settled.became,
                Became::Stays
                    | Became::LandedLate
                    | Became::Undone
                    | Became::Undoing
                    | Became::ToUndo
                    | Became::UndoHeld
                    | Became::LeftByAnswer
            );
            if known != stands {
                self.fault(format!("known to have landed: {known}, its report: {settled:?}"));
            }
        }
    }

    /// What the report says of an attempt, of a `finally` step, and of an effect that did not
    /// happen is what the log says.
    fn became_what_it_became(&mut self, settled: &Settled) {
        let logged = self
            .events
            .iter()
            .rev()
            .find_map(|seen| told_of(&settled.item.subject, &seen.event.change));
        let right = match (&settled.item.subject, logged) {
            (Subject::Attempt { .. }, logged) => logged == Some(settled.became),
            (Subject::Finally { .. }, logged) => {
                logged.unwrap_or(Became::Cancelled) == settled.became
            }
            (_, Some(logged @ Became::NotLanded(_))) => match settled.became {
                Became::NotLanded(NotLanded::NotSent) | Became::Stays | Became::Undone => true,
                became => became == logged,
            },
            _ => true,
        };
        if !right {
            self.fault(format!("the log says {logged:?}, the report {settled:?}"));
        }
    }
}

/// What an event says of what became of an item, if it speaks of that.
fn told_of(subject: &Subject, change: &Change) -> Option<Became> {
    match (subject, change) {
        (
            Subject::Attempt { step, attempt },
            Change::StepSucceeded { step: of, attempt: n, .. },
        ) if of == step && n == attempt => Some(Became::Succeeded),
        (
            Subject::Attempt { step, attempt },
            Change::AttemptFailed { step: of, attempt: n, class, .. },
        ) if of == step && n == attempt => match class {
            FailureClass::Cancelled => Some(Became::Cancelled),
            class => Some(Became::Failed(Some(*class))),
        },
        (
            Subject::Finally { step },
            Change::StepSucceeded { step: of, .. } | Change::TimerFired { step: of },
        ) if of == step => Some(Became::Succeeded),
        (Subject::Finally { step }, Change::StepFailed { step: of, class, .. }) if of == step => {
            Some(Became::Failed(Some(*class)))
        }
        (Subject::Finally { step }, Change::StepSkipped { step: of, .. }) if of == step => {
            Some(Became::Skipped)
        }
        (
            Subject::Effect { step, name, generation },
            Change::EffectNotLanded { step: of, name: named, generation: n, how },
        ) if of == step && named == name && n == generation => Some(Became::NotLanded(*how)),
        (
            Subject::Effect { step, name, .. },
            Change::EffectIntended { step: of, name: named, .. },
        ) if of == step && named == name => Some(Became::InFlight),
        // A later attempt may have sent what an earlier one had not.
        (
            Subject::Effect { step, name, generation },
            Change::EffectDoubted { step: of, generation: n, .. },
        ) if of == step && name == MAIN_EFFECT && n == generation => Some(Became::StaysUncertain),
        (
            Subject::Effect { step, name, generation },
            Change::EffectLanded { step: of, name: named, generation: n, .. },
        ) if of == step && named == name && n == generation => Some(Became::LandedLate),
        _ => None,
    }
}
