//! Turns what a batch of commands has changed into one commit: guards, writes, events behind
//! the log's envelope, index differences, and the wakes that follow.

use crate::commit::{Commit, CommitId, Guard, IndexChange, Scope};
use crate::event::{Change, Event, encode_event};
use crate::ids::{Queue, StepId, TaskId};
use crate::index::{Entry, entries, stand_alike, startable_entries};
use crate::record::{Key, Outgoing, Phase, Record, Status, StepState};
use crate::refusal::Halt;
use crate::view::View;

/// A step that became ready: its worker's queue is to be woken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Where.
    pub queue: Queue,
    /// The task.
    pub task: TaskId,
    /// The step.
    pub step: StepId,
    /// The epoch at that time.
    pub epoch: u32,
    /// The attempt that may start.
    pub attempt: u32,
}

/// A word to all workers: attempts that one of them may be running are to end. Whoever hears it
/// looks at the store, which decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The task.
    pub task: TaskId,
    /// The epoch at that time.
    pub epoch: u32,
    /// Which attempt was taken from its worker; `None`: the task is ending, and all are to end.
    pub attempt: Option<(StepId, u32)>,
}

/// A batch, ready to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Staged {
    /// What the store is asked to do.
    pub commit: Commit,
    /// Whom to wake once it is stored.
    pub wakes: Vec<Wake>,
    /// Whom to tell then that attempts are to end.
    pub recalls: Vec<Recall>,
    /// What it promises to send, by the message's id within the task.
    pub outgoing: Vec<(String, Outgoing)>,
}

impl Staged {
    /// Takes the commit out; what stays has its id and nothing to write.
    pub fn take_commit(&mut self) -> Commit {
        let (id, scope) = (self.commit.id, self.commit.scope.clone());
        let empty = Commit {
            id,
            scope,
            guards: Vec::new(),
            writes: Vec::new(),
            first_event: 0,
            events: Vec::new(),
            indexes: Vec::new(),
            returns: Vec::new(),
        };
        std::mem::replace(&mut self.commit, empty)
    }
}

/// Stages the changes of a view. `events` are those that brought them about, in order, and get
/// their numbers in the log; `relied` names what their commands rely on besides, as
/// [`relied_on`](crate::decide::relied_on) says; `returns` names records that the next command
/// will want. Gives `None` if nothing changed.
pub fn stage(
    view: &mut View,
    events: &mut [Event],
    relied: &[Key],
    id: CommitId,
    returns: &[Key],
) -> Result<Option<Staged>, Halt> {
    if view.changes_len() == 0 {
        return Ok(None);
    }
    let logged = events.iter().any(|event| event.change.is_logged());
    let guards = guards(view, events, relied, logged);
    let (first_event, encoded) = if logged { append(view, events, id)? } else { (0, Vec::new()) };
    view.drop_idle_changes();
    let changes: Vec<Changed<'_>> = view.changes().collect();
    let commit = Commit {
        id,
        scope: Scope::Task(view.task().clone()),
        guards,
        writes: writes(&changes),
        first_event,
        events: encoded,
        indexes: index_changes(view, &changes),
        returns: returns.iter().map(Key::field).collect(),
    };
    let (wakes, recalls) = (wakes(view, &changes)?, recalls(view, &changes, events)?);
    Ok(Some(Staged { commit, wakes, recalls, outgoing: outgoing(&changes) }))
}

/// A record that a batch has changed: its key, what stood there before, what stands there now.
type Changed<'v> = (&'v Key, Option<&'v Record>, Option<&'v Record>);

/// A logged commit guards the header alone. What is not logged guards the records it relied
/// on. Taking a claim away guards the claim, which its worker may be renewing; so does taking
/// away a step that nobody had claimed, which a worker may be claiming.
fn guards(view: &View, events: &[Event], relied: &[Key], logged: bool) -> Vec<Guard> {
    let mut keys = relied.to_vec();
    if logged {
        keys.push(Key::Header);
    }
    for event in events {
        match &event.change {
            Change::StepClaimed { step, .. } => {
                keys.push(Key::Gate);
                keys.push(Key::Step(step.clone()));
                keys.push(Key::Claim(step.clone()));
            }
            Change::TaskSubmitted { .. } => {
                // What was written ahead must still be this body's.
                keys.extend(view.version(&Key::Ahead).map(|_| Key::Ahead));
            }
            Change::ClaimRenewed { step, .. } => {
                keys.push(Key::Gate); // so that the answer tells of a stop
                keys.push(Key::Claim(step.clone()));
            }
            Change::AttemptFailed { step, .. } | Change::StepSucceeded { step, .. } => {
                keys.push(Key::Claim(step.clone()));
            }
            Change::StepHeld { step, .. }
            | Change::StepSkipped { step, .. }
            | Change::StartPostponed { step, .. }
            | Change::ClockPostponed { step, .. }
            | Change::StepFailed { step, .. } => {
                let claim = Key::Claim(step.clone());
                keys.extend(view.knows(&claim).then_some(claim));
            }
            Change::RoundOpened { steps, .. } | Change::StepsRepeated { steps, .. } => {
                let claims = steps.iter().map(|(step, _)| Key::Claim(step.clone()));
                keys.extend(claims.filter(|claim| view.knows(claim)));
            }
            Change::StepReady { .. }
            | Change::TaskStarted { .. }
            | Change::RootsOpened { .. }
            | Change::StepReopened { .. }
            | Change::TimerFired { .. }
            | Change::StepsAdded { .. }
            | Change::LateResultRefused { .. }
            | Change::EffectIntended { .. }
            | Change::EffectDoubted { .. }
            | Change::EffectLanded { .. }
            | Change::EffectNotLanded { .. }
            | Change::EffectKept { .. }
            | Change::EffectReopened { .. }
            | Change::RetryScheduled { .. }
            | Change::DependentsTold { .. }
            | Change::TaskHeld { .. }
            | Change::TaskReleased { .. }
            | Change::HoldAnswered { .. }
            | Change::HandedOver { .. }
            | Change::DeadlinePassed
            | Change::StopRequested { .. }
            | Change::StopStrengthened { .. }
            | Change::EpochRaised { .. }
            | Change::UndoAllowed { .. }
            | Change::UndoAdded { .. }
            | Change::TaskFailing { .. }
            | Change::FinallyStarted { .. }
            | Change::TaskEnded { .. }
            | Change::EntriesCleared => {}
        }
    }
    keys.sort();
    keys.dedup();
    keys.iter().map(|key| Guard { field: key.field(), version: view.version(key) }).collect()
}

/// Advances the log's envelope over the events that are logged, numbers and encodes them.
fn append(
    view: &mut View,
    events: &mut [Event],
    id: CommitId,
) -> Result<(u64, Vec<Vec<u8>>), Halt> {
    let first = view.header()?.next_event;
    let mut hash = view.header()?.hash.clone();
    let mut encoded = Vec::with_capacity(events.len());
    let logged = events.iter_mut().filter(|event| event.change.is_logged());
    for (sequence, event) in (first..).zip(logged) {
        event.sequence = sequence;
        let (bytes, next) = encode_event(event, id, &hash);
        encoded.push(bytes);
        hash = next;
    }
    let next_event = first + encoded.len() as u64;
    view.edit_header(|header| {
        header.next_event = next_event;
        header.hash = hash;
    })?;
    Ok((first, encoded))
}

fn writes(changes: &[Changed<'_>]) -> Vec<(String, Option<Vec<u8>>)> {
    changes.iter().map(|(key, _, now)| (key.field(), now.map(Record::encode))).collect()
}

fn index_changes(view: &View, changes: &[Changed<'_>]) -> Vec<IndexChange> {
    let task = view.task();
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    for &(key, before, now) in changes {
        if stand_alike(before, now) {
            continue;
        }
        let old = before.map(|record| entries(task, key, record)).unwrap_or_default();
        let gone = match (key, before) {
            // They went when it was claimed.
            (Key::Step(step), Some(Record::Step(before))) if was_claimed(view, changes, step) => {
                startable_entries(task, step, before)
            }
            _ => Vec::new(),
        };
        let new = now.map(|record| entries(task, key, record)).unwrap_or_default();
        let left = |entry: &&Entry| !new.contains(*entry) && !gone.contains(*entry);
        removed.extend(old.iter().filter(left).cloned());
        added.extend(new.into_iter().filter(|entry| !old.contains(entry)));
    }
    for &(key, before, now) in changes {
        let Key::Claim(step) = key else { continue };
        let Ok(state) = view.step(step) else { continue };
        for entry in startable_entries(task, step, &state) {
            match (before, now) {
                (None, Some(_)) => match added.iter().position(|other| *other == entry) {
                    // Ready and claimed in one commit: it has never stood there.
                    Some(place) => drop(added.swap_remove(place)),
                    None => removed.push(entry),
                },
                (Some(_), Some(_)) => added.retain(|other| *other != entry),
                // Ready again in the very millisecond: the step's own difference has no entry
                // then.
                (Some(_), None) if may_start(view) => {
                    added.push(entry);
                }
                (Some(_) | None, None) => {}
            }
        }
    }
    let change = |add| move |(index, member): Entry| IndexChange { index, member, add };
    removed.retain(|entry| !added.contains(entry));
    for entries in [&mut removed, &mut added] {
        entries.sort();
        entries.dedup();
    }
    removed.into_iter().map(change(false)).chain(added.into_iter().map(change(true))).collect()
}

/// True if a worker is known to have had a step before the batch.
fn was_claimed(view: &View, changes: &[Changed<'_>], step: &StepId) -> bool {
    let claim = Key::Claim(step.clone());
    match changes.binary_search_by(|(key, ..)| (*key).cmp(&claim)) {
        Ok(place) => changes[place].1.is_some(),
        Err(_) => view.claim(step).is_ok_and(|claim| claim.is_some()),
    }
}

/// False once nothing of the plan starts any more.
fn may_start(view: &View) -> bool {
    view.header().is_ok_and(|header| match header.phase {
        Phase::Main | Phase::Undoing { .. } | Phase::Finally { .. } => true,
        Phase::Closing { .. } | Phase::Ended { .. } => false,
    })
}

/// Gives the messages that the batch promises to send.
fn outgoing(changes: &[Changed<'_>]) -> Vec<(String, Outgoing)> {
    let promised = changes.iter().filter_map(|(key, _, now)| match (key, now) {
        (Key::Outgoing(id), Some(Record::Outgoing(outgoing))) => {
            Some((id.clone(), outgoing.clone()))
        }
        _ => None,
    });
    promised.collect()
}

/// Names the attempts that the batch ends without their workers' doing. Those of a task are
/// recalled together, once its gate says so; a task that has never started has none.
fn recalls(view: &View, changes: &[Changed<'_>], events: &[Event]) -> Result<Vec<Recall>, Halt> {
    let mut attempts = Vec::new();
    let ends = |record: Option<&Record>| match record {
        Some(Record::Gate(gate)) => gate.ends_attempts(),
        _ => false,
    };
    let closing =
        changes.iter().any(|(key, before, now)| **key == Key::Gate && !ends(*before) && ends(*now));
    if closing {
        let header = view.header()?;
        let may_run = header.started && header.open > 0 && header.active > 0;
        attempts.extend(may_run.then_some(None));
    }
    for event in events {
        if let Change::AttemptFailed { step, attempt, taken: true, .. } = &event.change {
            attempts.push(Some((step.clone(), *attempt)));
        }
    }
    if attempts.is_empty() {
        return Ok(Vec::new());
    }
    let epoch = epoch(view)?;
    let recall = |attempt| Recall { task: view.task().clone(), epoch, attempt };
    Ok(attempts.into_iter().map(recall).collect())
}

fn epoch(view: &View) -> Result<u32, Halt> {
    match view.knows(&Key::Gate) {
        true => Ok(view.gate()?.epoch),
        false => Ok(crate::record::Gate::default().epoch),
    }
}

/// Names the steps that became ready for an attempt that could not start before.
fn wakes(view: &View, changes: &[Changed<'_>]) -> Result<Vec<Wake>, Halt> {
    let mut wakes = Vec::new();
    for &(key, before, now) in changes {
        let (Key::Step(step), Some(Record::Step(state))) = (key, now) else { continue };
        let Status::Ready { queue, .. } = &state.status else { continue };
        let was = matches!(before, Some(Record::Step(StepState {
            status: Status::Ready { .. },
            attempt,
            ..
        })) if *attempt == state.attempt);
        let claimed = view.knows(&Key::Claim(step.clone())) && view.claim(step)?.is_some();
        if !was && !claimed {
            wakes.push(Wake {
                queue: queue.clone(),
                task: view.task().clone(),
                step: step.clone(),
                epoch: 0,
                attempt: state.attempt,
            });
        }
    }
    let epoch = epoch(view)?;
    wakes.iter_mut().for_each(|wake| wake.epoch = epoch);
    Ok(wakes)
}
