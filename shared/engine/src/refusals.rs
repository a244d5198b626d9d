//! Commands that were refused for want of a right: all are counted, and logged up to a limit,
//! since whoever is refused may ask again a thousand times a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use standfast_domain::outcome::truncate;

use crate::tally::Tally;

/// Lines that one principal gets within [`WINDOW`]; of more it is said how many there were.
const LINES_MAX: u32 = 10;
/// How long lines are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// Principals told apart; beyond that the oldest counts are given up.
const PRINCIPALS_MAX: usize = 1_024;
/// Bytes of a command in the log: paths come from outside.
const COMMAND_BYTES_MAX: usize = 200;

/// A command that was refused.
#[derive(Clone, Copy, Debug)]
pub struct RefusedCommand<'a> {
    /// Who asked; `nobody` if that is not known.
    pub principal: &'a str,
    /// The right that was missing.
    pub right: &'static str,
    /// The task that it was about, if it was about one.
    pub task: Option<&'a str>,
    /// What was asked for: method and path, or a routing key.
    pub command: &'a str,
}

/// What one principal was told of lately.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    since: Duration,
    written: u32,
    held_back: u64,
}

/// Counts and logs refusals.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: Tally,
    lines: Mutex<HashMap<String, Lines>>,
}

impl Refusals {
    /// Counts one, and logs it unless its principal has had its lines; `now` is monotonic.
    pub fn note(&self, now: Duration, refused: &RefusedCommand<'_>) {
        self.counts.add(refused.right);
        let Some(held_back) = self.line(now, refused.principal) else { return };
        let RefusedCommand { principal, right, task, command } = *refused;
        let command = truncate(command, COMMAND_BYTES_MAX);
        tracing::warn!(principal, right, task, command, held_back, "command refused");
    }

    /// Gives the counts by right.
    pub fn counts(&self) -> &Tally {
        &self.counts
    }

    /// Takes a line if there is one left; gives how many were held back before it.
    fn line(&self, now: Duration, principal: &str) -> Option<u64> {
        let mut all = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= PRINCIPALS_MAX && !all.contains_key(principal) {
            all.clear();
        }
        let fresh = Lines { since: now, ..Lines::default() };
        let lines = all.entry(principal.to_owned()).or_insert(fresh);
        if now.saturating_sub(lines.since) >= WINDOW {
            *lines = Lines { held_back: lines.held_back, ..fresh };
        }
        if lines.written >= LINES_MAX {
            lines.held_back += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_is_counted_and_does_not_silence_others() {
        let refusals = Refusals::default();
        let at = Duration::from_secs;
        for _ in 0..LINES_MAX {
            assert_eq!(refusals.line(at(0), "user:eve"), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(refusals.line(at(59), "user:eve"), None);
        }
        assert_eq!(refusals.line(at(59), "user:ana"), Some(0));
        assert_eq!(refusals.line(at(60), "user:eve"), Some(3), "it is said how many there were");
        assert_eq!(refusals.line(at(60), "user:eve"), Some(0));
    }

    #[test]
    fn every_refusal_is_counted_by_its_right() {
        let refusals = Refusals::default();
        let refused =
            RefusedCommand { principal: "user:eve", right: "stop", task: None, command: "x" };
        (0..40).for_each(|_| refusals.note(Duration::ZERO, &refused));
        assert_eq!(refusals.counts().read().get("stop"), Some(&40));
    }

    #[test]
    fn what_is_kept_of_principals_is_bounded() {
        let refusals = Refusals::default();
        for n in 0..3 * PRINCIPALS_MAX {
            refusals.line(Duration::ZERO, &format!("user:{n}"));
        }
        assert!(refusals.lines.lock().unwrap().len() <= PRINCIPALS_MAX);
    }
}
