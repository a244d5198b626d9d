//! Tools for what could not be accepted: look at it, send it again, drop it.
//!
//! Looking takes messages without acknowledging them and hands them back at the end, over a
//! channel of its own; if the process dies in between, the broker hands them back. Sending
//! again publishes with a confirm first and acknowledges afterwards: a crash between the two
//! leaves the message twice, and its id makes the second one harmless.

use bytes::Bytes;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use sha2::{Digest, Sha256};
use standfast_domain::time::Time;
use standfast_engine::ports::BrokerError;
use tokio::time::{Instant, timeout};

use super::connection::channel;
use super::consumer::text_headers;
use super::publisher::{Outgoing, Sent};
use super::settings::{CALL_BOUND, short};
use super::{PERSISTENT, RabbitBroker, is_not_found};

/// Carries the problem document that says why a message was rejected.
pub const REASON_HEADER: &str = "standfast-reason";
/// Carries the routing key that a rejected message was first sent with.
pub const ROUTING_KEY_HEADER: &str = "standfast-routing-key";
/// Carries when a message was rejected (RFC 3339), where the intake did that.
pub const REJECTED_AT_HEADER: &str = "standfast-rejected-at";
/// What the intake calls a message that its sender gave no id.
const NO_ID: &str = "none";
/// Hex digits of a name that is made of a body.
const BODY_NAME_DIGITS: usize = 12;
/// Carries the proof of who first sent a rejected message.
pub const SENDER_HEADER: &str = "standfast-sender";
/// Carries the publisher's token, in messages that the broker itself gave up.
const TOKEN_HEADER: &str = "standfast-token";
/// The most messages that one listing gives: each is taken with its body.
pub const REJECTED_LIST_MAX: usize = 1_000;
/// How many messages one search for an id, or one pass over all, looks at; a larger backlog
/// takes several passes.
pub const REJECTED_SCAN_MAX: usize = 10_000;

/// One message in the rejected queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedMessage {
    /// The sender's message id.
    pub message_id: Option<String>,
    /// The routing key it was first sent with, such as `submit`; none if nothing tells it.
    pub routing_key: Option<String>,
    /// The problem document, or the broker's word if it died of its own (`delivery_limit`).
    pub reason: Option<String>,
    /// All headers as text.
    pub headers: Vec<(String, String)>,
    /// The body as it came.
    pub body: Bytes,
    /// When it was rejected, if the intake or the broker says so; else when it was sent, if its
    /// sender does.
    pub at: Option<Time>,
}

impl RejectedMessage {
    /// Names it for [`Pick::One`]: by its id, or, without one, by its body.
    pub fn name(&self) -> String {
        name_of(self.message_id.as_deref(), &self.body)
    }
}

/// What one pass over rejected messages did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Messages that were sent again or removed.
    pub done: usize,
    /// Why others stay, a sentence each.
    pub stay: Vec<String>,
}

/// Which rejected messages are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// All that are there when the pass begins.
    All,
    /// The first with this name, see [`RejectedMessage::name`].
    One(String),
}

impl Pick {
    fn takes(&self, message: &BasicGetMessage) -> bool {
        match self {
            Self::All => true,
            Self::One(name) => {
                let id = message.properties.message_id().as_ref();
                name_of(id.map(|id| id.as_str()), &message.data) == *name
            }
        }
    }

    fn is_one(&self) -> bool {
        match self {
            Self::All => false,
            Self::One(_) => true,
        }
    }
}

impl RabbitBroker {
    /// Shows up to `limit` rejected messages, at most [`REJECTED_LIST_MAX`], and leaves them.
    /// A listing that does not reach the end may be followed by one that begins further on:
    /// the broker queues what is handed back behind what was handed back before.
    pub async fn rejected_list(&self, limit: usize) -> Result<Vec<RejectedMessage>, BrokerError> {
        let channel = self.rejected_channel().await?;
        let mut taken = Vec::new();
        while taken.len() < limit.min(REJECTED_LIST_MAX) {
            let Some(message) = self.rejected_next(&channel).await? else { break };
            taken.push(message);
        }
        let shown = taken.iter().map(show).collect();
        hand_back(&channel, taken).await;
        Ok(shown)
    }

    /// Says how many rejected messages there are. It takes one and hands it back, because a queue
    /// that the broker lists and cannot serve looks empty to those who only ask for its depth.
    pub async fn rejected_count(&self) -> Result<u64, BrokerError> {
        let channel = self.rejected_channel().await?;
        let first = self.rejected_next(&channel).await?;
        let count = first.as_ref().map_or(0, |message| u64::from(message.message_count) + 1);
        hand_back(&channel, Vec::from_iter(first)).await;
        Ok(count)
    }

    /// Sends rejected messages again to where they were first sent, and says how many. They keep
    /// their senders: a message that does not prove its own stays where it is.
    pub async fn rejected_requeue(&self, pick: &Pick) -> Result<Pass, BrokerError> {
        self.rejected_each(pick, true).await
    }

    /// Removes rejected messages for good and says how many.
    pub async fn rejected_drop(&self, pick: &Pick) -> Result<Pass, BrokerError> {
        self.rejected_each(pick, false).await
    }

    async fn rejected_each(&self, pick: &Pick, again: bool) -> Result<Pass, BrokerError> {
        let channel = self.rejected_channel().await?;
        let (mut passed_over, mut pass) = (Vec::new(), Pass::default());
        let (mut looked, mut most) = (0, REJECTED_SCAN_MAX);
        let mut outcome = Ok(());
        while looked < most {
            let Some(message) = self.rejected_next(&channel).await? else { break };
            if looked == 0 {
                // What is rejected again meanwhile is not part of this pass.
                most = most.min(message.message_count as usize + 1);
            }
            looked += 1;
            if !pick.takes(&message) {
                passed_over.push(message);
                continue;
            }
            if again && let Err(fault) = self.send_again(&message).await {
                passed_over.push(message);
                match fault {
                    BrokerError::Refused(reason) => pass.stay.push(reason),
                    other => outcome = Err(after(pass.done, other)),
                }
                match outcome.is_ok() && !pick.is_one() {
                    true => continue, // the others may go
                    false => break,
                }
            }
            acknowledge(&message).await.map_err(|error| after(pass.done, error))?;
            pass.done += 1;
            if pick.is_one() {
                break;
            }
        }
        hand_back(&channel, passed_over).await;
        outcome.map(|()| pass)
    }

    async fn rejected_channel(&self) -> Result<Channel, BrokerError> {
        let live = self.consuming.by(Instant::now() + CALL_BOUND).await?;
        channel(&live).await
    }

    async fn rejected_next(
        &self,
        channel: &Channel,
    ) -> Result<Option<BasicGetMessage>, BrokerError> {
        let queue = short(self.settings.names.rejected())?;
        let get = channel.basic_get(queue, BasicGetOptions { no_ack: false });
        match timeout(CALL_BOUND, get).await {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) if is_not_found(&error) => Ok(None),
            Ok(Err(error)) => Err(BrokerError::Unavailable(error.to_string())),
            Err(_) => Err(BrokerError::Unavailable("no answer to taking a message".to_owned())),
        }
    }

    async fn send_again(&self, message: &BasicGetMessage) -> Result<(), BrokerError> {
        let shown = show(message);
        let name = shown.name();
        let Some(key) = shown.routing_key else {
            let reason = format!("message `{name}` does not say where it was sent; drop it");
            return Err(BrokerError::Refused(reason));
        };
        if !self.keeps_its_sender(message, &shown.headers) {
            let reason = format!(
                "message `{name}` does not prove who sent it, and would be sent in your name: \
                 let its sender publish it anew, or drop it"
            );
            return Err(BrokerError::Refused(reason));
        }
        let outgoing = Outgoing {
            exchange: short(self.settings.names.exchange())?,
            routing_key: short(key)?,
            properties: self.properties_again(&message.properties)?,
            body: shown.body,
        };
        let deadline = Instant::now() + CALL_BOUND;
        match self.publisher.send(vec![outgoing], deadline).await.pop() {
            Some(Sent::Accepted) => Ok(()),
            Some(Sent::Returned) => {
                Err(BrokerError::Refused(format!("no queue takes message `{name}`")))
            }
            Some(Sent::Nacked) => {
                Err(BrokerError::Refused(format!("the broker refused message `{name}`")))
            }
            Some(Sent::Unknown(reason)) => Err(BrokerError::Unavailable(reason)),
            None => Err(BrokerError::Unavailable("no answer".to_owned())),
        }
    }

    /// True if the intake will know the message's own sender: by the proof that the intake made
    /// when it rejected it, by a token that the broker kept, or since the sender was the very
    /// user of this connection.
    fn keeps_its_sender(&self, message: &BasicGetMessage, headers: &[(String, String)]) -> bool {
        let proven =
            headers.iter().any(|(name, _)| [SENDER_HEADER, TOKEN_HEADER].contains(&name.as_str()));
        let user = message.properties.user_id().as_ref().map(|user| user.as_str());
        let own = user == Some(self.settings.user());
        proven || (own && !headers.iter().any(|(name, _)| name == REASON_HEADER))
    }

    /// Keeps what the sender said and takes away what the rejection added. The broker checks
    /// that a user id is that of the connection, so the sender's own cannot be repeated.
    fn properties_again(&self, old: &BasicProperties) -> Result<BasicProperties, BrokerError> {
        let mut headers = FieldTable::default();
        for (name, value) in old.headers().iter().flatten() {
            let name = name.as_str();
            let added = [
                REASON_HEADER,
                REJECTED_AT_HEADER,
                ROUTING_KEY_HEADER,
                "x-death",
                "x-delivery-count",
            ];
            if !added.contains(&name) && !name.starts_with("x-first-death") {
                headers.insert(short(name)?, value.clone());
            }
        }
        let mut new = match old.message_id() {
            Some(id) if id.as_str() == NO_ID => without_id(old),
            _ => old.clone(),
        };
        new = new.with_headers(headers).with_delivery_mode(PERSISTENT);
        Ok(new.with_user_id(short(self.settings.user())?))
    }
}

/// Hands messages back, oldest first: a quorum queue gives what was handed back before what is
/// new, in the order in which it came back. The answer to the channel's end says that the broker
/// has taken them: what another channel asks for next finds them.
async fn hand_back(channel: &Channel, messages: Vec<BasicGetMessage>) {
    for message in messages {
        let back = message.acker.nack(BasicNackOptions { multiple: false, requeue: true });
        // If this does not reach the broker, the end of the channel hands the message back.
        let _ = timeout(CALL_BOUND, back).await;
    }
    let _ = timeout(CALL_BOUND, channel.close(200, "looked".into())).await; // it ends either way
}

async fn acknowledge(message: &BasicGetMessage) -> Result<(), BrokerError> {
    let ack = message.acker.ack(BasicAckOptions { multiple: false });
    match timeout(CALL_BOUND, ack).await {
        Ok(Ok(true)) => Ok(()),
        Ok(_) | Err(_) => {
            let reason = "the last message may still be there: its acknowledgement was lost";
            Err(BrokerError::Unavailable(reason.to_owned()))
        }
    }
}

fn show(message: &BasicGetMessage) -> RejectedMessage {
    let table = message.properties.headers().as_ref();
    let headers = text_headers(table);
    let header = |name: &str| {
        headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone())
    };
    let death = table.and_then(first_death);
    let died_with = death.and_then(|death| match death.inner().get("routing-keys")? {
        AMQPValue::FieldArray(keys) => keys.as_slice().first().and_then(long_text),
        _ => None,
    });
    let died_at = death.and_then(|death| match death.inner().get("time")? {
        AMQPValue::Timestamp(seconds) => moment(*seconds),
        _ => None,
    });
    let rejected_at = header(REJECTED_AT_HEADER).and_then(|at| Time::parse_rfc3339(&at));
    let sent_at = message.properties.timestamp().and_then(moment);
    RejectedMessage {
        message_id: message.properties.message_id().as_ref().map(ToString::to_string),
        routing_key: header(ROUTING_KEY_HEADER).or(died_with),
        reason: header(REASON_HEADER).or_else(|| header("x-first-death-reason")),
        at: rejected_at.or(died_at).or(sent_at),
        body: Bytes::copy_from_slice(&message.data),
        headers,
    }
}

/// Keeps what the intake reads but the id: the intake's own word for none is no key.
fn without_id(old: &BasicProperties) -> BasicProperties {
    let mut new = BasicProperties::default();
    if let Some(kind) = old.content_type() {
        new = new.with_content_type(kind.clone());
    }
    if let Some(correlation) = old.correlation_id() {
        new = new.with_correlation_id(correlation.clone());
    }
    if let Some(reply_to) = old.reply_to() {
        new = new.with_reply_to(reply_to.clone());
    }
    if let Some(timestamp) = old.timestamp() {
        new = new.with_timestamp(*timestamp);
    }
    new
}

/// Gives the moment that AMQP tells in seconds since 1970.
fn moment(seconds: u64) -> Option<Time> {
    i64::try_from(seconds).ok()?.checked_mul(1_000).map(Time)
}

/// Names a message by its id, or, without one, by its body.
fn name_of(id: Option<&str>, body: &[u8]) -> String {
    if let Some(id) = id.filter(|id| *id != NO_ID) {
        return id.to_owned();
    }
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", &digest[..BODY_NAME_DIGITS])
}

/// Says of a fault what was done before it.
fn after(done: usize, fault: BrokerError) -> BrokerError {
    match (done, fault) {
        (1.., BrokerError::Unavailable(why)) => {
            BrokerError::Unavailable(format!("{why}; {done} were done before"))
        }
        (_, fault) => fault,
    }
}

/// The oldest entry of `x-death`, which the broker writes newest first.
fn first_death(table: &FieldTable) -> Option<&FieldTable> {
    match table.inner().get("x-death")? {
        AMQPValue::FieldArray(deaths) => match deaths.as_slice().last()? {
            AMQPValue::FieldTable(death) => Some(death),
            _ => None,
        },
        _ => None,
    }
}

fn long_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}
