//! Waiting for a condition, bounded; the only place where tests sleep.

use std::time::{Duration, Instant};

/// How long a condition may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Lets a span pass: the length of an outage, never a wait for something.
pub async fn pass(span: Duration) {
    tokio::time::sleep(span).await;
}

/// Polls until `check` gives a value; panics with `what` when patience is over.
pub async fn until<T>(what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, check).await
}

/// The same with a bound of the caller's: where a promise names one, or a start takes longer.
pub async fn within<T>(
    bound: Duration,
    what: &str,
    mut check: impl AsyncFnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(start.elapsed() < bound, "waited {bound:?} in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
