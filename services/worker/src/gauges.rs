//! What a worker counts, for metrics and health.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use standfast_domain::ids::Queue;
use standfast_engine::tally::Tally;

/// Counts of a worker, over all queues and for each.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Deliveries that woke for nothing, by reason.
    pub spent: Tally,
    /// Deliveries that could not be read.
    pub malformed: AtomicU64,
    /// Deliveries that are held because the store does not answer.
    pub held: AtomicU64,
    queues: Mutex<BTreeMap<Queue, QueueGauges>>,
}

/// Counts of one queue that a worker takes from.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueGauges {
    /// True if the broker had this consumer at the last look.
    pub subscribed: bool,
    /// When the queue's loop last looked; it does so every few seconds as long as it lives.
    pub looked_at: Option<Instant>,
    /// Attempts that run now.
    pub running: u64,
    /// Attempts started.
    pub starts: u64,
    /// Attempts that ended well.
    pub succeeded: u64,
    /// Attempts that failed, whatever the plan makes of it.
    pub failed: u64,
    /// Attempts given back at a shutdown, and those that were taken over meanwhile.
    pub given_up: u64,
}

/// One delivery that is held; it counts until it is dropped.
pub(crate) struct Held<'g>(&'g Gauges);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How an attempt ended, for its queue's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Succeeded,
    Failed,
    GivenUp,
}

impl Gauges {
    /// Gives the counts of each queue.
    pub fn queues(&self) -> BTreeMap<Queue, QueueGauges> {
        self.lock().clone()
    }

    /// Counts the attempts of a queue that have ended.
    pub(crate) fn ended_of(&self, queue: &Queue) -> u64 {
        let queues = self.lock();
        queues.get(queue).map_or(0, |counts| counts.succeeded + counts.failed + counts.given_up)
    }

    /// Gives what keeps the worker from taking steps, if anything: a loop that has not looked
    /// for `silent`, a queue without its consumer, a store that does not answer.
    pub fn fault(&self, silent: Duration) -> Option<String> {
        if self.held.load(Ordering::Relaxed) != 0 {
            return Some("the store does not answer; deliveries are held".to_owned());
        }
        let queues = self.lock();
        if queues.is_empty() {
            return Some("not subscribed to any queue yet".to_owned());
        }
        queues.iter().find_map(|(queue, counts)| {
            match counts.looked_at {
                Some(at) if at.elapsed() <= silent => {}
                Some(_) | None => return Some(format!("the loop of queue `{queue}` stands still")),
            }
            (!counts.subscribed).then(|| format!("not subscribed to queue `{queue}`"))
        })
    }

    /// Counts a delivery as held.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::Relaxed);
        Held(self)
    }

    /// Notes a look at a queue's consumer; true if it came or went.
    pub(crate) fn look(&self, queue: &Queue, subscribed: bool) -> bool {
        let mut queues = self.lock();
        let counts = queues.entry(queue.clone()).or_default();
        counts.looked_at = Some(Instant::now());
        std::mem::replace(&mut counts.subscribed, subscribed) != subscribed
    }

    pub(crate) fn started(&self, queue: &Queue) {
        let mut queues = self.lock();
        let counts = queues.entry(queue.clone()).or_default();
        counts.starts += 1;
        counts.running += 1;
    }

    pub(crate) fn ended(&self, queue: &Queue, came: Came) {
        let mut queues = self.lock();
        let counts = queues.entry(queue.clone()).or_default();
        counts.running = counts.running.saturating_sub(1);
        match came {
            Came::Succeeded => counts.succeeded += 1,
            Came::Failed => counts.failed += 1,
            Came::GivenUp => counts.given_up += 1,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Queue, QueueGauges>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn queue(name: &str) -> Queue {
        Queue::new(name).unwrap()
    }

    #[test]
    fn attempts_are_counted_by_queue() {
        let gauges = Gauges::default();
        for came in [Came::Succeeded, Came::Failed, Came::GivenUp] {
            gauges.started(&queue("a"));
            gauges.ended(&queue("a"), came);
        }
        gauges.started(&queue("b"));
        let counts = gauges.queues();
        let a = counts[&queue("a")];
        assert_eq!((a.starts, a.running), (3, 0));
        assert_eq!((a.succeeded, a.failed, a.given_up), (1, 1, 1));
        assert_eq!((counts[&queue("b")].starts, counts[&queue("b")].running), (1, 1));
    }

    #[test]
    fn what_keeps_a_worker_from_working_is_named() {
        let gauges = Gauges::default();
        let fault = |silent| gauges.fault(silent).unwrap_or_default();
        assert!(fault(LONG).contains("any queue"));
        gauges.look(&queue("a"), false);
        assert_eq!(fault(LONG), "not subscribed to queue `a`");
        gauges.look(&queue("a"), true);
        assert_eq!(fault(LONG), "");
        let (one, other) = (gauges.hold(), gauges.hold());
        drop(one);
        assert!(fault(LONG).contains("store"));
        drop(other);
        assert_eq!(fault(LONG), "");
        let stale = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        gauges.lock().get_mut(&queue("a")).unwrap().looked_at = Some(stale);
        assert!(fault(Duration::from_secs(1)).contains("stands still"));
    }
}
