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
/// The wait for the next reserve after one was given back; it doubles with each that was, and
/// one that lasted for the longest wait begins anew. A quorum queue counts what comes back as a
/// delivery and gives a message up after twenty: short and long attempts in turn must not use
/// them up.
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(60);
/// The least that a reserve holds: what many short attempts need while the broker is asked.
const RESERVE_MIN: u16 = 200;

type Opening = JoinHandle<Result<Box<dyn Subscription>, BrokerError>>;

/// Where the next message may come from.
struct Sources {
    main: Box<dyn Subscription>,
    reserve: Option<Box<dyn Subscription>>,
    opening: Option<Opening>,
}

impl Sources {
    /// Waits for the next message. Cancel safe. The broker gives to a reserve as soon as it is
    /// open: from then on it is listened to.
    async fn next(&mut self) -> Option<Delivery> {
        loop {
            let Self { main, reserve, opening } = self;
            let of_reserve = async {
                match reserve {
                    Some(reserve) => reserve.next().await,
                    None => std::future::pending().await,
                }
            };
            let opened = async {
                match opening {
                    Some(opening) => opened(opening).await,
                    None => std::future::pending().await,
                }
            };
            let opened = tokio::select! {
                biased;
                delivery = main.next() => return delivery,
                Some(delivery) = of_reserve => return Some(delivery),
                opened = opened => opened,
            };
            self.opening = None;
            self.reserve = opened;
        }
    }

    /// Says whether there is a reserve, or is about to be.
    fn are_doubled(&self) -> bool {
        self.reserve.is_some() || self.opening.is_some()
    }
}

/// When the next reserve may come.
struct Rest {
    span: Duration,
    until: Option<Instant>,
    /// When the last one was asked for.
    began: Option<Instant>,
}

impl Rest {
    fn new() -> Self {
        Self { span: REST_MIN, until: None, began: None }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    fn begun(&mut self, now: Instant) {
        self.began = Some(now);
    }

    fn given_back(&mut self, now: Instant) {
        let lasted = self.began.take().map_or(Duration::ZERO, |began| now - began);
        if lasted >= REST_MAX {
            self.span = REST_MIN;
        }
        self.until = Some(now + self.span);
        self.span = (self.span * 2).min(REST_MAX);
    }
}

/// The subscriptions to one queue.
pub(crate) struct Supply {
    engine: Engine,
    queue: Queue,
    concurrency: u16,
    sources: Sources,
    /// It has ceased; what it gave may still be acked through it.
    ceased: Option<Box<dyn Subscription>>,
    ended: u64,
    looked: Instant,
    rest: Rest,
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
            sources: Sources { main, reserve: None, opening: None },
            ceased: None,
            ended: 0,
            looked: Instant::now(),
            rest: Rest::new(),
        }
    }

    /// Waits for the next message. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Delivery> {
        self.sources.next().await
    }

    /// True while the broker has the main consumer.
    pub(crate) fn subscribed(&self) -> bool {
        self.sources.main.subscribed()
    }

    /// Looks at how many attempts of the queue have ended since the start, and opens or ends the
    /// reserve.
    pub(crate) async fn look(&mut self, ended: u64) {
        let elapsed = self.looked.elapsed();
        if elapsed < LOOK_PAUSE {
            return;
        }
        let doubled = self.sources.are_doubled();
        let short = are_short(ended - self.ended, elapsed, self.concurrency, doubled);
        (self.ended, self.looked) = (ended, Instant::now());
        if !short {
            return self.end_reserve().await;
        }
        if !doubled && self.rest.is_over(self.looked) {
            self.rest.begun(self.looked);
            let (engine, queue) = (self.engine.clone(), self.queue.clone());
            let prefetch = held(self.concurrency);
            self.sources.opening = Some(tokio::spawn(async move {
                engine.broker().subscribe(Source::Steps(queue), prefetch).await
            }));
        }
    }

    /// Gives back what the reserve holds. What it gave before stays acked through it until the
    /// next one ends; then it goes to the queue again and wakes for nothing.
    async fn end_reserve(&mut self) {
        let Some(mut reserve) = self.sources.reserve.take() else { return };
        if reserve.cease().await > 0 {
            self.rest.given_back(self.looked);
        }
        if let Some(mut older) = self.ceased.replace(reserve) {
            older.close().await;
        }
    }

    /// Takes no more; what was not given goes back. Gives the subscriptions, to be closed when
    /// all that they gave has been ended.
    pub(crate) async fn cease(self) -> Vec<Box<dyn Subscription>> {
        let Sources { main, mut reserve, opening } = self.sources;
        if let Some(mut opening) = opening {
            reserve = opened(&mut opening).await;
        }
        let mut all = vec![main];
        all.extend(reserve);
        for subscription in &mut all {
            subscription.cease().await;
        }
        all.extend(self.ceased);
        all
    }
}

/// Says whether attempts of which so many have ended within a time are short, on so many slots;
/// with a reserve they are so for longer.
fn are_short(ended: u64, elapsed: Duration, concurrency: u16, doubled: bool) -> bool {
    let each = if doubled { LONG_A_SECOND } else { SHORT_A_SECOND };
    let needed = u64::from(concurrency) * each;
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
    ended * 1_000 >= needed.saturating_mul(millis)
}

/// Gives how many messages a reserve holds beside so many slots.
fn held(concurrency: u16) -> u16 {
    concurrency.max(RESERVE_MIN)
}

async fn opened(opening: &mut Opening) -> Option<Box<dyn Subscription>> {
    match opening.await {
        Ok(Ok(reserve)) => Some(reserve),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no reserve");
            None
        }
        Err(_) => None, // a panic there was reported by the runtime
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use async_trait::async_trait;
    use bytes::Bytes;
    use standfast_engine::ports::Acker;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    struct Acked;

    #[async_trait]
    impl Acker for Acked {
        async fn ack(self: Box<Self>) -> bool {
            true
        }

        async fn dead_letter(self: Box<Self>) -> bool {
            true
        }
    }

    /// Gives what it has, then nothing.
    struct Holding(VecDeque<Delivery>);

    #[async_trait]
    impl Subscription for Holding {
        async fn next(&mut self) -> Option<Delivery> {
            match self.0.pop_front() {
                Some(delivery) => Some(delivery),
                None => std::future::pending().await,
            }
        }

        fn subscribed(&self) -> bool {
            true
        }

        async fn cease(&mut self) -> usize {
            self.0.len()
        }

        async fn close(&mut self) {}
    }

    fn delivery(id: &str) -> Delivery {
        Delivery {
            body: Bytes::new(),
            routing_key: String::new(),
            message_id: Some(id.to_owned()),
            correlation_id: None,
            reply_to: None,
            user_id: None,
            headers: Vec::new(),
            acker: Box::new(Acked),
        }
    }

    #[test]
    fn a_reserve_comes_at_twenty_attempts_a_second_and_slot_and_goes_below_four() {
        let second = Duration::from_secs(1);
        for (ended, elapsed, concurrency, doubled, short) in [
            (160, second, 8, false, true),
            (159, second, 8, false, false),
            (32, second, 8, true, true),
            (31, second, 8, true, false),
            (16, LOOK_PAUSE, 8, false, true),
            (15, LOOK_PAUSE, 8, false, false),
            (20, second, 1, false, true),
            (0, second, 1, true, false),
            (u64::from(u16::MAX) * 20, second, u16::MAX, false, true),
            (1_000, Duration::MAX, u16::MAX, true, false),
        ] {
            let at = format!("{ended} in {elapsed:?} on {concurrency}, doubled: {doubled}");
            assert_eq!(are_short(ended, elapsed, concurrency, doubled), short, "{at}");
        }
    }

    #[test]
    fn a_reserve_holds_as_many_as_there_are_slots_and_200_at_least() {
        assert_eq!([1, 200, 201, u16::MAX].map(held), [200, 200, 201, u16::MAX]);
    }

    #[test]
    fn reserves_that_are_given_back_come_ever_less_often() {
        let (mut rest, mut now) = (Rest::new(), Instant::now());
        assert!(rest.is_over(now), "the first comes at once");
        let began = now;
        for _ in 0..20 {
            rest.begun(now);
            now += LOOK_PAUSE;
            rest.given_back(now);
            assert!(!rest.is_over(now));
            now = rest.until.expect("it was given back");
            assert!(rest.is_over(now));
        }
        let twenty = now - began;
        assert!(twenty > 10 * REST_MAX, "a message is given up after {twenty:?} at the earliest");
        rest.begun(now);
        now += REST_MAX;
        rest.given_back(now);
        assert!(rest.is_over(now + REST_MIN), "one that lasted begins anew");
    }

    #[tokio::test]
    async fn what_a_reserve_is_given_as_soon_as_it_opens_waits_for_nothing() {
        let opening: Opening = tokio::spawn(async {
            tokio::task::yield_now().await; // until it is waited for
            Ok(Box::new(Holding(VecDeque::from([delivery("early")]))) as Box<dyn Subscription>)
        });
        let main = Box::new(Holding(VecDeque::new()));
        let mut sources = Sources { main, reserve: None, opening: Some(opening) };
        let given = tokio::time::timeout(PATIENCE, sources.next()).await.expect("it is given");
        assert_eq!(given.and_then(|delivery| delivery.message_id).as_deref(), Some("early"));
        assert!(sources.are_doubled());
    }
}
