//! A broker to try, with a prefix of its own, and the sentences for waiting and failing.

use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use lapin::options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use standfast_brokers::in_process::InProcessBroker;
use standfast_brokers::rabbitmq::{RabbitBroker, RabbitSettings};
use standfast_domain::ids::Queue;
use standfast_engine::ports::{
    Broker, BrokerError, Delivery, Destination, Message, Source, Subscription,
};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// What a healthy broker needs for any one answer, with room for a loaded machine.
pub const BOUND: Duration = Duration::from_secs(15);
/// How long nothing must come for "nothing comes".
const QUIET: Duration = Duration::from_millis(300);

/// The broker under test.
pub enum Rig {
    InProcess(InProcessBroker),
    Rabbit(Box<Rabbit>),
}

/// A RabbitMQ with a prefix that nobody else uses.
pub struct Rabbit {
    pub broker: RabbitBroker,
    pub url: String,
    pub prefix: String,
}

impl Rabbit {
    pub async fn at(url: &str) -> Self {
        let prefix = format!("test-{}", Uuid::now_v7().simple());
        let broker = connect(url, &prefix).await;
        Self { broker, url: url.to_owned(), prefix }
    }

    pub fn steps(&self, queue: &Queue) -> String {
        self.broker.settings().names().steps(queue)
    }

    /// Opens a channel beside the adapter's own, to look or to meddle.
    pub async fn raw(&self) -> Raw {
        Raw::at(&self.url).await
    }

    /// Removes all that carries the prefix.
    pub async fn clean(&self) {
        let raw = self.raw().await;
        let names = self.broker.settings().names();
        let queues = [names.intake(), names.rejected(), names.dead_steps(), self.steps(&work())];
        for queue in queues.iter().chain(&[self.steps(&other()), format!("{}.reply", self.prefix)])
        {
            raw.delete_queue(queue).await;
        }
        for exchange in [names.exchange(), names.dead_exchange(), names.control_exchange()] {
            let options = ExchangeDeleteOptions::default();
            raw.channel.exchange_delete(exchange.into(), options).await.unwrap();
        }
    }
}

/// A plain connection.
pub struct Raw {
    pub channel: Channel,
    _connection: Connection,
}

impl Raw {
    pub async fn at(url: &str) -> Self {
        let connect = Connection::connect(url, ConnectionProperties::default());
        let connection = connect.await.unwrap_or_else(|fault| panic!("{}: {fault}", missing(url)));
        let channel = connection.create_channel().await.unwrap();
        Self { channel, _connection: connection }
    }

    pub async fn delete_queue(&self, name: &str) {
        let options = QueueDeleteOptions::default();
        self.channel.queue_delete(name.into(), options).await.unwrap();
    }

    pub async fn declare_plain(&self, name: &str) {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(name.into(), options, FieldTable::default()).await.unwrap();
    }
}

/// Says what is missing when the broker does not answer.
fn missing(url: &str) -> String {
    format!("these tests need RabbitMQ at {url}; start it or set STANDFAST_TEST_AMQP")
}

pub fn url() -> String {
    let fallback = || "amqp://guest:guest@127.0.0.1:5672/%2f".to_owned();
    std::env::var("STANDFAST_TEST_AMQP").unwrap_or_else(|_| fallback())
}

pub async fn connect(url: &str, prefix: &str) -> RabbitBroker {
    let settings = RabbitSettings::parse(url).unwrap().with_prefix(prefix).unwrap();
    let broker = RabbitBroker::connect(settings, Some(BOUND)).await;
    broker.unwrap_or_else(|fault| panic!("{}: {fault}", missing(url)))
}

impl Rig {
    pub fn in_process() -> Self {
        Self::InProcess(InProcessBroker::new())
    }

    pub async fn rabbit() -> Self {
        Self::Rabbit(Box::new(Rabbit::at(&url()).await))
    }

    pub fn broker(&self) -> &dyn Broker {
        match self {
            Self::InProcess(broker) => broker,
            Self::Rabbit(rabbit) => &rabbit.broker,
        }
    }

    /// Makes a reply queue and gives its name.
    pub async fn open_reply(&self) -> String {
        match self {
            Self::InProcess(broker) => {
                broker.open_reply("reply");
                "reply".to_owned()
            }
            Self::Rabbit(rabbit) => {
                let name = format!("{}.reply", rabbit.prefix);
                rabbit.raw().await.declare_plain(&name).await;
                name
            }
        }
    }

    /// Publishes and expects each message to be taken.
    pub async fn publish(&self, messages: Vec<Message>) {
        for answer in self.broker().publish(messages, BOUND).await {
            answer.unwrap();
        }
    }

    pub async fn subscribe(&self, source: Source, prefetch: u16) -> Box<dyn Subscription> {
        let subscription = self.broker().subscribe(source, prefetch).await.unwrap();
        assert!(subscription.subscribed(), "subscribed at once with a broker that is up");
        subscription
    }
}

/// Runs a case and cleans up, whatever becomes of it.
pub async fn run(rig: &Rig, case: impl Future<Output = ()>) {
    let outcome = AssertUnwindSafe(case).catch_unwind().await;
    if let Rig::Rabbit(rabbit) = rig {
        rabbit.clean().await;
    }
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

pub fn work() -> Queue {
    Queue::new("work").unwrap()
}

pub fn other() -> Queue {
    Queue::new("other").unwrap()
}

pub fn message(destination: Destination, id: impl Into<String>) -> Message {
    Message {
        destination,
        message_id: id.into(),
        correlation_id: None,
        headers: Vec::new(),
        body: Bytes::from_static(br#"{"task":"t07"}"#),
    }
}

/// Makes messages `m0`, `m1`, … for the queue `work`.
pub fn steps(numbers: std::ops::Range<usize>) -> Vec<Message> {
    numbers.map(|number| message(Destination::Steps(work()), format!("m{number}"))).collect()
}

/// Publishes once within `bound` and gives the answer.
pub async fn publish_one(
    broker: &dyn Broker,
    message: Message,
    bound: Duration,
) -> Result<(), BrokerError> {
    broker.publish(vec![message], bound).await.pop().unwrap()
}

pub async fn next(subscription: &mut Box<dyn Subscription>) -> Delivery {
    let delivery = timeout(BOUND, subscription.next()).await;
    delivery.expect("a delivery in time").expect("the subscription goes on")
}

pub async fn id_of_next(subscription: &mut Box<dyn Subscription>) -> (String, Delivery) {
    let delivery = next(subscription).await;
    (delivery.message_id.clone().unwrap(), delivery)
}

/// Takes and acknowledges a number of deliveries and gives their ids.
pub async fn take(subscription: &mut Box<dyn Subscription>, number: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..number {
        let (id, delivery) = id_of_next(subscription).await;
        assert!(delivery.acker.ack().await, "acknowledged on a live channel");
        ids.push(id);
    }
    ids
}

pub async fn nothing_comes(subscription: &mut Box<dyn Subscription>) {
    if let Ok(Some(delivery)) = timeout(QUIET, subscription.next()).await {
        panic!("expected nothing, found {:?}", delivery.message_id);
    }
}

/// Waits until a condition holds, looking every 50 ms.
pub async fn until<F, C>(what: &str, bound: Duration, mut condition: C)
where
    F: Future<Output = bool>,
    C: FnMut() -> F,
{
    let deadline = Instant::now() + bound;
    while !condition().await {
        assert!(Instant::now() < deadline, "not within {bound:?}: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}
