//! Hears over AMQP at once what heartbeats would tell later: that attempts are to end.
//!
//! A message is never believed. It makes the attempt's heart beat now, and the api's answer is
//! what counts. Without the right to listen, heartbeats do alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Connection, Consumer};
use standfast_protocol::amqp::{CONTROL_EXCHANGE, ControlMessage, control_queue};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::amqp::{in_time, short};
use crate::error::Error;

/// Messages that wait for a worker that hangs; the oldest go first.
const MESSAGES_MAX: i32 = 10_000;

/// The attempts of this worker, each with what makes its heart beat.
#[derive(Default)]
pub(crate) struct Recalls {
    table: Mutex<BTreeMap<String, Vec<Listening>>>,
    /// Queues that this worker has had: each connection has its own.
    queues: AtomicU64,
}

struct Listening {
    step: String,
    attempt: u32,
    beat: Arc<Notify>,
}

/// One attempt's place in the table, for as long as it lives.
pub(crate) struct Listener<'r> {
    recalls: &'r Recalls,
    task: String,
    /// Told when the heart is to beat now. What was said before the heart began is kept.
    pub(crate) beat: Arc<Notify>,
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        let mut table = self.recalls.lock();
        let Some(of_task) = table.get_mut(&self.task) else { return };
        of_task.retain(|other| !Arc::ptr_eq(&other.beat, &self.beat));
        if of_task.is_empty() {
            table.remove(&self.task);
        }
    }
}

impl Recalls {
    /// Begins to listen for an attempt. Called before it is claimed: a stop may come right after.
    pub(crate) fn listen(&self, task: &str, step: &str, attempt: u32) -> Listener<'_> {
        let beat = Arc::new(Notify::new());
        let listening = Listening { step: step.to_owned(), attempt, beat: Arc::clone(&beat) };
        self.lock().entry(task.to_owned()).or_default().push(listening);
        Listener { recalls: self, task: task.to_owned(), beat }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Listening>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, body: &[u8]) {
        let Ok(message) = serde_json::from_slice::<ControlMessage>(body) else { return };
        for listening in self.lock().get(&message.task).into_iter().flatten() {
            if message.means(&listening.step, listening.attempt) {
                listening.beat.notify_one();
            }
        }
    }

    fn look_at_all(&self) {
        self.lock().values().flatten().for_each(|listening| listening.beat.notify_one());
    }
}

/// Listens over a connection until what is given is dropped.
pub(crate) async fn follow(
    recalls: &Arc<Recalls>,
    connection: &Connection,
    worker: &str,
) -> Option<AbortOnDropHandle<()>> {
    let mut consumer = match open(recalls, connection, worker).await {
        Ok(consumer) => consumer,
        Err(error) => {
            tracing::info!(%error, "stops are heard of by heartbeats alone");
            return None;
        }
    };
    recalls.look_at_all(); // what was said while nobody listened
    let recalls = Arc::clone(recalls);
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        while let Some(Ok(delivery)) = consumer.next().await {
            recalls.hear(&delivery.data);
        }
    })))
}

/// Declares a queue of this worker's own, which goes with the connection, and reads it. On a
/// channel of its own: a refusal ends that one alone.
async fn open(recalls: &Recalls, connection: &Connection, worker: &str) -> Result<Consumer, Error> {
    let channel = in_time("open a channel", connection.create_channel()).await?;
    let number = recalls.queues.fetch_add(1, Ordering::Relaxed) + 1;
    let queue = short("queue", &control_queue(&format!("{worker}.{number}")))?;
    let mut arguments = FieldTable::default();
    let text = |value: &str| AMQPValue::LongString(value.into());
    arguments.insert(short("argument", "x-queue-type")?, text("classic"));
    arguments.insert(short("argument", "x-overflow")?, text("drop-head"));
    arguments.insert(short("argument", "x-max-length")?, AMQPValue::LongInt(MESSAGES_MAX));
    let own = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
    in_time("declare a queue", channel.queue_declare(queue.clone(), own, arguments)).await?;
    let exchange = short("exchange", CONTROL_EXCHANGE)?;
    let to_all = (ShortString::default(), QueueBindOptions::default(), FieldTable::default());
    let bind = channel.queue_bind(queue.clone(), exchange, to_all.0, to_all.1, to_all.2);
    in_time("bind a queue", bind).await?;
    let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
    let consume =
        channel.basic_consume(queue, ShortString::default(), options, FieldTable::default());
    in_time("consume", consume).await
}
