//! Workers that live and handlers that were ever announced.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use standfast_domain::commit::{Commit, CommitId, Guard, Home, IndexChange, Scope};
use standfast_domain::ids::{HandlerName, Principal, Queue, WorkerId};
use standfast_domain::time::{Span, Time};

use crate::ports::{BATCH_MAX, Load, Range, StoreError};
use crate::{Engine, EngineError};

/// How long an announcement holds unless it is made again.
pub const ANNOUNCEMENT: Span = Span::from_secs(30);
/// How long what was read is believed.
const CACHED: Duration = Duration::from_secs(2);
/// How often an announcement is tried anew because another call was faster.
const TRIES_MAX: usize = 16;
const WORKERS: &str = "workers";
const HANDLERS: &str = "handlers";

/// A worker as it announced itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its id; new at each start of its process.
    pub worker: WorkerId,
    /// As whom it announced itself; whoever comes as somebody else cannot speak for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
    /// Queues it takes from.
    pub queues: Vec<Queue>,
    /// Those of its queues that the broker does not give it at the moment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsubscribed: Vec<Queue>,
    /// Handlers it has.
    pub handlers: Vec<HandlerName>,
    /// How many attempts it runs, if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<WorkerLoad>,
    /// Gone unless announced again by then.
    pub expires_at: Time,
}

/// What a worker says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Announcement<'a> {
    /// Its id.
    pub worker: &'a WorkerId,
    /// As whom it comes.
    pub principal: &'a Principal,
    /// Queues it takes from.
    pub queues: &'a [Queue],
    /// Those of them that the broker does not give it at the moment.
    pub unsubscribed: &'a [Queue],
    /// Handlers it has.
    pub handlers: &'a [HandlerName],
    /// How many attempts it runs, if it says so.
    pub load: Option<WorkerLoad>,
}

/// How many attempts a worker runs, over all its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLoad {
    /// Attempts that it runs at once at most.
    pub concurrency: u32,
    /// Attempts that it ran when it said so.
    pub running: u32,
}

/// What keeps a ready step from starting, as far as announcements tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No live worker of its queue has its handler.
    NoWorker,
    /// Some do, but the broker gives the queue to none of them at the moment.
    Unsubscribed,
    /// All that do run as many attempts as they can.
    Concurrency,
}

/// Says what a step of a queue lacks to be started. A worker that does not tell its load may
/// have room.
pub fn lack(workers: &[WorkerInfo], queue: &Queue, handler: &HandlerName) -> Option<Lack> {
    let fits =
        |worker: &&WorkerInfo| worker.queues.contains(queue) && worker.handlers.contains(handler);
    let mut fitting = workers.iter().filter(fits).peekable();
    if fitting.peek().is_none() {
        return Some(Lack::NoWorker);
    }
    let mut taking = fitting.filter(|worker| !worker.unsubscribed.contains(queue)).peekable();
    if taking.peek().is_none() {
        return Some(Lack::Unsubscribed);
    }
    let full = |worker: &WorkerInfo| worker.load.is_some_and(|of| of.running >= of.concurrency);
    taking.all(full).then_some(Lack::Concurrency)
}

type Cache<T> = Mutex<Option<(Duration, T)>>;

/// Reads and writes announcements.
pub struct Registry {
    engine: Engine,
    handlers: Cache<BTreeSet<String>>,
    workers: Cache<Vec<WorkerInfo>>,
}

impl Registry {
    /// Makes a registry over the installation's store.
    pub fn new(engine: Engine) -> Self {
        Self { engine, handlers: Mutex::new(None), workers: Mutex::new(None) }
    }

    /// Announces a worker; to be repeated well within [`ANNOUNCEMENT`]. Gives false, and changes
    /// nothing, while somebody else's announcement under that id holds.
    pub async fn announce(&self, announced: Announcement<'_>) -> Result<bool, EngineError> {
        let Announcement { worker, principal, queues, unsubscribed, handlers, load } = announced;
        let now = self.engine.now().await?;
        let info = WorkerInfo {
            worker: worker.clone(),
            principal: Some(principal.clone()),
            queues: queues.to_vec(),
            unsubscribed: unsubscribed.to_vec(),
            handlers: handlers.to_vec(),
            load,
            expires_at: now.after(ANNOUNCEMENT),
        };
        let bytes = serde_json::to_vec(&info).expect("plain data");
        let entry = |index: &str, member: &str| IndexChange {
            index: index.to_owned(),
            member: member.to_owned(),
            add: true,
        };
        let mut indexes = vec![entry(WORKERS, worker.as_str())];
        indexes.extend(handlers.iter().map(|handler| entry(HANDLERS, handler.as_str())));
        for _ in 0..TRIES_MAX {
            let (known, version) = self.known(worker).await?;
            if known.is_some_and(|known| known.holds_against(principal, now)) {
                return Ok(false);
            }
            let write = (field(worker.as_str()), Some(bytes.clone()));
            if self.write(write, version, indexes.clone()).await? {
                self.forget_workers();
                return Ok(true);
            }
        }
        Err(busy())
    }

    /// Takes a worker's announcement back: its own principal's, or with `None` whoever's it is.
    /// Gives false, and changes nothing, while somebody else's holds.
    pub async fn withdraw(
        &self,
        worker: &WorkerId,
        by: Option<&Principal>,
    ) -> Result<bool, EngineError> {
        let now = self.engine.now().await?;
        for _ in 0..TRIES_MAX {
            let (known, version) = self.known(worker).await?;
            if by.is_some_and(|by| known.is_some_and(|known| known.holds_against(by, now))) {
                return Ok(false);
            }
            if self.remove(worker.as_str(), version).await? {
                self.forget_workers();
                return Ok(true);
            }
        }
        Err(busy())
    }

    /// Reads what a worker has announced, and the version of that.
    async fn known(
        &self,
        worker: &WorkerId,
    ) -> Result<(Option<WorkerInfo>, Option<CommitId>), EngineError> {
        let load = Load { scope: Scope::Installation, fields: vec![field(worker.as_str())] };
        let (_, records) = self.engine.store().load(&[load]).await?;
        let stored = records.into_iter().flatten().next().flatten();
        let version = stored.as_ref().map(|stored| stored.version);
        Ok((stored.and_then(|stored| serde_json::from_slice(&stored.bytes).ok()), version))
    }

    /// Removes an announcement, if it is still the one that was read.
    async fn remove(&self, worker: &str, version: Option<CommitId>) -> Result<bool, EngineError> {
        let (index, member) = (WORKERS.to_owned(), worker.to_owned());
        let gone = IndexChange { index, member, add: false };
        self.write((field(worker), None), version, vec![gone]).await
    }

    /// Writes if nobody was faster.
    async fn write(
        &self,
        write: (String, Option<Vec<u8>>),
        version: Option<CommitId>,
        indexes: Vec<IndexChange>,
    ) -> Result<bool, EngineError> {
        let commit = Commit {
            id: self.engine.commit_id(),
            scope: Scope::Installation,
            guards: vec![Guard { field: write.0.clone(), version }],
            writes: vec![write],
            first_event: 0,
            events: Vec::new(),
            indexes,
            returns: Vec::new(),
        };
        self.engine.commit_raw(commit).await
    }

    /// Checks something against the handlers that any worker has ever announced. What passes
    /// may pass on a list that is seconds old; what fails is checked on a fresh one, so that a
    /// handler announced a moment ago is known.
    pub async fn check<T, F>(
        &self,
        check: impl Fn(&BTreeSet<String>) -> Result<T, F>,
    ) -> Result<Result<T, F>, EngineError> {
        if let Some(known) = self.cached(&self.handlers)
            && let Ok(passed) = check(&known)
        {
            return Ok(Ok(passed));
        }
        Ok(check(&self.read_handlers().await?))
    }

    async fn read_handlers(&self) -> Result<BTreeSet<String>, EngineError> {
        let known: BTreeSet<String> = self.members(HANDLERS).await?.into_iter().collect();
        self.keep(&self.handlers, known.clone());
        Ok(known)
    }

    /// Gives the workers that live; may be seconds old. Those that died are cleaned up.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, EngineError> {
        if let Some(known) = self.cached(&self.workers) {
            return Ok(known);
        }
        let now = self.engine.now().await?;
        let mut alive = Vec::new();
        for names in self.members(WORKERS).await?.chunks(BATCH_MAX) {
            let fields = names.iter().map(|name| field(name)).collect();
            let load = Load { scope: Scope::Installation, fields };
            let (_, records) = self.engine.store().load(&[load]).await?;
            for (name, stored) in names.iter().zip(records.into_iter().flatten()) {
                let version = stored.as_ref().map(|stored| stored.version);
                let info: Option<WorkerInfo> =
                    stored.and_then(|stored| serde_json::from_slice(&stored.bytes).ok());
                match info {
                    Some(info) if info.expires_at > now => alive.push(info),
                    Some(_) | None => {
                        self.remove(name, version).await?; // unless it is back meanwhile
                    }
                }
            }
        }
        self.keep(&self.workers, alive.clone());
        Ok(alive)
    }

    async fn members(&self, index: &str) -> Result<Vec<String>, EngineError> {
        let mut members: Vec<String> = Vec::new();
        loop {
            let range = Range {
                home: Home::Installation,
                index: index.to_owned(),
                after: members.last().cloned().unwrap_or_default(),
                before: None,
                limit: BATCH_MAX,
                reverse: false,
            };
            let page = self.engine.store().ranges(&[range]).await?.pop().unwrap_or_default();
            let last = page.len() < BATCH_MAX;
            members.extend(page);
            if last {
                return Ok(members);
            }
        }
    }

    fn cached<T: Clone>(&self, cache: &Cache<T>) -> Option<T> {
        let now = self.engine.clock().monotonic();
        let cached = cache.lock().expect("no panic while held");
        cached.as_ref().filter(|(at, _)| now.saturating_sub(*at) < CACHED).map(|(_, v)| v.clone())
    }

    /// Reads the workers anew when they are asked for next: this process knows of a change.
    fn forget_workers(&self) {
        *self.workers.lock().expect("no panic while held") = None;
    }

    fn keep<T>(&self, cache: &Cache<T>, value: T) {
        let now = self.engine.clock().monotonic();
        *cache.lock().expect("no panic while held") = Some((now, value));
    }
}

impl WorkerInfo {
    /// True while it stands and is somebody else's. One that names nobody is anyone's.
    fn holds_against(&self, by: &Principal, now: Time) -> bool {
        self.expires_at > now && self.principal.as_ref().is_some_and(|principal| principal != by)
    }
}

fn busy() -> EngineError {
    StoreError::Unavailable("others were faster again and again; try again".to_owned()).into()
}

fn field(worker: &str) -> String {
    format!("worker/{worker}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(queue: &str, handler: &str, load: Option<(u32, u32)>) -> WorkerInfo {
        WorkerInfo {
            worker: WorkerId::new("w").unwrap(),
            principal: None,
            queues: vec![Queue::new(queue).unwrap()],
            unsubscribed: Vec::new(),
            handlers: vec![HandlerName::new(handler).unwrap()],
            load: load.map(|(running, concurrency)| WorkerLoad { concurrency, running }),
            expires_at: Time(0),
        }
    }

    #[test]
    fn a_step_lacks_a_worker_or_a_free_one() {
        let (queue, handler) = (Queue::new("q").unwrap(), HandlerName::new("h").unwrap());
        let others = [worker("q", "other", None), worker("other", "h", Some((0, 1)))];
        let full = worker("q", "h", Some((4, 4)));
        let free = worker("q", "h", Some((3, 4)));
        let silent = worker("q", "h", None);
        let cut_off = WorkerInfo { unsubscribed: vec![queue.clone()], ..free.clone() };
        let elsewhere = WorkerInfo { unsubscribed: vec![Queue::new("r").unwrap()], ..free.clone() };
        let lack = |more: &[&WorkerInfo]| {
            let more = more.iter().copied().cloned();
            let workers: Vec<WorkerInfo> = others.iter().cloned().chain(more).collect();
            lack(&workers, &queue, &handler)
        };
        assert_eq!(lack(&[]), Some(Lack::NoWorker));
        assert_eq!(lack(&[&full]), Some(Lack::Concurrency));
        assert_eq!(lack(&[&full, &full]), Some(Lack::Concurrency));
        assert_eq!(lack(&[&full, &free]), None);
        assert_eq!(lack(&[&silent, &full]), None, "it may have room");
        assert_eq!(lack(&[&cut_off]), Some(Lack::Unsubscribed));
        assert_eq!(lack(&[&cut_off, &full]), Some(Lack::Concurrency), "one takes from it");
        assert_eq!(lack(&[&cut_off, &elsewhere]), None);
    }
}
