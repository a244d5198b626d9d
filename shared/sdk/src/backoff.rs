//! Growing pauses between tries, so that a server that comes back is not run over.

use std::time::Duration;

/// First pause: long enough for a restart of a connection, short enough not to be felt.
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause: what a person will wait after a server is back.
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses that double up to [`LONGEST`], each shortened at random by up to a quarter so that
/// many clients do not come back at the same moment.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    /// Gives the next pause; at least `at_least`, if the server asked for one.
    pub(crate) fn pause(&mut self, at_least: Option<Duration>) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST);
        let random = u32::from(uuid::Uuid::now_v7().as_bytes()[15]);
        let pause = whole - whole / 4 * random / 255;
        pause.max(at_least.unwrap_or_default())
    }

    /// Begins again, after something went well.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_honour_what_the_server_asks() {
        let mut backoff = Backoff::new();
        assert!((FIRST * 3 / 4..=FIRST).contains(&backoff.pause(None)));
        for _ in 0..20 {
            assert!(backoff.pause(None) <= LONGEST);
        }
        assert_eq!(backoff.pause(Some(LONGEST * 2)), LONGEST * 2);
        backoff.reset();
        assert!(backoff.pause(None) <= FIRST);
    }
}
