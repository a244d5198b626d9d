//! Sends again what commits have promised and nobody is known to have sent: the process that
//! committed has died, or the broker was away.

use std::sync::atomic::Ordering;

use standfast_domain::index::{OUTBOX, time_key};
use standfast_domain::time::Time;
use standfast_engine::EngineError;
use standfast_engine::outbox::UNSENT_AFTER;

use crate::scheduler::{Duty, Shared};
use crate::walk;

/// Messages that one round sends again: one batch of the store to read, and no flood.
const ROUND_MAX: usize = 500;

/// The duty.
pub(crate) struct OutboxSweep;

impl Duty for OutboxSweep {
    const NAME: &'static str = "outbox sweep";

    async fn round(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let engine = &shared.engine;
        let now = engine.now().await?;
        let before = time_key(Time(now.0.saturating_sub_unsigned(UNSENT_AFTER.0)));
        let partitions = shared.partitions();
        let all = |_: &String| true;
        let mut old =
            walk::until_enough(engine, partitions, OUTBOX, Some(before), ROUND_MAX, all).await?;
        if old.is_empty() {
            return Ok(());
        }
        old.sort(); // they begin with their time
        old.truncate(ROUND_MAX);
        let sent = engine.send_again(&old).await?;
        tracing::info!(
            confirmed = sent.confirmed,
            dropped = sent.dropped,
            left = sent.left,
            "outgoing messages sent again"
        );
        shared.gauges.outgoing_swept.fetch_add(sent.confirmed as u64, Ordering::Relaxed);
        Ok(())
    }
}
