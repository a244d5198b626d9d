//! A lane: one actor through which all of this process's commands to its tasks go.
//!
//! It takes all that wait, decides them task by task on cached views, puts the commits of many
//! tasks into one call of the store, and answers. So one task has one commit under way in a
//! process, and a thousand commands cost a few round trips.
//!
//! ```text
//! commands ─▶ lane ─▶ load what is missing ─▶ decide ─▶ commit ─▶ answers, wakes
//!               ▲                                │
//!               └── refused: wait, gather, again ┘
//! ```
//!
//! A task that other processes change at the same time is *contended*: its commands are parked
//! for some milliseconds, gather, and go into one commit. The wait grows with each refusal and
//! shrinks after some commits without one, so that most commits succeed however many processes
//! change one task.

mod answers;
mod views;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use standfast_domain::commit::{Scope, StoredRecord};
use standfast_domain::decide::Command;
use standfast_domain::ids::{Principal, StepId, TaskId};
use standfast_domain::record::{Key, Phase, Record};
use standfast_domain::refusal::Halt;
use standfast_domain::stage::Staged;
use standfast_domain::time::Time;
use standfast_domain::view::{Todo, View};
use tokio::sync::{mpsc, oneshot};

use self::answers::{fail, narrowed, reply};
use self::views::{Views, bulk};
use crate::EngineError;
use crate::batch::{Asked, Decided, ROOM, Stay, decide_batch};
use crate::core::Core;
use crate::crash;
use crate::outbox;
use crate::ports::{BATCH_MAX, Load, StoreError};

/// Commands that one round takes: enough to fill a script call, few enough to answer soon.
const ROUND_MAX: usize = 128;
/// How often a batch may be refused by the store before its commands are answered with that:
/// each time another process has made progress.
const REFUSALS_MAX: u32 = 64;
/// The shortest wait of a contended task; doubled with each refusal.
const CONTENTION_WAIT: Duration = Duration::from_millis(2);
/// How often that wait is doubled at most.
const HEAT_MAX: u32 = 5;
/// Commits without a refusal after which the wait is halved.
const CALM: u32 = 6;
/// Loads that one batch may need: the longest chain of records that name each other.
const LOADS_MAX: u32 = 2_000;
/// How long a lane goes on trying when the store does not answer.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// One command on its way.
pub(crate) struct Request {
    pub task: TaskId,
    pub command: Command,
    pub actor: Principal,
    pub wants: Vec<Key>,
    pub stay: Option<Stay>,
    pub reply: Option<oneshot::Sender<Result<Done, EngineError>>>,
}

/// What a command came to.
#[derive(Clone, Debug)]
pub struct Done {
    /// The store's time.
    pub now: Time,
    /// True if this command changed something; false if it was so already.
    pub acted: bool,
    /// The records that were asked for, as they are now.
    pub records: View,
    /// The step that the worker stays with; its records are among them.
    pub stayed: Option<StepId>,
}

/// What a lane is told.
pub(crate) enum Input {
    /// A command has come.
    Ask(Box<Request>),
    /// A contended task has waited long enough.
    Unpark(TaskId),
}

pub(crate) fn start(core: Arc<Core>) -> mpsc::UnboundedSender<Input> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(keep_running(core, sender.downgrade(), receiver));
    sender
}

/// A fault of ours in the commands of one task must not leave all others of its lane without one.
async fn keep_running(
    core: Arc<Core>,
    unpark: mpsc::WeakUnboundedSender<Input>,
    mut receiver: mpsc::UnboundedReceiver<Input>,
) {
    loop {
        let (core, unpark) = (core.clone(), unpark.clone());
        let lane = Lane { core, views: Views::default(), parked: HashMap::new(), unpark };
        match AssertUnwindSafe(lane.run(&mut receiver)).catch_unwind().await {
            Ok(()) => break,
            Err(_) => tracing::error!("a lane broke off and begins anew; please report this"),
        }
    }
}

/// How contended a task is.
#[derive(Clone, Copy, Debug, Default)]
struct Heat {
    degree: u32,
    calm: u32,
}

impl Heat {
    fn refused(&mut self) {
        *self = Self { degree: (self.degree + 1).min(HEAT_MAX), calm: 0 };
    }

    fn stored(&mut self) {
        self.calm += 1;
        if self.calm >= CALM {
            *self = Self { degree: self.degree.saturating_sub(1), calm: 0 };
        }
    }
}

struct Lane {
    core: Arc<Core>,
    views: Views,
    parked: HashMap<TaskId, Batch>,
    unpark: mpsc::WeakUnboundedSender<Input>,
}

/// The commands of one task in one round.
struct Batch {
    task: TaskId,
    /// In a box: a batch is moved often.
    view: Box<View>,
    /// Bytes of the large records that went into it.
    bulk: usize,
    requests: Vec<Request>,
    /// What the last commit had no room for.
    left: Vec<Todo>,
    /// False while answers rest on records from before the commands came.
    fresh: bool,
    heat: Heat,
    refusals: u32,
    loads: u32,
    /// Records that its next commit may change.
    room: usize,
}

impl Lane {
    async fn run(mut self, receiver: &mut mpsc::UnboundedReceiver<Input>) {
        let mut waiting = Vec::new();
        while receiver.recv_many(&mut waiting, ROUND_MAX).await > 0 {
            self.round(std::mem::take(&mut waiting)).await;
        }
    }

    async fn round(&mut self, inputs: Vec<Input>) {
        let mut batches = self.group(inputs);
        while !batches.is_empty() {
            let ready = self.decide_all(batches).await;
            batches = self.commit_all(ready).await;
        }
    }

    fn group(&mut self, inputs: Vec<Input>) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::with_capacity(inputs.len());
        let mut places: HashMap<TaskId, usize> = HashMap::with_capacity(inputs.len());
        for input in inputs {
            let request = match input {
                Input::Ask(request) => *request,
                Input::Unpark(task) => {
                    if let Some(mut batch) = self.parked.remove(&task) {
                        batch.view.forget_mutable(); // others have changed it meanwhile
                        batch.fresh = true;
                        places.insert(task, batches.len());
                        batches.push(batch);
                    }
                    continue;
                }
            };
            if let Some(parked) = self.parked.get_mut(&request.task) {
                parked.requests.push(request);
                continue;
            }
            if let Some(place) = places.get(&request.task).copied() {
                batches[place].requests.push(request);
                continue;
            }
            let mut batch = self.batch(request.task.clone());
            if batch.fresh && is_first(&request.command) {
                *batch.view = View::unborn(request.task.clone());
                batch.fresh = false;
            }
            batch.requests.push(request);
            if batch.heat.degree > 0 {
                self.park(batch);
                continue;
            }
            places.insert(batch.task.clone(), batches.len());
            batches.push(batch);
        }
        batches
    }

    fn batch(&mut self, task: TaskId) -> Batch {
        let cached = self.views.take(&task);
        let heat = cached.as_ref().map(|cached| cached.heat).unwrap_or_default();
        let (fresh, bulk) = (cached.is_none(), cached.as_ref().map_or(0, |cached| cached.bulk));
        let view = cached.map_or_else(|| Box::new(View::new(task.clone())), |cached| cached.view);
        let (requests, left) = (Vec::new(), Vec::new());
        let (refusals, loads, room) = (0, 0, ROOM);
        Batch { task, view, bulk, requests, left, fresh, heat, refusals, loads, room }
    }

    /// Lets the commands of a contended task gather for a while.
    fn park(&mut self, batch: Batch) {
        let random = u32::from(self.core.random()[0]);
        let wait = CONTENTION_WAIT * (1 << batch.heat.degree) * (128 + random) / 256;
        let (task, core, unpark) = (batch.task.clone(), self.core.clone(), self.unpark.clone());
        self.parked.insert(task.clone(), batch);
        tokio::spawn(async move {
            core.clock().sleep(wait).await;
            if let Some(lane) = unpark.upgrade() {
                let _ = lane.send(Input::Unpark(task)); // the process is ending
            }
        });
    }

    /// Loads and decides until each batch has something to store or has been answered; gives
    /// those to store.
    async fn decide_all(&mut self, batches: Vec<Batch>) -> Vec<(Batch, Box<Decided>)> {
        let mut ready = Vec::with_capacity(batches.len());
        let mut open = batches;
        while !open.is_empty() {
            let mut missing = Vec::new();
            let mut decided = Vec::with_capacity(open.len());
            for mut batch in open {
                match self.decide_one(&mut batch) {
                    Ok(one) => decided.push((batch, one)),
                    Err(keys) => missing.push((batch, keys)),
                }
            }
            for (mut batch, mut decided) in decided {
                let staged = decided.stage(&mut batch.view, self.core.commit_id());
                match staged.map(|()| decided.excess(&mut batch.view)) {
                    Ok(Some(excess)) => missing.extend(narrowed(batch, excess)),
                    Ok(None) if decided.staged.is_some() => ready.push((batch, decided)),
                    Ok(None) => self.answer(&mut batch, decided),
                    Err(Halt::Need(keys)) => missing.push((batch, keys)),
                    Err(Halt::Refuse(_)) if !batch.fresh => {
                        batch.view.refused();
                        batch.fresh = true;
                        missing.push((batch, vec![Key::Header]));
                    }
                    Err(Halt::Refuse(refusal)) => fail(batch, &refusal.into()),
                }
            }
            open = self.load(missing).await;
        }
        ready
    }

    fn decide_one(&self, batch: &mut Batch) -> Result<Box<Decided>, Vec<Key>> {
        let Some(now) = self.core.now() else { return Err(vec![Key::Header]) };
        let asked: Vec<Asked<'_>> = batch
            .requests
            .iter()
            .map(|request| Asked {
                command: &request.command,
                actor: &request.actor,
                wants: &request.wants,
                stay: request.stay.as_ref(),
            })
            .collect();
        let decided = decide_batch(&mut batch.view, &asked, &batch.left, now, batch.room)?;
        let doubtful = decided.acted.iter().any(|acted| !acted);
        if doubtful && !batch.fresh {
            // A refusal, or finding that all is done already, counts only on fresh records.
            batch.view.refused();
            batch.fresh = true;
            return self.decide_one(batch);
        }
        Ok(decided)
    }

    /// Loads what batches lack; gives those for which that went well.
    async fn load(&mut self, missing: Vec<(Batch, Vec<Key>)>) -> Vec<Batch> {
        if missing.is_empty() {
            return Vec::new();
        }
        let (mut batches, mut wanted) = (Vec::with_capacity(missing.len()), Vec::new());
        for (batch, keys) in missing {
            for keys in keys.chunks(BATCH_MAX - 1) {
                // The header comes first in every load, to tell whether it has changed since.
                let others = keys.iter().filter(|key| **key != Key::Header).cloned();
                let keys: Vec<Key> = std::iter::once(Key::Header).chain(others).collect();
                wanted.push((batches.len(), keys));
            }
            batches.push(batch);
        }
        if wanted.is_empty() {
            return batches;
        }
        let loads: Vec<Load> = wanted
            .iter()
            .map(|(place, keys)| Load {
                scope: Scope::Task(batches[*place].task.clone()),
                fields: keys.iter().map(Key::field).collect(),
            })
            .collect();
        let loaded = match self.core.load(&loads, STORE_PATIENCE).await {
            Ok(loaded) => loaded,
            Err(error) => {
                batches.into_iter().for_each(|batch| fail(batch, &error.clone().into()));
                return Vec::new();
            }
        };
        let mut broken: Vec<(usize, EngineError)> = Vec::new();
        for ((place, keys), records) in wanted.into_iter().zip(loaded) {
            let batch = &mut batches[place];
            let known = batch.view.knows(&Key::Header);
            let known_header = batch.view.version(&Key::Header);
            for (key, stored) in keys.into_iter().zip(records) {
                let version = stored.as_ref().map(|record| record.version);
                batch.bulk += stored.as_ref().map_or(0, |record| bulk(record.bytes.len()));
                if key == Key::Header && known && version != known_header {
                    batch.view.forget_mutable(); // a view is of one header version
                }
                match stored.map(|record| Record::decode(&key, &record.bytes)).transpose() {
                    Ok(record) => batch.view.load(key, record, version),
                    Err(error) => {
                        broken.push((place, StoreError::Corrupt(error.to_string()).into()));
                    }
                }
            }
            batch.loads += 1;
            if batch.loads > LOADS_MAX {
                let error = StoreError::Corrupt("its records do not end".to_owned());
                broken.push((place, error.into()));
            }
        }
        broken.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
        broken.dedup_by_key(|(place, _)| *place);
        for (place, error) in broken {
            fail(batches.remove(place), &error);
        }
        batches
    }

    /// Stores what was decided; gives the batches that have more to do at once.
    async fn commit_all(&mut self, ready: Vec<(Batch, Box<Decided>)>) -> Vec<Batch> {
        let mut more = Vec::new();
        let mut rest = ready.into_iter().peekable();
        while rest.peek().is_some() {
            let mut part = Vec::with_capacity(rest.len());
            let mut weight = 0;
            while let Some((_, decided)) = rest.peek() {
                let next =
                    decided.staged.as_ref().map_or(0, |staged| outbox::weight(&staged.commit));
                if !part.is_empty() && weight + next > BATCH_MAX {
                    break;
                }
                weight += next;
                part.extend(rest.next());
            }
            more.extend(self.commit_part(part).await);
        }
        more
    }

    async fn commit_part(&mut self, mut part: Vec<(Batch, Box<Decided>)>) -> Vec<Batch> {
        part.iter().for_each(|(batch, _)| crash_points(batch, Moment::Before));
        let commits: Vec<_> = part
            .iter_mut()
            .filter_map(|(batch, decided)| {
                let commit = decided.staged.as_mut().map(Staged::take_commit)?;
                let sizes = commit.writes.iter().flat_map(|(_, bytes)| bytes).map(Vec::len);
                batch.bulk += sizes.map(bulk).sum::<usize>();
                Some(commit)
            })
            .collect();
        let (now, answers) = match self.core.commit(&commits, STORE_PATIENCE).await {
            Ok(answer) => answer,
            Err(error) => {
                part.into_iter().for_each(|(batch, _)| fail(batch, &error.clone().into()));
                return Vec::new();
            }
        };
        let (mut more, mut wakes) = (Vec::new(), Vec::new());
        let mut stored = Vec::with_capacity(part.len());
        for ((mut batch, mut decided), answer) in part.into_iter().zip(answers) {
            let staged = decided.staged.take();
            if !answer.applied {
                more.extend(self.refused(batch));
                continue;
            }
            crash_points(&batch, Moment::Stored);
            if let Some(staged) = staged {
                batch.view.committed(staged.commit.id);
                take_in(&mut batch, std::mem::take(&mut decided.returns), answer.records);
                for (id, _) in &staged.outgoing {
                    batch.view.forget(&Key::Outgoing(id.clone())); // it is cleared without us
                }
                self.core.promise(&batch.task, staged.commit.id, staged.outgoing);
                self.core.recall(&staged.recalls);
                wakes.extend(staged.wakes);
            }
            stored.push((batch, decided));
        }
        self.core.wake(wakes);
        for (mut batch, mut decided) in stored {
            crash_points(&batch, Moment::Woken);
            batch.heat.stored();
            self.core.changed(&batch.task);
            self.settle_later(&batch);
            if decided.released {
                self.core.wake_all_later(batch.task.clone());
            }
            decided.now = now;
            batch.left = std::mem::take(&mut decided.left);
            batch.left.retain(|todo| *todo != Todo::Advance); // that is what was just settled
            if batch.left.is_empty() && batch.requests.len() == decided.results.len() {
                self.answer(&mut batch, decided);
            } else {
                reply(&mut batch, decided);
                more.push(batch);
            }
        }
        more
    }

    /// Decides what a refused batch does. One that rested on records from an earlier round is
    /// tried again at once on fresh ones; one that did not is contended and waits.
    fn refused(&mut self, mut batch: Batch) -> Option<Batch> {
        self.core.count_refused();
        batch.view.refused();
        batch.refusals += 1;
        if !batch.fresh {
            batch.fresh = true;
            return Some(batch);
        }
        batch.heat.refused();
        if batch.refusals > REFUSALS_MAX {
            let error = "the task changes faster than this process can follow".to_owned();
            fail(batch, &StoreError::Unavailable(error).into());
        } else {
            self.park(batch);
        }
        None
    }

    /// Goes on with a task that is ending, outside of the lane: it needs to know the claims.
    fn settle_later(&self, batch: &Batch) {
        let Ok(header) = batch.view.header() else { return };
        let closing = matches!(header.phase, Phase::Closing { .. });
        if closing || (header.state.is_final() && header.uncleared) {
            self.core.settle_later(batch.task.clone());
        }
    }

    /// Answers all commands of a batch and keeps its view.
    fn answer(&mut self, batch: &mut Batch, decided: Box<Decided>) {
        reply(batch, decided);
        let ended = batch.view.header().is_ok_and(|header| header.state.is_final());
        if !ended {
            let none = Box::new(View::new(batch.task.clone()));
            let view = std::mem::replace(&mut batch.view, none);
            self.views.keep(view, batch.heat, batch.bulk);
        }
    }
}

/// When a batch passes crash points.
#[derive(Clone, Copy)]
enum Moment {
    Before,
    Stored,
    Woken,
}

/// True for a submission under an id that was drawn for it: there is nothing yet to be loaded, and
/// its commit says so if there is, be it by an earlier try of this very submission.
fn is_first(command: &Command) -> bool {
    matches!(command, Command::Submit(submission)
        if submission.idempotency_key.is_none() && !submission.written_ahead)
}

/// Passes the crash points of the commands that a batch carries.
fn crash_points(batch: &Batch, moment: Moment) {
    if !crash::COMPILED {
        return;
    }
    for request in &batch.requests {
        let [before, stored, woken] = match &request.command {
            Command::Submit(_) => ["submit.before", "submit.stored", "submit.woken"].map(Some),
            Command::ClaimStep { .. } => [Some("claim.before"), Some("claim.stored"), None],
            Command::Intend { .. } => [Some("intent.before"), Some("intent.stored"), None],
            Command::ConfirmEffect { .. } => [Some("receipt.before"), Some("receipt.stored"), None],
            Command::CompleteAttempt { .. } => {
                [Some("complete.before"), Some("complete.stored"), None]
            }
            _ => continue,
        };
        let name = match moment {
            Moment::Before => before,
            Moment::Stored => stored,
            Moment::Woken => woken,
        };
        name.into_iter().for_each(crash::point);
    }
}

/// Takes in the records that a commit has given back. One that cannot be read is left to the load
/// of whoever needs it, which says so.
fn take_in(batch: &mut Batch, keys: Vec<Key>, records: Vec<Option<StoredRecord>>) {
    for (key, stored) in keys.into_iter().zip(records) {
        let version = stored.as_ref().map(|record| record.version);
        batch.bulk += stored.as_ref().map_or(0, |record| bulk(record.bytes.len()));
        let record = stored.map(|record| Record::decode(&key, &record.bytes)).transpose();
        if let Ok(record) = record {
            batch.view.load(key, record, version);
        }
    }
}
