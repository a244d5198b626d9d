//! Receives steps by AMQP messages.
//!
//! A message is acked once the report of its attempt is answered, or once the api says that
//! there is nothing to claim. While the api does not answer, messages are held and, through the
//! prefetch, no more come. A broken channel ends nothing but the reception: attempts go on, and
//! their messages come again and find nothing to claim.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::select_all;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, Consumer};
use standfast_protocol::amqp::{StepMessage, steps_queue};
use standfast_protocol::claims::Claim;
use tokio_util::task::AbortOnDropHandle;

use super::attempt::Answered;
use super::{Crew, attempt, control, poll};
use crate::amqp::{connect, in_time, short};
use crate::backoff::Backoff;
use crate::error::Error;
use crate::http::retry_after;

/// How long the connection is kept for acks after the attempts have ended.
const LAST_ACKS: Duration = Duration::from_secs(1);

/// Consumes all queues until the worker is told to end, over one connection after another.
pub(crate) async fn receive(crew: Arc<Crew>, uri: AMQPUri) {
    let mut backoff = Backoff::new();
    loop {
        let open = tokio::select! {
            open = Reception::open(&crew, &uri) => open,
            () = crew.shutdown.drain.cancelled() => return,
        };
        let ended = match open {
            Ok(open) => open.deliver(&crew, &mut backoff).await,
            Err(error) => Err(error),
        };
        let error = match ended {
            Ok(()) => return,
            Err(error @ Error::Setup(_)) => return crew.give_up(error),
            Err(error) => error,
        };
        tracing::warn!(%error, "the broker does not deliver");
        tokio::select! {
            () = tokio::time::sleep(backoff.pause(None)) => {}
            () = crew.shutdown.drain.cancelled() => return,
        }
    }
}

/// A connection that consumes the worker's queues.
struct Reception {
    connection: Connection,
    channel: Channel,
    consumers: Vec<(String, Consumer)>,
    control: Option<AbortOnDropHandle<()>>,
}

impl Reception {
    async fn open(crew: &Crew, uri: &AMQPUri) -> Result<Self, Error> {
        let connection = connect(uri, &format!("standfast-sdk worker {}", crew.id)).await?;
        let channel = in_time("open a channel", connection.create_channel()).await?;
        let prefetch = u16::try_from(crew.concurrency).unwrap_or(u16::MAX);
        let qos = channel.basic_qos(prefetch, BasicQosOptions::default());
        in_time("set the prefetch", qos).await?;
        let mut consumers = Vec::new();
        for queue in &crew.queues {
            let consume = channel.basic_consume(
                short("queue", &steps_queue(queue))?,
                ShortString::default(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            );
            consumers.push((queue.clone(), in_time("consume", consume).await?));
        }
        let control = control::follow(&crew.recalls, &connection, &crew.id).await;
        Ok(Self { connection, channel, consumers, control })
    }

    /// Takes deliveries until the worker is told to end. The error or the end of one consumer
    /// ends the use of the channel: after it, the others may never speak again.
    async fn deliver(self, crew: &Arc<Crew>, backoff: &mut Backoff) -> Result<(), Error> {
        let streams = self.consumers.into_iter().map(|(queue, consumer)| {
            let with_end = consumer.map(Some).chain(futures::stream::iter([None]));
            with_end.map(move |delivery| (queue.clone(), delivery)).boxed()
        });
        let mut deliveries = select_all(streams);
        loop {
            let next = tokio::select! {
                next = deliveries.next() => next,
                () = crew.shutdown.drain.cancelled() => break,
            };
            match next {
                Some((queue, Some(Ok(delivery)))) => {
                    backoff.reset();
                    take(crew, queue, delivery);
                }
                Some((_, Some(Err(error)))) => return Err(error.into()),
                Some((queue, None)) => {
                    return Err(Error::NotPublished(format!("the broker ended `{queue}`")));
                }
                None => return Ok(()),
            }
        }
        keep_for_acks(crew, self.connection, self.channel, self.control);
        Ok(())
    }
}

/// Keeps the connection for the acks of attempts that still run, and for hearing that they are
/// to end; what was delivered beyond them goes back to the queue when it closes.
fn keep_for_acks(
    crew: &Arc<Crew>,
    connection: Connection,
    channel: Channel,
    control: Option<AbortOnDropHandle<()>>,
) {
    let attempts = crew.attempts.clone();
    crew.connections.spawn(async move {
        attempts.wait().await;
        drop(control);
        let close = channel.close(200, ShortString::default());
        drop(tokio::time::timeout(LAST_ACKS, close).await);
        drop(connection);
    });
}

fn take(crew: &Arc<Crew>, queue: String, delivery: Delivery) {
    let crew_of_attempt = Arc::clone(crew);
    crew.attempts.spawn(async move { handle(&crew_of_attempt, &queue, delivery).await });
}

async fn handle(crew: &Crew, queue: &str, delivery: Delivery) {
    let message: StepMessage = match serde_json::from_slice(&delivery.data) {
        Ok(message) => message,
        Err(error) => {
            tracing::error!(%error, queue, "a message is not one of ours; it is dead-lettered");
            let options = BasicRejectOptions { requeue: false };
            if let Err(error) = delivery.acker.reject(options).await {
                tracing::debug!(%error, "could not reject a message");
            }
            return;
        }
    };
    let slot = tokio::select! {
        slot = crew.slots.acquire() => slot,
        () = crew.shutdown.drain.cancelled() => return,
    };
    let listener = crew.recalls.listen(&message.task, &message.step, message.attempt);
    let answered = match claim_held(crew, queue, &message).await {
        Held::Claimed(claim) => attempt::run(crew, *claim, Arc::clone(&listener.beat)).await,
        Held::NothingToClaim => Answered::Yes,
        Held::GaveUp => Answered::No,
    };
    drop(slot);
    match answered {
        Answered::Yes => ack(&delivery).await,
        Answered::No => {}
    }
}

enum Held {
    Claimed(Box<Claim>),
    NothingToClaim,
    GaveUp,
}

/// Holds a message until the api says whether there is something to claim.
async fn claim_held(crew: &Crew, queue: &str, message: &StepMessage) -> Held {
    let mut backoff = Backoff::new();
    loop {
        let error = match poll::claim(crew, queue, 0, Some(message.clone())).await {
            Ok(Some(claim)) => return Held::Claimed(Box::new(claim)),
            Ok(None) => return Held::NothingToClaim,
            Err(error) => error,
        };
        if !error.is_passing() {
            crew.give_up(error);
            return Held::GaveUp;
        }
        tracing::warn!(%error, queue, "a message is held while the api does not answer");
        tokio::select! {
            () = tokio::time::sleep(backoff.pause(retry_after(&error))) => {}
            () = crew.shutdown.drain.cancelled() => return Held::GaveUp,
        }
    }
}

/// Acks, if the channel of the delivery is still there. If not, the message comes again and
/// finds nothing to claim.
async fn ack(delivery: &Delivery) {
    match delivery.acker.ack(BasicAckOptions::default()).await {
        Ok(true) => {}
        Ok(false) | Err(_) => tracing::debug!("could not ack; the message will come again"),
    }
}
