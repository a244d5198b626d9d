//! What every world must have kept: only what a client was promised, checked against the ledger of
//! starts and the order in which things happened.

mod effects;
mod pauses;
mod stops;
mod takeovers;
mod undos;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use standfast_domain::event::Change;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::invariants::Records;
use standfast_domain::record::Ending;
use standfast_domain::record::{Key, Payload, Phase, Record};

use crate::ledger::{Checked, Ledger, Sent};
use crate::outside::Start;
use crate::plans::{Drawn, Promise};
use crate::records::header;
use crate::world::{Granted, Said, Seen, Snapshot, Told, World};

/// Attempts of a step whose plan does not say.
const ATTEMPTS_DEFAULT: u64 = 3;

/// One task as the oracle sees it.
pub struct Case<'w> {
    world: &'w World,
    task: &'w TaskId,
    told: &'w Told,
    drawn: &'w Drawn,
    promises: BTreeMap<String, Promise>,
    records: &'w Records,
    events: Vec<Seen>,
    starts: Vec<Start>,
    claims: BTreeMap<(StepId, u32), Granted>,
    sent: Vec<Sent>,
    checks: Vec<Checked>,
    said: Vec<Said>,
    pub faults: Vec<String>,
}

/// What became of a step, as its events tell it.
#[derive(Default)]
struct Course {
    /// In which round it was settled, and when.
    settled: Vec<(u32, u64)>,
    round: u32,
    /// The rounds that were opened for it.
    rounds: BTreeSet<u32>,
    /// When its templates were resolved.
    resolved: Vec<u64>,
    /// Attempts that ended, and when.
    ended: BTreeMap<u32, u64>,
    /// Accepted successes: moment, attempt, round.
    accepted: Vec<(u64, u32, u32)>,
}

impl Course {
    fn settle(&mut self, moment: u64) {
        let round = self.round.max(1);
        self.settled.push((round, moment));
    }

    fn reopen(&mut self, round: u32) {
        self.round = round;
        self.rounds.insert(round);
    }

    /// True if it was settled for a dependent: in the dependent's round if it took part in that,
    /// else in any. A round of its own takes nothing from steps that are not part of it.
    fn is_settled_for(&self, round: u32, at: u64) -> bool {
        let within = |settled: u32| settled == round || !self.rounds.contains(&round);
        self.settled.iter().any(|(settled, from)| within(*settled) && *from < at)
    }
}

impl<'w> Case<'w> {
    pub fn new(
        world: &'w World,
        drawn: &'w Drawn,
        (task, told): (&'w TaskId, &'w Told),
        records: &'w Records,
        snapshot: &Snapshot,
    ) -> Self {
        let history = &snapshot.history;
        let events = history.events.get(task).cloned().unwrap_or_default();
        let own = history.claims.iter().filter(|((of, _, _), _)| of == task);
        let claims = own.map(|((_, step, n), granted)| ((step.clone(), *n), *granted)).collect();
        let starts = snapshot.starts.iter().filter(|start| start.task == task.as_str()).cloned();
        let sent = snapshot.sent.iter().filter(|sent| sent.request.task == task.as_str());
        let checks = snapshot.checks.iter().filter(|check| check.task == task.as_str());
        let said = snapshot.said.iter().filter(|said| said.task == *task);
        let promises = drawn.promises();
        Self {
            world,
            task,
            told,
            drawn,
            promises,
            records,
            events,
            starts: starts.collect(),
            claims,
            sent: sent.cloned().collect(),
            checks: checks.cloned().collect(),
            said: said.cloned().collect(),
            faults: Vec::new(),
        }
    }

    /// Checks everything.
    pub fn check(&mut self) {
        let courses = self.courses();
        self.starts_are_granted_once();
        self.starts_come_in_time(&courses);
        self.charges_stay_within_limits();
        self.outputs_are_accepted_ones(&courses);
        self.the_end_has_its_reason();
        self.effects();
        self.takeovers();
        self.stops();
        self.undos();
        self.pauses();
    }

    pub fn fault(&mut self, text: String) {
        self.faults.push(format!("{} ({}): {text}", self.task, self.drawn.key));
    }

    fn courses(&self) -> BTreeMap<StepId, Course> {
        let mut courses: BTreeMap<StepId, Course> = BTreeMap::new();
        for Seen { moment, event, .. } in &self.events {
            let mut of = |step: &StepId| courses.entry(step.clone()).or_default().settle(*moment);
            match &event.change {
                Change::StepFailed { step, .. }
                | Change::StepSkipped { step, .. }
                | Change::TimerFired { step } => of(step),
                Change::StepSucceeded { step, attempt, round, .. } => {
                    of(step);
                    let course = courses.entry(step.clone()).or_default();
                    course.accepted.push((*moment, *attempt, *round));
                    course.ended.insert(*attempt, *moment);
                }
                Change::AttemptFailed { step, attempt, .. } => {
                    courses.entry(step.clone()).or_default().ended.insert(*attempt, *moment);
                }
                Change::StepReady { step, with_sha256: Some(_), .. } => {
                    courses.entry(step.clone()).or_default().resolved.push(*moment);
                }
                Change::RoundOpened { steps, round, .. } => {
                    for (step, _) in steps {
                        courses.entry(step.clone()).or_default().reopen(*round);
                    }
                }
                _ => {}
            }
        }
        courses
    }

    /// A handler starts only what was given to its worker, and each attempt once.
    fn starts_are_granted_once(&mut self) {
        let mut seen = BTreeSet::new();
        for start in self.starts.clone() {
            let step = StepId::new(start.step.clone()).unwrap();
            let granted = self.claims.get(&(step.clone(), start.attempt));
            if granted.is_none_or(|granted| granted.moment >= start.moment) {
                self.fault(format!("attempt {} of `{step}` started unclaimed", start.attempt));
            }
            if !seen.insert((step.clone(), start.attempt)) {
                self.fault(format!("attempt {} of `{step}` started twice", start.attempt));
            }
        }
    }

    /// No settled step starts again, none before its needs are settled, and each sees what they
    /// gave. A process that stood still at the very door may start what it was given long ago:
    /// nothing can stop it between its last look at the clock and its first act.
    fn starts_come_in_time(&mut self, courses: &BTreeMap<StepId, Course>) {
        let none = Course::default();
        for start in self.starts.clone() {
            let step = StepId::new(start.step.clone()).unwrap();
            let course = courses.get(&step).unwrap_or(&none);
            let fenced = course.ended.get(&start.attempt).is_some_and(|at| *at < start.moment);
            if fenced && start.unaware {
                self.world.trace.count("start of a zombie");
                continue;
            }
            if fenced && self.is_under_way_at_its_stop(&step, start.attempt, start.moment, start.at)
            {
                self.world.trace.count("start under way at an attempt's stop");
                continue;
            }
            let at = format!("`{step}` attempt {} on {}", start.attempt, start.process);
            if fenced {
                self.fault(format!("{at} started after that attempt had ended"));
            }
            let again =
                course.settled.iter().any(|(r, from)| *r == start.round && *from < start.moment);
            if again {
                self.fault(format!("{at} started although the step was settled"));
            }
            let needs = self.promises.get(&start.step).map(|promise| promise.needs.clone());
            for need in needs.into_iter().flatten() {
                let need = StepId::new(need).unwrap();
                let of = courses.get(&need).unwrap_or(&none);
                if !of.is_settled_for(start.round, start.moment) {
                    self.fault(format!("{at} started before `{need}` was settled"));
                }
                let seen = &start.seen[need.as_str()];
                let resolved = course.resolved.iter().rfind(|moment| **moment < start.moment);
                let resolved = resolved.copied().unwrap_or(start.moment);
                let last = of.accepted.iter().rfind(|(moment, _, _)| *moment < resolved);
                let given = last.and_then(|accepted| self.output(&need, accepted));
                if !seen.is_null() && given.as_ref() != Some(seen) {
                    self.fault(format!("{at} saw {seen} of `{need}`, which gave {given:?}"));
                }
            }
        }
    }

    /// True for what the worker of an attempt that was stopped by itself does before it has heard
    /// of that: its claim lasts for at most its length after its last renewal, and what may be
    /// sent under it keeps the next attempt waiting for so long.
    fn is_under_way_at_its_stop(&self, step: &StepId, n: u32, moment: u64, at: Duration) -> bool {
        let Some(stopped) = self.stopped_alone(step, n) else { return false };
        let claim = Duration::from_millis(self.world.claim_length.0);
        stopped.moment < moment && at <= stopped.elapsed + claim
    }

    /// Gives when a person's wish ended an attempt.
    fn stopped_alone(&self, step: &StepId, number: u32) -> Option<&Seen> {
        self.told.stopped_attempts.get(&(step.clone(), number))?;
        self.events.iter().find(|seen| match &seen.event.change {
            Change::AttemptFailed { step: of, attempt, message, .. } => {
                of == step && *attempt == number && message.starts_with("stopped by ")
            }
            _ => false,
        })
    }

    fn gave(&self, step: &StepId, attempt: u32) -> Option<Value> {
        let found = self.starts.iter().find(|start| {
            start.step == step.as_str() && start.attempt == attempt && start.output.is_some()
        });
        found.and_then(|start| start.output.clone())
    }

    fn stored(&self, step: &StepId, round: u32) -> Option<Value> {
        match self.records.get(&Key::Output(step.clone(), round)) {
            Some(Record::Payload(Payload::Inline(value))) => Some(value.clone()),
            _ => None,
        }
    }

    /// Gives the output of an accepted attempt. One that found its effect done has started no
    /// handler: its output is the receipt.
    fn output(&self, step: &StepId, (_, attempt, round): &(u64, u32, u32)) -> Option<Value> {
        self.gave(step, *attempt).or_else(|| self.stored(step, *round))
    }

    /// True if the outside gave this for something that the step has sent.
    fn is_receipt(&self, step: &StepId, value: Option<&Value>) -> bool {
        let all = self.world.ledger.sent();
        let sent = value.and_then(|value| Ledger::receipted(&all, value));
        sent.is_some_and(|sent| {
            sent.request.task == self.task.as_str() && sent.request.step == step.as_str()
        })
    }

    fn charges_stay_within_limits(&mut self) {
        let mut charged: BTreeMap<StepId, u64> = BTreeMap::new();
        let mut over = Vec::new();
        for Seen { event, .. } in &self.events {
            match &event.change {
                Change::AttemptFailed { step, charged: true, .. }
                | Change::StepSucceeded { step, .. } => {
                    let count = charged.entry(step.clone()).or_default();
                    *count += 1;
                    let most = self.promises.get(step.as_str());
                    let most = most.map_or(ATTEMPTS_DEFAULT, |promise| promise.max_attempts);
                    if *count > most {
                        over.push(format!("`{step}` was charged {count} attempts of {most}"));
                    }
                }
                Change::StepReady { step, afresh: true, .. } => {
                    charged.remove(step);
                }
                Change::RoundOpened { steps, .. } => {
                    charged.retain(|step, _| !steps.iter().any(|(reset, _)| reset == step));
                }
                _ => {}
            }
        }
        over.into_iter().for_each(|text| self.fault(text));
    }

    /// What is stored as a step's output is what the accepted attempt gave, in each round.
    fn outputs_are_accepted_ones(&mut self, courses: &BTreeMap<StepId, Course>) {
        for (step, course) in courses {
            for (_, attempt, round) in &course.accepted {
                let (stored, gave) = (self.stored(step, *round), self.gave(step, *attempt));
                let kept = gave.is_none() && self.is_receipt(step, stored.as_ref());
                if !kept && (gave.is_none() || stored != gave) {
                    let text = format!("`{step}` round {round} gave {gave:?}, kept is {stored:?}");
                    self.fault(text);
                }
            }
        }
    }

    /// The task has ended, in the way that its history calls for.
    fn the_end_has_its_reason(&mut self) {
        let Some(header) = header(self.records) else {
            return self.fault("was acknowledged and does not exist".to_owned());
        };
        let Phase::Ended { ending, .. } = header.phase else {
            return self.fault(format!("has not ended: {}", header.state));
        };
        let has =
            |wanted: fn(&Change) -> bool| self.events.iter().any(|seen| wanted(&seen.event.change));
        let stop = has(|change| matches!(change, Change::StopRequested { .. }));
        let failing = has(|change| matches!(change, Change::TaskFailing { .. }));
        let wanted = match (stop, failing) {
            (true, _) => Ending::Cancelled,
            (false, true) => Ending::Failed,
            (false, false) => Ending::Completed,
        };
        if ending != wanted {
            self.fault(format!("ended as {ending:?} where {wanted:?} was due"));
        }
        if stop && !self.told.asked_stop && self.drawn.deadline_then() != Some("stop") {
            self.fault("was stopped by nobody".to_owned());
        }
        let may_fail = self.promises.values().any(|promise| promise.fails);
        if failing && !may_fail && self.drawn.deadline_then() != Some("fail") {
            self.fault("failed where its plan does not let it".to_owned());
        }
        let settled = self.courses();
        let cleans = self.promises.iter().filter(|(_, promise)| promise.finally);
        let left = cleans
            .map(|(id, _)| StepId::new(id.clone()).unwrap())
            .filter(|step| settled.get(step).is_none_or(|course| course.settled.is_empty()));
        for step in left.collect::<Vec<_>>() {
            self.fault(format!("ended, and its `finally` step `{step}` is not settled"));
        }
        if ending == Ending::Completed && header.open > 0 {
            self.fault(format!("completed with {} open steps", header.open));
        }
    }
}
