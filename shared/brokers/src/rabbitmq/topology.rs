//! What we need on the broker, and a plain answer when something else stands there.
//!
//! ```text
//! exchange standfast ── submit, signal, stop ──▶ standfast.intake
//!                                                      │ died
//!                                                      ▼
//! standfast.steps.QUEUE ── died ──▶ exchange standfast.dead
//!                                       │ steps       │ rejected
//!                                       ▼             ▼
//!                           standfast.dead.steps   standfast.rejected
//!
//! exchange standfast.control ── to all ──▶ standfast.control.LISTENER.N, one a process
//! ```
//!
//! All queues but the last are durable quorum queues. Dead-lettering is at least once, which needs
//! `x-overflow=reject-publish` beside the strategy. Lengths and time-outs are left to
//! policies, because an argument can never be changed on a queue that exists. Nothing is deleted
//! here but by [`remove`], which only those call who made names for a while, and by [`delete`],
//! for a queue whose messages only wake and that the broker serves no more.

use std::time::Duration;

use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ErrorKind, ExchangeKind};
use standfast_domain::ids::Queue;
use standfast_engine::ports::{BrokerError, Source};
use tokio::time::timeout;

use super::settings::{CALL_BOUND, Names, short};

/// Deliveries after which a message dies. A message that kills its consumer this often will
/// do so again. RabbitMQ 4 has the same default, earlier ones have none; an explicit number
/// makes all versions alike.
pub const DELIVERY_LIMIT: i32 = 20;

/// Deliveries of messages that already died, where the next death would be a loss: looking
/// through them counts as a delivery each time, so the limit is out of reach. (Without the
/// argument RabbitMQ 4 would drop them after twenty looks.)
const DELIVERY_LIMIT_KEPT: i32 = 1_000_000_000;

/// The routing keys that other services send with.
pub(crate) const INTAKE_KEYS: [&str; 3] = ["submit", "signal", "stop"];

/// Routing keys of the dead-letter exchange.
const DEAD_STEPS_KEY: &str = "steps";
const DEAD_INTAKE_KEY: &str = "rejected";

/// Longest wait for a deletion: RabbitMQ asks a queue's server for five seconds, and does without
/// it then.
const DELETE_BOUND: Duration = Duration::from_secs(20);

/// Messages that wait for one listener to control; the oldest go first. A process that hangs
/// must not fill the broker, and what it misses its heartbeats tell.
const CONTROL_MESSAGES_MAX: i32 = 10_000;

/// Declares what a source needs; repeating it changes nothing.
pub(crate) async fn declare(
    channel: &Channel,
    names: &Names,
    source: &Source,
) -> Result<(), BrokerError> {
    declare_base(channel, names).await?;
    Ok(declare_own(channel, names, source).await?)
}

/// Declares what a source needs beside that which all share.
pub(crate) async fn declare_own(
    channel: &Channel,
    names: &Names,
    source: &Source,
) -> Result<(), Fault> {
    match source {
        Source::Steps(queue) => declare_steps(channel, names, queue).await,
        Source::Intake | Source::DeadSteps | Source::Control { .. } => Ok(()),
    }
}

/// Deletes one queue with all that is in it; one that is not there is no error.
pub(crate) async fn delete(channel: &Channel, queue: &str) -> Result<(), Fault> {
    let call = channel.queue_delete(short(queue)?, QueueDeleteOptions::default());
    match timeout(DELETE_BOUND, call).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(explain(&format!("queue `{queue}`"), &error)),
        Err(_) => Err(Fault::Unanswered(format!("no answer to deleting the queue `{queue}`"))),
    }
}

/// Says why the broker did not do what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It failed within itself over this (541), which ends the connection.
    Internal(String),
    /// It did not answer in time.
    Unanswered(String),
    /// All else.
    Other(BrokerError),
}

impl From<BrokerError> for Fault {
    fn from(error: BrokerError) -> Self {
        Self::Other(error)
    }
}

impl From<Fault> for BrokerError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Internal(text) | Fault::Unanswered(text) => Self::Unavailable(text),
            Fault::Other(error) => error,
        }
    }
}

/// Deletes everything under a prefix: the common queues and exchanges, and these step queues.
pub(crate) async fn remove(
    channel: &Channel,
    names: &Names,
    queues: &[Queue],
) -> Result<(), BrokerError> {
    let away = |error: lapin::Error| BrokerError::Unavailable(error.to_string());
    let steps = queues.iter().map(|queue| names.steps(queue));
    for queue in steps.chain([names.intake(), names.rejected(), names.dead_steps()]) {
        let delete = channel.queue_delete(short(queue)?, QueueDeleteOptions::default());
        delete.await.map_err(away)?;
    }
    for exchange in [names.exchange(), names.dead_exchange()] {
        let delete = channel.exchange_delete(short(exchange)?, ExchangeDeleteOptions::default());
        delete.await.map_err(away)?;
    }
    Ok(())
}

/// Declares the exchanges and queues that do not depend on a step queue.
pub(crate) async fn declare_base(channel: &Channel, names: &Names) -> Result<(), Fault> {
    let (exchange, dead) = (names.exchange(), names.dead_exchange());
    declare_exchange(channel, &exchange, ExchangeKind::Direct).await?;
    declare_exchange(channel, &dead, ExchangeKind::Direct).await?;
    declare_control(channel, names).await?;
    declare_queue(channel, &names.rejected(), kept()?).await?;
    bind(channel, &names.rejected(), &dead, DEAD_INTAKE_KEY).await?;
    declare_queue(channel, &names.dead_steps(), kept()?).await?;
    bind(channel, &names.dead_steps(), &dead, DEAD_STEPS_KEY).await?;
    declare_queue(channel, &names.intake(), mortal(&dead, DEAD_INTAKE_KEY)?).await?;
    for key in INTAKE_KEYS {
        bind(channel, &names.intake(), &exchange, key).await?;
    }
    Ok(())
}

/// Declares the exchange of what all listeners are to hear.
pub(crate) async fn declare_control(channel: &Channel, names: &Names) -> Result<(), BrokerError> {
    Ok(declare_exchange(channel, &names.control_exchange(), ExchangeKind::Fanout).await?)
}

/// Declares a listener's own queue, which goes with its connection or its consumer.
pub(crate) async fn declare_listener(
    channel: &Channel,
    names: &Names,
    queue: &str,
) -> Result<(), BrokerError> {
    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
    let arguments = table([
        ("x-queue-type", text("classic")), // the only one that can be exclusive
        ("x-max-length", AMQPValue::LongInt(CONTROL_MESSAGES_MAX)),
        ("x-overflow", text("drop-head")),
    ])?;
    let call = channel.queue_declare(short(queue)?, options, arguments);
    bounded(&format!("queue `{queue}`"), call).await?;
    Ok(bind(channel, queue, &names.control_exchange(), "").await?)
}

async fn declare_steps(channel: &Channel, names: &Names, queue: &Queue) -> Result<(), Fault> {
    let arguments = mortal(&names.dead_exchange(), DEAD_STEPS_KEY)?;
    declare_queue(channel, &names.steps(queue), arguments).await
}

/// Arguments of a queue whose messages die after [`DELIVERY_LIMIT`] deliveries and then go to
/// `dead` with `key`.
fn mortal(dead: &str, key: &str) -> Result<FieldTable, BrokerError> {
    table([
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", AMQPValue::LongInt(DELIVERY_LIMIT)),
        ("x-dead-letter-exchange", text(dead)),
        ("x-dead-letter-routing-key", text(key)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ])
}

/// Arguments of a queue that keeps its messages until someone takes them.
fn kept() -> Result<FieldTable, BrokerError> {
    table([
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", AMQPValue::LongInt(DELIVERY_LIMIT_KEPT)),
    ])
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn table<const N: usize>(entries: [(&str, AMQPValue); N]) -> Result<FieldTable, BrokerError> {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(short(name)?, value);
    }
    Ok(table)
}

async fn declare_exchange(channel: &Channel, name: &str, kind: ExchangeKind) -> Result<(), Fault> {
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let name = short(name)?;
    let call = channel.exchange_declare(name, kind, options, FieldTable::default());
    bounded("exchange", call).await
}

async fn declare_queue(channel: &Channel, name: &str, arguments: FieldTable) -> Result<(), Fault> {
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let call = channel.queue_declare(short(name)?, options, arguments);
    bounded(&format!("queue `{name}`"), call).await.map(|_| ())
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> Result<(), Fault> {
    let (name, options) = (short(queue)?, QueueBindOptions::default());
    let call =
        channel.queue_bind(name, short(exchange)?, short(key)?, options, FieldTable::default());
    bounded(&format!("binding of `{queue}`"), call).await
}

async fn bounded<T>(what: &str, call: impl Future<Output = lapin::Result<T>>) -> Result<T, Fault> {
    match timeout(CALL_BOUND, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(explain(what, &error)),
        Err(_) => Err(Fault::Unanswered(format!("no answer to declaring the {what}"))),
    }
}

/// Tells a topology that is wrong, and a queue that is broken, from a broker that is away.
pub(crate) fn explain(what: &str, error: &lapin::Error) -> Fault {
    let away = || Fault::Other(BrokerError::Unavailable(error.to_string()));
    let ErrorKind::ProtocolError(fault) = error.kind() else { return away() };
    let said = fault.get_message().as_str();
    let topology = match fault.get_id() {
        541 => return Fault::Internal(format!("the broker fails over the {what} ({said})")),
        406 => explain_mismatch(what, said),
        405 => format!(
            "the {what} belongs to another connection alone; delete it or set another prefix \
             ({said})"
        ),
        403 => format!(
            "the {what} may not be declared; grant the user `configure`, `write` and `read` on \
             the prefix ({said})"
        ),
        _ => return away(),
    };
    Fault::Other(BrokerError::Topology(topology))
}

/// Reads RabbitMQ's sentence, such as `inequivalent arg 'x-overflow' for queue 'q' in vhost
/// '/': received the value 'reject-publish' of type 'longstr' but current is none`.
fn explain_mismatch(what: &str, said: &str) -> String {
    let advice = "delete it when it is empty, or set another prefix";
    let parsed = (|| {
        let (argument, rest) = said.split_once("inequivalent arg '")?.1.split_once("' for ")?;
        let (kind, rest) = rest.split_once(" '")?;
        let (name, rest) = rest.split_once("' in vhost ")?;
        let (wanted, found) = rest.split_once("received ")?.1.split_once(" but current is ")?;
        Some((argument, kind, name, value(wanted), value(found)))
    })();
    match parsed {
        Some((argument, kind, name, wanted, found)) => format!(
            "the {kind} `{name}` exists with another `{argument}`: wanted {wanted}, found \
             {found}; {advice}"
        ),
        None => format!("the {what} exists with other arguments ({said}); {advice}"),
    }
}

/// Shortens `the value 'quorum' of type 'longstr'` to `quorum`.
fn value(said: &str) -> &str {
    let said = said.strip_prefix("the value ").unwrap_or(said);
    let said = said.split("' of type").next().unwrap_or(said);
    said.trim_matches('\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_names_queue_argument_wanted_and_found() {
        let said = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'a.steps.q' \
                    in vhost '/': received none but current is the value '5000' of type 'long'";
        assert_eq!(
            explain_mismatch("queue `a.steps.q`", said),
            "the queue `a.steps.q` exists with another `x-message-ttl`: wanted none, found 5000; \
             delete it when it is empty, or set another prefix"
        );
        let said = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'a' in vhost '/': \
                    received 'direct' but current is 'topic'";
        assert!(explain_mismatch("exchange", said).starts_with(
            "the exchange `a` exists with another `type`: wanted direct, found topic"
        ));
    }

    #[test]
    fn a_sentence_that_is_not_known_is_passed_on() {
        let text = explain_mismatch("queue `q`", "PRECONDITION_FAILED - something else");
        assert!(text.contains("queue `q`") && text.contains("something else"), "{text}");
    }
}
