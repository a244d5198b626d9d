//! Queues in memory, for one process: the broker of `run`, `dev` and the simulator.
//!
//! Consumers pull: a subscription takes the oldest message when it is asked for one and holds
//! fewer than its prefetch. Waiting consumers are woken in the order in which they began to
//! wait, one a message. Everything is forgotten at exit; the store publishes again what is
//! ready. Every queue has a bound, because nothing here may grow with a peer that never reads.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use standfast_domain::ids::Queue;
use standfast_engine::ports::{
    Acker, Broker, BrokerError, BrokerHealth, Delivery, Depth, Destination, Message, Source,
    Subscription,
};
use tokio::sync::Notify;

use crate::limits::check_message;

/// Messages of one step queue. A wake is some 300 bytes, so a full queue holds about 30 MB;
/// what is refused beyond it is published again from the store once the queue has drained.
pub const STEP_MESSAGES_MAX: usize = 100_000;

/// Messages of each queue that a person or a test reads: rejected, dead steps, replies. The
/// oldest goes first: these tell of trouble, and the newest trouble is what is looked for.
pub const KEPT_MESSAGES_MAX: usize = 1_000;

/// Messages that one listener to control may fall behind; it then looks at everything instead.
pub const CONTROL_MESSAGES_MAX: usize = 1_000;

/// Names one queue of the process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Steps(Queue),
    Intake,
    DeadSteps,
    Rejected,
    Reply(String),
    /// One listener's own; goes with it.
    Control(u64),
}

impl Place {
    fn of_destination(destination: &Destination) -> Self {
        match destination {
            Destination::Steps(queue) => Self::Steps(queue.clone()),
            Destination::Rejected => Self::Rejected,
            Destination::Reply(name) => Self::Reply(name.clone()),
        }
    }

    /// Gives the queue that a subscription of that number takes from.
    fn of_source(source: &Source, number: u64) -> Self {
        match source {
            Source::Steps(queue) => Self::Steps(queue.clone()),
            Source::Intake => Self::Intake,
            Source::DeadSteps => Self::DeadSteps,
            Source::Control { .. } => Self::Control(number),
        }
    }

    /// Gives the routing key that a delivery shows, the same as on RabbitMQ.
    fn routing_key(&self) -> String {
        match self {
            Self::Steps(queue) => format!("standfast.steps.{queue}"),
            Self::Intake => "submit".to_owned(),
            Self::DeadSteps => "steps".to_owned(),
            Self::Rejected => "standfast.rejected".to_owned(),
            Self::Reply(name) => name.clone(),
            Self::Control(_) => "standfast.control".to_owned(),
        }
    }
}

/// One queue: what is ready, and who may be told.
#[derive(Default)]
struct Shelf {
    ready: VecDeque<Message>,
    consumers: u64,
    arrived: Arc<Notify>,
}

/// One subscription's deliveries that are not ended.
struct Holder {
    place: Place,
    held: BTreeMap<u64, Message>,
}

#[derive(Default)]
struct State {
    /// In order, so that whoever listens is told in the same one under the same seed.
    shelves: BTreeMap<Place, Shelf>,
    holders: BTreeMap<u64, Holder>,
    last_number: u64,
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn shelf(&mut self, place: &Place) -> &mut Shelf {
        self.shelves.entry(place.clone()).or_default()
    }

    fn publish(&mut self, message: Message) -> Result<(), BrokerError> {
        check_message(&message)?;
        let place = Place::of_destination(&message.destination);
        if let Place::Reply(name) = &place
            && !self.shelves.contains_key(&place)
        {
            return Err(BrokerError::Refused(format!("no queue `{name}` takes the reply")));
        }
        let shelf = self.shelf(&place);
        if matches!(place, Place::Steps(_)) && shelf.ready.len() >= STEP_MESSAGES_MAX {
            return Err(BrokerError::Refused(format!(
                "queue `{}` is full with {STEP_MESSAGES_MAX} messages",
                place.routing_key()
            )));
        }
        self.keep(&place, message);
        Ok(())
    }

    /// Puts a message at a queue's end; where only the newest are kept, the oldest goes.
    fn keep(&mut self, place: &Place, message: Message) {
        let shelf = self.shelf(place);
        if !matches!(place, Place::Steps(_)) && shelf.ready.len() >= KEPT_MESSAGES_MAX {
            shelf.ready.pop_front();
        }
        shelf.ready.push_back(message);
        shelf.arrived.notify_one();
    }

    /// Puts a word at the end of each listener's queue. One that is far behind is told to look
    /// at everything, which is what it would come to.
    fn tell(&mut self, body: &Bytes) {
        for (place, shelf) in &mut self.shelves {
            let Place::Control(_) = place else { continue };
            let mut body = body.clone();
            if shelf.ready.len() >= CONTROL_MESSAGES_MAX {
                shelf.ready.clear();
                body = Bytes::new();
            }
            shelf.ready.push_back(control_message(body));
            shelf.arrived.notify_one();
        }
    }

    /// Ends a subscription: what it held goes back to the front, in its old order. One that
    /// had ceased counts as no consumer any more.
    fn release(&mut self, holder: u64, ceased: bool) {
        let Some(Holder { place, held }) = self.holders.remove(&holder) else { return };
        if let Place::Control(_) = place {
            self.shelves.remove(&place);
            return;
        }
        let shelf = self.shelf(&place);
        shelf.consumers = shelf.consumers.saturating_sub(u64::from(!ceased));
        for (_, message) in held.into_iter().rev() {
            shelf.ready.push_front(message);
        }
        // One call a message could be many; the waiting consumers are few.
        for _ in 0..(shelf.consumers).min(shelf.ready.len() as u64) {
            shelf.arrived.notify_one();
        }
    }

    /// Takes one delivery out of its subscription; none if that has ended.
    fn settle(&mut self, holder: u64, tag: u64) -> Option<(Place, Message)> {
        let holder = self.holders.get_mut(&holder)?;
        let message = holder.held.remove(&tag)?;
        Some((holder.place.clone(), message))
    }
}

fn control_message(body: Bytes) -> Message {
    Message {
        destination: Destination::Rejected, // read by nobody: it is in its queue already
        message_id: String::new(),
        correlation_id: None,
        headers: Vec::new(),
        body,
    }
}

/// Moves messages between the parts of one process.
#[derive(Clone, Default)]
pub struct InProcessBroker {
    state: Arc<Mutex<State>>,
}

impl InProcessBroker {
    /// Starts with no queue and no message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a reply queue, so that [`Destination::Reply`] with this name is taken.
    pub fn open_reply(&self, name: &str) {
        self.lock().shelf(&Place::Reply(name.to_owned()));
    }

    /// Removes a reply queue with what it holds.
    pub fn close_reply(&self, name: &str) {
        self.lock().shelves.remove(&Place::Reply(name.to_owned()));
    }

    /// Takes the replies that have come, oldest first.
    pub fn take_replies(&self, name: &str) -> Vec<Message> {
        self.take(&Place::Reply(name.to_owned()))
    }

    /// Takes what was rejected, oldest first.
    pub fn take_rejected(&self) -> Vec<Message> {
        self.take(&Place::Rejected)
    }

    fn take(&self, place: &Place) -> Vec<Message> {
        let mut state = self.lock();
        let shelf = state.shelves.get_mut(place);
        shelf.map(|shelf| shelf.ready.drain(..).collect()).unwrap_or_default()
    }

    /// The state is changed by short calls that do not panic half-way, so a poisoned lock
    /// still guards whole state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Broker for InProcessBroker {
    async fn declare(&self, queue: &Queue) -> Result<(), BrokerError> {
        self.lock().shelf(&Place::Steps(queue.clone()));
        Ok(())
    }

    async fn publish(
        &self,
        messages: Vec<Message>,
        _bound: Duration,
    ) -> Vec<Result<(), BrokerError>> {
        let mut state = self.lock();
        messages.into_iter().map(|message| state.publish(message)).collect()
    }

    fn tell(&self, body: Bytes) {
        self.lock().tell(&body);
    }

    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let mut state = self.lock();
        let number = state.next_number();
        let place = Place::of_source(&source, number);
        let shelf = state.shelf(&place);
        shelf.consumers += 1;
        let arrived = shelf.arrived.clone();
        state.holders.insert(number, Holder { place: place.clone(), held: BTreeMap::new() });
        drop(state);
        Ok(Box::new(InProcessSubscription {
            broker: self.clone(),
            place,
            number,
            prefetch: usize::from(prefetch.max(1)),
            arrived,
            room: Arc::default(),
            ceased: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }))
    }

    async fn depth(&self, queue: &Queue) -> Result<Depth, BrokerError> {
        let state = self.lock();
        let shelf = state.shelves.get(&Place::Steps(queue.clone()));
        Ok(shelf.map_or(Depth::default(), |shelf| Depth {
            ready: shelf.ready.len() as u64,
            consumers: shelf.consumers,
        }))
    }

    async fn health(&self) -> BrokerHealth {
        BrokerHealth {
            product: "queues within the process".to_owned(),
            connected: true,
            blocked: None,
            faults: Vec::new(),
        }
    }
}

struct InProcessSubscription {
    broker: InProcessBroker,
    place: Place,
    number: u64,
    prefetch: usize,
    /// Tells one waiting consumer of the queue that a message came.
    arrived: Arc<Notify>,
    /// Tells this consumer that it holds one delivery less.
    room: Arc<Notify>,
    /// Takes nothing more; what it took may still be ended.
    ceased: AtomicBool,
    closed: AtomicBool,
}

/// What one look at the queue found.
enum Look {
    Taken(Delivery),
    Full,
    Empty,
}

impl InProcessSubscription {
    fn look(&self) -> Look {
        let mut state = self.broker.lock();
        let held = state.holders.get(&self.number).map_or(0, |holder| holder.held.len());
        if held >= self.prefetch {
            return Look::Full;
        }
        let Some(message) = state.shelf(&self.place).ready.pop_front() else {
            return Look::Empty;
        };
        let tag = state.next_number();
        let delivery = self.delivery(&message, tag);
        if let Some(holder) = state.holders.get_mut(&self.number) {
            holder.held.insert(tag, message);
        }
        Look::Taken(delivery)
    }

    fn delivery(&self, message: &Message, tag: u64) -> Delivery {
        Delivery {
            body: message.body.clone(),
            routing_key: self.place.routing_key(),
            message_id: Some(message.message_id.clone()).filter(|id| !id.is_empty()),
            correlation_id: message.correlation_id.clone(),
            reply_to: None,
            user_id: None,
            headers: message.headers.clone(),
            acker: Box::new(InProcessAcker {
                broker: self.broker.clone(),
                holder: self.number,
                tag,
                room: self.room.clone(),
            }),
        }
    }

    fn end(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            let ceased = self.ceased.load(Ordering::Acquire);
            self.broker.lock().release(self.number, ceased);
        }
    }
}

#[async_trait]
impl Subscription for InProcessSubscription {
    async fn next(&mut self) -> Option<Delivery> {
        loop {
            if !self.subscribed() {
                return None;
            }
            // A wake that comes between the look and the wait is kept by `Notify`, and one
            // that reaches a cancelled wait is passed on to the next consumer. A consumer
            // without room waits for its own acks only, so it takes nobody's wake.
            match self.look() {
                Look::Taken(delivery) => return Some(delivery),
                Look::Full => self.room.notified().await,
                Look::Empty => self.arrived.notified().await,
            }
        }
    }

    fn subscribed(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && !self.ceased.load(Ordering::Acquire)
    }

    /// Nothing is taken before it is asked for, so there is nothing to give back.
    async fn cease(&mut self) -> usize {
        if !self.ceased.swap(true, Ordering::AcqRel) {
            let mut state = self.broker.lock();
            let shelf = state.shelf(&self.place);
            shelf.consumers = shelf.consumers.saturating_sub(1);
        }
        0
    }

    async fn close(&mut self) {
        self.end();
    }
}

impl Drop for InProcessSubscription {
    fn drop(&mut self) {
        self.end();
    }
}

struct InProcessAcker {
    broker: InProcessBroker,
    holder: u64,
    tag: u64,
    room: Arc<Notify>,
}

#[async_trait]
impl Acker for InProcessAcker {
    async fn ack(self: Box<Self>) -> bool {
        let settled = self.broker.lock().settle(self.holder, self.tag);
        self.room.notify_one();
        settled.is_some()
    }

    async fn dead_letter(self: Box<Self>) -> bool {
        let mut state = self.broker.lock();
        let Some((place, mut message)) = state.settle(self.holder, self.tag) else {
            return false;
        };
        let target = match place {
            Place::Steps(_) => Some(Place::DeadSteps),
            Place::Intake => Some(Place::Rejected),
            Place::DeadSteps | Place::Rejected | Place::Reply(_) | Place::Control(_) => None,
        };
        if let Some(target) = target {
            let from = place.routing_key();
            message.headers.push(("x-first-death-queue".to_owned(), from));
            message.headers.push(("x-first-death-reason".to_owned(), "rejected".to_owned()));
            state.keep(&target, message);
        }
        drop(state);
        self.room.notify_one();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(destination: Destination, id: usize) -> Message {
        Message {
            destination,
            message_id: format!("m{id}"),
            correlation_id: None,
            headers: Vec::new(),
            body: Bytes::from_static(b"{}"),
        }
    }

    #[test]
    fn a_full_step_queue_refuses_and_a_full_rejected_queue_forgets_its_oldest() {
        let mut state = State::default();
        let steps = Destination::Steps(Queue::new("q").unwrap());
        for id in 0..STEP_MESSAGES_MAX {
            state.publish(message(steps.clone(), id)).unwrap();
        }
        let refusal = state.publish(message(steps, 0)).unwrap_err();
        assert!(matches!(refusal, BrokerError::Refused(_)), "{refusal}");
        for id in 0..=KEPT_MESSAGES_MAX {
            state.publish(message(Destination::Rejected, id)).unwrap();
        }
        let kept = &state.shelves[&Place::Rejected].ready;
        assert_eq!((kept.len(), kept[0].message_id.as_str()), (KEPT_MESSAGES_MAX, "m1"));
    }
}
