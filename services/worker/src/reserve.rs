//! What a worker receives of one queue: as much as it can run, and a reserve while its attempts
//! are short.
//!
//! A delivery that waits within a worker is one that no other worker has. So the prefetch is the
//! worker's own concurrency, and while attempts last long it stays so. While they are over within
//! moments, the way to the broker and back would leave slots empty; then a second subscription
//! keeps more at hand. As soon as attempts grow longer it ceases, and what it has not given goes
//! back at once.

use std::time::Duration;

use standfast_domain::ids::Queue;
use standfast_engine::Engine;
use standfast_engine::ports::{BrokerError, Delivery, Source, Subscription};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The shortest time between two looks at how many attempts have ended.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Attempts are short if each slot ends this many a second...
const SHORT_A_SECOND: u64 = 20;
/// ...and stay so until each ends fewer than this: what a reserve gives back costs the broker more
/// than keeping it, so that a rate about the edge must not make it come and go.
const LONG_A_SECOND: u64 = 4;
/// The least that a reserve holds: what many short attempts need while the broker is asked.
const RESERVE_MIN: u16 = 200;

type Opening = JoinHandle<Result<Box<dyn Subscription>, BrokerError>>;

/// The subscriptions to one queue.
pub(crate) struct Supply {
    engine: Engine,
    queue: Queue,
    concurrency: u16,
    main: Box<dyn Subscription>,
    reserve: Option<Box<dyn Subscription>>,
    opening: Option<Opening>,
    /// It has ceased; what it gave may still be acked through it.
    ceased: Option<Box<dyn Subscription>>,
    ended: u64,
    looked: Instant,
}

impl Supply {
    /// Begins with what was subscribed.
    pub(crate) fn new(
        engine: Engine,
        queue: Queue,
        concurrency: u16,
        main: Box<dyn Subscription>,
    ) -> Self {
        Self {
            engine,
            queue,
            concurrency,
            main,
            reserve: None,
            opening: None,
            ceased: None,
            ended: 0,
            looked: Instant::now(),
        }
    }

    /// Waits for the next message. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Delivery> {
        let Some(reserve) = &mut self.reserve else { return self.main.next().await };
        tokio::select! {
            biased;
            delivery = self.main.next() => delivery,
            Some(delivery) = reserve.next() => Some(delivery),
        }
    }

    /// True while the broker has the main consumer.
    pub(crate) fn subscribed(&self) -> bool {
        self.main.subscribed()
    }

    /// Looks at how many attempts of the queue have ended since the start, and opens or ends the
    /// reserve.
    pub(crate) async fn look(&mut self, ended: u64) {
        let elapsed = self.looked.elapsed();
        if elapsed < LOOK_PAUSE {
            return;
        }
        let reserved = self.reserve.is_some() || self.opening.is_some();
        let each = if reserved { LONG_A_SECOND } else { SHORT_A_SECOND };
        let needed = u64::from(self.concurrency) * each;
        let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let short = (ended - self.ended) * 1_000 >= needed.saturating_mul(millis);
        (self.ended, self.looked) = (ended, Instant::now());
        if let Some(opening) = self.opening.take_if(|opening| opening.is_finished()) {
            self.reserve = opened(opening).await;
        }
        if !short {
            return self.end_reserve().await;
        }
        if !reserved {
            let (engine, queue) = (self.engine.clone(), self.queue.clone());
            let prefetch = self.concurrency.max(RESERVE_MIN);
            self.opening = Some(tokio::spawn(async move {
                engine.broker().subscribe(Source::Steps(queue), prefetch).await
            }));
        }
    }

    /// Gives back what the reserve holds. What it gave before stays acked through it until the
    /// next one ends; then it goes to the queue again and wakes for nothing.
    async fn end_reserve(&mut self) {
        let Some(mut reserve) = self.reserve.take() else { return };
        reserve.cease().await;
        if let Some(mut older) = self.ceased.replace(reserve) {
            older.close().await;
        }
    }

    /// Takes no more; what was not given goes back. Gives the subscriptions, to be closed when
    /// all that they gave has been ended.
    pub(crate) async fn cease(mut self) -> Vec<Box<dyn Subscription>> {
        if let Some(opening) = self.opening.take() {
            self.reserve = opened(opening).await;
        }
        let mut all = vec![self.main];
        all.extend(self.reserve);
        for subscription in &mut all {
            subscription.cease().await;
        }
        all.extend(self.ceased);
        all
    }
}

async fn opened(opening: Opening) -> Option<Box<dyn Subscription>> {
    match opening.await {
        Ok(Ok(reserve)) => Some(reserve),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no reserve");
            None
        }
        Err(_) => None, // a panic there was reported by the runtime
    }
}
