//! The way from one process to the broker and back: messages are lost, doubled, late, in another
//! order; publishes are not confirmed; consumers are lost. The queues are the product's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::ids::Queue;
use standfast_engine::ports::{
    Acker, Broker, BrokerError, BrokerHealth, Delivery, Depth, Message, Source, Subscription,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::faults::Fault;
use crate::process::Process;
use crate::trace::pause;

/// Deliveries that a purge may hold at a time.
const PURGED_AT_ONCE: u16 = 1_000;

/// A process's broker.
pub struct WireBroker {
    process: Arc<Process>,
    queues: InProcessBroker,
}

impl WireBroker {
    pub fn new(process: Arc<Process>, queues: InProcessBroker) -> Self {
        Self { process, queues }
    }

    fn strikes(&self, fault: Fault, scale: u64) -> bool {
        strikes(&self.process, fault, scale)
    }

    /// Waits until the process runs; an error if the broker is away.
    async fn reach(&self) -> Result<(), BrokerError> {
        self.process.pass().await;
        let world = &self.process.world;
        if !world.faults.broker_down(world.trace.elapsed()) {
            return Ok(());
        }
        let span = world.random.lock().unwrap().millis(0, 3_000);
        pause(span).await;
        self.process.pass().await;
        Err(BrokerError::Unavailable("it does not answer".to_owned()))
    }

    async fn send(&self, message: Message, bound: Duration) -> Result<(), BrokerError> {
        let name = message.message_id.clone();
        let say = |what: &str| {
            self.process.world.trace.say(&self.process.name, format_args!("publish {name}{what}"));
        };
        if self.strikes(Fault::MessageLost, 3) {
            say(", lost");
            return Ok(());
        }
        let mut copies = vec![message];
        if self.strikes(Fault::MessageTwice, 3) {
            say(", twice");
            copies.extend(copies.first().cloned());
        }
        if self.strikes(Fault::MessageLate, 3) {
            let span = self.process.world.random.lock().unwrap().millis(1, 20_000);
            say(", late");
            let (queues, process) = (self.queues.clone(), self.process.clone());
            tokio::spawn(async move {
                pause(span).await;
                if !process.whole || !process.is_down() {
                    queues.publish(copies, bound).await;
                }
            });
            return Ok(());
        }
        if self.strikes(Fault::NotConfirmed, 3) {
            let there = self.process.world.random.lock().unwrap().chance(500);
            say(if there { ", not confirmed" } else { ", not confirmed and lost" });
            if there {
                self.queues.publish(copies, bound).await;
            }
            return Err(BrokerError::Unavailable("no confirm".to_owned()));
        }
        say("");
        self.queues.publish(copies, bound).await.into_iter().collect()
    }
}

fn strikes(process: &Process, fault: Fault, scale: u64) -> bool {
    let world = &process.world;
    let struck = world.faults.strikes(fault, scale, &world.random);
    if struck {
        world.trace.count(&fault.name());
    }
    struck
}

#[async_trait]
impl Broker for WireBroker {
    async fn declare(&self, queue: &Queue) -> Result<(), BrokerError> {
        self.reach().await?;
        self.queues.declare(queue).await
    }

    async fn publish(
        &self,
        messages: Vec<Message>,
        bound: Duration,
    ) -> Vec<Result<(), BrokerError>> {
        let reached = self.reach().await;
        if let Err(error) = reached {
            return messages.iter().map(|_| Err(error.clone())).collect();
        }
        let mut order: Vec<usize> = (0..messages.len()).collect();
        if messages.len() > 1 && self.strikes(Fault::Reordered, 5) {
            order.reverse();
        }
        let mut results = vec![Ok(()); messages.len()];
        for place in order {
            results[place] = self.send(messages[place].clone(), bound).await;
        }
        self.process.pass().await;
        results
    }

    fn tell(&self, body: Bytes) {
        let world = &self.process.world;
        if world.faults.broker_down(world.trace.elapsed()) {
            return;
        }
        let say = |what: &str| {
            let body = String::from_utf8_lossy(&body);
            world.trace.say(&self.process.name, format_args!("tell {body}{what}"));
        };
        if self.strikes(Fault::MessageLost, 3) {
            return say(", lost");
        }
        say("");
        for _ in 0..if self.strikes(Fault::MessageTwice, 3) { 2 } else { 1 } {
            self.queues.tell(body.clone());
        }
    }

    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        self.reach().await?;
        let first = self.queues.subscribe(source.clone(), prefetch).await?;
        let (sender, deliveries) = mpsc::unbounded_channel();
        let (closing, closed) = (CancellationToken::new(), CancellationToken::new());
        let subscribed = Arc::new(AtomicBool::new(true));
        let link = Link {
            process: self.process.clone(),
            queues: self.queues.clone(),
            source,
            prefetch,
            sender,
            closing: closing.clone(),
            subscribed: subscribed.clone(),
        };
        let done = closed.clone();
        tokio::spawn(async move {
            link.run(first).await;
            done.cancel();
        });
        let process = self.process.clone();
        let next = None;
        Ok(Box::new(WireSubscription { process, deliveries, next, closing, closed, subscribed }))
    }

    async fn depth(&self, queue: &Queue) -> Result<Depth, BrokerError> {
        self.reach().await?;
        self.queues.depth(queue).await
    }

    async fn health(&self) -> BrokerHealth {
        self.queues.health().await
    }
}

/// Carries deliveries from the broker to a subscription of a process, and subscribes again when
/// the broker has lost the consumer, as the port asks of an adapter.
struct Link {
    process: Arc<Process>,
    queues: InProcessBroker,
    source: Source,
    prefetch: u16,
    sender: mpsc::UnboundedSender<Delivery>,
    closing: CancellationToken,
    subscribed: Arc<AtomicBool>,
}

impl Link {
    async fn run(self, mut inner: Box<dyn Subscription>) {
        loop {
            let lost = strikes(&self.process, Fault::ConsumerLost, 5);
            let span = self.process.world.random.lock().unwrap().millis(1_000, 40_000);
            if self.carry(&mut inner, span).await {
                inner.close().await;
                return;
            }
            if !lost {
                continue;
            }
            inner.close().await;
            self.subscribed.store(false, Ordering::Relaxed);
            self.process.world.trace.say(&self.process.name, format_args!("consumer lost"));
            let span = self.process.world.random.lock().unwrap().millis(10, 5_000);
            pause(span).await;
            match self.queues.subscribe(self.source.clone(), self.prefetch).await {
                Ok(again) => inner = again,
                Err(error) => panic!("queues in a process are always there: {error}"),
            }
            self.subscribed.store(true, Ordering::Relaxed);
        }
    }

    /// Carries for a while; true if the subscription has ended meanwhile.
    async fn carry(&self, inner: &mut Box<dyn Subscription>, span: Duration) -> bool {
        let end = pause(span);
        tokio::pin!(end);
        loop {
            tokio::select! {
                biased;
                () = self.process.down() => return true,
                () = self.closing.cancelled() => return true,
                () = self.sender.closed() => return true,
                () = &mut end => return false,
                delivery = inner.next() => match delivery {
                    Some(delivery) => {
                        let _ = self.sender.send(wrap(&self.process, delivery)); // seen next time
                    }
                    None => return true,
                },
            }
        }
    }
}

fn wrap(process: &Arc<Process>, delivery: Delivery) -> Delivery {
    let name = delivery.message_id.clone().unwrap_or_default();
    let acker = WireAcker { process: process.clone(), name, inner: delivery.acker };
    Delivery { acker: Box::new(acker), ..delivery }
}

struct WireSubscription {
    process: Arc<Process>,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    /// Came, and its process stands still.
    next: Option<Delivery>,
    closing: CancellationToken,
    closed: CancellationToken,
    subscribed: Arc<AtomicBool>,
}

#[async_trait]
impl Subscription for WireSubscription {
    async fn next(&mut self) -> Option<Delivery> {
        if self.next.is_none() {
            self.next = self.deliveries.recv().await;
        }
        self.process.pass().await;
        let delivery = self.next.take()?;
        let name = delivery.message_id.as_deref().unwrap_or_default();
        self.process.world.trace.say(&self.process.name, format_args!("delivery {name}"));
        Some(delivery)
    }

    fn subscribed(&self) -> bool {
        self.subscribed.load(Ordering::Relaxed)
    }

    /// The inner subscription cannot be reached from here; what it has not given comes again
    /// when it is closed.
    async fn cease(&mut self) -> usize {
        self.process.pass().await;
        let mut given_back = usize::from(self.next.take().is_some());
        self.deliveries.close();
        while self.deliveries.try_recv().is_ok() {
            given_back += 1;
        }
        given_back
    }

    async fn close(&mut self) {
        self.process.pass().await;
        self.closing.cancel();
        self.closed.cancelled().await;
    }
}

struct WireAcker {
    process: Arc<Process>,
    name: String,
    inner: Box<dyn Acker>,
}

#[async_trait]
impl Acker for WireAcker {
    async fn ack(self: Box<Self>) -> bool {
        self.process.pass().await;
        let taken = self.inner.ack().await;
        self.process
            .world
            .trace
            .say(&self.process.name, format_args!("ack {}, taken: {taken}", self.name));
        taken
    }

    async fn dead_letter(self: Box<Self>) -> bool {
        self.process.pass().await;
        self.process.world.trace.say(&self.process.name, format_args!("dead letter {}", self.name));
        self.inner.dead_letter().await
    }
}

/// Takes everything out of a queue; gives how much that was.
pub async fn purge(queues: &InProcessBroker, queue: &Queue) -> usize {
    let source = Source::Steps(queue.clone());
    let Ok(mut subscription) = queues.subscribe(source, PURGED_AT_ONCE).await else { return 0 };
    let mut taken = 0;
    while let Some(Some(delivery)) = futures::FutureExt::now_or_never(subscription.next()) {
        delivery.acker.ack().await;
        taken += 1;
    }
    subscription.close().await;
    taken
}
