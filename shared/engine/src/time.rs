//! The store's wall clock, carried between its answers on the local monotonic clock, and the
//! adapters for real time and randomness.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use standfast_domain::time::{Span, Time};

use crate::ports::{Clock, Ids};

/// Knows the time that the store last gave and how long ago that was.
#[derive(Debug, Default)]
pub struct StoreTime {
    last: Mutex<Option<(Time, Duration)>>,
}

impl StoreTime {
    /// Takes in a time that came with an answer of the store.
    pub fn heard(&self, now: Time, clock: &dyn Clock) {
        let mut last = self.last.lock().expect("no panic while held");
        let carried = last.map(|(time, at)| carry(time, at, clock.monotonic()));
        let newest = carried.map_or(now, |carried| carried.max(now));
        *last = Some((newest, clock.monotonic()));
    }

    /// Gives the store's time as far as it is known; `None` before its first answer.
    pub fn now(&self, clock: &dyn Clock) -> Option<Time> {
        let last = *self.last.lock().expect("no panic while held");
        last.map(|(time, at)| carry(time, at, clock.monotonic()))
    }
}

fn carry(time: Time, at: Duration, now: Duration) -> Time {
    let millis = now.saturating_sub(at).as_millis();
    time.after(Span::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }
}

/// Randomness of a cryptographic generator that the operating system seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemIds;

impl Ids for SystemIds {
    fn random(&self) -> [u8; 16] {
        *uuid::Uuid::new_v4().as_bytes()
    }
}
