//! The outbox: what a commit promises to send, stored with it.
//!
//! ```text
//! decide ─▶ commit: outgoing/ID, outbox entry ─▶ sent at once ─▶ confirmed ─▶ cleared with the
//!                        │                                                  process's next write
//!                        └── older than 10 s: the sweep of a scheduler sends it again
//! ```
//!
//! Nothing is sent that was not committed, and nothing committed stays unsent: a process that
//! dies anywhere on the way leaves the entry. So a message arrives at least once, always under
//! the same `message_id`. Clearing an entry guards the entry alone, never the header: it meets
//! no other commit of the task, and costs no round trip where the process writes anyway.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use standfast_domain::commit::{Commit, CommitId, Guard, Home, IndexChange, Scope, StoredRecord};
use standfast_domain::ids::{Partition, TaskId};
use standfast_domain::index::{OUTBOX, entries, parse_outbox_member};
use standfast_domain::record::{Key, Outgoing, Record};
use standfast_domain::time::Span;
use tokio::sync::{mpsc, watch};

use crate::core::Core;
use crate::crash;
use crate::ports::{BATCH_MAX, BrokerError, Destination, Load, Message, StoreError};
use crate::{Engine, EngineError};

/// Messages that may wait in the outbox of an installation. Each is about a kilobyte, so this is
/// some ten megabytes of the store; the sweeps send as many within two minutes.
pub const OUTBOX_MAX: u64 = 10_000;
/// How old an entry must be before the sweep sends it again: whoever committed has given up by
/// then.
pub const UNSENT_AFTER: Span = Span::from_secs(10);
/// How long a message may wait for the broker's confirm.
const SEND_BOUND: Duration = Duration::from_secs(10);
/// Messages that one publish call takes.
const SENT_AT_ONCE_MAX: usize = 256;
/// How long the clearing of entries waits for another write to ride on.
const CLEAR_AFTER: Duration = Duration::from_secs(1);
/// What clearing an entry weighs in a call of the store: its record and its index entry.
const CLEARING_WEIGHT: usize = 2;
/// How long a count of the outbox is believed.
const COUNT_KEPT: Duration = Duration::from_secs(1);
/// How long writing or reading goes on when the store does not answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Hex digits of a message's id within its task: 128 bits.
const ID_CHARS: usize = 32;

/// A message that is to arrive, in the form that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutgoingMessage {
    /// Where it goes.
    pub to: Recipient,
    /// The same on every repeat, so that a receiver may tell.
    pub message_id: String,
    /// Copied from the request that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The body.
    pub body: Value,
}

/// Where an outgoing message goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recipient {
    /// The reply queue that a publisher named.
    Reply(String),
}

impl OutgoingMessage {
    /// Gives its id within a task: a digest, since a message id may hold anything.
    pub fn id(&self) -> String {
        let mut id = hex::encode(Sha256::digest(self.message_id.as_bytes()));
        id.truncate(ID_CHARS);
        id
    }

    /// Gives what a submission carries for it.
    pub fn entry(&self) -> (String, Value) {
        (self.id(), serde_json::to_value(self).expect("plain data"))
    }

    /// Gives the message for the broker.
    pub fn message(self) -> Message {
        let Recipient::Reply(queue) = self.to;
        Message {
            destination: Destination::Reply(queue),
            message_id: self.message_id,
            correlation_id: self.correlation_id,
            headers: Vec::new(),
            body: Bytes::from(self.body.to_string()),
        }
    }
}

/// One entry of the outbox as it was read or committed.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    pub task: TaskId,
    pub id: String,
    /// The commit that wrote it; what clears it demands that it is still the same.
    pub version: CommitId,
    pub outgoing: Outgoing,
}

/// What became of entries that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The broker has them.
    pub confirmed: usize,
    /// Nobody receives there any more; they are given up.
    pub dropped: usize,
    /// It is not known that they arrived; the sweep sends them again.
    pub left: usize,
}

/// The outbox of one process.
pub(crate) struct Outbox {
    sending: mpsc::UnboundedSender<Promise>,
    clearing: Mutex<Vec<Commit>>,
    under_way: watch::Sender<usize>,
    counted: Mutex<Option<(Duration, u64)>>,
}

impl Outbox {
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Promise>) {
        let (sending, receiver) = mpsc::unbounded_channel();
        let (clearing, counted) = (Mutex::default(), Mutex::default());
        (Self { sending, clearing, under_way: watch::Sender::new(0), counted }, receiver)
    }

    /// Takes what may ride on a call of the store that carries `commits`.
    pub fn riders(&self, commits: &[Commit]) -> Vec<Commit> {
        let mut waiting = self.clearing.lock().expect("no panic while held");
        if waiting.is_empty() {
            return Vec::new();
        }
        let room = BATCH_MAX.saturating_sub(commits.iter().map(weight).sum()) / CLEARING_WEIGHT;
        let count = waiting.len().min(room);
        waiting.drain(..count).collect()
    }

    /// Takes riders back whose call found no answer.
    pub fn put_back(&self, riders: Vec<Commit>) {
        self.clearing.lock().expect("no panic while held").extend(riders);
    }
}

/// Counts what a commit asks of the store: records, events and index entries.
pub(crate) fn weight(commit: &Commit) -> usize {
    commit.writes.len() + commit.events.len() + commit.indexes.len()
}

impl Core {
    /// Sends what a commit has promised, outside of whoever committed.
    pub fn promise(&self, task: &TaskId, version: CommitId, promised: Vec<(String, Outgoing)>) {
        for (id, outgoing) in promised {
            self.outbox.under_way.send_modify(|count| *count += 1);
            let promise = Promise { task: task.clone(), id, version, outgoing };
            let _ = self.outbox.sending.send(promise); // the process is ending; the entry remains
        }
    }

    /// Sends entries, and lines up the clearing of those that need not be sent again.
    async fn send(&self, promises: &[Promise]) -> Sent {
        let mut sent = Sent::default();
        let mut messages = Vec::new();
        let mut of = Vec::new();
        for promise in promises {
            match OutgoingMessage::deserialize(&promise.outgoing.message) {
                Ok(message) => {
                    messages.push(message.message());
                    of.push(promise);
                }
                Err(error) => {
                    tracing::error!(task = %promise.task, id = promise.id, %error,
                        "outgoing message cannot be read; it stays in the outbox");
                    sent.left += 1;
                }
            }
        }
        crash::point("outbox.before");
        let results = self.broker.publish(messages, SEND_BOUND).await;
        crash::point("outbox.confirmed");
        for (promise, result) in of.into_iter().zip(results) {
            match result {
                Ok(()) => sent.confirmed += 1,
                Err(BrokerError::Refused(reason)) => {
                    tracing::info!(task = %promise.task, reason,
                        "outgoing message dropped: the broker refused it");
                    sent.dropped += 1;
                }
                Err(error) => {
                    tracing::debug!(task = %promise.task, %error, "outgoing message not confirmed");
                    sent.left += 1;
                    continue;
                }
            }
            let commit = clearing(self.commit_id(), promise);
            self.outbox.clearing.lock().expect("no panic while held").push(commit);
        }
        self.counters.outgoing(sent);
        sent
    }

    /// Clears entries with a call of their own, as far as no other write has taken them along.
    pub async fn clear_sent(&self) -> Result<(), StoreError> {
        loop {
            let riders = self.outbox.riders(&[]);
            if riders.is_empty() {
                return Ok(());
            }
            self.commit_together(&[], riders, PATIENCE).await?;
        }
    }

    /// Refuses, for want of room, what would promise one more message.
    pub async fn outbox_has_room(&self) -> Result<(), StoreError> {
        let now = self.clock().monotonic();
        let known = *self.outbox.counted.lock().expect("no panic while held");
        let count = match known.filter(|(at, _)| now.saturating_sub(*at) < COUNT_KEPT) {
            Some((at, count)) => {
                let more = Some((at, count + 1));
                *self.outbox.counted.lock().expect("no panic while held") = more;
                count
            }
            None => {
                let homes: Vec<(Home, String)> =
                    Partition::all().map(|p| (Home::Partition(p), OUTBOX.to_owned())).collect();
                let count = self.store.counts(&homes).await?.iter().sum();
                *self.outbox.counted.lock().expect("no panic while held") = Some((now, count));
                count
            }
        };
        if count < OUTBOX_MAX {
            return Ok(());
        }
        let full = format!(
            "the outbox is full: {count} messages wait for the broker, at most {OUTBOX_MAX} may"
        );
        Err(StoreError::ReadOnly(full))
    }

    /// Reads what stands under these ids. One that cannot be read is said, and strands no other.
    async fn promises(&self, of: &[(TaskId, String)]) -> Result<Vec<Found>, StoreError> {
        let load = |(task, id): &(TaskId, String)| Load {
            scope: Scope::Task(task.clone()),
            fields: vec![Key::Outgoing(id.clone()).field()],
        };
        let loads: Vec<Load> = of.iter().map(load).collect();
        let loaded = self.load(&loads, PATIENCE).await?;
        let stored = loaded.into_iter().map(|records| records.into_iter().flatten().next());
        Ok(of.iter().zip(stored).map(|((task, id), stored)| found(task, id, stored)).collect())
    }
}

/// What stands under an id.
enum Found {
    Nothing,
    Unreadable,
    Promise(Promise),
}

fn found(task: &TaskId, id: &str, stored: Option<StoredRecord>) -> Found {
    let Some(stored) = stored else { return Found::Nothing };
    let (task, version) = (task.clone(), stored.version);
    match Record::decode(&Key::Outgoing(id.to_owned()), &stored.bytes) {
        Ok(Record::Outgoing(outgoing)) => {
            Found::Promise(Promise { task, id: id.to_owned(), version, outgoing })
        }
        Ok(_) => Found::Unreadable,
        Err(error) => {
            tracing::error!(%task, %error, "entry of the outbox left alone; a person must look");
            Found::Unreadable
        }
    }
}

impl Engine {
    /// Sends what the outbox promises under these members of its index, and removes entries that
    /// lead to nothing: their message was cleared, or its task is gone.
    pub async fn send_again(&self, members: &[String]) -> Result<Sent, EngineError> {
        let parse = |member: &String| {
            let (_, task, id) = parse_outbox_member(member)?;
            Some((member.clone(), (task, id)))
        };
        let (members, of): (Vec<String>, Vec<(TaskId, String)>) =
            members.iter().filter_map(parse).unzip();
        let mut promises = Vec::new();
        let (mut sent, mut stale) = (Sent::default(), Vec::new());
        for (member, found) in members.into_iter().zip(self.core.promises(&of).await?) {
            match found {
                Found::Promise(promise) => promises.push(promise),
                Found::Unreadable => sent.left += 1,
                Found::Nothing => stale.push(member),
            }
        }
        for member in stale {
            let Some((_, task, _)) = parse_outbox_member(&member) else { continue };
            let gone = IndexChange { index: OUTBOX.to_owned(), member, add: false };
            self.change_indexes(Scope::Task(task), vec![gone]).await?;
        }
        let now = self.core.send(&promises).await;
        self.core.clear_sent().await?;
        sent.confirmed += now.confirmed;
        sent.dropped += now.dropped;
        sent.left += now.left;
        Ok(sent)
    }

    /// Sends at once what a task's commit has promised to the same recipient under the same
    /// message and correlation id, if it still stands in the outbox; says whether it does.
    pub async fn send_promised(
        &self,
        task: &TaskId,
        message: &OutgoingMessage,
    ) -> Result<bool, EngineError> {
        let found = self.core.promises(&[(task.clone(), message.id())]).await?;
        let Some(Found::Promise(promise)) = found.into_iter().next() else { return Ok(false) };
        let stored = OutgoingMessage::deserialize(&promise.outgoing.message);
        let same = stored.is_ok_and(|stored| {
            stored.to == message.to && stored.correlation_id == message.correlation_id
        });
        if same {
            self.core.promise(task, promise.version, vec![(promise.id, promise.outgoing)]);
        }
        Ok(same)
    }

    /// Waits until nothing is being sent, wakes included, for at most `bound`, and clears what
    /// has arrived: before a process ends. What is left then is the sweeps'.
    pub async fn close_outbox(&self, bound: Duration) {
        let mut waking = self.core.waking.subscribe();
        let mut under_way = self.core.outbox.under_way.subscribe();
        let sent = async {
            let _ = waking.wait_for(|count| *count == 0).await; // the engine lives
            let _ = under_way.wait_for(|count| *count == 0).await; // likewise
        };
        tokio::select! {
            biased;
            () = sent => {}
            () = self.core.clock().sleep(bound) => {}
        }
        if let Err(error) = self.core.clear_sent().await {
            tracing::debug!(%error, "entries of the outbox not cleared; they are sent again");
        }
    }
}

/// Makes the commit that clears an entry.
fn clearing(id: CommitId, promise: &Promise) -> Commit {
    let key = Key::Outgoing(promise.id.clone());
    let record = Record::Outgoing(promise.outgoing.clone());
    let gone = |(index, member)| IndexChange { index, member, add: false };
    Commit {
        id,
        scope: Scope::Task(promise.task.clone()),
        guards: vec![Guard { field: key.field(), version: Some(promise.version) }],
        writes: vec![(key.field(), None)],
        first_event: 0,
        events: Vec::new(),
        indexes: entries(&promise.task, &key, &record).into_iter().map(gone).collect(),
        returns: Vec::new(),
    }
}

/// Sends promises as they come, many at a time, and clears what no other write has taken along.
pub(crate) async fn send_promised(
    core: Weak<Core>,
    mut receiver: mpsc::UnboundedReceiver<Promise>,
) {
    let mut promises = Vec::new();
    while receiver.recv_many(&mut promises, SENT_AT_ONCE_MAX).await > 0 {
        let Some(core) = core.upgrade() else { return };
        let taken = std::mem::take(&mut promises);
        tokio::spawn(async move {
            core.send(&taken).await;
            core.outbox.under_way.send_modify(|count| *count -= taken.len());
            clear_after(core).await;
        });
    }
}

/// Clears what still waits after a while. The wait does not keep the engine alive.
async fn clear_after(core: Arc<Core>) {
    let (clock, core) = (core.clock.clone(), Arc::downgrade(&core));
    clock.sleep(CLEAR_AFTER).await;
    let Some(core) = core.upgrade() else { return };
    if let Err(error) = core.clear_sent().await {
        tracing::debug!(%error, "entries of the outbox not cleared; they ride on the next write");
    }
}
