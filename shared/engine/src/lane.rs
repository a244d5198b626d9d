//! A lane: one actor through which all of this process's commands to its tasks go.
//!
//! It takes all that wait, decides them task by task on cached views, puts the commits of many
//! tasks into one call of the store, and answers. So one task has one commit under way in a
//! process, and a thousand commands cost a few round trips.
//!
//! ```text
//! commands ─▶ lane ─▶ load what is missing ─▶ decide ─▶ commit ─▶ answers, wakes
//!               ▲                                │
//!               └────── refused: fresh records ──┘
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use standfast_domain::commit::{CommitId, Scope};
use standfast_domain::decide::Command;
use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::record::{Key, Phase, Record};
use standfast_domain::stage::{Staged, Wake};
use standfast_domain::time::Time;
use standfast_domain::view::{Todo, View};
use tokio::sync::{mpsc, oneshot};

use crate::EngineError;
use crate::batch::{Asked, Decided, decide_batch};
use crate::core::Core;
use crate::ports::{BATCH_MAX, Load, StoreError};

/// Commands that one round takes: enough to fill a script call, few enough to answer soon.
const ROUND_MAX: usize = 128;
/// Views kept per lane between commands.
const VIEWS_MAX: usize = 1_024;
/// Records of a view that is kept; a larger one is loaded anew, piece by piece.
const VIEW_RECORDS_MAX: usize = 4_096;
/// How often a batch may be refused by the store before its commands are answered with that:
/// each time another process has made progress.
const REFUSALS_MAX: u32 = 64;
/// The first wait after a refusal; doubled, with jitter, up to 32 times.
const CONTENTION_WAIT: Duration = Duration::from_millis(1);
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
    pub records: BTreeMap<Key, Option<Record>>,
}

pub(crate) fn start(core: Arc<Core>) -> mpsc::UnboundedSender<Request> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(Lane { core, views: HashMap::new(), age: 0 }.run(receiver));
    sender
}

struct Cached {
    view: View,
    age: u64,
}

struct Lane {
    core: Arc<Core>,
    views: HashMap<TaskId, Cached>,
    age: u64,
}

/// The commands of one task in one round.
struct Batch {
    task: TaskId,
    view: View,
    requests: Vec<Request>,
    /// False while answers rest on records from before the commands came.
    fresh: bool,
    refusals: u32,
    loads: u32,
}

impl Lane {
    async fn run(mut self, mut receiver: mpsc::UnboundedReceiver<Request>) {
        let mut waiting = Vec::new();
        while receiver.recv_many(&mut waiting, ROUND_MAX).await > 0 {
            self.round(std::mem::take(&mut waiting)).await;
        }
    }

    async fn round(&mut self, requests: Vec<Request>) {
        let mut batches = self.group(requests);
        while !batches.is_empty() {
            let ready = self.decide_all(batches).await;
            batches = self.commit_all(ready).await;
        }
    }

    fn group(&mut self, requests: Vec<Request>) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        let mut places: HashMap<TaskId, usize> = HashMap::new();
        for request in requests {
            let place = *places.entry(request.task.clone()).or_insert_with(|| {
                let task = request.task.clone();
                let view = self.views.remove(&task).map(|cached| cached.view);
                let fresh = view.is_none();
                let view = view.unwrap_or_else(|| View::new(task.clone()));
                let (refusals, loads) = (0, 0);
                batches.push(Batch { task, view, requests: vec![], fresh, refusals, loads });
                batches.len() - 1
            });
            batches[place].requests.push(request);
        }
        batches
    }

    /// Loads and decides until each batch has something to store or has been answered; gives
    /// those to store.
    async fn decide_all(&mut self, batches: Vec<Batch>) -> Vec<(Batch, Decided)> {
        let mut ready = Vec::new();
        let mut open = batches;
        while !open.is_empty() {
            let mut loads = Vec::new();
            let mut missing_of = Vec::new();
            for mut batch in open {
                match self.decide_one(&mut batch) {
                    Ok(Some(decided)) => ready.push((batch, decided)),
                    Ok(None) => {}
                    Err(missing) => {
                        for keys in missing.chunks(BATCH_MAX) {
                            loads.push((missing_of.len(), keys.to_vec()));
                        }
                        missing_of.push(batch);
                    }
                }
            }
            open = self.load(missing_of, loads).await;
        }
        ready
    }

    /// Decides one batch. `Ok(None)`: all its commands have been answered.
    fn decide_one(&mut self, batch: &mut Batch) -> Result<Option<Decided>, Vec<Key>> {
        let Some(now) = self.core.now() else { return Err(vec![Key::Header]) };
        let asked: Vec<Asked<'_>> = batch
            .requests
            .iter()
            .map(|request| Asked {
                command: &request.command,
                actor: &request.actor,
                wants: &request.wants,
            })
            .collect();
        let decided = decide_batch(&mut batch.view, &asked, now, self.core.commit_id())?;
        let doubtful = decided.acted.iter().any(|acted| !acted);
        if doubtful && !batch.fresh {
            // A refusal, or finding that all is done already, counts only on fresh records.
            batch.view.refused();
            batch.fresh = true;
            return self.decide_one(batch);
        }
        if decided.staged.is_some() {
            return Ok(Some(decided));
        }
        self.answer(batch, decided, now);
        Ok(None)
    }

    async fn load(
        &mut self,
        mut batches: Vec<Batch>,
        wanted: Vec<(usize, Vec<Key>)>,
    ) -> Vec<Batch> {
        if batches.is_empty() {
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
            let known_header = batch.view.version(&Key::Header);
            for (key, stored) in keys.into_iter().zip(records) {
                let version = stored.as_ref().map(|record| record.version);
                if key == Key::Header && known_header.is_some() && version != known_header {
                    batch.view.forget_mutable();
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

    /// Stores what was decided; gives the batches that were refused and must be decided anew.
    async fn commit_all(&mut self, ready: Vec<(Batch, Decided)>) -> Vec<Batch> {
        let mut refused = Vec::new();
        let mut rest = ready.into_iter().peekable();
        while rest.peek().is_some() {
            let mut part = Vec::new();
            let mut weight = 0;
            while let Some((_, decided)) = rest.peek() {
                let next = decided.staged.as_ref().map_or(0, weight_of);
                if !part.is_empty() && weight + next > BATCH_MAX {
                    break;
                }
                weight += next;
                part.extend(rest.next());
            }
            refused.extend(self.commit_part(part).await);
        }
        if let Some(most) = refused.iter().map(|batch: &Batch| batch.refusals).max() {
            let random = u32::from(self.core.random()[0]);
            let factor = (1 << most.min(5)) * (128 + random) / 256;
            self.core.clock().sleep(CONTENTION_WAIT * factor).await;
        }
        refused
    }

    async fn commit_part(&mut self, part: Vec<(Batch, Decided)>) -> Vec<Batch> {
        let commits: Vec<_> = part
            .iter()
            .filter_map(|(_, decided)| decided.staged.as_ref())
            .map(|staged| staged.commit.clone())
            .collect();
        let (now, answers) = match self.core.commit(&commits, STORE_PATIENCE).await {
            Ok(answer) => answer,
            Err(error) => {
                part.into_iter().for_each(|(batch, _)| fail(batch, &error.clone().into()));
                return Vec::new();
            }
        };
        let mut refused = Vec::new();
        for ((mut batch, mut decided), answer) in part.into_iter().zip(answers) {
            let staged = decided.staged.take();
            let id = staged.as_ref().map_or(CommitId(0), |staged| staged.commit.id);
            if answer.applied {
                let wakes = staged.map(|staged| staged.wakes).unwrap_or_default();
                batch.view.committed(id);
                self.after(&batch, &decided, wakes);
                self.answer(&mut batch, decided, now);
                continue;
            }
            self.core.count_refused();
            batch.view.refused();
            batch.fresh = true;
            batch.refusals += 1;
            if batch.refusals > REFUSALS_MAX {
                let error = "the task changes faster than this process can follow".to_owned();
                fail(batch, &StoreError::Unavailable(error).into());
            } else {
                refused.push(batch);
            }
        }
        refused
    }

    /// Starts what follows a stored batch: wakes, and what had no room.
    fn after(&self, batch: &Batch, decided: &Decided, wakes: Vec<Wake>) {
        self.core.wake(wakes);
        self.core.changed(&batch.task);
        let Ok(header) = batch.view.header() else { return };
        let closing = matches!(header.phase, Phase::Closing { .. });
        if closing || (header.state.is_final() && header.uncleared) {
            self.core.settle_later(batch.task.clone());
        }
        for todo in &decided.left {
            if *todo == Todo::Advance {
                continue;
            }
            self.core.follow_later(batch.task.clone(), todo.clone());
        }
    }

    /// Answers all commands of a batch and keeps its view.
    fn answer(&mut self, batch: &mut Batch, decided: Decided, now: Time) {
        let ended = batch.view.header().is_ok_and(|header| header.state.is_final());
        let results = decided.results.into_iter().zip(decided.acted);
        for (request, (result, acted)) in batch.requests.drain(..).zip(results) {
            let Some(reply) = request.reply else { continue };
            let answer = match result {
                Ok(()) => Ok(Done { now, acted, records: wanted(&batch.view, &request.wants) }),
                Err(refusal) => Err(EngineError::Refused(refusal)),
            };
            let _ = reply.send(answer); // whoever asked may have gone
        }
        if !ended && batch.view.len() <= VIEW_RECORDS_MAX {
            let view = std::mem::replace(&mut batch.view, View::new(batch.task.clone()));
            self.keep(view);
        }
    }

    fn keep(&mut self, view: View) {
        self.age += 1;
        if self.views.len() >= VIEWS_MAX {
            let oldest = self.age.saturating_sub(VIEWS_MAX as u64 / 2);
            self.views.retain(|_, cached| cached.age > oldest);
        }
        self.views.insert(view.task().clone(), Cached { view, age: self.age });
    }
}

fn weight_of(staged: &Staged) -> usize {
    staged.commit.writes.len() + staged.commit.events.len() + staged.commit.indexes.len()
}

fn wanted(view: &View, wants: &[Key]) -> BTreeMap<Key, Option<Record>> {
    let known = wants.iter().filter(|key| view.knows(key));
    known.map(|key| (key.clone(), view.get(key).ok().flatten().cloned())).collect()
}

fn fail(batch: Batch, error: &EngineError) {
    for request in batch.requests {
        if let Some(reply) = request.reply {
            let _ = reply.send(Err(error.clone())); // whoever asked may have gone
        }
    }
}
