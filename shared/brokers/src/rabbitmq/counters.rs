//! What the broker's adapter counts, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// One count that only rises.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reconnections: Count,
    pub(crate) resubscriptions: Count,
    pub(crate) renewals: Count,
    pub(crate) confirmed: Count,
    pub(crate) returned: Count,
    pub(crate) nacked: Count,
    pub(crate) unanswered: Count,
    pub(crate) acks_lost: Count,
}

impl Counts {
    pub(crate) fn read(&self) -> RabbitCounters {
        RabbitCounters {
            reconnections: self.reconnections.get(),
            resubscriptions: self.resubscriptions.get(),
            renewals: self.renewals.get(),
            confirmed: self.confirmed.get(),
            returned: self.returned.get(),
            nacked: self.nacked.get(),
            unanswered: self.unanswered.get(),
            acks_lost: self.acks_lost.get(),
        }
    }
}

/// What happened since the process started; each number only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RabbitCounters {
    /// Connections opened again after a loss, of both kinds.
    pub reconnections: u64,
    /// Subscriptions made again after the broker or the network ended them.
    pub resubscriptions: u64,
    /// Queues deleted and declared anew because the broker could not serve them.
    pub renewals: u64,
    /// Messages that the broker confirmed and did not return.
    pub confirmed: u64,
    /// Messages that found no queue.
    pub returned: u64,
    /// Messages that the broker refused with a nack.
    pub nacked: u64,
    /// Messages without an answer within their bound; they may be in the queue.
    pub unanswered: u64,
    /// Acknowledgements that did not reach the broker; those deliveries come again.
    pub acks_lost: u64,
}

/// What stands at the moment of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RabbitStanding {
    /// The connection for publishing is open.
    pub publishing: bool,
    /// The connection for consuming is open.
    pub consuming: bool,
    /// The broker reads nothing from publishers: a memory or disk alarm.
    pub blocked: bool,
}
