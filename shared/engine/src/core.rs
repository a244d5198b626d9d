//! What the lanes of one process share: ports, time, and what follows a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use standfast_domain::commit::{Commit, CommitAnswer, CommitId, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::stage::{Recall, Wake};
use standfast_domain::time::Time;
use tokio::sync::{broadcast, mpsc, watch};

use crate::crash;
use crate::effects::Durability;
use crate::outbox::{self, Outbox, Sent};
use crate::ports::{Broker, Clock, Destination, Ids, Load, Message, Store, StoreError};
use crate::recalls;
use crate::standing::{Noted, Standing};
use crate::time::StoreTime;

/// How long a publish may wait for the broker's confirms.
const PUBLISH_BOUND: Duration = Duration::from_secs(10);
/// The wait between two tries of the store.
const STORE_RETRY: Duration = Duration::from_millis(100);
/// Notices of changed tasks that a slow listener may fall behind; it then looks by itself.
const CHANGED_BUFFER: usize = 1_024;

/// What follows a commit and is done outside of the lane.
#[derive(Debug)]
pub(crate) enum Later {
    /// Go on with ending the task, or clear its index entries.
    Settle(TaskId),
    /// Wake workers for all ready steps of a task whose hold has ended.
    Wake(TaskId),
}

/// Counts since the process started, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    commits: AtomicU64,
    refused: AtomicU64,
    wakes: AtomicU64,
    wakes_failed: AtomicU64,
    outgoing_confirmed: AtomicU64,
    outgoing_unconfirmed: AtomicU64,
    outgoing_dropped: AtomicU64,
}

impl Counters {
    /// Gives commits tried, commits refused, wakes sent, wakes not confirmed.
    pub fn read(&self) -> [u64; 4] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [read(&self.commits), read(&self.refused), read(&self.wakes), read(&self.wakes_failed)]
    }

    /// Gives outgoing messages confirmed, tries that were not, and messages dropped since nobody
    /// waits for them.
    pub fn read_outgoing(&self) -> [u64; 3] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let unconfirmed = read(&self.outgoing_unconfirmed);
        [read(&self.outgoing_confirmed), unconfirmed, read(&self.outgoing_dropped)]
    }

    pub(crate) fn outgoing(&self, sent: Sent) {
        let add = |counter: &AtomicU64, count: usize| {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        };
        add(&self.outgoing_confirmed, sent.confirmed);
        add(&self.outgoing_unconfirmed, sent.left);
        add(&self.outgoing_dropped, sent.dropped);
    }
}

pub(crate) struct Core {
    pub store: Arc<dyn Store>,
    pub standing: Arc<Standing>,
    pub broker: Arc<dyn Broker>,
    pub clock: Arc<dyn Clock>,
    ids: Arc<dyn Ids>,
    time: StoreTime,
    /// Wakes that are not sent and confirmed yet.
    pub waking: watch::Sender<usize>,
    later: mpsc::UnboundedSender<Later>,
    changed: broadcast::Sender<TaskId>,
    pub outbox: Outbox,
    pub counters: Counters,
    pub durability: Durability,
}

impl Core {
    pub fn start(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        clock: Arc<dyn Clock>,
        ids: Arc<dyn Ids>,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Later>) {
        let (later, later_receiver) = mpsc::unbounded_channel();
        let (changed, _) = broadcast::channel(CHANGED_BUFFER);
        let (time, counters) = (StoreTime::default(), Counters::default());
        let (durability, (outbox, promises)) = (Durability::default(), Outbox::new());
        let standing = Arc::new(Standing::default());
        let noted = Noted { store, clock: clock.clone(), standing: standing.clone() };
        let core = Self {
            store: Arc::new(noted),
            standing,
            broker,
            clock,
            ids,
            time,
            waking: watch::Sender::new(0),
            later,
            changed,
            outbox,
            counters,
            durability,
        };
        let core = Arc::new(core);
        tokio::spawn(outbox::send_promised(Arc::downgrade(&core), promises));
        (core, later_receiver)
    }

    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub fn now(&self) -> Option<Time> {
        self.time.now(&*self.clock)
    }

    pub fn heard(&self, now: Time) {
        self.time.heard(now, &*self.clock);
    }

    pub fn random(&self) -> [u8; 16] {
        self.ids.random()
    }

    pub fn commit_id(&self) -> CommitId {
        let random = self.ids.random();
        CommitId(random.iter().fold(0, |sum: u64, byte| sum.rotate_left(8) ^ u64::from(*byte)))
    }

    pub fn count_refused(&self) {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn listen(&self) -> broadcast::Receiver<TaskId> {
        self.changed.subscribe()
    }

    pub fn changed(&self, task: &TaskId) {
        let _ = self.changed.send(task.clone()); // nobody may be listening
    }

    /// Sends wakes beside what its caller does. One that is not confirmed is left to the sweep of
    /// the ready index: the message only wakes, what is ready is in the store.
    pub fn wake(self: &Arc<Self>, wakes: Vec<Wake>) {
        if wakes.is_empty() {
            return;
        }
        self.waking.send_modify(|count| *count += wakes.len());
        let core = self.clone();
        tokio::spawn(async move {
            let confirmed = core.publish_steps(&wakes).await;
            core.waking.send_modify(|count| *count -= wakes.len());
            let failed = confirmed.iter().filter(|confirmed| !**confirmed).count();
            if failed > 0 {
                tracing::debug!(failed, "step messages not confirmed; the sweep sends them again");
            }
        });
    }

    /// Tells all workers at once. What is lost they learn by their next heartbeat.
    pub fn recall(&self, recalls: &[Recall]) {
        recalls.iter().for_each(|recall| self.broker.tell(recalls::message(recall)));
    }

    pub fn settle_later(&self, task: TaskId) {
        let _ = self.later.send(Later::Settle(task)); // likewise, the work index remains
    }

    pub fn wake_all_later(&self, task: TaskId) {
        let _ = self.later.send(Later::Wake(task)); // likewise, the ready index remains
    }

    /// Loads, trying again for `patience` while the store does not answer.
    pub async fn load(
        &self,
        loads: &[Load],
        patience: Duration,
    ) -> Result<Vec<Vec<Option<StoredRecord>>>, StoreError> {
        let start = self.clock.monotonic();
        loop {
            match self.store.load(loads).await {
                Ok((now, records)) => {
                    self.heard(now);
                    return Ok(records);
                }
                Err(error) => self.pause_or(error, start, patience).await?,
            }
        }
    }

    /// Commits, trying again under the same ids for `patience` while the store does not
    /// answer. What the outbox has to clear rides along. Only commits that the first try has
    /// stored return records.
    pub async fn commit(
        &self,
        commits: &[Commit],
        patience: Duration,
    ) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let riders = self.outbox.riders(commits);
        match riders.is_empty() {
            true => self.commit_alone(commits, patience).await,
            false => self.commit_together(commits, riders, patience).await,
        }
    }

    /// Commits with riders; gives the answers to the commits alone.
    pub async fn commit_together(
        &self,
        commits: &[Commit],
        riders: Vec<Commit>,
        patience: Duration,
    ) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let all = [commits, &riders].concat();
        match self.commit_alone(&all, patience).await {
            Ok((now, mut answers)) => {
                answers.truncate(commits.len());
                Ok((now, answers))
            }
            Err(error) => {
                self.outbox.put_back(riders);
                Err(error)
            }
        }
    }

    async fn commit_alone(
        &self,
        commits: &[Commit],
        patience: Duration,
    ) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        let tried = commits.len() as u64;
        self.counters.commits.fetch_add(tried, Ordering::Relaxed);
        let start = self.clock.monotonic();
        let mut again = false;
        loop {
            match self.store.commit(commits).await {
                Ok((now, mut answers)) => {
                    self.heard(now);
                    if again {
                        // They may have stood for a while: what they return may be newer.
                        answers.iter_mut().for_each(|answer| answer.records.clear());
                    }
                    return Ok((now, answers));
                }
                Err(error) => self.pause_or(error, start, patience).await?,
            }
            again = true;
        }
    }

    async fn pause_or(
        &self,
        error: StoreError,
        start: Duration,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let waited = self.clock.monotonic().saturating_sub(start);
        match error {
            StoreError::Unavailable(_) if waited < patience => {
                self.clock.sleep(STORE_RETRY).await;
                Ok(())
            }
            error => Err(error),
        }
    }

    /// Publishes step messages and waits for their confirms; says of each whether the broker
    /// has it.
    pub async fn publish_steps(&self, wakes: &[Wake]) -> Vec<bool> {
        let messages = wakes.iter().map(step_message).collect();
        let results = self.broker.publish(messages, PUBLISH_BOUND).await;
        crash::point("publish.confirmed");
        let taken: Vec<bool> = results.iter().map(Result::is_ok).collect();
        let failed = taken.iter().filter(|taken| !**taken).count();
        self.counters.wakes.fetch_add(wakes.len() as u64, Ordering::Relaxed);
        self.counters.wakes_failed.fetch_add(failed as u64, Ordering::Relaxed);
        taken
    }
}

/// Writes the message that wakes a worker for a step.
fn step_message(wake: &Wake) -> Message {
    let (task, step, epoch, attempt) = (&wake.task, &wake.step, wake.epoch, wake.attempt);
    let (task, step) = (task.as_str(), step.as_str());
    let (epoch, attempt) = (&*epoch.to_string(), &*attempt.to_string());
    // Names need no escapes, and this is written once a step.
    let body = [
        r#"{"task":""#,
        task,
        r#"","step":""#,
        step,
        r#"","epoch":"#,
        epoch,
        r#","attempt":"#,
        attempt,
        "}",
    ];
    let body = body.concat();
    Message {
        destination: Destination::Steps(wake.queue.clone()),
        message_id: [task, step, epoch, attempt].join("/"),
        correlation_id: None,
        headers: Vec::new(),
        body: Bytes::from(body),
    }
}
