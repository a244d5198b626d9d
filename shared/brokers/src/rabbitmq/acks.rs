//! Ends deliveries, many in one frame.
//!
//! A channel numbers what it delivers from one on, and one acknowledgement may speak for all up
//! to a number. One task a channel takes all that wait to be acked: those whose numbers follow
//! without a gap on what has ended go in one frame, the others each in their own, so that an
//! attempt that runs for long holds up nobody's. While a frame is written, the next ones gather.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicRejectOptions};
use standfast_engine::ports::Acker;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::counters::Counts;
use super::settings::CALL_BOUND;

/// Deliveries that one round takes.
const ROUND_MAX: usize = 512;

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
    /// Starts the task of a channel; it ends with the last acker.
    pub(crate) fn start(channel: Channel, counts: Arc<Counts>) -> Self {
        let (ended, arriving) = mpsc::unbounded_channel();
        tokio::spawn(write(channel, arriving));
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
        // A write that hangs longer than its bound may still arrive, which does no harm: the
        // work is already stored.
        let written = sent && matches!(timeout(CALL_BOUND, written).await, Ok(Ok(true)));
        self.written(written)
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
    /// And these, further on.
    further: BTreeSet<u64>,
}

impl Ends {
    /// Takes in deliveries that have ended. Gives the one to speak for all up to it, if there is
    /// one, and those to be acked that it leaves out. It must be one that was not acked before:
    /// the broker closes a channel that acks a number which it does not know any more.
    fn take(&mut self, done: &[u64], apart: &[u64]) -> (Option<u64>, Vec<u64>) {
        self.further.extend(done.iter().chain(apart));
        while self.further.remove(&(self.all_to + 1)) {
            self.all_to += 1;
        }
        let (within, single): (Vec<u64>, Vec<u64>) =
            done.iter().partition(|tag| **tag <= self.all_to);
        (within.into_iter().max(), single)
    }
}

async fn write(channel: Channel, mut arriving: mpsc::UnboundedReceiver<End>) {
    let (mut ends, mut round) = (Ends::default(), Vec::new());
    while arriving.recv_many(&mut round, ROUND_MAX).await > 0 {
        let (mut done, mut apart, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for end in round.drain(..) {
            match end {
                End::Done(tag, answer) => {
                    done.push(tag);
                    answers.push((tag, answer));
                }
                End::Apart(tag) => apart.push(tag),
            }
        }
        let (all_to, single) = ends.take(&done, &apart);
        let together = match all_to {
            Some(tag) => ack(&channel, tag, true).await,
            None => true,
        };
        let mut failed = BTreeSet::new();
        for tag in &single {
            if !ack(&channel, *tag, false).await {
                failed.insert(*tag);
            }
        }
        for (tag, answer) in answers {
            let alone = single.contains(&tag);
            let written = if alone { !failed.contains(&tag) } else { together };
            let _ = answer.send(written); // its bound may have passed
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

    #[test]
    fn what_follows_without_a_gap_goes_together_and_nothing_else_does() {
        let mut ends = Ends::default();
        assert_eq!(ends.take(&[2, 1, 4], &[]), (Some(2), vec![4]));
        assert_eq!(ends.take(&[6], &[]), (None, vec![6]));
        // The third was long; the fourth has been acked before, the fifth is not done.
        assert_eq!(ends.take(&[3], &[]), (Some(3), vec![]));
        assert_eq!(ends.take(&[], &[5]), (None, vec![]));
        assert_eq!(ends.take(&[7], &[]), (Some(7), vec![]));
    }
}
