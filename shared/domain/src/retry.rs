//! When a failed attempt is followed by another.
//!
//! The wait before attempt n + 1 is `backoff × factor^(n-1)`, at most `max_backoff`, plus up
//! to a tenth of itself, drawn from the task, step and attempt: the same inputs give the same
//! wait, and a thousand steps that failed together do not come back together.

use sha2::{Digest, Sha256};

use crate::ids::TaskId;
use crate::outcome::{Failure, FailureClass};
use crate::plan::Retry;
use crate::record::{Definition, StepState};
use crate::time::{Span, Time};

/// The most that jitter adds to a wait, in thousandths of it.
pub const JITTER_PERMILLE: u64 = 100;

/// Gives when the next attempt may start; `None`: there is none. `state` counts the failed
/// attempt already.
pub fn next(
    task: &TaskId,
    definition: &Definition,
    state: &StepState,
    failure: &Failure,
    now: Time,
) -> Option<Time> {
    let retry = &definition.plan.retry;
    let again = match failure.class {
        FailureClass::Permanent => false,
        FailureClass::Retryable
        | FailureClass::RateLimited
        | FailureClass::Timeout
        | FailureClass::Cancelled
        | FailureClass::Lost => state.charged < retry.max_attempts,
    };
    if !again {
        return None;
    }
    let wait = backoff(retry, state.charged);
    let wait = jittered(wait, task, definition, state.attempt);
    let at = now.after(wait.max(failure.retry_after.unwrap_or_default()));
    let first = state.first_ready_at.unwrap_or(now);
    let elapsed = retry.max_elapsed.is_none_or(|most| at.since(first) <= most);
    let in_time = state.give_up_at.is_none_or(|give_up| at < give_up);
    (elapsed && in_time).then_some(at)
}

/// Gives the wait after the `n`th charged attempt, without jitter. Saturates at the cap.
pub fn backoff(retry: &Retry, n: u32) -> Span {
    let cap = retry.max_backoff.max(retry.backoff);
    let exponent = i32::try_from(n.saturating_sub(1)).unwrap_or(i32::MAX);
    let wait = retry.backoff.0 as f64 * retry.factor.max(1.0).powi(exponent);
    // A float beyond the cap, infinity included, never becomes an integer.
    if wait >= cap.0 as f64 { cap } else { Span(wait as u64).min(cap) }
}

fn jittered(wait: Span, task: &TaskId, definition: &Definition, attempt: u32) -> Span {
    let mut hash = Sha256::new();
    hash.update(task.as_str());
    hash.update([0]);
    hash.update(definition.plan.id.as_str());
    hash.update(attempt.to_be_bytes());
    let draw = u64::from(hash.finalize()[0]) * JITTER_PERMILLE / 255;
    Span(wait.0.saturating_add(wait.0 / 1000 * draw + wait.0 % 1000 * draw / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff_ms: u64, factor: f64, cap_ms: u64) -> Vec<u64> {
        let retry = Retry {
            max_attempts: 1000,
            backoff: Span(backoff_ms),
            factor,
            max_backoff: Span(cap_ms),
            max_elapsed: None,
        };
        (1..=1000).map(|n| backoff(&retry, n).0).collect()
    }

    #[test]
    fn a_wait_doubles_up_to_its_cap_and_never_falls() {
        let waits = waits(1000, 2.0, 3_600_000);
        assert_eq!(waits[..5], [1000, 2000, 4000, 8000, 16000]);
        assert!(waits.is_sorted());
        assert_eq!(waits[999], 3_600_000);
    }

    #[test]
    fn odd_settings_are_decided() {
        assert!(waits(0, 10.0, 1000).iter().all(|wait| *wait == 0));
        assert!(waits(5000, 10.0, 1000).iter().all(|wait| *wait == 5000));
        assert!(waits(1000, 1.0, 1000).iter().all(|wait| *wait == 1000));
        assert!(waits(u64::MAX, 100.0, u64::MAX).iter().all(|wait| *wait == u64::MAX));
    }
}
