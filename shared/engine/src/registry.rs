//! Workers that live and handlers that were ever announced.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use standfast_domain::commit::{Commit, Home, IndexChange, Scope};
use standfast_domain::ids::{HandlerName, Queue, WorkerId};
use standfast_domain::time::{Span, Time};

use crate::ports::{BATCH_MAX, Load, Range};
use crate::{Engine, EngineError};

/// How long an announcement holds unless it is made again.
pub const ANNOUNCEMENT: Span = Span::from_secs(30);
/// How long what was read is believed.
const CACHED: Duration = Duration::from_secs(2);
const WORKERS: &str = "workers";
const HANDLERS: &str = "handlers";

/// A worker as it announced itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its id; new at each start of its process.
    pub worker: WorkerId,
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

    /// Announces a worker; to be repeated well within [`ANNOUNCEMENT`].
    pub async fn announce(&self, announced: Announcement<'_>) -> Result<(), EngineError> {
        let Announcement { worker, queues, unsubscribed, handlers, load } = announced;
        let info = WorkerInfo {
            worker: worker.clone(),
            queues: queues.to_vec(),
            unsubscribed: unsubscribed.to_vec(),
            handlers: handlers.to_vec(),
            load,
            expires_at: self.engine.now().await?.after(ANNOUNCEMENT),
        };
        let bytes = serde_json::to_vec(&info).expect("plain data");
        let entry = |index: &str, member: &str| IndexChange {
            index: index.to_owned(),
            member: member.to_owned(),
            add: true,
        };
        let mut indexes = vec![entry(WORKERS, worker.as_str())];
        indexes.extend(handlers.iter().map(|handler| entry(HANDLERS, handler.as_str())));
        self.write(vec![(field(worker.as_str()), Some(bytes))], indexes).await
    }

    /// Takes a worker's announcement back.
    pub async fn withdraw(&self, worker: &WorkerId) -> Result<(), EngineError> {
        let gone = IndexChange {
            index: WORKERS.to_owned(),
            member: worker.as_str().to_owned(),
            add: false,
        };
        self.write(vec![(field(worker.as_str()), None)], vec![gone]).await
    }

    async fn write(
        &self,
        writes: Vec<(String, Option<Vec<u8>>)>,
        indexes: Vec<IndexChange>,
    ) -> Result<(), EngineError> {
        let commit = Commit {
            id: self.engine.commit_id(),
            scope: Scope::Installation,
            guards: Vec::new(),
            writes,
            first_event: 0,
            events: Vec::new(),
            indexes,
            returns: Vec::new(),
        };
        self.engine.commit_raw(commit).await?;
        Ok(())
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
                let info: Option<WorkerInfo> =
                    stored.and_then(|stored| serde_json::from_slice(&stored.bytes).ok());
                match info {
                    Some(info) if info.expires_at > now => alive.push(info),
                    Some(_) | None => {
                        if let Ok(worker) = WorkerId::new(name.as_str()) {
                            self.withdraw(&worker).await?;
                        }
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

    fn keep<T>(&self, cache: &Cache<T>, value: T) {
        let now = self.engine.clock().monotonic();
        *cache.lock().expect("no panic while held") = Some((now, value));
    }
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
