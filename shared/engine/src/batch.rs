//! Decides all commands that wait for one task as one batch, on one view. No I/O: what is
//! missing is named, loaded by the lane, and the batch is decided anew.

mod ahead;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use standfast_domain::commit::CommitId;
use standfast_domain::decide::{
    Command, Decision, Given, decide, hint, relied_on, written_at_birth,
};
use standfast_domain::event::{Change, Event};
use standfast_domain::evolve::{event_time, evolve};
use standfast_domain::ids::{HandlerName, Principal, Queue, StepId, WorkerId};
use standfast_domain::record::{Key, Phase};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::stage::{Staged, stage};
use standfast_domain::time::{Span, Time};
use standfast_domain::view::{Savepoint, Todo, View};

pub(crate) use self::ahead::{claim_wants, given_by_needs};
use self::ahead::{foreseen, returns};
use crate::ports::BATCH_MAX;
use crate::resolve;

/// Records that one batch may change before what follows waits for the next: with room for the
/// last command, and mostly within what a commit may hold. Where it is not, since guards and index
/// entries count too, the batch is decided anew with half the room.
pub(crate) const ROOM: usize = 250;

/// One command of a batch.
pub(crate) struct Asked<'a> {
    pub command: &'a Command,
    pub actor: &'a Principal,
    pub wants: &'a [Key],
    pub stay: Option<&'a Stay>,
}

/// What a worker would go on with once its outcome is taken: a step that this releases, of the
/// same queue.
#[derive(Clone, Debug)]
pub struct Stay {
    /// The queue.
    pub queue: Queue,
    /// The worker.
    pub worker: WorkerId,
    /// As whom it acts.
    pub principal: Principal,
    /// How long the claim lasts unless renewed.
    pub length: Span,
    /// The handlers that the worker has.
    pub handlers: Arc<BTreeSet<HandlerName>>,
}

impl Stay {
    fn claim(&self, step: StepId, attempt: u32) -> Command {
        Command::ClaimStep {
            step,
            attempt: Some(attempt),
            worker: self.worker.clone(),
            length: self.length,
            handlers: Some(self.handlers.clone()),
        }
    }
}

/// What deciding a batch gave. Handed on in a box, since it is large and moved often.
pub(crate) struct Decided {
    /// For each command, in order: accepted or refused. Fewer than there were commands if the
    /// rest had no room in this commit.
    pub results: Vec<Result<(), Refusal>>,
    /// True for commands that changed something.
    pub acted: Vec<bool>,
    /// The steps that workers stay with: by the command's place, the command that claims it.
    pub stayed: BTreeMap<usize, Command>,
    /// What is to be stored, once it is staged; `None`: nothing changed.
    pub staged: Option<Staged>,
    /// The records that the commit is to give back, in order.
    pub returns: Vec<Key>,
    /// Records that commands relied on and that may change without the header.
    relied: Vec<Key>,
    /// What follows and had no room.
    pub left: Vec<Todo>,
    /// True if a hold of the whole task ended: steps that were ready meanwhile may start.
    pub released: bool,
    /// What happened, in order.
    events: Vec<Event>,
    /// Where the view stood before.
    start: Savepoint,
    /// The store's time: by which it was decided, then that of its commit.
    pub now: Time,
}

impl Decided {
    /// Makes what is to be stored. On `Err`, the view is as before the batch. Apart from deciding,
    /// so that a lane does each for many batches in a row: the code of both does not fit into a
    /// processor's first cache.
    pub fn stage(&mut self, view: &mut View, id: CommitId) -> Result<(), Halt> {
        match stage(view, &mut self.events, &self.relied, id, &self.returns) {
            Ok(staged) => {
                self.staged = staged;
                Ok(())
            }
            Err(halt) => {
                undo(view, self.start);
                Err(halt)
            }
        }
    }

    /// Says what of the staged commit is more than a store takes, if anything is. The view is
    /// then as before the batch.
    pub fn excess(&self, view: &mut View) -> Option<String> {
        let commit = &self.staged.as_ref()?.commit;
        let parts = [
            ("guards", commit.guards.len()),
            ("records", commit.writes.len()),
            ("events", commit.events.len()),
            ("index changes", commit.indexes.len()),
        ];
        let (name, number) = parts.into_iter().find(|(_, number)| *number > BATCH_MAX)?;
        undo(view, self.start);
        Some(format!("{number} {name} in one commit, at most {BATCH_MAX} are taken"))
    }
}

fn undo(view: &mut View, start: Savepoint) {
    view.rollback(start);
    view.todo.clear();
}

/// Decides a batch, and what an earlier commit had no room for. On `Err`, the view is as
/// before and these records must be loaded. With a room of one record only the first command is
/// decided, or the first thing left.
pub(crate) fn decide_batch(
    view: &mut View,
    batch: &[Asked<'_>],
    left: &[Todo],
    now: Time,
    room: usize,
) -> Result<Box<Decided>, Vec<Key>> {
    let missing = first_needs(view, batch);
    if !missing.is_empty() {
        return Err(missing);
    }
    let start = view.savepoint();
    match run(view, batch, left, (now, room), start) {
        Ok(decided) => Ok(decided),
        Err(Halt::Need(keys)) => {
            undo(view, start);
            Err(keys)
        }
        Err(Halt::Refuse(refusal)) => {
            undo(view, start);
            // A command's own refusals are answers; one here means that the view broke.
            let results = batch.iter().map(|_| Err(refusal.clone())).collect();
            Ok(Box::new(Decided {
                results,
                acted: vec![false; batch.len()],
                stayed: BTreeMap::new(),
                staged: None,
                returns: Vec::new(),
                relied: Vec::new(),
                left: Vec::new(),
                released: false,
                events: Vec::new(),
                start,
                now,
            }))
        }
    }
}

fn first_needs(view: &View, batch: &[Asked<'_>]) -> Vec<Key> {
    let mut unknown = Vec::new();
    for asked in batch {
        unknown.extend(asked.wants.iter().filter(|key| !view.knows(key)).cloned());
        let hinted = hint(asked.command).into_iter();
        let read_ahead = foreseen(view, asked.command).chain(given_by_needs(view, asked.command));
        unknown.extend(hinted.chain(read_ahead).filter(|key| !view.knows(key)));
    }
    unknown.sort();
    unknown.dedup();
    unknown
}

fn run(
    view: &mut View,
    batch: &[Asked<'_>],
    left: &[Todo],
    (now, room): (Time, usize),
    start: Savepoint,
) -> Result<Box<Decided>, Halt> {
    let mut events = Vec::new();
    let mut ended = Vec::with_capacity(batch.len());
    let mut results = Vec::with_capacity(batch.len());
    let mut acted = Vec::with_capacity(batch.len());
    for asked in batch {
        if view.changes_len() >= room {
            break; // the rest is decided after this commit
        }
        let savepoint = view.savepoint();
        let (before, todo) = (events.len(), view.todo.clone());
        let done = current(view, asked.command, now).and_then(|command| {
            act(view, command.as_ref().unwrap_or(asked.command), asked.actor, now, &mut events)
        });
        match done {
            Ok(()) => {
                acted.push(events.len() > before);
                ended.push(events[before..].iter().any(ends_attempt));
                results.push(Ok(()));
            }
            Err(Halt::Refuse(refusal)) => {
                view.rollback(savepoint);
                events.truncate(before);
                view.todo = todo;
                acted.push(false);
                ended.push(false);
                results.push(Err(refusal));
            }
            Err(need @ Halt::Need(_)) => return Err(need),
        }
    }
    view.todo.extend(left.iter().cloned());
    let left = follow_up(view, (now, room), &mut events)?;
    // Whose result came too late has nothing to stay with.
    let ended = ended.iter().zip(batch).enumerate().filter(|(_, (ended, _))| **ended);
    let stays = ended.filter_map(|(place, (_, asked))| Some((place, asked.stay?)));
    let stayed = stay(view, stays, now, &mut events)?;
    let returns = returns(view, &events);
    let acting = acted.iter().zip(batch).filter(|(acted, _)| **acted);
    let relied = acting.flat_map(|(_, asked)| relied_on(asked.command)).collect();
    let released = |event: &Event| matches!(event.change, Change::TaskReleased { .. });
    let released = events.iter().any(released);
    Ok(Box::new(Decided {
        results,
        acted,
        stayed,
        staged: None,
        returns,
        relied,
        left,
        released,
        events,
        start,
        now,
    }))
}

/// Evaluates anew what a follow-up was told from outside: its sender evaluated it on records
/// that may have moved on since, to a new round for instance.
fn current(view: &View, command: &Command, now: Time) -> Result<Option<Command>, Halt> {
    let todo = match command {
        Command::ReleaseStep { step, .. } => Todo::Release(step.clone()),
        Command::Verify { .. } => Todo::Verify,
        _ => return Ok(None),
    };
    command_for(view, &todo, now).map(Some)
}

/// Decides one command and carries out what happens.
fn act(
    view: &mut View,
    command: &Command,
    actor: &Principal,
    now: Time,
    events: &mut Vec<Event>,
) -> Result<(), Halt> {
    let header = view.knows(&Key::Header).then(|| view.header().ok()).flatten();
    let now = event_time(header, now);
    let given = Given { now, actor: actor.clone() };
    let Decision { changes, payloads } = decide(view, command, &given)?;
    let ahead = matches!(command, Command::Submit(submission) if submission.written_ahead);
    for (key, record) in payloads {
        if ahead && !written_at_birth(&key) {
            view.load(key, Some(record), None);
        } else {
            // An artifact list is replaced by each success, all other payloads are new.
            view.create(key, record);
        }
    }
    for change in changes {
        let event = Event { sequence: 0, at: now, actor: actor.clone(), change };
        evolve(view, &event)?;
        events.push(event);
    }
    Ok(())
}

/// Carries out what the batch has made necessary, as far as one commit has room.
fn follow_up(
    view: &mut View,
    (now, room): (Time, usize),
    events: &mut Vec<Event>,
) -> Result<Vec<Todo>, Halt> {
    let mut left = Vec::new();
    let system = Principal::system();
    while let Some(todo) = view.todo.pop_front() {
        let fits = view.changes_len() < room;
        let command = match (&todo, fits) {
            (Todo::Advance, _) if matches!(view.header()?.phase, Phase::Closing { .. }) => None,
            (_, false) => None,
            (todo, true) => Some(command_for(view, todo, now)?),
        };
        match command {
            Some(command) => act(view, &command, &system, now, events)?,
            None if left.contains(&todo) => {}
            None => left.push(todo),
        }
    }
    Ok(left)
}

fn ends_attempt(event: &Event) -> bool {
    matches!(event.change, Change::StepSucceeded { .. } | Change::AttemptFailed { .. })
}

/// Claims steps that the batch has released for workers who stay; a step that may not start, or
/// that no worker stays for, wakes as usual.
fn stay<'s>(
    view: &mut View,
    stays: impl Iterator<Item = (usize, &'s Stay)>,
    now: Time,
    events: &mut Vec<Event>,
) -> Result<BTreeMap<usize, Command>, Halt> {
    let mut stays = stays.peekable();
    let mut stayed = BTreeMap::new();
    if stays.peek().is_none() {
        return Ok(stayed);
    }
    let ready = |event: &Event| match &event.change {
        Change::StepReady { step, attempt, queue, .. } => {
            Some((queue.clone(), step.clone(), *attempt))
        }
        _ => None,
    };
    let mut free: Vec<(Queue, StepId, u32)> = events.iter().filter_map(ready).collect();
    for (place, stay) in stays {
        let Some(at) = free.iter().position(|(queue, ..)| *queue == stay.queue) else { continue };
        let (_, step, attempt) = free.remove(at);
        let command = stay.claim(step.clone(), attempt);
        view.need(claim_wants(&step).into_iter().chain(given_by_needs(view, &command)))?;
        let (savepoint, before) = (view.savepoint(), events.len());
        match act(view, &command, &stay.principal, now, events) {
            Ok(()) => {
                stayed.insert(place, command);
            }
            Err(Halt::Refuse(_)) => {
                view.rollback(savepoint);
                events.truncate(before);
            }
            Err(need @ Halt::Need(_)) => return Err(need),
        }
    }
    Ok(stayed)
}

/// Gives the command that a follow-up means, with what it must be told from outside.
/// `Advance` is told that nothing is claimed: so it is right only in the `finally` phase.
pub(crate) fn command_for(view: &View, todo: &Todo, now: Time) -> Result<Command, Halt> {
    Ok(match todo {
        Todo::Release(step) => Command::ReleaseStep {
            step: step.clone(),
            resolution: resolve::resolution(view, step, now)?,
        },
        Todo::Tell(step) => Command::TellDependents { step: step.clone() },
        Todo::Roots => Command::OpenRoots,
        Todo::Verify => {
            view.need([Key::Header, Key::Meta])?;
            Command::Verify { fault: resolve::completion_fault(view)? }
        }
        Todo::Advance => Command::Advance { claimed: Vec::new() },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use standfast_domain::decide::Resolution;
    use standfast_domain::ids::TaskId;
    use standfast_domain::outcome::{Outcome, Success};
    use standfast_domain::record::{EffectClass, Payload, Record, StepState};
    use standfast_domain::view::Attempt;

    use super::*;
    use crate::submission::{Handlers, Submitted, prepare};

    struct AnyHandler;

    impl Handlers for AnyHandler {
        fn check(&self, _: &str, _: &serde_json::Value) -> Option<Vec<(String, String)>> {
            Some(Vec::new())
        }

        fn effect_class(&self, _: &str, _: &serde_json::Value) -> Result<EffectClass, String> {
            Ok(EffectClass::None)
        }
    }

    /// The view of a task that was just submitted.
    fn born(body: serde_json::Value) -> View {
        let by = Principal::local();
        let submitted = Submitted { body, plan_dir: None, by, key: None, traceparent: None };
        let submission = prepare(submitted, Span::from_secs(60), &AnyHandler, &BTreeSet::new());
        let mut view = View::unborn(TaskId::random([1; 16]));
        let submit = Command::Submit(Box::new(submission.expect("a right plan")));
        decided(&mut view, &submit, 1);
        view.committed(CommitId(1));
        view
    }

    fn decided(view: &mut View, command: &Command, id: u64) -> Box<Decided> {
        let actor = Principal::local();
        let asked = [Asked { command, actor: &actor, wants: &[], stay: None }];
        match decide_batch(view, &asked, &[], Time(1_000), ROOM) {
            Ok(mut decided) => {
                decided.stage(view, CommitId(id)).expect("what was decided is known");
                decided
            }
            Err(keys) => panic!("the view knows all, yet these are missing: {keys:?}"),
        }
    }

    fn succeeded(at: Attempt) -> Command {
        let outcome = Box::new(Outcome::Succeeded(Success {
            output: Payload::Inline(json!(null)),
            artifacts: Vec::new(),
            checkpoint: None,
            then: Vec::new(),
        }));
        Command::CompleteAttempt { at, outcome, added: Vec::new(), cost_usd_micros: 0 }
    }

    #[test]
    fn whose_result_came_too_late_is_given_nothing_to_stay_with() {
        let step = |id: &str, needs: &[&str]| json!({"id": id, "uses": "exec", "needs": needs});
        let steps = [step("late", &[]), step("good", &[]), step("next", &["good"])];
        let mut view = born(json!({"kind": "test", "steps": steps}));
        let worker = WorkerId::new("w").expect("a name");
        let stay = Stay {
            queue: Queue::new("default").expect("a name"),
            worker: worker.clone(),
            principal: Principal::local(),
            length: Span::from_secs(30),
            handlers: Arc::new([HandlerName::new("exec").expect("a name")].into()),
        };
        let claims = ["late", "good"].map(|id| stay.claim(StepId::new(id).expect("a name"), 1));
        for (id, command) in (2..).zip(&claims) {
            assert_eq!(decided(&mut view, command, id).acted, [true]);
            view.committed(CommitId(id));
        }
        let epoch = view.gate().expect("it is known").epoch;
        let at = |step| {
            let step = StepId::new(step).expect("a name");
            Attempt { step, attempt: 1, epoch, worker: worker.clone() }
        };
        let step = StepId::new("late").expect("a name");
        decided(&mut view, &Command::StopAttempt { step, attempt: 1, reason: None }, 4);
        view.committed(CommitId(4));
        let (late, good) = (succeeded(at("late")), succeeded(at("good")));
        let actor = Principal::local();
        let asked = [&late, &good].map(|command| Asked {
            command,
            actor: &actor,
            wants: &[],
            stay: Some(&stay),
        });
        let decided = decide_batch(&mut view, &asked, &[], Time(1_000), ROOM);
        let Ok(decided) = decided else { panic!("a view of a birth knows all") };
        assert_eq!(decided.acted, [true, true], "that it came too late is recorded");
        assert_eq!(decided.stayed.into_keys().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_release_evaluates_its_step_in_the_batch_and_trusts_no_earlier_answer() {
        let body = json!({
            "kind": "test",
            "input": {"n": 7},
            "steps": [{"id": "a", "uses": "exec", "with": {"n": "${{ input.n }}"}}],
        });
        let mut view = born(body);
        let step = StepId::new("a").expect("a name");
        let (resolution, state) = (Key::Resolution(step.clone(), 2), Key::Step(step.clone()));
        let again = StepState { round: 2, ..StepState::pending(0) };
        view.load(state, Some(Record::Step(again)), Some(CommitId(1)));
        view.load(Key::Gate, None, None);
        view.load(resolution.clone(), None, None);
        let stale = Resolution::Run { with: Some(json!({"n": 1})), check: None };
        decided(&mut view, &Command::ReleaseStep { step, resolution: stale }, 2);
        let found = view.get(&resolution).expect("it is known");
        assert_eq!(found, Some(&Record::Value(json!({"n": 7}))));
    }
}
