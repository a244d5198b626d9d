//! Counts step messages that died on the broker. They only woke: the step is still ready in
//! the store, and the sweep wakes again.

use std::sync::Arc;
use std::time::Duration;

use standfast_engine::ports::{Delivery, Source};
use tokio_util::sync::CancellationToken;

use crate::scheduler::Shared;

/// Dead messages under way at a time.
const PREFETCH: u16 = 100;
/// Where RabbitMQ says why a message died the first time.
const REASON_HEADER: &str = "x-first-death-reason";
/// The wait before the queue is subscribed to again after a failure.
const AGAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    loop {
        match shared.engine.broker().subscribe(Source::DeadSteps, PREFETCH).await {
            Ok(mut subscription) => loop {
                let delivery = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {
                        subscription.close().await;
                        return;
                    }
                    delivery = subscription.next() => delivery,
                };
                let Some(delivery) = delivery else { break };
                let reason = reason(&delivery);
                shared.gauges.dead.add(reason);
                tracing::warn!(message_id = ?delivery.message_id, reason,
                    routing_key = %delivery.routing_key,
                    "step message died on the broker; its step stays ready and is sent again");
                delivery.acker.ack().await;
            },
            Err(error) => tracing::warn!(%error, "dead step messages are not counted"),
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// Gives the broker's word for why a message died; its words are few, so they serve as a label.
fn reason(delivery: &Delivery) -> &'static str {
    let found = delivery.headers.iter().find(|(name, _)| name == REASON_HEADER);
    match found.map(|(_, value)| value.as_str()) {
        // A worker could not read it.
        Some("rejected") => "unreadable",
        Some("delivery_limit") => "delivery_limit",
        Some("maxlen") => "maxlen",
        Some("expired") => "expired",
        Some(_) | None => "unknown",
    }
}
