//! The ports: what the engine needs of a store, a broker, blobs and the local clock.
//!
//! A store moves bytes and compares versions, a broker moves messages; neither knows a rule.
//! Each method says what a crash or a lost answer means.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::{Queue, TaskId};
use standfast_domain::time::Time;

/// The most records, index entries or events that one call may name: a longer script
/// would keep every other client of the store waiting.
pub const BATCH_MAX: usize = 500;

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing is known about the call's effect: try again, with the same commit id.
    #[error("reach the store: {0}")]
    Unavailable(String),
    /// The store refuses writes for want of room or by its role; reads may work.
    #[error("write to the store: {0}")]
    ReadOnly(String),
    /// What is stored cannot be read; a person must look.
    #[error("read what is stored: {0}")]
    Corrupt(String),
}

/// Records of one scope that are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Whose records.
    pub scope: Scope,
    /// Their field names, at most [`BATCH_MAX`].
    pub fields: Vec<String>,
}

/// One page of an index: the members greater than `after` and less than `before`, in byte
/// order or against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where the index lives.
    pub home: Home,
    /// The index's name.
    pub index: String,
    /// Exclusive lower bound; empty for the start.
    pub after: String,
    /// Exclusive upper bound; `None` for the end.
    pub before: Option<String>,
    /// The most members to give, at most [`BATCH_MAX`].
    pub limit: usize,
    /// True walks from the end towards the start.
    pub reverse: bool,
}

/// What the store's operator should know; read by health and `doctor`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// Product and version, such as `redis 7.0.15`.
    pub product: String,
    /// True if each write is on disk before it is answered.
    pub durable: bool,
    /// Faults that lose or refuse data, each a sentence that says what to do.
    pub faults: Vec<String>,
    /// What is allowed but weaker than it could be, each a sentence.
    pub warnings: Vec<String>,
}

/// Keeps records, events and indexes. Two adapters: Redis, and one file.
#[async_trait]
pub trait Store: Send + Sync {
    /// Reads records of several scopes, and the store's time; the records of one scope are
    /// read at one moment. A crash changes nothing.
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError>;

    /// Writes each commit wholly or not at all, in order, and gives the store's time. A commit
    /// whose id already stands at its first event (or, without events, on its first written
    /// record) was applied earlier and is answered as applied; so a call whose answer was lost
    /// is simply made again.
    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError>;

    /// Reads up to `limit` events of a scope from number `from` on. A crash changes nothing.
    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError>;

    /// Reads pages of indexes in one round trip. A crash changes nothing.
    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError>;

    /// Counts the entries of indexes in one round trip. A crash changes nothing.
    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError>;

    /// Removes up to `limit` records and events of a task (claims' guards stay true: its
    /// header goes first) and says whether anything is left; a crash leaves the rest for the
    /// next call.
    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError>;

    /// Reads the store's time with a round trip that also proves that it answers.
    async fn now(&self) -> Result<Time, StoreError>;

    /// Looks at settings and role. A crash changes nothing.
    async fn health(&self) -> Result<StoreHealth, StoreError>;
}

/// Why a broker did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// Not known to be accepted: publish again with the same `message_id`.
    #[error("reach the broker: {0}")]
    Unavailable(String),
    /// The broker said no (nack, unroutable); the message is not in any queue.
    #[error("publish: {0}")]
    Refused(String),
    /// The topology found is not the one wanted; names queue, argument, wanted and found.
    #[error("declare topology: {0}")]
    Topology(String),
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// The step queue of workers: wakes them.
    Steps(Queue),
    /// The queue of what could not be accepted.
    Rejected,
    /// The reply queue that a publisher named in `reply_to`.
    Reply(String),
}

/// One message to send; always persistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where it goes.
    pub destination: Destination,
    /// The same on every repeat.
    pub message_id: String,
    /// Copied from the request that this answers.
    pub correlation_id: Option<String>,
    /// Text headers; at most 255 bytes a name.
    pub headers: Vec<(String, String)>,
    /// The body, `application/json`.
    pub body: Bytes,
}

/// What is listened to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The step queue of workers.
    Steps(Queue),
    /// What other services send: `submit`, later `signal` and `stop`.
    Intake,
    /// The queue of step messages that died (delivery limit, length limit): they only woke.
    DeadSteps,
    /// What [`Broker::tell`] says, to each that listens, in a queue that goes with it. An empty
    /// body means that something may have been missed.
    Control {
        /// A name that no other listener has; operators see it.
        listener: String,
    },
}

/// A message that arrived.
pub struct Delivery {
    /// The body as it came.
    pub body: Bytes,
    /// The routing key it was sent with, such as `submit`.
    pub routing_key: String,
    /// The sender's message id.
    pub message_id: Option<String>,
    /// To be copied to the reply.
    pub correlation_id: Option<String>,
    /// Where the sender wants its answer.
    pub reply_to: Option<String>,
    /// The sender's user name, validated by the broker.
    pub user_id: Option<String>,
    /// Text headers (others are shown in their debug form).
    pub headers: Vec<(String, String)>,
    /// Ends the delivery.
    pub acker: Box<dyn Acker>,
}

/// Ends one delivery, once.
#[async_trait]
pub trait Acker: Send + Sync {
    /// Says that the message is done with. False: the channel died, it will come again.
    async fn ack(self: Box<Self>) -> bool;
    /// Lets the message die (to the dead-letter queue). False: it will come again.
    async fn dead_letter(self: Box<Self>) -> bool;
}

/// Receives from one source for as long as it lives. The adapter reconnects, re-declares and
/// re-subscribes underneath without end.
#[async_trait]
pub trait Subscription: Send {
    /// Waits for the next message; `None` only after [`Subscription::cease`],
    /// [`Subscription::close`] or the end of the process's broker. Cancel safe.
    async fn next(&mut self) -> Option<Delivery>;
    /// True while the broker has this consumer.
    fn subscribed(&self) -> bool;
    /// Cancels the consumer and gives back what [`Subscription::next`] has not given yet, so
    /// that others have it at once; what it has given can still be ended. Says how many it gave
    /// back, as far as it knows.
    async fn cease(&mut self) -> usize;
    /// Cancels the consumer; unacknowledged deliveries go back to the queue.
    async fn close(&mut self);
}

/// What a queue holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depth {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Consumers subscribed.
    pub consumers: u64,
}

/// What the broker's operator should know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerHealth {
    /// Product and version, such as `RabbitMQ 3.10.8`.
    pub product: String,
    /// True while publishing is possible.
    pub connected: bool,
    /// Set while the broker blocks publishers (memory or disk alarm), with its reason.
    pub blocked: Option<String>,
    /// Faults, each a sentence that says what to do.
    pub faults: Vec<String>,
}

/// Moves messages. Two adapters: RabbitMQ, and queues within the process.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Declares what a step queue needs; a queue that exists with other arguments is an error
    /// that names them. Repeating it changes nothing.
    async fn declare(&self, queue: &Queue) -> Result<(), BrokerError>;

    /// Sends messages and waits, for at most `bound`, until the broker has each; answers in
    /// order. A lost answer is `Unavailable`: the message may be in the queue.
    async fn publish(
        &self,
        messages: Vec<Message>,
        bound: Duration,
    ) -> Vec<Result<(), BrokerError>>;

    /// Says something to all that listen to [`Source::Control`], without waiting and without
    /// a promise: it is lost with the process or the broker, or in a flood.
    fn tell(&self, body: Bytes);

    /// Subscribes; at most `prefetch` deliveries are unacknowledged at a time. A crash of the
    /// process hands them back.
    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError>;

    /// Counts a queue. A crash changes nothing.
    async fn depth(&self, queue: &Queue) -> Result<Depth, BrokerError>;

    /// Looks at the connection. A crash changes nothing.
    async fn health(&self) -> BrokerHealth;
}

/// The local monotonic clock and timers; for waiting only, never for what is stored.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Gives the span since an arbitrary fixed moment of this process.
    fn monotonic(&self) -> Duration;
    /// Waits; under simulation, virtually.
    async fn sleep(&self, span: Duration);
}

/// Gives what may not repeat.
pub trait Ids: Send + Sync {
    /// Gives 16 random bytes.
    fn random(&self) -> [u8; 16];
}
