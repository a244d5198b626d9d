//! What anybody may do next, and what comes of it.

use standfast_domain::decide::{Command, TimerKind};
use standfast_domain::hold::Answer;
use standfast_domain::ids::{StepId, WorkerId};
use standfast_domain::index::{TIMERS, TimerEntry, WORK, parse_ready_member};
use standfast_domain::outcome::{EffectEnd, Failure, Outcome, Success};
use standfast_domain::record::{
    Claim, Key, NotLanded, Part, Payload, Phase, Record, Status, StopMode,
};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::{Span, Time};
use standfast_domain::view::{Attempt, View};

use super::effects::{self, Stage};
use super::rules::{Broken, Rule};
use super::setting::{Setting, Sight};
use super::state::{Message, Run, Said, State};

/// How long a claim lasts.
const CLAIM: Span = Span::from_secs(30);
/// The process through which people speak; worker 0 stands in it too.
const PERSON: usize = 0;
/// The process of the scheduler; worker 1 stands in it too.
const SCHEDULER: usize = 1;

/// One thing that somebody does. A worker stands in the process of its number.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// A message reaches a worker, which claims the attempt and runs it. Twice: the message
    /// stays under way.
    Deliver { worker: usize, message: Message, twice: bool },
    /// A message is lost, or was never sent.
    Lose(Message),
    /// The sweep sends a message for a ready step that has none.
    Publish(StepId),
    /// A worker tells an outcome. Unheard: the answer to it is lost, and it will tell again.
    Tell { worker: usize, said: Said, heard: bool },
    /// A worker records that it is about to send.
    Intend { worker: usize },
    /// A worker sends. Unheard: no answer comes.
    Send { worker: usize, heard: bool },
    /// A worker tells the receipt of what it has sent, late.
    Confirm { worker: usize },
    /// A worker asks the outside world whether an effect has happened.
    Ask { worker: usize },
    /// A worker gives its attempt back.
    HandBack { worker: usize },
    /// A worker keeps its claim alive.
    Renew { worker: usize },
    /// A process has read all records for a command and is slow to go on.
    Look { process: usize },
    /// A process ends at once and starts anew; what it and its worker knew is gone.
    Crash { process: usize },
    /// A claim's time passes and the scheduler takes the attempt over.
    Expire(StepId),
    /// A timer's time comes and it fires.
    Fire { step: Option<StepId>, kind: TimerKind },
    /// A process carries out what an entry of the `work` index calls for: it left the entry
    /// itself, or it is the scheduler's and sweeps.
    Sweep { process: usize, member: String },
    /// A person answers a hold.
    Answer { step: Option<StepId>, answer: Answer },
    /// A person stops the task.
    Stop(StopMode),
    /// A person stops one attempt.
    StopAttempt { step: StepId, attempt: u32 },
    /// A person pauses the task.
    Pause,
    /// A person ends the pause.
    Resume,
}

impl Setting {
    /// Lists what may happen in a state.
    pub fn possible(&self, state: &State, deeds: &mut Vec<Deed>) {
        let faults = state.left.faults > 0;
        for worker in 0..state.workers.len() {
            self.of_worker(state, worker, deeds);
            let view = &state.views[worker];
            if faults && !state.is_current(worker) {
                deeds.push(Deed::Look { process: worker });
            }
            if faults && !(view.is_empty() && state.workers[worker].is_none()) {
                deeds.push(Deed::Crash { process: worker });
            }
        }
        if faults {
            deeds.extend(state.messages.iter().cloned().map(Deed::Lose));
        }
        deeds.extend(unsent(state).into_iter().map(Deed::Publish));
        for (step, claim) in state.claims() {
            let alive = state.workers.iter().flatten();
            let mut alive = alive.filter(|run| run.step == *step && run.attempt == claim.attempt);
            if faults || alive.next().is_none() {
                deeds.push(Deed::Expire(step.clone()));
            }
        }
        deeds.extend(timers(state).map(|TimerEntry { step, kind, .. }| Deed::Fire { step, kind }));
        for member in state.members(WORK) {
            let sweep = |process| Deed::Sweep { process, member: member.clone() };
            let goes_on = state.is_abreast(PERSON).then(|| sweep(PERSON));
            deeds.extend(goes_on.into_iter().chain([sweep(SCHEDULER)]));
        }
        if state.left.answers > 0 {
            answers(state, deeds);
        }
        if state.left.stops > 0 && !state.header().state.is_final() {
            deeds.extend(self.modes.iter().map(|mode| Deed::Stop(*mode)));
        }
        if state.left.pauses > 0 && state.header().phase == Phase::Main {
            deeds.push(Deed::Pause);
        }
        if state.header().paused && self.bounds.pauses > 0 {
            deeds.push(Deed::Resume);
        }
        if state.left.attempt_stops > 0 {
            let stop = |(step, claim): (&StepId, &Claim)| (step.clone(), claim.attempt);
            let running = state.claims().map(stop);
            deeds.extend(running.map(|(step, attempt)| Deed::StopAttempt { step, attempt }));
        }
    }

    fn of_worker(&self, state: &State, worker: usize, deeds: &mut Vec<Deed>) {
        let faults = state.left.faults > 0;
        let Some(run) = &state.workers[worker] else {
            for message in &state.messages {
                let deliver = |twice| Deed::Deliver { worker, message: message.clone(), twice };
                deeds.push(deliver(false));
                if faults {
                    deeds.push(deliver(true));
                }
            }
            return;
        };
        if let Some(said) = run.told {
            deeds.push(Deed::Tell { worker, said, heard: true });
            return;
        }
        self.of_effect(state, worker, run, deeds);
        for said in self.ends(state, run) {
            deeds.push(Deed::Tell { worker, said, heard: true });
            if faults {
                deeds.push(Deed::Tell { worker, said, heard: false });
            }
        }
        if faults {
            deeds.push(Deed::HandBack { worker });
        }
        if self.renews && is_older(state, run) {
            deeds.push(Deed::Renew { worker });
        }
    }

    /// Gives the state that a deed leads to.
    pub fn after(&self, state: &State, deed: &Deed) -> State {
        let mut next = state.clone();
        match deed {
            Deed::Deliver { worker, message, twice } => {
                if *twice {
                    next.left.faults -= 1;
                } else {
                    next.messages.remove(message);
                }
                self.claim(&mut next, *worker, message);
            }
            Deed::Lose(message) => {
                next.left.faults -= 1;
                next.messages.remove(message);
            }
            Deed::Publish(step) => publish(&mut next, step),
            Deed::Tell { worker, said, heard } => self.tell(&mut next, *worker, *said, *heard),
            Deed::Intend { worker } => self.intend(&mut next, *worker),
            Deed::Send { worker, heard } => self.send(&mut next, *worker, *heard),
            Deed::Confirm { worker } => self.confirm(&mut next, *worker),
            Deed::Ask { worker } => self.ask(&mut next, *worker),
            Deed::HandBack { worker } => {
                next.left.faults -= 1;
                let at = self.attempt(&mut next, *worker);
                let command = Command::HandBack { at: at.clone(), why: String::new() };
                let _ = self.say(&mut next, *worker, &at, &command); // it may be over
            }
            Deed::Renew { worker } => {
                let kept = next.workers[*worker].clone();
                let at = self.attempt(&mut next, *worker);
                let command = Command::RenewClaim { at: at.clone(), details: None, alive: true };
                if self.say(&mut next, *worker, &at, &command).is_ok() {
                    next.workers[*worker] = kept; // else it ends its attempt
                }
            }
            Deed::Look { process } => {
                next.left.faults -= 1;
                let view = self.read(&next);
                next.cache(*process, view);
            }
            Deed::Crash { process } => {
                next.left.faults -= 1;
                next.workers[*process] = None;
                next.cache(*process, View::new(self.task.clone()));
            }
            Deed::Expire(step) => self.expire(&mut next, step),
            Deed::Fire { step, kind } => self.fire(&mut next, step.as_ref(), *kind),
            Deed::Sweep { process, member } => self.sweep(&mut next, *process, member),
            Deed::Answer { .. }
            | Deed::Stop(_)
            | Deed::StopAttempt { .. }
            | Deed::Pause
            | Deed::Resume => {
                self.speak(&mut next, deed);
            }
        }
        next
    }

    /// A person says something; it may come too late.
    fn speak(&self, next: &mut State, deed: &Deed) {
        let command = match deed {
            Deed::Answer { step, answer } => {
                next.left.answers -= 1;
                let (step, answer) = (step.clone(), *answer);
                if let (Some(step), Answer::NotHappened) = (&step, answer) {
                    next.now = next.now.max(effects::settled_by(next, step)); // it is waited for
                }
                let (note, effect, receipt) = (None, None, None);
                Command::Answer { step, answer, note, effect, receipt }
            }
            Deed::StopAttempt { step, attempt } => {
                next.left.attempt_stops -= 1;
                Command::StopAttempt { step: step.clone(), attempt: *attempt, reason: None }
            }
            Deed::Stop(mode) => {
                next.left.stops -= 1;
                Command::Stop { reason: None, mode: *mode }
            }
            Deed::Pause => {
                next.left.pauses -= 1;
                Command::Pause { reason: None }
            }
            _ => Command::Resume { reason: None },
        };
        let _ = self.execute(next, PERSON, &command);
    }

    fn claim(&self, next: &mut State, worker: usize, message: &Message) {
        let command = Command::ClaimStep {
            step: message.step.clone(),
            attempt: Some(message.attempt),
            worker: name(worker),
            length: CLAIM,
            handlers: None,
        };
        if self.execute(next, worker, &command) != Ok(true) {
            return; // the message has done its work
        }
        let (_, claim) = next
            .claims()
            .find(|(step, _)| **step == message.step)
            .expect("it was claimed just now");
        let (attempt, epoch) = (claim.attempt, claim.epoch);
        let (step, stage, send_before) = (message.step.clone(), Stage::Begun, Time(0));
        let run = Run { step, attempt, epoch, stage, send_before, told: None };
        next.workers[worker] = Some(run);
    }

    fn tell(&self, next: &mut State, worker: usize, said: Said, heard: bool) {
        let told = next.workers[worker].clone().expect("it runs an attempt");
        let outcome = match said {
            Said::Success => {
                let output = Payload::Inline(serde_json::Value::Null);
                let (artifacts, checkpoint, then) = (Vec::new(), None, Vec::new());
                Outcome::Succeeded(Success { output, artifacts, checkpoint, then })
            }
            Said::Failure(class) => {
                let effect = match told.stage {
                    Stage::Begun | Stage::Intended => EffectEnd::NotLanded(NotLanded::NotSent),
                    Stage::Unanswered | Stage::Answered | Stage::Asking => EffectEnd::Unknown,
                };
                Outcome::Failed(Failure { effect, ..Failure::new(class, "it failed") })
            }
        };
        let (at, outcome) = (self.attempt(next, worker), Box::new(outcome));
        let added = Vec::new();
        let command =
            Command::CompleteAttempt { at: at.clone(), outcome, added, cost_usd_micros: 0 };
        if self.say(next, worker, &at, &command) == Ok(false) {
            self.see(Sight::TakenOnce);
        }
        if told.told.is_none() && said != Said::Success {
            next.left.failures = next.left.failures.saturating_sub(1);
        }
        if !heard {
            next.left.faults -= 1;
            next.workers[worker] = Some(Run { told: Some(said), ..told });
        }
    }

    /// Names the attempt of a worker, which ends with what is said of it.
    pub fn attempt(&self, next: &mut State, worker: usize) -> Attempt {
        let run = next.workers[worker].take().expect("it runs an attempt");
        let Run { step, attempt, epoch, .. } = run;
        Attempt { step, attempt, epoch, worker: name(worker) }
    }

    /// Says something of an attempt, which is heard only while the worker holds it.
    pub fn say(
        &self,
        next: &mut State,
        worker: usize,
        at: &Attempt,
        command: &Command,
    ) -> Result<bool, Refusal> {
        let epoch = next.gate().epoch;
        let held = next.claims().any(|(step, claim)| {
            let same = (&claim.worker, claim.attempt, claim.epoch);
            *step == at.step && same == (&at.worker, at.attempt, at.epoch) && epoch == at.epoch
        });
        let course = course(next, &at.step);
        let said = self.execute(next, worker, command);
        let late = said == Ok(true) && !held;
        if late && course != self::course(next, &at.step) {
            let why = format!("{command:?} is taken under an old fence");
            next.broken = Some(Broken { rule: Rule::Fences, why });
        }
        if late || matches!(said, Err(Refusal::Fenced { .. })) {
            self.see(Sight::LateRefused);
        }
        said
    }

    fn expire(&self, next: &mut State, step: &StepId) {
        let (_, claim) = next.claims().find(|(own, _)| *own == step).expect("it is claimed");
        let (attempt, due) = (claim.attempt, claim.expires_at);
        let mut holders = next.workers.iter().flatten();
        if holders.any(|run| run.step == *step && run.attempt == attempt) {
            next.left.faults -= 1;
        }
        next.now = next.now.max(due);
        let command = Command::ExpireClaim { step: step.clone(), attempt, proven: false };
        if self.execute(next, SCHEDULER, &command) == Ok(true) {
            self.see(Sight::TakenOver);
        }
    }

    fn fire(&self, next: &mut State, step: Option<&StepId>, kind: TimerKind) {
        let due = timers(next).find(|timer| timer.step.as_ref() == step && timer.kind == kind);
        next.now = next.now.max(due.expect("it is listed").due);
        let command = Command::FireTimer { step: step.cloned(), kind, why: None };
        let _ = self.execute(next, SCHEDULER, &command); // a late timer does nothing
    }
}

/// Gives where a step stands and who runs it: what a fence closes.
fn course(state: &State, step: &StepId) -> (Option<Status>, Option<Claim>) {
    let status = state.statuses().find(|(own, _)| *own == step);
    let claim = state.claims().find(|(own, _)| *own == step);
    (status.map(|(_, status)| status.clone()), claim.map(|(_, claim)| claim.clone()))
}

/// Names a worker.
pub fn name(worker: usize) -> WorkerId {
    WorkerId::new(["w0", "w1"][worker]).expect("a name")
}

/// Lists the timers that a task still has, but the one of its removal.
pub fn timers(state: &State) -> impl Iterator<Item = TimerEntry> {
    let timers = state.members(TIMERS).filter_map(|member| TimerEntry::parse(member));
    timers.filter(|timer| timer.kind != TimerKind::Remove && !is_looked_at(state, timer))
}

/// True for a clock that has struck in the pause that lasts: it is looked at again and again,
/// and nothing comes of that before the pause ends.
fn is_looked_at(state: &State, timer: &TimerEntry) -> bool {
    let step = timer.step.clone().filter(|_| state.header().paused);
    match step.and_then(|step| state.get(&Key::Step(step))) {
        Some(Record::Step(own)) => own.look_at.is_some(),
        _ => false,
    }
}

/// Lists ready steps that no message under way speaks of.
pub fn unsent(state: &State) -> Vec<StepId> {
    let ready = state.members("ready:default").filter_map(|member| parse_ready_member(member));
    let current = |step: &StepId| Message {
        step: step.clone(),
        attempt: attempt_of(state, step),
        epoch: state.gate().epoch,
    };
    ready.map(|(_, _, step)| step).filter(|step| !state.messages.contains(&current(step))).collect()
}

fn publish(next: &mut State, step: &StepId) {
    let (attempt, epoch) = (attempt_of(next, step), next.gate().epoch);
    next.messages.insert(Message { step: step.clone(), attempt, epoch });
}

fn attempt_of(state: &State, step: &StepId) -> u32 {
    match state.get(&Key::Step(step.clone())) {
        Some(Record::Step(own)) => own.attempt,
        _ => 1,
    }
}

/// True if time has passed since the claim was last renewed.
fn is_older(state: &State, run: &Run) -> bool {
    state.claims().any(|(step, claim)| {
        *step == run.step
            && claim.attempt == run.attempt
            && claim.expires_at < state.now.after(CLAIM)
    })
}

/// Lists what a person may answer: what the open holds take.
fn answers(state: &State, deeds: &mut Vec<Deed>) {
    if let Some(hold) = state.gate().holds.first() {
        let each = hold.reason.answers().iter();
        deeds.extend(each.map(|answer| Deed::Answer { step: None, answer: *answer }));
    }
    effects::answers(state, deeds);
    for (step, status) in state.statuses() {
        let part = if step.undone().is_some() { Part::Undo } else { Part::Main };
        if !state.header().phase.wants(part) {
            continue;
        }
        if let Status::Held { hold } = status {
            let of_effect = |answer: &&Answer| {
                matches!(answer, Answer::Happened | Answer::NotHappened) // listed already
            };
            let each = hold.reason.answers().iter().filter(|answer| !of_effect(answer));
            let step = Some(step.clone());
            deeds.extend(each.map(|answer| Deed::Answer { step: step.clone(), answer: *answer }));
        }
    }
}
