//! Two processes with cached views on one store, driven as the engine's lanes drive theirs.

use std::collections::BTreeSet;

use serde_json::json;
use standfast_domain::commit::{CommitId, IndexChange};
use standfast_domain::decide::{
    Command, Decision, Given, Resolution, Submission, decide, hint, relied_on, to_resolve,
};
use standfast_domain::event::Event;
use standfast_domain::evolve::{event_time, evolve, header_todo};
use standfast_domain::ids::{Principal, StepId, TaskId};
use standfast_domain::index::{CLAIMS, ClaimEntry, entries, parse_step_member};
use standfast_domain::plan::Uses;
use standfast_domain::record::{Key, Phase, Record};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::stage::{Staged, stage};
use standfast_domain::time::{Span, Time};
use standfast_domain::view::{Todo, View};

use super::check::Watch;
use super::store::Store;

/// What one command came to: whether it changed something, or why it was refused.
pub type Said = Result<bool, Refusal>;

/// The store, the processes and what is watched.
pub struct World {
    pub task: TaskId,
    pub store: Store,
    pub now: Time,
    pub watch: Watch,
    /// Decides what templates and checks give.
    pub seed: u64,
    /// Records that one commit changes before what follows waits.
    pub soft_max: usize,
    views: [View; 2],
    commits: u64,
}

/// What deciding a batch gave.
struct Decided {
    said: Vec<Said>,
    staged: Option<Staged>,
    events: Vec<Event>,
}

/// Draws a number from a seed and names.
pub fn draw(seed: u64, parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = bytes.fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash ^ hash >> 29
}

impl World {
    /// Submits a plan.
    pub fn new(submission: Submission, seed: u64, soft_max: usize) -> Self {
        let task = TaskId::random([7; 16]);
        let views = [View::new(task.clone()), View::new(task.clone())];
        let watch = Watch::new(&submission);
        let (store, now) = (Store::default(), Time(1_000_000));
        let mut world = Self { task, store, now, watch, seed, soft_max, views, commits: 0 };
        let said = world.execute(0, &[Command::Submit(Box::new(submission))]);
        assert_eq!(said, [Ok(true)], "a new task is accepted");
        world
    }

    /// Carries out one command in one process.
    pub fn run(&mut self, process: usize, command: Command) -> Said {
        self.execute(process, &[command]).pop().expect("one answer a command")
    }

    /// Carries out a batch: decides on the cached view, loads what is missing, commits, and
    /// begins anew when the store refuses.
    pub fn execute(&mut self, process: usize, batch: &[Command]) -> Vec<Said> {
        let mut fresh = self.views[process].is_empty();
        for _ in 0..200 {
            self.commits += 1;
            let id = CommitId(draw(self.commits, &["commit"]));
            let mut view =
                std::mem::replace(&mut self.views[process], View::new(self.task.clone()));
            let decided = self.decide(&mut view, batch, id);
            let doubtful = decided.said.iter().any(|said| !matches!(said, Ok(true)));
            if doubtful && !fresh {
                view.refused();
                fresh = true;
                self.views[process] = view;
                continue;
            }
            let Some(staged) = decided.staged else {
                self.views[process] = view;
                return decided.said;
            };
            for (key, _, _) in view.changes() {
                self.store.learn(key);
            }
            let before = self.store.records();
            let mut snapshot = self.store.clone();
            if self.store.commit(&staged.commit) {
                view.committed(id);
                self.views[process] = view;
                self.same_on_full_view(&mut snapshot, batch, id, &staged);
                self.watch.commit(&self.task, &mut self.store, &before, &decided.events);
                return decided.said;
            }
            view.refused();
            fresh = true;
            self.views[process] = view;
        }
        panic!("the store refuses for ever: {batch:?}");
    }

    /// A view of all records decides as one of a few did.
    fn same_on_full_view(
        &mut self,
        snapshot: &mut Store,
        batch: &[Command],
        id: CommitId,
        staged: &Staged,
    ) {
        let mut view = View::new(self.task.clone());
        for key in snapshot.records().into_keys() {
            let (record, version) = snapshot.load(&key);
            view.load(key, record, version);
        }
        std::mem::swap(&mut self.store, snapshot);
        let full = self.decide(&mut view, batch, id).staged;
        let Some(full) = full else { panic!("only the partial view acts: {batch:?} {staged:?}") };
        std::mem::swap(&mut self.store, snapshot);
        assert_eq!(full.commit.writes, staged.commit.writes, "full and partial views differ");
        assert_eq!(full.commit.events, staged.commit.events, "full and partial views differ");
        assert_eq!(full.commit.indexes, staged.commit.indexes, "full and partial views differ");
        assert_eq!(full.wakes, staged.wakes, "full and partial views differ");
    }

    fn decide(&mut self, view: &mut View, batch: &[Command], id: CommitId) -> Decided {
        for _ in 0..2_000 {
            let start = view.savepoint();
            let hinted: BTreeSet<Key> = batch.iter().flat_map(hint).collect();
            let decided = view.need(hinted).and_then(|()| self.run_batch(view, batch, id));
            match decided {
                Ok(decided) => return decided,
                Err(Halt::Need(keys)) => {
                    view.rollback(start);
                    view.todo.clear();
                    self.load(view, keys);
                }
                Err(Halt::Refuse(refusal)) => panic!("a follow-up was refused: {refusal}"),
            }
        }
        panic!("its records do not end: {batch:?}");
    }

    /// Loads records, the header first in every load, to tell whether it has changed since.
    fn load(&mut self, view: &mut View, mut keys: Vec<Key>) {
        keys.retain(|key| *key != Key::Header);
        keys.insert(0, Key::Header);
        let (known, before) = (view.knows(&Key::Header), view.version(&Key::Header));
        for key in keys {
            let (record, version) = self.store.load(&key);
            if key == Key::Header && known && version != before {
                view.forget_mutable();
            }
            view.load(key, record, version);
        }
    }

    fn run_batch(&self, view: &mut View, batch: &[Command], id: CommitId) -> Result<Decided, Halt> {
        let (mut events, mut said) = (Vec::new(), Vec::new());
        for command in batch {
            let savepoint = view.savepoint();
            let (before, todo) = (events.len(), view.todo.clone());
            match self.act(view, command, &mut events) {
                Ok(()) => said.push(Ok(events.len() > before)),
                Err(Halt::Refuse(refusal)) => {
                    view.rollback(savepoint);
                    events.truncate(before);
                    view.todo = todo;
                    said.push(Err(refusal));
                }
                Err(need @ Halt::Need(_)) => return Err(need),
            }
        }
        while let Some(todo) = view.todo.pop_front() {
            let closing = matches!(view.header()?.phase, Phase::Closing { .. });
            let advance = todo == Todo::Advance && closing;
            if !advance && view.changes_len() < self.soft_max {
                let command = self.command_for(view, &todo)?;
                self.act(view, &command, &mut events)?;
            }
        }
        let acted = batch.iter().zip(&said).filter(|(_, said)| **said == Ok(true));
        let relied: Vec<Key> = acted.flat_map(|(command, _)| relied_on(command)).collect();
        let staged = stage(view, &mut events, &relied, id, &[])?;
        Ok(Decided { said, staged, events })
    }

    fn act(&self, view: &mut View, command: &Command, events: &mut Vec<Event>) -> Result<(), Halt> {
        let header = view.knows(&Key::Header).then(|| view.header().ok()).flatten();
        let now = event_time(header, self.now);
        let actor = Principal::local();
        let given = Given { now, actor: actor.clone() };
        let Decision { changes, payloads } = decide(view, command, &given)?;
        payloads.into_iter().for_each(|(key, record)| view.create(key, record));
        for change in changes {
            let event = Event { sequence: 0, at: now, actor: actor.clone(), change };
            evolve(view, &event)?;
            events.push(event);
        }
        Ok(())
    }

    fn command_for(&self, view: &View, todo: &Todo) -> Result<Command, Halt> {
        Ok(match todo {
            Todo::Release(step) => {
                Command::ReleaseStep { step: step.clone(), resolution: self.resolve(view, step)? }
            }
            Todo::Tell(step) => Command::TellDependents { step: step.clone() },
            Todo::Roots => Command::OpenRoots,
            Todo::Verify => Command::Verify { fault: self.fault() },
            Todo::Advance => Command::Advance { claimed: Vec::new() },
        })
    }

    fn fault(&self) -> Option<String> {
        (self.seed % 5 == 1).then(|| "`complete_when` is false".to_owned())
    }

    fn resolve(&self, view: &View, step: &StepId) -> Result<Resolution, Halt> {
        let Some(definition) = to_resolve(view, step)? else {
            return Ok(Resolution::Run { with: None, check: None });
        };
        let round = view.step(step)?.round;
        let drawn = draw(self.seed, &[step.as_str(), &round.to_string()]);
        if definition.templated {
            match drawn % 8 {
                // An undo has no condition; its input may not resolve, but in no single scenario.
                0 if step.undone().is_none() => return Ok(Resolution::Skip),
                1 if step.undone().is_none() || self.seed > 1 => {
                    return Ok(Resolution::Fault { message: "no such value".to_owned() });
                }
                _ => {}
            }
        }
        Ok(match definition.plan.uses {
            Uses::Timer => Resolution::Timer { due: self.now.after(Span::from_secs(drawn % 30)) },
            Uses::Handler(_) if definition.templated => {
                // Some rounds send what an earlier one has sent, some something else.
                let with = Some(json!({ "round": drawn % 2 }));
                Resolution::Run { with, check: None }
            }
            Uses::Handler(_) => Resolution::Run { with: None, check: None },
        })
    }

    /// Carries out what an entry of the `work` index calls for, as the sweep does.
    pub fn sweep(&mut self, process: usize, member: &str) {
        let (_, step) = parse_step_member(member).expect("an entry reads back");
        let Some(step) = step else { return self.settle(process) };
        let mut view = View::new(self.task.clone());
        let telling = match self.store.load(&Key::Step(step.clone())).0 {
            Some(Record::Step(state)) => state.telling.is_some(),
            _ => return,
        };
        let todo = if telling { Todo::Tell(step) } else { Todo::Release(step) };
        let command = loop {
            match self.command_for(&view, &todo) {
                Ok(command) => break command,
                Err(Halt::Need(keys)) => self.load(&mut view, keys),
                Err(Halt::Refuse(refusal)) => panic!("a follow-up was refused: {refusal}"),
            }
        };
        let said = self.run(process, command);
        assert!(said.is_ok(), "a follow-up was refused: {said:?}");
    }

    /// Goes on with what the header calls for.
    pub fn settle(&mut self, process: usize) {
        let header = self.store.header();
        if header.state.is_final() {
            if header.uncleared {
                self.clear(process);
            }
            return;
        }
        let command = match header_todo(&header) {
            Some(Todo::Advance) => Command::Advance { claimed: self.claimed() },
            Some(Todo::Roots) => Command::OpenRoots,
            Some(Todo::Verify) => Command::Verify { fault: self.fault() },
            Some(Todo::Release(_) | Todo::Tell(_)) | None => return,
        };
        let said = self.run(process, command);
        assert!(said.is_ok(), "a follow-up was refused: {said:?}");
    }

    fn claimed(&self) -> Vec<StepId> {
        let members = self.store.members(CLAIMS);
        members.iter().filter_map(|member| Some(ClaimEntry::parse(member)?.step)).collect()
    }

    fn clear(&mut self, process: usize) {
        for (key, record) in self.store.records() {
            if matches!(key, Key::Step(_)) {
                let stale = entries(&self.task, &key, &record).into_iter();
                let gone = |(index, member)| IndexChange { index, member, add: false };
                let changes: Vec<IndexChange> = stale.map(gone).collect();
                self.store.change(&changes);
            }
        }
        assert_eq!(self.run(process, Command::EntriesCleared), Ok(true));
    }
}
