//! Ends deliveries, many in one frame.
//!
//! A channel numbers what it delivers from one on, and one acknowledgement may speak for all up
//! to a number. One task a channel takes all that wait to be acked: those whose numbers follow
//! without a gap on what has ended go in one frame. The others wait a moment for the gap to close,
//! then go each in its own, so that an attempt that runs for long holds up nobody's. Each frame is
//! a command in the log of a quorum queue, so a few milliseconds of gathering are worth it where
//! the prefetch leaves room: nobody waits for an ack but who has no room for the next delivery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicRejectOptions};
use standfast_engine::ports::Acker;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::counters::Counts;
use super::settings::CALL_BOUND;

/// Deliveries that one round takes.
const ROUND_MAX: usize = 512;
/// How long what has ended gathers before it is acked.
const GATHER: Duration = Duration::from_millis(2);
/// The least prefetch that leaves room for that.
const GATHER_PREFETCH_MIN: u16 = 8;

/// Acknowledges what one channel has delivered.
#[derive(Clone)]
pub(crate) struct Acks {
    ended: mpsc::UnboundedSender<End>,
    counts: Arc<Counts>,
}

/// How a delivery has ended.
enum End {
    /// To be acked; answers whether that was written.
    Done(u64, oneshot::Sender<bool>),
    /// Was ended on its own.
    Apart(u64),
}

/// Ends a delivery on the channel that it came by; no tag ever leaves that channel.
struct RabbitAcker {
    tag: u64,
    acker: lapin::Acker,
    acks: Acks,
}

impl Acks {
    /// Starts the task of a channel of so much prefetch; it ends with the last acker. Acks gather
    /// only with `apart`: where nobody waits for one before the next delivery.
    pub(crate) fn start(channel: Channel, prefetch: u16, apart: bool, counts: Arc<Counts>) -> Self {
        let (ended, arriving) = mpsc::unbounded_channel();
        let gather = apart && prefetch >= GATHER_PREFETCH_MIN;
        tokio::spawn(write(channel, gather, arriving));
        Self { ended, counts }
    }

    /// Makes what ends one delivery.
    pub(crate) fn acker(&self, tag: u64, acker: lapin::Acker) -> Box<dyn Acker> {
        Box::new(RabbitAcker { tag, acker, acks: self.clone() })
    }
}

impl RabbitAcker {
    /// Counts an end that was not written.
    fn written(&self, written: bool) -> bool {
        if !written {
            self.acks.counts.acks_lost.add(1);
        }
        written
    }
}

#[async_trait]
impl Acker for RabbitAcker {
    async fn ack(self: Box<Self>) -> bool {
        let (answer, written) = oneshot::channel();
        let sent = self.acks.ended.send(End::Done(self.tag, answer)).is_ok();
        self.written(sent && matches!(written.await, Ok(true)))
    }

    async fn dead_letter(self: Box<Self>) -> bool {
        let reject = self.acker.reject(BasicRejectOptions { requeue: false });
        let written = matches!(timeout(CALL_BOUND, reject).await, Ok(Ok(true)));
        if written {
            let _ = self.acks.ended.send(End::Apart(self.tag)); // the channel may be gone
        }
        self.written(written)
    }
}

/// Which deliveries of a channel have ended.
#[derive(Debug, Default)]
struct Ends {
    /// All up to this one.
    all_to: u64,
    /// And these, further on: the first of each stretch without a gap, and its last. Behind one
    /// attempt that takes days there are few stretches, however many deliveries.
    further: BTreeMap<u64, u64>,
    /// Those that are to be acked and were not; true once one has waited for a gap to close.
    unacked: BTreeMap<u64, bool>,
}

/// The acks of one round.
#[derive(Debug, Default, PartialEq, Eq)]
struct Frames {
    /// Speaks for all up to it.
    together: Option<u64>,
    /// Each speaks for itself.
    single: Vec<u64>,
}

impl Ends {
    /// Takes in deliveries that have ended, and gives the acks to be written now. The one that
    /// speaks for others must be one that was not acked before: the broker closes a channel that
    /// acks a number which it does not know any more. With `hold`, those beyond a gap wait for
    /// the next round.
    fn take(&mut self, done: &[u64], apart: &[u64], hold: bool) -> Frames {
        done.iter().chain(apart).for_each(|tag| self.add(*tag));
        self.unacked.extend(done.iter().map(|tag| (*tag, !hold)));
        while let Some(last) = self.further.remove(&(self.all_to + 1)) {
            self.all_to = last;
        }
        let beyond = self.unacked.split_off(&(self.all_to + 1));
        let within = std::mem::replace(&mut self.unacked, beyond);
        let single = self.unacked.extract_if(.., |_, waited| std::mem::replace(waited, true));
        let single = single.map(|(tag, _)| tag).collect();
        Frames { together: within.into_keys().max(), single }
    }

    /// Adds one that has ended, once, to the stretches that it touches.
    fn add(&mut self, tag: u64) {
        let last = self.further.remove(&(tag + 1)).unwrap_or(tag);
        match self.further.range_mut(..tag).next_back() {
            Some((_, before)) if *before + 1 == tag => *before = last,
            _ => drop(self.further.insert(tag, last)),
        }
    }
}

/// Acks what ends until nothing more can; `gather` lets it wait for company.
async fn write(channel: Channel, gather: bool, mut arriving: mpsc::UnboundedReceiver<End>) {
    let (mut ends, mut answers) = (Ends::default(), BTreeMap::new());
    let mut round = Vec::new();
    loop {
        let open = if ends.unacked.is_empty() {
            arriving.recv_many(&mut round, ROUND_MAX).await > 0
        } else {
            !arriving.is_closed() || !arriving.is_empty()
        };
        if open && gather {
            sleep(GATHER).await;
        }
        while let Ok(end) = arriving.try_recv() {
            round.push(end);
        }
        let (mut done, mut apart) = (Vec::new(), Vec::new());
        for end in round.drain(..) {
            match end {
                End::Done(tag, answer) => {
                    done.push(tag);
                    answers.insert(tag, answer);
                }
                End::Apart(tag) => apart.push(tag),
            }
        }
        let frames = ends.take(&done, &apart, gather && open);
        send(&channel, frames, &mut answers).await;
        if !open && ends.unacked.is_empty() {
            return;
        }
    }
}

/// Writes acks and tells who waits for them. All are under way at once, so that nobody waits for
/// more than one bound. A write that hangs longer may still arrive, which does no harm: the work is
/// already stored.
async fn send(
    channel: &Channel,
    Frames { together, single }: Frames,
    answers: &mut BTreeMap<u64, oneshot::Sender<bool>>,
) {
    let multiple = async {
        match together {
            Some(tag) => ack(channel, tag, true).await,
            None => true,
        }
    };
    let alone = join_all(single.iter().map(|tag| ack(channel, *tag, false)));
    let (written, alone) = tokio::join!(multiple, alone);
    if let Some(tag) = together {
        let beyond = answers.split_off(&(tag + 1));
        for answer in std::mem::replace(answers, beyond).into_values() {
            let _ = answer.send(written); // it may have gone
        }
    }
    for (tag, written) in single.into_iter().zip(alone) {
        if let Some(answer) = answers.remove(&tag) {
            let _ = answer.send(written); // likewise
        }
    }
}

/// True once the frame was written.
async fn ack(channel: &Channel, tag: u64, multiple: bool) -> bool {
    let call = channel.basic_ack(tag, BasicAckOptions { multiple });
    channel.status().connected() && matches!(timeout(CALL_BOUND, call).await, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(together: Option<u64>, single: &[u64]) -> Frames {
        Frames { together, single: single.to_vec() }
    }

    #[test]
    fn what_follows_without_a_gap_goes_together_and_nothing_else_does() {
        let mut ends = Ends::default();
        assert_eq!(ends.take(&[2, 1, 4], &[], false), frames(Some(2), &[4]));
        assert_eq!(ends.take(&[6], &[], false), frames(None, &[6]));
        // The third was long; the fourth has been acked before, the fifth is not done.
        assert_eq!(ends.take(&[3], &[], false), frames(Some(3), &[]));
        assert_eq!(ends.take(&[], &[5], false), frames(None, &[]));
        assert_eq!(ends.take(&[7], &[], false), frames(Some(7), &[]));
    }

    #[test]
    fn what_ends_behind_one_that_goes_on_is_kept_as_a_few_stretches() {
        let mut ends = Ends::default();
        for tag in (4..10_000).step_by(2).chain((3..10_000).step_by(2)).filter(|tag| *tag != 77) {
            ends.take(&[tag], &[], false);
        }
        assert_eq!(ends.further, BTreeMap::from([(3, 76), (78, 9_999)]));
        assert_eq!(ends.take(&[1, 2], &[], false), frames(Some(2), &[]));
        assert_eq!((ends.all_to, ends.further.len()), (76, 1));
        ends.take(&[77], &[], false);
        assert_eq!((ends.all_to, ends.further.len()), (9_999, 0));
    }

    #[test]
    fn what_stands_beyond_a_gap_waits_for_one_round() {
        let mut ends = Ends::default();
        assert_eq!(ends.take(&[2, 3, 5], &[], true), frames(None, &[]));
        assert_eq!(ends.take(&[1, 7], &[], true), frames(Some(3), &[5]));
        assert_eq!(ends.take(&[4, 6], &[], true), frames(Some(7), &[]));
        assert_eq!(ends.take(&[9], &[], true), frames(None, &[]));
        assert_eq!(ends.take(&[], &[8], true), frames(Some(9), &[]));
        assert!(ends.unacked.is_empty());
    }
}
