//! What a patient world does: workers claim and complete, timers fire, holds are answered.

use standfast_domain::decide::{Command, Intent, Speaker, TimerKind};
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::{StepId, WorkerId};
use standfast_domain::index::{TIMERS, TimerEntry, WORK, parse_ready_member};
use standfast_domain::outcome::{Failure, FailureClass, Outcome, Success};
use standfast_domain::plan::StepPlan;
use standfast_domain::record::{
    Claim, Effect, EffectClass, Header, Key, MAIN_EFFECT, NotLanded, Payload, Record, Status,
    StopMode,
};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;
use standfast_domain::view::Attempt;

use super::plans::id;
use super::world::{Said, World};

/// Rounds of fairness after which a task must have ended.
const ROUNDS_MAX: usize = 400;

/// Makes a success that adds steps.
pub fn success(then: Vec<StepPlan>) -> Outcome {
    let output = Payload::Inline(serde_json::json!({ "ok": true }));
    Outcome::Succeeded(Success { output, artifacts: Vec::new(), checkpoint: None, then })
}

/// Makes a failure.
pub fn failure(class: FailureClass) -> Outcome {
    Outcome::Failed(Failure::new(class, format!("it failed: {}", class.as_str())))
}

impl World {
    /// Claims a step for a worker.
    pub fn claim(&mut self, process: usize, step: &str, worker: &str) -> Said {
        self.run(process, claim_command(step, worker))
    }

    /// Gives the claim on a step.
    pub fn claim_of(&mut self, step: &str) -> Option<Claim> {
        match self.store.load(&Key::Claim(id(step))).0 {
            Some(Record::Claim(claim)) => Some(claim),
            _ => None,
        }
    }

    /// Names the attempt that runs.
    pub fn attempt_of(&mut self, step: &str) -> Attempt {
        let claim = self.claim_of(step).unwrap_or_else(|| panic!("`{step}` is not claimed"));
        let Claim { attempt, epoch, worker, .. } = claim;
        Attempt { step: id(step), attempt, epoch, worker }
    }

    /// Completes an attempt.
    pub fn complete(&mut self, process: usize, at: Attempt, outcome: Outcome) -> Said {
        let (outcome, added) = (Box::new(outcome), Vec::new());
        let command = Command::CompleteAttempt { at, outcome, added, cost_usd_micros: 1 };
        self.run(process, command)
    }

    /// Renews a claim; with details, its handler has given a sign of life.
    pub fn renew(&mut self, process: usize, at: &Attempt, details: Option<&str>) -> Said {
        let (at, alive) = (at.clone(), details.is_some());
        self.run(process, Command::RenewClaim { at, details: details.map(str::to_owned), alive })
    }

    /// Claims a step and completes the attempt.
    pub fn work(&mut self, step: &str, outcome: Outcome) {
        let said = self.claim(0, step, "w1");
        assert_eq!(said, Ok(true), "`{step}` is claimed");
        let at = self.attempt_of(step);
        assert_eq!(self.complete(0, at, outcome), Ok(true), "`{step}` is completed");
    }

    /// Answers a step or the task.
    pub fn answer(&mut self, step: Option<&str>, answer: Answer) -> Said {
        let (effect, receipt) = (None, None);
        let step = step.map(id);
        self.run(0, Command::Answer { step, answer, note: None, effect, receipt })
    }

    /// Records that a running attempt is about to send.
    pub fn intend(&mut self, process: usize, at: &Attempt, name: &str, class: EffectClass) -> Said {
        let command = Command::Intend { at: at.clone(), intent: Box::new(intent(name, class)) };
        self.run(process, command)
    }

    /// Gives an effect of a step.
    pub fn effect(&mut self, step: &str, name: &str) -> Option<Effect> {
        match self.store.load(&Key::Effects(id(step))).0 {
            Some(Record::Effects(mut effects)) => effects.remove(name),
            _ => None,
        }
    }

    /// Tells that an effect has happened.
    pub fn confirm(&mut self, process: usize, at: &Attempt, name: &str) -> Said {
        let receipt = Payload::Inline(serde_json::json!({ "id": 1 }));
        self.run(process, Command::ConfirmEffect { by: speaker(at, name), receipt })
    }

    /// Tells that an effect has not happened.
    pub fn retract(&mut self, process: usize, at: &Attempt, name: &str) -> Said {
        let how = NotLanded::Checked;
        self.run(process, Command::RetractEffect { by: speaker(at, name), how })
    }

    /// Stops the task (`halt`).
    pub fn stop(&mut self) -> Said {
        self.stop_as(StopMode::Halt)
    }

    /// Stops the task.
    pub fn stop_as(&mut self, mode: StopMode) -> Said {
        self.run(1, Command::Stop { reason: None, mode })
    }

    /// Stops the task in one process; the other one goes on from what it knew before.
    pub fn stop_in(&mut self, process: usize) -> Said {
        self.run(process, Command::Stop { reason: None, mode: StopMode::Halt })
    }

    /// Pauses the task.
    pub fn pause(&mut self) -> Said {
        self.run(0, Command::Pause { reason: None })
    }

    /// Resumes the task.
    pub fn resume(&mut self) -> Said {
        self.run(1, Command::Resume { reason: None })
    }

    /// Fires a timer of a step or of the task.
    pub fn fire(&mut self, step: Option<&str>, kind: TimerKind) -> Said {
        self.run(0, Command::FireTimer { step: step.map(id), kind, why: None })
    }

    /// Lets time pass.
    pub fn pass(&mut self, secs: u64) {
        self.now = self.now.after(Span::from_secs(secs));
    }

    /// Carries out all that the `work` index calls for, until it calls for no more.
    pub fn sweep_all(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let events = self.store.events.len();
            for member in self.store.members(WORK) {
                self.sweep(0, &member);
            }
            if self.store.events.len() == events {
                return;
            }
        }
        panic!("the work index never rests: {:#?}", self.watch.history);
    }

    /// Gives the header.
    pub fn header(&mut self) -> Header {
        self.store.header()
    }

    /// Gives the word for a step's status.
    pub fn word(&mut self, step: &str) -> &'static str {
        match super::check::status(&mut self.store, &id(step)) {
            None | Some(Status::Pending) => "pending",
            Some(Status::Ready { .. }) => "ready",
            Some(Status::Retrying { .. }) => "retrying",
            Some(Status::Held { .. }) => "held",
            Some(Status::Succeeded { .. }) => "succeeded",
            Some(Status::Failed { .. }) => "failed",
            Some(Status::Skipped { .. }) => "skipped",
        }
    }

    /// Gives the number that the next attempt of a step gets, or the one that runs has.
    pub fn attempt_number(&mut self, step: &str) -> u32 {
        match self.store.load(&Key::Step(id(step))).0 {
            Some(Record::Step(state)) => state.attempt,
            _ => 1,
        }
    }

    /// Lists the ready steps of all queues that nobody has claimed.
    pub fn ready(&self) -> Vec<StepId> {
        let members = self.store.members("ready:default");
        members.iter().filter_map(|member| Some(parse_ready_member(member)?.2)).collect()
    }

    /// Lists the steps that are held, and why.
    pub fn held(&self) -> Vec<(StepId, HoldReason)> {
        let records = self.store.records();
        let each = records.iter().filter_map(|(key, record)| match (key, record) {
            (Key::Step(step), Record::Step(state)) => match &state.status {
                Status::Held { hold } => Some((step.clone(), hold.reason)),
                _ => None,
            },
            _ => None,
        });
        each.collect()
    }

    /// Lists the attempts that run.
    pub fn running(&self) -> Vec<Attempt> {
        let records = self.store.records();
        let each = records.iter().filter_map(|(key, record)| match (key, record) {
            (Key::Claim(step), Record::Claim(claim)) => Some(Attempt {
                step: step.clone(),
                attempt: claim.attempt,
                epoch: claim.epoch,
                worker: claim.worker.clone(),
            }),
            _ => None,
        });
        each.collect()
    }

    /// Names what a running attempt has in flight.
    pub fn in_flight(&mut self, at: &Attempt) -> Vec<String> {
        let Some(Record::Effects(effects)) = self.store.load(&Key::Effects(at.step.clone())).0
        else {
            return Vec::new();
        };
        effects
            .iter()
            .filter(|(_, effect)| effect.is_open())
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Drives the task to its end.
    pub fn drive(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.sweep_all();
            if self.header().state.is_final() {
                break;
            }
            for at in self.running() {
                for name in self.in_flight(&at) {
                    assert_eq!(self.confirm(0, &at, &name), Ok(true), "a receipt is taken");
                }
                let said = self.complete(0, at, success(Vec::new()));
                assert_eq!(said, Ok(true), "a running attempt completes");
            }
            for step in self.ready() {
                match self.claim(0, step.as_str(), "w1") {
                    Ok(_) | Err(Refusal::NotClaimable { .. }) => {}
                    Err(other) => panic!("a ready step is not claimed: {other}"),
                }
            }
            self.answer_all();
            self.fire_next();
        }
        self.sweep_all();
        let header = self.header();
        let trail = &self.watch.history;
        assert!(header.state.is_final(), "it does not end: {header:#?}\n{trail:#?}");
        let work = self.store.members(WORK);
        assert!(work.is_empty(), "work is left after the end: {work:?}\n{trail:#?}");
        if self.watch.stop.is_some() {
            assert_eq!(header.state.as_str(), "cancelled", "a stop ends otherwise: {trail:#?}");
        }
        self.watch.fold(&self.task, &mut self.store);
    }

    fn answer_all(&mut self) {
        while self.header().task_holds > 0 {
            let Some(Record::Gate(gate)) = self.store.load(&Key::Gate).0 else { return };
            if self.header().effects_owed > 0 && self.header().open == 0 {
                self.find_out();
                continue;
            }
            let answer = match gate.holds[0].reason {
                HoldReason::Verification => Answer::Skip,
                _ => Answer::Retry,
            };
            assert_eq!(self.answer(None, answer), Ok(true), "a hold of the task is answered");
        }
        for (step, reason) in self.held() {
            let part = self.watch.part(&step);
            if !self.header().phase.wants(part) {
                continue;
            }
            if reason != HoldReason::Timer && self.word(step.as_str()) == "held" {
                let answer = match reason {
                    HoldReason::UncertainEffect => return self.find_out(),
                    HoldReason::EffectChanged => Answer::SendAlso,
                    _ => Answer::Skip,
                };
                let said = self.answer(Some(step.as_str()), answer);
                assert_eq!(said, Ok(true), "a held step is answered");
            }
        }
    }

    /// Finds out about each effect of which nobody knows.
    fn find_out(&mut self) {
        for (key, record) in self.store.records() {
            let (Key::Effects(step), Record::Effects(effects)) = (key, record) else { continue };
            if self.claim_of(step.as_str()).is_some() {
                continue;
            }
            for (name, effect) in effects.iter().filter(|(_, effect)| effect.is_open()) {
                self.now = self.now.max(effect.settled_by); // nobody can know before
                let command = Command::Answer {
                    step: Some(step.clone()),
                    answer: Answer::NotHappened,
                    note: None,
                    effect: Some(name.clone()),
                    receipt: None,
                };
                assert_eq!(self.run(0, command), Ok(true), "an effect is settled");
            }
        }
    }

    fn fire_next(&mut self) {
        let members = self.store.members(TIMERS);
        let timers = members.iter().filter_map(|member| TimerEntry::parse(member));
        let due = timers.filter(|timer| timer.kind != TimerKind::Remove);
        for timer in due.collect::<Vec<_>>() {
            self.now = self.now.max(timer.due);
            let step = timer.step.as_ref().map(StepId::as_str);
            assert!(self.fire(step, timer.kind).is_ok(), "a timer is refused: {timer:?}");
        }
    }
}

/// Makes an intent.
pub fn intent(name: &str, class: EffectClass) -> Intent {
    let request = (name != MAIN_EFFECT).then(|| Payload::Inline(serde_json::json!({ "to": name })));
    Intent {
        name: name.to_owned(),
        class,
        request,
        request_sha256: "5".repeat(64),
        window: Span::from_secs(10),
        request_timeout: Span::from_secs(5),
        target: None,
        says: None,
    }
}

/// Names an attempt as one that speaks of its effect.
pub fn speaker(at: &Attempt, name: &str) -> Speaker {
    let Attempt { step, attempt, epoch, worker } = at.clone();
    Speaker { step, name: name.to_owned(), attempt, epoch, worker }
}

/// Makes the command that claims a step.
pub fn claim_command(step: &str, worker: &str) -> Command {
    Command::ClaimStep {
        step: id(step),
        attempt: None,
        worker: WorkerId::new(worker).expect("a name"),
        length: Span::from_secs(30),
        handlers: None,
    }
}
