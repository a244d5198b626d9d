//! Signs of life of one attempt: what its handler says of its progress, and when it last did
//! anything at all. The handler gives them; heartbeats tell them, and a watch ends an attempt
//! that gives none for too long.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The pulse of one attempt; cheap to clone.
#[derive(Clone, Debug)]
pub struct Pulse {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    beaten_at: Instant,
    beats: u64,
    told: u64,
    details: Option<String>,
    fresh: bool,
}

/// What is to be told, and what it is worth: to be given back once it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untold {
    /// What the handler says of its progress, if that is new.
    pub details: Option<String>,
    /// True if there was any sign of life.
    pub alive: bool,
    beats: u64,
}

impl Default for Pulse {
    /// The start is a sign of life.
    fn default() -> Self {
        let state =
            State { beaten_at: Instant::now(), beats: 0, told: 0, details: None, fresh: false };
        Self { state: Arc::new(Mutex::new(state)) }
    }
}

impl Pulse {
    /// Gives a sign of life.
    pub fn beat(&self) {
        let mut state = self.lock();
        state.beaten_at = Instant::now();
        state.beats += 1;
    }

    /// Says how far the attempt is, which is a sign of life too. No secret may be in it.
    pub fn say(&self, details: impl Into<String>) {
        self.beat();
        let (mut state, details) = (self.lock(), Some(details.into()));
        state.fresh |= state.details != details;
        state.details = details;
    }

    /// Gives what was not told yet.
    pub fn untold(&self) -> Untold {
        let state = self.lock();
        Untold {
            details: state.details.clone().filter(|_| state.fresh),
            alive: state.beats > state.told,
            beats: state.beats,
        }
    }

    /// Notes that something was told.
    pub fn told(&self, untold: &Untold) {
        let mut state = self.lock();
        state.told = untold.beats;
        if untold.details == state.details {
            state.fresh = false;
        }
    }

    /// Waits until there was no sign of life for `most`.
    pub async fn silent(&self, most: Duration) {
        loop {
            let until = self.lock().beaten_at + most;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_not_told_again_and_what_came_meanwhile_is() {
        let pulse = Pulse::default();
        assert!(!pulse.untold().alive, "the start was told with the claim");
        pulse.say("half");
        let first = pulse.untold();
        assert_eq!((first.details.as_deref(), first.alive), (Some("half"), true));
        pulse.say("more");
        pulse.told(&first);
        let second = pulse.untold();
        assert_eq!((second.details.as_deref(), second.alive), (Some("more"), true));
        pulse.told(&second);
        pulse.beat();
        let third = pulse.untold();
        assert_eq!((third.details.as_deref(), third.alive), (None, true));
        pulse.told(&third);
        assert!(!pulse.untold().alive);
    }

    #[tokio::test]
    async fn silence_is_counted_from_the_last_sign_of_life() {
        let (pulse, hour) = (Pulse::default(), Duration::from_secs(3600));
        let silent = async |most| {
            let waiting = tokio::time::timeout(Duration::from_millis(1), pulse.silent(most));
            waiting.await.is_ok()
        };
        pulse.lock().beaten_at -= hour;
        assert!(silent(hour).await);
        assert!(!silent(hour * 2).await);
        pulse.beat();
        assert!(!silent(hour).await);
        let begun = Instant::now();
        pulse.silent(Duration::from_millis(30)).await;
        assert!(begun.elapsed() >= Duration::from_millis(20), "it was waited for");
    }
}
