//! Consuming, for as long as the process lives.
//!
//! A task of its own holds each subscription, so that one whose owner is busy comes back too.
//! Whatever ends the stream unasked (the connection, a channel that the broker closed, a cancel
//! because the queue was deleted, an acknowledgement time-out) has one cure: a new channel, the
//! declarations, the prefetch, a new consumer. Deliveries of a channel that is gone are dropped
//! unseen; the broker sends them again. A queue over which the broker fails within itself would
//! cost the others their connection each time: it is tried over one of its own (`suspect`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Consumer};
use standfast_engine::ports::{Acker, BrokerError, Delivery, Source, Subscription};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::acks::Acks;
use super::connection::{Link, Live, Pauses, STABLE, channel, leave, separate};
use super::counters::Counts;
use super::settings::{CALL_BOUND, RabbitSettings, short};
use super::suspect::{ANSWER_BOUND, Renewal, Suspicion, advice, is_dispensable, renew};
use super::topology::{self, Fault};

/// What keeps subscriptions from being made, by queue; shown by health.
pub(crate) type Faults = Arc<Mutex<BTreeMap<String, String>>>;

/// What a subscription's task needs.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) link: Link,
    pub(crate) settings: Arc<RabbitSettings>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) faults: Faults,
}

/// Deliveries between the task and the subscription's owner. The prefetch bounds it.
#[derive(Default)]
struct Inbox {
    /// Each with its acker once more, for giving it back.
    arrived: Mutex<VecDeque<(Delivery, lapin::Acker)>>,
    news: Notify,
    /// True while a listener to control is to be told that something may have been missed.
    missed: AtomicBool,
    subscribed: AtomicBool,
    ended: AtomicBool,
    /// Deliveries that went back when it ceased.
    given_back: AtomicUsize,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Delivery, lapin::Acker)>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, delivery: Delivery, acker: lapin::Acker) {
        self.lock().push_back((delivery, acker));
        self.news.notify_one();
    }

    fn lost(&self) {
        self.subscribed.store(false, Ordering::Release);
        self.lock().clear();
    }

    fn end(&self) {
        self.lost();
        self.ended.store(true, Ordering::Release);
        self.news.notify_one();
    }
}

/// What a subscription's owner wants of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Take,
    Cease,
    Close,
}

pub(crate) struct RabbitSubscription {
    inbox: Arc<Inbox>,
    /// Dropping it ends the task, as [`Wish::Close`] does.
    stop: watch::Sender<Wish>,
    task: Option<JoinHandle<()>>,
}

/// Subscribes and waits for the first attempt: a topology fault is an error, a broker that is
/// away is not, because the task goes on trying.
pub(crate) async fn subscribe(
    context: Context,
    source: Source,
    prefetch: u16,
) -> Result<RabbitSubscription, BrokerError> {
    let inbox = Arc::new(Inbox::default());
    let (stop, stopped) = watch::channel(Wish::Take);
    let (first, outcome) = oneshot::channel();
    let task = Task {
        queue: context.settings.names.source(&source),
        context,
        source,
        // Zero would mean no bound at all.
        prefetch: prefetch.max(1),
        inbox: inbox.clone(),
        stopped,
        opened: AtomicU64::new(0),
        suspicion: Suspicion::default(),
    };
    let task = tokio::spawn(task.run(first));
    let subscription = RabbitSubscription { inbox, stop, task: Some(task) };
    match timeout(CALL_BOUND, outcome).await {
        Ok(Ok(Err(fault @ BrokerError::Topology(_)))) => Err(fault),
        Ok(_) | Err(_) => Ok(subscription),
    }
}

#[async_trait]
impl Subscription for RabbitSubscription {
    async fn next(&mut self) -> Option<Delivery> {
        loop {
            if self.inbox.missed.swap(false, Ordering::AcqRel) {
                return Some(nothing_but_news());
            }
            if let Some((delivery, _)) = self.inbox.lock().pop_front() {
                return Some(delivery);
            }
            if self.inbox.ended.load(Ordering::Acquire) {
                return None;
            }
            self.inbox.news.notified().await;
        }
    }

    fn subscribed(&self) -> bool {
        self.inbox.subscribed.load(Ordering::Acquire)
    }

    async fn cease(&mut self) -> usize {
        let _ = self.stop.send(Wish::Cease);
        let ended = async {
            while !self.inbox.ended.load(Ordering::Acquire) {
                self.inbox.news.notified().await;
            }
        };
        let _ = timeout(CALL_BOUND, ended).await; // a broker that is away has nothing to give back
        self.inbox.given_back.load(Ordering::Acquire)
    }

    async fn close(&mut self) {
        let _ = self.stop.send(Wish::Close);
        if let Some(task) = self.task.take() {
            let _ = timeout(CALL_BOUND, task).await;
        }
        self.inbox.end();
    }
}

/// Makes the delivery by which a listener learns that something may have been missed.
fn nothing_but_news() -> Delivery {
    Delivery {
        body: Bytes::new(),
        routing_key: String::new(),
        message_id: None,
        correlation_id: None,
        reply_to: None,
        user_id: None,
        headers: Vec::new(),
        acker: Box::new(NothingToAck),
    }
}

struct NothingToAck;

#[async_trait]
impl Acker for NothingToAck {
    async fn ack(self: Box<Self>) -> bool {
        true
    }

    async fn dead_letter(self: Box<Self>) -> bool {
        true
    }
}

/// One subscription's loop.
struct Task {
    context: Context,
    source: Source,
    queue: String,
    prefetch: u16,
    inbox: Arc<Inbox>,
    stopped: watch::Receiver<Wish>,
    /// Queues that a listener to control has had.
    opened: AtomicU64,
    suspicion: Suspicion,
}

/// A consumer that was made.
struct Opened {
    channel: Channel,
    consumer: Consumer,
    /// Its connection, if that is not the one that all share.
    own: Option<Live>,
}

/// Why none was made.
enum Failed {
    /// The broker serves the connection, but not this queue.
    Queue(String),
    /// It failed within itself over what all queues need, which ended the connection.
    Common(String),
    Other(BrokerError),
}

/// Why a consumer ended.
enum Ended {
    Asked,
    Lost(String),
}

impl Task {
    async fn run(mut self, first: oneshot::Sender<Result<(), BrokerError>>) {
        self.keep(first).await;
        self.faults().remove(&self.queue);
        self.inbox.end();
    }

    async fn keep(&mut self, first: oneshot::Sender<Result<(), BrokerError>>) {
        let mut first = Some(first);
        let mut pauses = Pauses::new();
        let (mut ever, mut warned) = (false, false);
        loop {
            let mut stopped = self.stopped.clone();
            let opened = tokio::select! {
                opened = self.open() => opened,
                () = asked(&mut stopped) => return,
            };
            let Some(opened) = opened else { return };
            match opened {
                Ok(Opened { channel, mut consumer, own }) => {
                    let counts = self.context.counts.clone();
                    let apart = matches!(self.source, Source::Steps(_));
                    let acks = Acks::start(channel.clone(), self.prefetch, apart, counts);
                    self.subscribed(ever, warned);
                    answer(&mut first, Ok(()));
                    ever = true;
                    let since = Instant::now();
                    let ended = self.consume(&mut consumer, &acks).await;
                    match &ended {
                        Ended::Asked => self.end(&channel, consumer).await,
                        Ended::Lost(reason) => self.lost(reason),
                    }
                    if let Some(own) = own {
                        leave(&own).await;
                    }
                    if matches!(ended, Ended::Asked) {
                        return;
                    }
                    warned = true;
                    // One that is ended again and again at once is not made at once.
                    if since.elapsed() >= STABLE {
                        pauses = Pauses::new();
                        self.suspicion.forgotten();
                    }
                }
                Err(fault) => {
                    warned = self.failed(&fault, warned);
                    answer(&mut first, Err(fault));
                }
            }
            tokio::select! {
                () = sleep(pauses.next()) => {}
                () = asked(&mut stopped) => return,
            }
        }
    }

    fn subscribed(&self, ever: bool, warned: bool) {
        self.faults().remove(&self.queue);
        self.inbox.subscribed.store(true, Ordering::Release);
        if ever {
            self.context.counts.resubscriptions.add(1);
        }
        if (ever || warned) && matches!(self.source, Source::Control { .. }) {
            self.inbox.missed.store(true, Ordering::Release);
            self.inbox.news.notify_one();
        }
        if warned {
            info!(queue = self.queue, "subscribed again");
        }
    }

    /// Logs that the subscription is gone, and notes it for health until it is back.
    fn lost(&self, reason: &str) {
        self.inbox.lost();
        warn!(queue = self.queue, %reason, "lost the subscription; retrying");
        let text = format!("lost the subscription to `{}` ({reason}); retrying", self.queue);
        self.faults().insert(self.queue.clone(), text);
    }

    /// Notes a failed attempt; logs the first of a row.
    fn failed(&self, fault: &BrokerError, warned: bool) -> bool {
        let mut text = match fault {
            BrokerError::Topology(text) => text.clone(),
            BrokerError::Unavailable(_) | BrokerError::Refused(_) => {
                format!("not subscribed to `{}` ({fault}); retrying without end", self.queue)
            }
        };
        if self.suspicion.has_arisen() {
            let advice = advice(&self.source, &self.queue, &self.suspicion);
            text = format!("{text}; {advice}");
        }
        self.faults().insert(self.queue.clone(), text);
        if !warned {
            warn!(queue = self.queue, %fault, "not subscribed; retrying");
        }
        true
    }

    fn faults(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.context.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a consumer, over the connection that all share or, once there is reason to, over one
    /// of its own; none once the broker's link has ended.
    async fn open(&mut self) -> Option<Result<Opened, BrokerError>> {
        let live = self.context.link.wait().await?;
        if self.suspicion.has_arisen() {
            return Some(self.open_apart().await);
        }
        let fault = match self.attempt(&live, CALL_BOUND).await {
            Ok((channel, consumer)) => return Some(Ok(Opened { channel, consumer, own: None })),
            Err(Failed::Other(error)) => error,
            Err(Failed::Queue(text) | Failed::Common(text)) => {
                self.suspicion.arise();
                BrokerError::Unavailable(text)
            }
        };
        Some(Err(fault))
    }

    /// Tries over a connection of its own; a queue that is given up is declared anew and tried
    /// once more.
    async fn open_apart(&mut self) -> Result<Opened, BrokerError> {
        loop {
            let own = separate(&self.context.settings, "consume apart").await?;
            let failed = match self.attempt(&own, ANSWER_BOUND).await {
                Ok((channel, consumer)) => {
                    self.suspicion.dispelled();
                    return Ok(Opened { channel, consumer, own: Some(own) });
                }
                Err(failed) => failed,
            };
            leave(&own).await;
            match failed {
                Failed::Queue(text) => self.refused(text).await?,
                Failed::Common(text) => {
                    self.suspicion.interrupted();
                    return Err(BrokerError::Unavailable(text));
                }
                Failed::Other(error) => {
                    self.suspicion.interrupted();
                    return Err(error);
                }
            }
        }
    }

    /// Holds a refusal against the queue. No error: it was declared anew, or others are served.
    async fn refused(&mut self, text: String) -> Result<(), BrokerError> {
        let given_up = self.suspicion.refused(Instant::now());
        if !given_up || !is_dispensable(&self.source) {
            return Err(BrokerError::Unavailable(text));
        }
        let renewal = renew(&self.context.settings, &self.source).await;
        self.suspicion.renewed();
        match renewal {
            Ok(Renewal::Done) => {
                self.context.counts.renewals.add(1);
                let reason = text;
                warn!(queue = self.queue, %reason,
                    "deleted and declared anew, for the broker could not serve it; what waited in \
                     it is sent again");
                Ok(())
            }
            Ok(Renewal::Needless) => Ok(()),
            Err(fault) => Err(BrokerError::Unavailable(format!("{text}, nor {fault}"))),
        }
    }

    /// Opens a channel, declares, sets the prefetch, subscribes.
    async fn attempt(&self, live: &Live, bound: Duration) -> Result<(Channel, Consumer), Failed> {
        let names = &self.context.settings.names;
        let channel = channel(live).await.map_err(Failed::Other)?;
        topology::declare_base(&channel, names).await.map_err(of_all)?;
        topology::declare_own(&channel, names, &self.source).await.map_err(of_queue)?;
        let queue = self.own_queue(&channel).await.map_err(Failed::Other)?;
        let name = short(queue).map_err(Failed::Other)?;
        let begin = async {
            channel.basic_qos(self.prefetch, BasicQosOptions { global: false }).await?;
            let options = BasicConsumeOptions::default();
            channel
                .basic_consume(name, ShortString::default(), options, FieldTable::default())
                .await
        };
        match timeout(bound, begin).await {
            Ok(Ok(consumer)) => Ok((channel, consumer)),
            Ok(Err(error)) => {
                let what = format!("queue `{}`", self.queue);
                Err(match topology::explain(&what, &error) {
                    Fault::Internal(text) => Failed::Queue(text),
                    Fault::Unanswered(_) | Fault::Other(_) => {
                        Failed::Other(BrokerError::Unavailable(error.to_string()))
                    }
                })
            }
            Err(_) => Err(self.unanswered(live).await),
        }
    }

    /// Tells a broker that answers nothing from one that does not answer about this queue.
    async fn unanswered(&self, live: &Live) -> Failed {
        let text = format!("no answer to subscribing to `{}`", self.queue);
        match channel(live).await {
            Ok(_) => Failed::Queue(text),
            Err(_) => Failed::Other(BrokerError::Unavailable(text)),
        }
    }

    /// Gives the queue to consume. A listener to control has a new one each time: the broker may
    /// not have noticed yet that the connection before is gone, and the queue of it with it.
    async fn own_queue(&self, channel: &Channel) -> Result<String, BrokerError> {
        let Source::Control { .. } = self.source else { return Ok(self.queue.clone()) };
        let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let queue = format!("{}.{number}", self.queue);
        topology::declare_listener(channel, &self.context.settings.names, &queue).await?;
        Ok(queue)
    }

    /// Ends a live consumer. One that only ceases keeps its channel for the acks of what it has
    /// given, until it is closed or the channel dies; what it has not given goes back.
    async fn end(&mut self, channel: &Channel, mut consumer: Consumer) {
        if *self.stopped.borrow() == Wish::Cease {
            let cancel = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
            let _ = timeout(CALL_BOUND, cancel).await;
            let given = std::mem::take(&mut *self.inbox.lock()).into_iter();
            let mut left: Vec<lapin::Acker> = given.map(|(_, acker)| acker).collect();
            // After its cancel the stream gives what had arrived, and ends.
            while let Ok(Some(Ok(delivery))) = timeout(CALL_BOUND, consumer.next()).await {
                left.push(delivery.acker);
            }
            self.inbox.given_back.store(left.len(), Ordering::Release);
            for acker in left {
                let requeue = acker.reject(BasicRejectOptions { requeue: true });
                let _ = timeout(CALL_BOUND, requeue).await;
            }
            self.inbox.end();
            let _ = self.stopped.wait_for(|wish| *wish == Wish::Close).await;
        }
        // A cancel alone would leave unacknowledged deliveries with the channel.
        let Ok(text) = short("closed by its owner") else { return };
        let _ = timeout(CALL_BOUND, channel.close(200, text)).await;
    }

    async fn consume(&mut self, consumer: &mut Consumer, acks: &Acks) -> Ended {
        loop {
            tokio::select! {
                next = consumer.next() => match next {
                    Some(Ok(delivery)) => {
                        let acker = delivery.acker.clone();
                        self.inbox.put(self.delivery(delivery, acks), acker);
                    }
                    Some(Err(error)) => return Ended::Lost(error.to_string()),
                    None => return Ended::Lost("the broker cancelled the consumer".to_owned()),
                },
                () = asked(&mut self.stopped) => return Ended::Asked,
            }
        }
    }

    fn delivery(&self, from: lapin::message::Delivery, acks: &Acks) -> Delivery {
        let properties = &from.properties;
        Delivery {
            routing_key: from.routing_key.to_string(),
            message_id: properties.message_id().as_ref().map(ToString::to_string),
            correlation_id: properties.correlation_id().as_ref().map(ToString::to_string),
            reply_to: properties.reply_to().as_ref().map(ToString::to_string),
            user_id: properties.user_id().as_ref().map(ToString::to_string),
            headers: text_headers(properties.headers().as_ref()),
            body: Bytes::from(from.data),
            acker: acks.acker(from.delivery_tag, from.acker),
        }
    }
}

/// Lays a fault over what all queues need to nobody's queue.
fn of_all(fault: Fault) -> Failed {
    match fault {
        Fault::Internal(text) => Failed::Common(text),
        Fault::Unanswered(_) | Fault::Other(_) => Failed::Other(fault.into()),
    }
}

/// Lays an internal error to the queue. Silence before it was subscribed to says nothing.
fn of_queue(fault: Fault) -> Failed {
    match fault {
        Fault::Internal(text) => Failed::Queue(text),
        Fault::Unanswered(_) | Fault::Other(_) => Failed::Other(fault.into()),
    }
}

fn answer(
    first: &mut Option<oneshot::Sender<Result<(), BrokerError>>>,
    outcome: Result<(), BrokerError>,
) {
    if let Some(first) = first.take() {
        let _ = first.send(outcome);
    }
}

/// Waits until the owner wants no more deliveries, or drops the subscription.
async fn asked(stopped: &mut watch::Receiver<Wish>) {
    let _ = stopped.wait_for(|wish| *wish >= Wish::Cease).await;
}

/// Shows headers as text; other types in their debug form.
pub(crate) fn text_headers(table: Option<&FieldTable>) -> Vec<(String, String)> {
    let Some(table) = table else { return Vec::new() };
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => text.to_string(),
        AMQPValue::ShortString(text) => text.to_string(),
        other => format!("{other:?}"),
    };
    table.into_iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}
