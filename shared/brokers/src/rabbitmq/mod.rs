//! RabbitMQ, from 3.10 on: quorum queues, confirms, mandatory, manual acknowledgements.
//!
//! The module owns its reconnect loop (`connection`), its returns (`publisher`) and its
//! subscriptions (`consumer`); the reasons stand there. `suspect` sees to queues that the broker
//! can no longer serve, `rejected` holds the tools for what
//! could not be accepted, `probe` asks the broker for its name and version.

mod acks;
mod connection;
mod consumer;
mod control;
mod counters;
mod probe;
mod publisher;
mod pulse;
mod rejected;
mod settings;
mod suspect;
mod topology;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lapin::BasicProperties;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use standfast_domain::ids::Queue;
use standfast_engine::ports::{
    Broker, BrokerError, BrokerHealth, Depth, Destination, Message, Source, Subscription,
};
use tokio::time::{Instant, timeout, timeout_at};

use self::connection::{Keeper, Link, Pauses, channel, goodbye};
use self::consumer::{Context, Faults};
use self::control::Teller;
use self::counters::Counts;
use self::probe::Product;
use self::publisher::{Outgoing, Publisher, Sent};
use self::pulse::Pulse;
use self::settings::short;
use crate::limits::check_message;

pub use self::counters::RabbitCounters;
pub use self::counters::RabbitStanding;
pub use self::rejected::Pass;
pub use self::rejected::Pick;
pub use self::rejected::REASON_HEADER;
pub use self::rejected::REJECTED_AT_HEADER;
pub use self::rejected::REJECTED_LIST_MAX;
pub use self::rejected::REJECTED_SCAN_MAX;
pub use self::rejected::ROUTING_KEY_HEADER;
pub use self::rejected::RejectedMessage;
pub use self::rejected::SENDER_HEADER;
pub use self::settings::CALL_BOUND;
pub use self::settings::HEARTBEAT_SECONDS;
pub use self::settings::Names;
pub use self::settings::PREFIX;
pub use self::settings::RabbitSettings;
pub use self::settings::SettingsFault;
pub use self::topology::DELIVERY_LIMIT;

/// Persistent, in AMQP's numbers: anything else is lost when the broker restarts.
const PERSISTENT: u8 = 2;

/// Talks to one RabbitMQ (cluster) over two connections that are kept for as long as this
/// lives.
pub struct RabbitBroker {
    settings: Arc<RabbitSettings>,
    publisher: Publisher,
    pulse: Pulse,
    teller: Teller,
    publishing: Link,
    consuming: Link,
    counts: Arc<Counts>,
    faults: Faults,
    product: tokio::sync::Mutex<Product>,
    /// End the connections' loops, and with them all subscriptions.
    _keepers: [Keeper; 2],
}

impl RabbitBroker {
    /// Starts the connections. With `wait`, the first attempt has that long, a broker that
    /// refuses user or virtual host ends it at once, and exchanges and common queues are
    /// declared; without it, this returns at once and goes on trying for ever.
    pub async fn connect(
        settings: RabbitSettings,
        wait: Option<Duration>,
    ) -> Result<Self, BrokerError> {
        let settings = Arc::new(settings);
        let counts = Arc::new(Counts::default());
        let (publishing, publish_keeper) = Link::start(settings.clone(), "publish", counts.clone());
        let (consuming, consume_keeper) = Link::start(settings.clone(), "consume", counts.clone());
        let broker = Self {
            publisher: Publisher::start(publishing.clone(), counts.clone()),
            pulse: Pulse::start(settings.clone(), publishing.clone()),
            teller: Teller::start(settings.names.clone(), publishing.clone()),
            settings,
            publishing,
            consuming,
            counts,
            faults: Arc::new(Mutex::new(BTreeMap::new())),
            product: tokio::sync::Mutex::default(),
            _keepers: [publish_keeper, consume_keeper],
        };
        if let Some(wait) = wait {
            broker.begin(Instant::now() + wait).await?;
        }
        Ok(broker)
    }

    /// Waits for the connections and declares what all share. What breaks off in the midst of
    /// it has what is left of the time to come back.
    async fn begin(&self, deadline: Instant) -> Result<(), BrokerError> {
        let mut pauses = Pauses::new();
        loop {
            let begun = self.begin_once(deadline).await;
            let refused = self.publishing.is_refused() || self.consuming.is_refused();
            let lost = matches!(begun, Err(BrokerError::Unavailable(_))) && !refused;
            let again = Instant::now() + pauses.next();
            if !lost || again >= deadline {
                return begun;
            }
            tokio::time::sleep_until(again).await;
        }
    }

    async fn begin_once(&self, deadline: Instant) -> Result<(), BrokerError> {
        self.publishing.settled(deadline).await?;
        self.consuming.settled(deadline).await?;
        self.declare_base(deadline).await
    }

    /// Gives the counts since the start, for metrics.
    pub fn counters(&self) -> RabbitCounters {
        self.counts.read()
    }

    /// Gives what stands now, for metrics: whether it is connected for publishing and for
    /// consuming, and whether the broker blocks publishers.
    pub fn standing(&self) -> RabbitStanding {
        let (publishing, consuming) = (self.publishing.state(), self.consuming.state());
        RabbitStanding {
            publishing: publishing.live.is_some(),
            consuming: consuming.live.is_some(),
            blocked: publishing.blocked.is_some(),
        }
    }

    /// Gives the settings in use.
    pub fn settings(&self) -> &RabbitSettings {
        &self.settings
    }

    /// Closes both connections politely. Dropping the value does it rudely; either way the
    /// broker hands unacknowledged deliveries to others.
    pub async fn close(self) {
        goodbye(&self.consuming).await;
        goodbye(&self.publishing).await;
    }

    /// Deletes all queues and exchanges under this broker's prefix, with these step queues. For
    /// what was made for a while under a prefix of its own, such as a benchmark; nothing may use
    /// it any more.
    pub async fn remove_all(&self, queues: &[Queue]) -> Result<(), BrokerError> {
        let live = self.consuming.by(Instant::now() + CALL_BOUND).await?;
        topology::remove(&channel(&live).await?, &self.settings.names, queues).await
    }

    async fn declare_base(&self, deadline: Instant) -> Result<(), BrokerError> {
        let live = self.consuming.by(deadline).await?;
        let channel = channel(&live).await?;
        Ok(topology::declare_base(&channel, &self.settings.names).await?)
    }

    /// Declares over the consuming connection, which the broker reads during an alarm too.
    async fn declare_source(&self, source: &Source) -> Result<(), BrokerError> {
        let live = self.consuming.by(Instant::now() + CALL_BOUND).await?;
        let channel = channel(&live).await?;
        topology::declare(&channel, &self.settings.names, source).await
    }

    fn outgoing(&self, message: &Message) -> Result<Outgoing, BrokerError> {
        check_message(message)?;
        let queue = match &message.destination {
            Destination::Steps(queue) => self.settings.names.steps(queue),
            Destination::Rejected => self.settings.names.rejected(),
            Destination::Reply(queue) => queue.clone(),
        };
        let mut headers = FieldTable::default();
        for (name, value) in &message.headers {
            headers.insert(short(&**name)?, AMQPValue::LongString(value.as_str().into()));
        }
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_content_type(short("application/json")?)
            .with_app_id(short(PREFIX)?)
            .with_message_id(short(&*message.message_id)?);
        if !message.headers.is_empty() {
            properties = properties.with_headers(headers);
        }
        if let Some(id) = &message.correlation_id {
            properties = properties.with_correlation_id(short(&**id)?);
        }
        // The default exchange leads to the queue of that name.
        Ok(Outgoing {
            exchange: short("")?,
            routing_key: short(queue)?,
            properties,
            body: message.body.clone(),
        })
    }

    /// Sends again what found no queue, once, after declaring the queues anew: someone deleted
    /// them behind our back. Reply queues are not ours to declare.
    async fn retry_returned(
        &self,
        messages: &[Message],
        sent: &mut [Result<Sent, BrokerError>],
        deadline: Instant,
    ) {
        let mut again = Vec::new();
        let mut declared: BTreeMap<String, Result<(), BrokerError>> = BTreeMap::new();
        for (index, message) in messages.iter().enumerate() {
            let source = match &message.destination {
                Destination::Steps(queue) => Source::Steps(queue.clone()),
                Destination::Rejected => Source::Intake,
                Destination::Reply(_) => continue,
            };
            if !matches!(sent[index], Ok(Sent::Returned)) {
                continue;
            }
            let name = self.settings.names.source(&source);
            if !declared.contains_key(&name) {
                let late = BrokerError::Unavailable("no time left to declare".to_owned());
                let outcome = timeout_at(deadline, self.declare_source(&source)).await;
                declared.insert(name.clone(), outcome.unwrap_or(Err(late)));
            }
            match declared.get(&name) {
                Some(Err(fault)) => sent[index] = Err(fault.clone()),
                Some(Ok(())) | None => again.push(index),
            }
        }
        let items = again.iter().filter_map(|&index| self.outgoing(&messages[index]).ok());
        let answers = self.publisher.send(items.collect(), deadline).await;
        for (index, answer) in again.into_iter().zip(answers) {
            sent[index] = Ok(answer);
        }
    }
}

/// Puts the publisher's word into the port's.
fn verdict(sent: Result<Sent, BrokerError>, message: &Message) -> Result<(), BrokerError> {
    match sent? {
        Sent::Accepted => Ok(()),
        Sent::Returned => Err(BrokerError::Refused(match &message.destination {
            Destination::Reply(name) => format!("no queue `{name}` takes the reply"),
            Destination::Steps(name) => format!("no step queue for `{name}`"),
            Destination::Rejected => "no queue for what is rejected".to_owned(),
        })),
        Sent::Nacked => Err(BrokerError::Refused(format!(
            "the broker refused message `{}`; look for a length limit or a failed queue",
            message.message_id
        ))),
        Sent::Unknown(reason) => Err(BrokerError::Unavailable(reason)),
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    async fn declare(&self, queue: &Queue) -> Result<(), BrokerError> {
        self.declare_source(&Source::Steps(queue.clone())).await
    }

    async fn publish(
        &self,
        messages: Vec<Message>,
        bound: Duration,
    ) -> Vec<Result<(), BrokerError>> {
        let deadline = Instant::now() + bound;
        let mut sent: Vec<Result<Sent, BrokerError>> = Vec::with_capacity(messages.len());
        let mut items = Vec::with_capacity(messages.len());
        for message in &messages {
            match self.outgoing(message) {
                Ok(outgoing) => {
                    items.push(outgoing);
                    sent.push(Ok(Sent::Unknown("not sent".to_owned())));
                }
                Err(fault) => sent.push(Err(fault)),
            }
        }
        let mut answers = self.publisher.send(items, deadline).await.into_iter();
        for place in sent.iter_mut().filter(|place| place.is_ok()) {
            if let Some(answer) = answers.next() {
                *place = Ok(answer);
            }
        }
        if sent.contains(&Ok(Sent::Returned)) {
            self.retry_returned(&messages, &mut sent, deadline).await;
        }
        sent.into_iter().zip(&messages).map(|(sent, message)| verdict(sent, message)).collect()
    }

    fn tell(&self, body: Bytes) {
        self.teller.tell(body);
    }

    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let context = Context {
            link: self.consuming.clone(),
            settings: self.settings.clone(),
            counts: self.counts.clone(),
            faults: self.faults.clone(),
        };
        Ok(Box::new(consumer::subscribe(context, source, prefetch).await?))
    }

    async fn depth(&self, queue: &Queue) -> Result<Depth, BrokerError> {
        self.depth_of(&Source::Steps(queue.clone())).await
    }

    async fn health(&self) -> BrokerHealth {
        let (publishing, consuming) = (self.publishing.state(), self.consuming.state());
        let mut faults: Vec<String> = Vec::new();
        for (what, state) in [("publishing", &publishing), ("consuming", &consuming)] {
            if let Some(fault) = &state.fault {
                let advice = "start the broker or mend the network; retrying without end";
                faults.push(format!("not connected for {what} ({}); {advice}", fault.text));
            }
        }
        if let Some(reason) = &publishing.blocked {
            faults.push(format!("the broker blocks publishers ({reason}); free memory or disk"));
        }
        let mute = publishing.live.as_ref().and_then(|live| self.pulse.fault(live.generation));
        let connected = publishing.live.is_some() && publishing.blocked.is_none() && mute.is_none();
        faults.extend(mute.map(|text| format!("publishing is not possible: {text}")));
        faults.extend(self.subscription_faults());
        BrokerHealth {
            product: self.product(consuming.live.as_ref().map(|live| live.generation)).await,
            connected,
            blocked: publishing.blocked,
            faults,
        }
    }
}

impl RabbitBroker {
    /// Says how many messages wait in a source's queue and how many consumers it has.
    pub async fn depth_of(&self, source: &Source) -> Result<Depth, BrokerError> {
        let live = self.consuming.by(Instant::now() + CALL_BOUND).await?;
        let channel = channel(&live).await?;
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let name = short(self.settings.names.source(source))?;
        let count = channel.queue_declare(name, options, FieldTable::default());
        match timeout(CALL_BOUND, count).await {
            Ok(Ok(found)) => Ok(Depth {
                ready: u64::from(found.message_count()),
                consumers: u64::from(found.consumer_count()),
            }),
            // A queue that nobody declared yet holds nothing.
            Ok(Err(error)) if is_not_found(&error) => Ok(Depth::default()),
            Ok(Err(error)) => Err(BrokerError::Unavailable(error.to_string())),
            Err(_) => Err(BrokerError::Unavailable("no answer to counting".to_owned())),
        }
    }

    fn subscription_faults(&self) -> Vec<String> {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.values().cloned().collect()
    }

    /// Asks for product and version once a connection: an upgrade always ends connections.
    async fn product(&self, generation: Option<u64>) -> String {
        let mut product = self.product.lock().await;
        if let Some(generation) = generation
            && product.generation != generation
            && let Some(text) = probe::ask(&self.settings).await
        {
            *product = Product { generation, text };
        }
        if product.text.is_empty() { "RabbitMQ".to_owned() } else { product.text.clone() }
    }
}

fn is_not_found(error: &lapin::Error) -> bool {
    matches!(error.kind(), lapin::ErrorKind::ProtocolError(fault) if fault.get_id() == 404)
}
