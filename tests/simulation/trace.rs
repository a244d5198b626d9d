//! What happened in a world, in order: one line each, and a count by kind.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Waits, virtually: nothing in a world waits but through here.
pub async fn pause(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Everything that was said. Its text is what two runs of one seed are compared by.
pub struct Trace {
    start: Instant,
    lines: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<String, u64>>,
}

impl Trace {
    pub fn new() -> Self {
        Self { start: Instant::now(), lines: Mutex::default(), counts: Mutex::default() }
    }

    /// Gives the virtual time since the world began.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Writes a line; gives its number, which orders everything that is told here.
    pub fn say(&self, who: &str, what: fmt::Arguments<'_>) -> u64 {
        let at = self.elapsed().as_millis();
        let mut lines = self.lines.lock().unwrap();
        lines.push(format!("{at:>8} {who:<6} {what}"));
        lines.len() as u64
    }

    /// Counts something that must occur in some world.
    pub fn count(&self, what: &str) {
        let mut counts = self.counts.lock().unwrap();
        match counts.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(counts.insert(what.to_owned(), 1)),
        }
    }

    /// Takes all lines and counts.
    pub fn take(&self) -> (Vec<String>, BTreeMap<String, u64>) {
        let lines = std::mem::take(&mut *self.lines.lock().unwrap());
        (lines, std::mem::take(&mut *self.counts.lock().unwrap()))
    }
}
