//! Publishing with confirms.
//!
//! A few channels share one line of requests. Each takes what waits, sends it all and collects
//! the confirms, so that callers who come together share the broker's round trip. A channel is
//! used by one task only: the library numbers a publish and writes it in two steps, which two
//! tasks could interleave.
//!
//! **Returns.** A message without a queue comes back before its confirm. The library keeps the
//! returns of a channel in one line and hands the oldest to whichever confirm completes next,
//! so a return says nothing about the publish it is handed out with. What holds: a confirm that
//! was handed none found the line empty, hence every message confirmed up to that moment has
//! had its return, if there is one, handed to a confirm that completed earlier. So a message's
//! fate is known once its own confirm came without a return, or once any confirm that completed
//! after it did, or once nothing is pending; returns are matched by their own message id,
//! exchange and routing key. After each confirm all others that are ready are read before
//! anything is decided, so that no earlier one is missed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use standfast_engine::crash;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::connection::{Link, Live, channel};
use super::counters::Counts;
use super::settings::CALL_BOUND;

/// Channels that publish. More than a few bring nothing: the broker serves one connection with
/// one reader.
const CHANNELS: usize = 4;
/// Messages that one channel has under way before it waits for their confirms. Large enough to
/// hide the round trip, small enough that a broken channel leaves little in doubt.
const BATCH_MAX: usize = 512;
/// Requests that wait for a channel; more wait with their callers, each for its own bound.
const WAITING_MAX: usize = 1_024;
/// After this long without all confirms a channel is given up, so that one queue that cannot
/// confirm does not keep the channel from the others.
const BATCH_BOUND: Duration = Duration::from_secs(5);

/// One message, ready to be written.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The broker has it, in a queue.
    Accepted,
    /// No queue takes it.
    Returned,
    /// The broker said no.
    Nacked,
    /// Nobody knows; the reason.
    Unknown(String),
}

struct Request {
    items: Vec<Outgoing>,
    deadline: Instant,
    answer: oneshot::Sender<Vec<Sent>>,
}

/// The line of requests before the channels.
pub(crate) struct Publisher {
    requests: mpsc::Sender<Request>,
    link: Link,
    counts: Arc<Counts>,
}

impl Publisher {
    /// Starts the channels' tasks, which end with this value.
    pub(crate) fn start(link: Link, counts: Arc<Counts>) -> Self {
        let (requests, waiting) = mpsc::channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..CHANNELS {
            tokio::spawn(work(link.clone(), waiting.clone(), counts.clone()));
        }
        Self { requests, link, counts }
    }

    /// Sends messages in order and answers for each by `deadline`.
    pub(crate) async fn send(&self, items: Vec<Outgoing>, deadline: Instant) -> Vec<Sent> {
        let number = items.len();
        if number == 0 {
            return Vec::new();
        }
        let (answer, answered) = oneshot::channel();
        let exchange = async {
            self.requests.send(Request { items, deadline, answer }).await.ok()?;
            answered.await.ok()
        };
        match timeout_at(deadline, exchange).await {
            Ok(Some(answers)) => answers,
            Ok(None) => vec![Sent::Unknown("the broker is closed".to_owned()); number],
            Err(_) => {
                self.counts.unanswered.add(number as u64);
                vec![Sent::Unknown(self.why_late()); number]
            }
        }
    }

    fn why_late(&self) -> String {
        let state = self.link.state();
        match (state.blocked, state.fault) {
            (Some(reason), _) => format!("the broker blocks publishers: {reason}"),
            (None, Some(fault)) => fault.text,
            (None, None) => "no confirm in time".to_owned(),
        }
    }
}

/// A channel with confirms, and the connection it belongs to.
struct Open {
    channel: Channel,
    generation: u64,
}

/// Serves requests over one channel until the line ends.
async fn work(link: Link, waiting: Arc<Mutex<mpsc::Receiver<Request>>>, counts: Arc<Counts>) {
    let mut open: Option<Open> = None;
    loop {
        let Some(mut requests) = take(&waiting).await else { return };
        let Some(live) = link.wait().await else { return };
        if open.as_ref().is_none_or(|open| !usable(open, &live)) {
            open = confirming(&live).await;
        }
        // Nobody waits for these any more; what was not sent is better not sent late.
        requests.retain(|request| !request.answer.is_closed() && request.deadline > Instant::now());
        let Some(Open { channel, .. }) = &open else {
            for request in requests {
                let reason = Sent::Unknown("the broker opens no channel".to_owned());
                let _ = request.answer.send(vec![reason; request.items.len()]);
            }
            continue;
        };
        if !Batch::new(requests).run(channel, &link, &counts).await {
            open = None;
        }
    }
}

fn usable(open: &Open, live: &Live) -> bool {
    open.generation == live.generation && open.channel.status().connected()
}

async fn confirming(live: &Live) -> Option<Open> {
    let channel = channel(live).await.ok()?;
    let select = channel.confirm_select(ConfirmSelectOptions::default());
    timeout(CALL_BOUND, select).await.ok()?.ok()?;
    Some(Open { channel, generation: live.generation })
}

/// Takes the requests that wait, up to about [`BATCH_MAX`] messages; none at the line's end.
async fn take(waiting: &Mutex<mpsc::Receiver<Request>>) -> Option<Vec<Request>> {
    let mut waiting = waiting.lock().await;
    let mut requests = vec![waiting.recv().await?];
    let mut messages = requests[0].items.len();
    while messages < BATCH_MAX {
        let Ok(request) = waiting.try_recv() else { break };
        messages += request.items.len();
        requests.push(request);
    }
    Some(requests)
}

/// One message under way.
struct Item {
    /// Which request, and which place in it.
    request: usize,
    outgoing: Outgoing,
    confirmed: Option<Confirmed>,
    decided: Option<Sent>,
}

/// What a message's own confirm said.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Confirmed {
    Ack,
    Nack,
}

/// What identifies a returned message.
type Key = (String, String, String);

/// Requests that are sent together.
struct Batch {
    items: Vec<Item>,
    /// The requests' answers, and how many of their messages are undecided.
    answers: Vec<Option<(oneshot::Sender<Vec<Sent>>, usize)>>,
    /// Returned messages that are not yet laid to an item.
    returned: HashMap<Key, usize>,
}

impl Batch {
    fn new(requests: Vec<Request>) -> Self {
        let (mut items, mut answers) = (Vec::new(), Vec::new());
        for (number, request) in requests.into_iter().enumerate() {
            answers.push(Some((request.answer, request.items.len())));
            items.extend(request.items.into_iter().map(|outgoing| Item {
                request: number,
                outgoing,
                confirmed: None,
                decided: None,
            }));
        }
        Self { items, answers, returned: HashMap::new() }
    }

    /// Sends all and answers each request as soon as its messages' fates are known. False: the
    /// channel is of no more use.
    async fn run(mut self, channel: &Channel, link: &Link, counts: &Counts) -> bool {
        // Polled first in this order, so written in this order.
        let mut pending: FuturesUnordered<_> = self
            .items
            .iter()
            .map(|item| item.outgoing.clone())
            .enumerate()
            .map(|(index, outgoing)| async move { (index, publish(channel, outgoing).await) })
            .collect();
        let mut deadline = Instant::now() + BATCH_BOUND;
        // Confirmed items whose own confirm brought somebody's return.
        let mut doubtful: Vec<usize> = Vec::new();
        loop {
            let first = tokio::select! {
                next = pending.next() => match next {
                    Some(next) => next,
                    None => break,
                },
                () = sleep_until(deadline) => {
                    if link.state().blocked.is_some() {
                        // The messages stand in the socket and will be read after the alarm.
                        deadline = Instant::now() + BATCH_BOUND;
                        continue;
                    }
                    self.give_up("no confirm in time", counts);
                    return false;
                }
            };
            let mut ready = vec![first];
            take_ready(&mut pending, &mut ready);
            let (sure, unsure) = self.note(ready, counts);
            // A confirm of this round without a return completed after all of earlier rounds.
            let mut known = sure;
            if !known.is_empty() {
                known.append(&mut doubtful);
            }
            doubtful.extend(unsure);
            self.decide(&known, counts);
        }
        self.decide(&doubtful, counts);
        channel.status().connected()
    }

    /// Records what came; gives the acked items without and with a return at hand.
    fn note(
        &mut self,
        ready: Vec<(usize, lapin::Result<Confirmation>)>,
        counts: &Counts,
    ) -> (Vec<usize>, Vec<usize>) {
        let (mut sure, mut unsure) = (Vec::new(), Vec::new());
        for (index, result) in ready {
            let (confirmed, message) = match result {
                Ok(Confirmation::Ack(message)) => (Confirmed::Ack, message),
                Ok(Confirmation::Nack(message)) => (Confirmed::Nack, message),
                Ok(Confirmation::NotRequested) => {
                    self.settle(index, Sent::Unknown("the channel does not confirm".to_owned()));
                    continue;
                }
                Err(error) => {
                    counts.unanswered.add(1);
                    self.settle(index, Sent::Unknown(error.to_string()));
                    continue;
                }
            };
            self.items[index].confirmed = Some(confirmed);
            match message {
                None => sure.push(index),
                Some(message) => {
                    *self.returned.entry(key_of_return(&message)).or_default() += 1;
                    unsure.push(index);
                }
            }
        }
        (sure, unsure)
    }

    fn decide(&mut self, known: &[usize], counts: &Counts) {
        for &index in known {
            let Item { confirmed, outgoing, .. } = &self.items[index];
            let sent = match confirmed {
                Some(Confirmed::Nack) | None => Sent::Nacked,
                Some(Confirmed::Ack) => match self.returned.get_mut(&key_of(outgoing)) {
                    Some(number) if *number > 0 => {
                        *number -= 1;
                        Sent::Returned
                    }
                    Some(_) | None => Sent::Accepted,
                },
            };
            match sent {
                Sent::Accepted => counts.confirmed.add(1),
                Sent::Returned => counts.returned.add(1),
                Sent::Nacked => counts.nacked.add(1),
                Sent::Unknown(_) => {}
            }
            self.settle(index, sent);
        }
    }

    fn give_up(&mut self, reason: &str, counts: &Counts) {
        let open: Vec<usize> =
            (0..self.items.len()).filter(|&index| self.items[index].decided.is_none()).collect();
        counts.unanswered.add(open.len() as u64);
        for index in open {
            self.settle(index, Sent::Unknown(reason.to_owned()));
        }
    }

    /// Records one message's fate and answers its request if that was the last one.
    fn settle(&mut self, index: usize, sent: Sent) {
        self.items[index].decided = Some(sent);
        let request = self.items[index].request;
        let Some((_, undecided)) = &mut self.answers[request] else { return };
        *undecided -= 1;
        if *undecided > 0 {
            return;
        }
        let Some((answer, _)) = self.answers[request].take() else { return };
        // Requests lie one behind the other: the search is over this request's items only.
        let start = self.items.partition_point(|item| item.request < request);
        let mine = self.items[start..].iter().take_while(|item| item.request == request);
        // The caller may have stopped waiting.
        let _ = answer.send(mine.filter_map(|item| item.decided.clone()).collect());
    }
}

/// Notes that a stream wants to be asked again at once.
#[derive(Default)]
struct Again(AtomicBool);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Takes everything that is ready. `FuturesUnordered` may pause while more is ready, but then
/// it wakes itself: only a pause without a wake means that nothing is left.
fn take_ready<F: Future>(pending: &mut FuturesUnordered<F>, ready: &mut Vec<F::Output>) {
    let again = Arc::new(Again::default());
    let waker = Waker::from(again.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        match pending.poll_next_unpin(&mut context) {
            Poll::Ready(Some(next)) => ready.push(next),
            Poll::Ready(None) => return,
            Poll::Pending if again.0.swap(false, Ordering::AcqRel) => {}
            Poll::Pending => return,
        }
    }
}

async fn publish(channel: &Channel, outgoing: Outgoing) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let Outgoing { exchange, routing_key, properties, body } = outgoing;
    let confirm = channel.basic_publish(exchange, routing_key, options, &body, properties).await?;
    crash::point("publish.sent");
    confirm.await
}

fn key_of(outgoing: &Outgoing) -> Key {
    key(&outgoing.exchange, &outgoing.routing_key, &outgoing.properties)
}

fn key_of_return(message: &BasicReturnMessage) -> Key {
    key(&message.exchange, &message.routing_key, &message.properties)
}

fn key(exchange: &ShortString, routing_key: &ShortString, properties: &BasicProperties) -> Key {
    let id = properties.message_id().as_ref().map_or("", ShortString::as_str);
    (exchange.to_string(), routing_key.to_string(), id.to_owned())
}
