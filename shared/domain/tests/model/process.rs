//! How a process carries out a command: decides on its cached view, loads what is missing,
//! commits, and begins anew on fresh records when the store refuses; as the engine's lanes do.

use std::sync::Arc;

use standfast_domain::decide::{
    Command, Decision, Given, Resolution, decide, hint, relied_on, to_resolve,
};
use standfast_domain::event::Event;
use standfast_domain::evolve::{event_time, evolve, header_todo};
use standfast_domain::ids::{Principal, StepId};
use standfast_domain::index::{CLAIMS, ClaimEntry, entries, parse_step_member};
use standfast_domain::plan::Uses;
use standfast_domain::record::{Key, Phase, Record};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::stage::{Staged, stage};
use standfast_domain::time::{Span, Time};
use standfast_domain::view::{Todo, View};

use super::rules::{Broken, Rule};
use super::setting::{Setting, Sight};
use super::state::{Message, State};

/// How often one command is decided: on cached records, on fresh ones, and in between for the
/// records that deciding asks for.
const ROUNDS_MAX: usize = 100;
/// How long a timer step of a plan waits.
pub const TIMER_WAIT: Span = Span::from_secs(5);

/// What deciding a command gave.
struct Decided {
    /// Whether it changed something, or why it was refused.
    said: Result<bool, Refusal>,
    staged: Option<Staged>,
    events: Vec<Event>,
}

impl Setting {
    /// Carries out one command in one process.
    pub fn execute(
        &self,
        state: &mut State,
        process: usize,
        command: &Command,
    ) -> Result<bool, Refusal> {
        let mut view = (*state.views[process]).clone();
        let mut fresh = view.is_empty();
        let said = loop {
            let decided = match self.decide(state, &mut view, command) {
                Ok(decided) => decided,
                Err(why) => {
                    state.broken = Some(Broken { rule: Rule::FollowUps, why });
                    break Ok(false);
                }
            };
            let doubtful = !matches!(decided.said, Ok(true));
            if doubtful && !fresh {
                view.refused();
                fresh = true;
                continue;
            }
            let Some(staged) = decided.staged else { break decided.said };
            let before = state.records.clone();
            if state.commit(&staged.commit, &view) {
                view.committed(staged.commit.id);
                let wakes = staged.wakes.into_iter();
                state.messages.extend(wakes.map(|wake| Message {
                    step: wake.step,
                    attempt: wake.attempt,
                    epoch: wake.epoch,
                }));
                self.judge(state, &before, &decided.events);
                break decided.said;
            }
            self.see(Sight::CommitRefused);
            view.refused();
            fresh = true;
        };
        let ended = view.header().is_ok_and(|header| header.state.is_final());
        if ended {
            view = View::new(self.task.clone()); // what has ended is not cached
        }
        state.cache(process, view);
        said
    }

    fn decide(&self, state: &State, view: &mut View, command: &Command) -> Result<Decided, String> {
        for _ in 0..ROUNDS_MAX {
            let start = view.savepoint();
            let decided = view.need(hint(command)).and_then(|()| self.run(state, view, command));
            match decided {
                Ok(decided) => return Ok(decided),
                Err(Halt::Need(keys)) => {
                    view.rollback(start);
                    view.todo.clear();
                    load(state, view, keys);
                }
                Err(Halt::Refuse(refusal)) => return Err(refusal.to_string()),
            }
        }
        Err(format!("its records do not end: {command:?}"))
    }

    fn run(&self, state: &State, view: &mut View, command: &Command) -> Result<Decided, Halt> {
        let mut events = Vec::new();
        let savepoint = view.savepoint();
        let said = match act(state, view, command, &mut events) {
            Ok(()) => Ok(!events.is_empty()),
            Err(Halt::Refuse(refusal)) => {
                view.rollback(savepoint);
                events.clear();
                view.todo.clear();
                Err(refusal)
            }
            Err(need @ Halt::Need(_)) => return Err(need),
        };
        while let Some(todo) = view.todo.pop_front() {
            let closing = matches!(view.header()?.phase, Phase::Closing { .. });
            let advance = todo == Todo::Advance && closing;
            if !advance && view.changes_len() < self.room {
                let command = self.command_for(state, view, &todo)?;
                act(state, view, &command, &mut events)?;
            }
        }
        let relied = if said == Ok(true) { relied_on(command) } else { Vec::new() };
        let staged = stage(view, &mut events, &relied, state.next_commit(), &[])?;
        Ok(Decided { said, staged, events })
    }

    fn command_for(&self, state: &State, view: &View, todo: &Todo) -> Result<Command, Halt> {
        Ok(match todo {
            Todo::Release(step) => {
                let resolution = resolve(state.now, view, step)?;
                Command::ReleaseStep { step: step.clone(), resolution }
            }
            Todo::Tell(step) => Command::TellDependents { step: step.clone() },
            Todo::Roots => Command::OpenRoots,
            Todo::Verify => Command::Verify { fault: self.fault.map(str::to_owned) },
            Todo::Advance => Command::Advance { claimed: Vec::new() },
        })
    }

    /// Carries out what an entry of the `work` index calls for, as the sweep does.
    pub fn sweep(&self, state: &mut State, process: usize, member: &str) {
        let (_, step) = parse_step_member(member).expect("an entry reads back");
        let command = match step {
            Some(step) => self.of_step(state, step),
            None => self.of_header(state),
        };
        let Some(command) = command else { return };
        if command == Command::EntriesCleared {
            self.clear(state);
        }
        if let Err(refusal) = self.execute(state, process, &command) {
            state.broken = Some(Broken { rule: Rule::FollowUps, why: refusal.to_string() });
        }
    }

    fn of_step(&self, state: &State, step: StepId) -> Option<Command> {
        let telling = match state.get(&Key::Step(step.clone())) {
            Some(Record::Step(own)) => own.telling.is_some(),
            _ => return None,
        };
        let todo = if telling { Todo::Tell(step) } else { Todo::Release(step) };
        let mut view = View::new(self.task.clone());
        loop {
            match self.command_for(state, &view, &todo) {
                Ok(command) => return Some(command),
                Err(Halt::Need(keys)) => load(state, &mut view, keys),
                Err(Halt::Refuse(_)) => return None,
            }
        }
    }

    fn of_header(&self, state: &State) -> Option<Command> {
        let header = state.header();
        if header.state.is_final() {
            return header.uncleared.then_some(Command::EntriesCleared);
        }
        let claimed =
            state.members(CLAIMS).filter_map(|member| Some(ClaimEntry::parse(member)?.step));
        match header_todo(header)? {
            Todo::Advance => Some(Command::Advance { claimed: claimed.collect() }),
            Todo::Roots => Some(Command::OpenRoots),
            Todo::Verify => Some(Command::Verify { fault: self.fault.map(str::to_owned) }),
            Todo::Release(_) | Todo::Tell(_) => None,
        }
    }

    /// Reads all that a command could ask for.
    pub fn read(&self, state: &State) -> View {
        let plan = &self.submission.plan;
        let steps = plan.steps.iter().chain(&plan.finally).map(|step| step.id.clone());
        let own = |step: StepId| [Key::Step(step.clone()), Key::Claim(step)];
        let absent = steps.flat_map(own).chain([Key::Gate]);
        let mut view = View::new(self.task.clone());
        load(state, &mut view, absent.chain(state.records.keys().cloned()).collect());
        view
    }

    /// Removes entries of steps that never settled, as the engine does after a task's end.
    fn clear(&self, state: &mut State) {
        let stale: Vec<_> = state
            .records
            .iter()
            .filter(|(key, _)| matches!(key, Key::Step(_)))
            .flat_map(|(key, kept)| entries(&self.task, key, &kept.record))
            .collect();
        let own = Arc::make_mut(&mut state.entries);
        stale.iter().for_each(|entry| {
            own.remove(entry);
        });
    }
}

/// Loads records, the header first in every load, to tell whether it has changed since.
fn load(state: &State, view: &mut View, mut keys: Vec<Key>) {
    keys.retain(|key| *key != Key::Header);
    keys.insert(0, Key::Header);
    let (known, before) = (view.knows(&Key::Header), view.version(&Key::Header));
    for key in keys {
        let kept = state.records.get(&key);
        let version = kept.map(|kept| kept.version);
        if key == Key::Header && known && version != before {
            view.forget_mutable();
        }
        view.load(key, kept.map(|kept| kept.record.clone()), version);
    }
}

fn act(
    state: &State,
    view: &mut View,
    command: &Command,
    events: &mut Vec<Event>,
) -> Result<(), Halt> {
    let header = view.knows(&Key::Header).then(|| view.header().ok()).flatten();
    let now = event_time(header, state.now);
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

/// Says what evaluating a step gives: a template names the round, and timers wait alike.
fn resolve(now: Time, view: &View, step: &StepId) -> Result<Resolution, Halt> {
    let Some(definition) = to_resolve(view, step)? else {
        return Ok(Resolution::Run { with: None, check: None });
    };
    let round = view.step(step)?.round;
    let with = definition.templated.then(|| serde_json::json!({ "round": round }));
    Ok(match definition.plan.uses {
        Uses::Timer => Resolution::Timer { due: now.after(TIMER_WAIT) },
        Uses::Handler(_) => Resolution::Run { with, check: None },
    })
}
