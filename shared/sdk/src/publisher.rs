//! Submits plans over AMQP and waits for the replies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::{AMQPUri, SASLMechanism};
use lapin::{BasicProperties, Channel, Confirmation, Connection, Consumer};
use standfast_protocol::amqp::{EXCHANGE, SUBMIT, SubmitReply, TOKEN_HEADER};
use standfast_protocol::headers::JSON;
use standfast_protocol::tasks::{SubmitRequest, Submitted};
use tokio::sync::oneshot;

use crate::amqp::{connect, in_time, parse_uri, short};
use crate::client::new_key;
use crate::error::Error;

/// How long a reply is waited for when the caller says nothing else.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Delivery mode of a message that outlives a restart of the broker.
const PERSISTENT: u8 = 2;

type Pending = Arc<Mutex<HashMap<String, oneshot::Sender<SubmitReply>>>>;

/// Submits plans over AMQP. Connects at the first call, and again at the next call after the
/// connection broke. May be shared; one message at a time is published, replies are waited for
/// side by side.
pub struct AmqpPublisher {
    uri: AMQPUri,
    token: Option<String>,
    exchange: String,
    reply_timeout: Duration,
    session: tokio::sync::Mutex<Option<Session>>,
}

/// Leaves out the address, which may hold a password, and the token.
impl std::fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AmqpPublisher").field("exchange", &self.exchange).finish_non_exhaustive()
    }
}

/// A connection with its reply queue. The connection closes when this is dropped.
struct Session {
    _connection: Connection,
    channel: Channel,
    reply_queue: ShortString,
    pending: Pending,
}

impl AmqpPublisher {
    /// Makes a publisher that acts as the broker's user; nothing is sent yet.
    pub fn new(url: &str) -> Result<Self, Error> {
        Ok(Self {
            uri: parse_uri(url)?,
            token: None,
            exchange: EXCHANGE.to_owned(),
            reply_timeout: REPLY_TIMEOUT,
            session: tokio::sync::Mutex::new(None),
        })
    }

    /// Acts as the principal of a token rather than as the broker's user.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Publishes to another exchange than `standfast`.
    pub fn exchange(mut self, exchange: impl Into<String>) -> Self {
        self.exchange = exchange.into();
        self
    }

    /// Sets how long a reply is waited for; 30 seconds by default.
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// Submits a plan under a key made here.
    pub async fn submit(&self, plan: serde_json::Value) -> Result<Submitted, Error> {
        self.submit_keyed(&SubmitRequest { plan, plan_dir: None }, &new_key()).await
    }

    /// Submits a plan under the caller's key: the same key and plan lead to the same task.
    ///
    /// Once the broker has confirmed the message the submission will be worked on, even if this
    /// ends with [`Error::NoReply`].
    pub async fn submit_keyed(
        &self,
        request: &SubmitRequest,
        key: &str,
    ) -> Result<Submitted, Error> {
        let body = serde_json::to_vec(request)?;
        let (correlation, reply) = self.publish(key, &body).await?;
        let reply = tokio::time::timeout(self.reply_timeout, reply).await;
        self.forget(&correlation).await;
        match reply {
            Ok(Ok(SubmitReply::Submitted(submitted))) => Ok(submitted),
            Ok(Ok(SubmitReply::Problem(problem))) => Err(Error::Problem(Box::new(problem))),
            // Nobody stops a task under this key: it is no reply to this.
            Ok(Ok(SubmitReply::Stopped(_)) | Err(_)) | Err(_) => {
                Err(Error::NoReply { key: key.to_owned() })
            }
        }
    }

    /// Publishes once; a second time over a new connection if an old one turned out broken. The
    /// key makes the two one submission.
    async fn publish(
        &self,
        key: &str,
        body: &[u8],
    ) -> Result<(String, oneshot::Receiver<SubmitReply>), Error> {
        let mut slot = self.session.lock().await;
        let mut may_retry = slot.is_some();
        loop {
            let session = match slot.take() {
                Some(session) => session,
                None => Session::open(&self.uri).await?,
            };
            let sent = session.send(self, key, body).await;
            match sent {
                Ok(sent) => {
                    *slot = Some(session);
                    return Ok(sent);
                }
                Err(error @ Error::Setup(_)) => {
                    *slot = Some(session);
                    return Err(error);
                }
                Err(error) if may_retry => {
                    tracing::debug!(%error, "publishing again over a new connection");
                    may_retry = false;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn forget(&self, correlation: &str) {
        if let Some(session) = self.session.lock().await.as_ref() {
            lock(&session.pending).remove(correlation);
        }
    }

    fn properties(&self, reply_to: &ShortString, key: &str) -> Result<BasicProperties, Error> {
        let properties = BasicProperties::default()
            .with_content_type(short("media type", JSON)?)
            .with_delivery_mode(PERSISTENT)
            .with_message_id(short("key", key)?)
            .with_reply_to(reply_to.clone());
        if let Some(token) = &self.token {
            let mut headers = FieldTable::default();
            let token = AMQPValue::LongString(LongString::from(token.as_str()));
            headers.insert(short("header", TOKEN_HEADER)?, token);
            return Ok(properties.with_headers(headers));
        }
        // The broker refuses a message whose user is not the connection's. With other ways to
        // log in the user is not known here; the intake then refuses the message by name.
        match self.uri.query.auth_mechanism {
            Some(SASLMechanism::External | SASLMechanism::Anonymous) => Ok(properties),
            _ => Ok(properties.with_user_id(short("user", &self.uri.authority.userinfo.username)?)),
        }
    }
}

impl Session {
    async fn open(uri: &AMQPUri) -> Result<Self, Error> {
        let connection = connect(uri, "standfast-sdk publisher").await?;
        let channel = in_time("open a channel", connection.create_channel()).await?;
        in_time("confirms", channel.confirm_select(ConfirmSelectOptions::default())).await?;
        let options =
            QueueDeclareOptions { exclusive: true, auto_delete: true, ..Default::default() };
        let none = FieldTable::default;
        let declare = channel.queue_declare(ShortString::default(), options, none());
        let reply_queue = in_time("declare the reply queue", declare).await?.name().clone();
        let options = BasicConsumeOptions { no_ack: true, exclusive: true, ..Default::default() };
        let consume =
            channel.basic_consume(reply_queue.clone(), ShortString::default(), options, none());
        let replies = in_time("read the reply queue", consume).await?;
        let pending = Pending::default();
        tokio::spawn(take_replies(replies, Arc::clone(&pending)));
        Ok(Self { _connection: connection, channel, reply_queue, pending })
    }

    async fn send(
        &self,
        publisher: &AmqpPublisher,
        key: &str,
        body: &[u8],
    ) -> Result<(String, oneshot::Receiver<SubmitReply>), Error> {
        let correlation = new_key();
        let properties = publisher
            .properties(&self.reply_queue, key)?
            .with_correlation_id(short("correlation id", &correlation)?);
        let exchange = short("exchange", &publisher.exchange)?;
        let routing_key = short("routing key", SUBMIT)?;
        let (sender, reply) = oneshot::channel();
        lock(&self.pending).insert(correlation.clone(), sender);
        let sent = self.confirmed(exchange, routing_key, properties, body).await;
        if sent.is_err() {
            lock(&self.pending).remove(&correlation);
        }
        sent.map(|()| (correlation, reply))
    }

    /// Publishes and waits for the confirm. Only one message is under way on the channel, so a
    /// returned message is this one.
    async fn confirmed(
        &self,
        exchange: ShortString,
        routing_key: ShortString,
        properties: BasicProperties,
        body: &[u8],
    ) -> Result<(), Error> {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let publish = async {
            self.channel
                .basic_publish(exchange.clone(), routing_key, options, body, properties)
                .await?
                .await
        };
        match in_time("confirm the message", publish).await? {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => Err(Error::NotPublished(format!(
                "no queue takes submissions from exchange `{exchange}`; has the api declared it?"
            ))),
            Confirmation::Nack(_) => {
                Err(Error::NotPublished("the broker refused the message".to_owned()))
            }
            Confirmation::NotRequested => {
                Err(Error::NotPublished("the broker gives no confirms".to_owned()))
            }
        }
    }
}

/// Hands replies to those who wait. When the connection is gone, whoever still waits is told so
/// by the drop of their sender.
async fn take_replies(mut replies: Consumer, pending: Pending) {
    while let Some(Ok(delivery)) = replies.next().await {
        let correlation = delivery.properties.correlation_id().as_ref().map(ToString::to_string);
        let waiting = correlation.and_then(|id| lock(&pending).remove(&id));
        match (waiting, serde_json::from_slice(&delivery.data)) {
            (Some(waiting), Ok(reply)) => drop(waiting.send(reply)),
            (Some(_), Err(error)) => tracing::warn!(%error, "could not read a reply"),
            (None, _) => tracing::debug!("a reply came that nobody waits for"),
        }
    }
    lock(&pending).clear();
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
