//! A queue that the broker can no longer serve, though it serves the connection.
//!
//! A kill at a bad moment can leave a quorum queue whose record is there and whose server is not,
//! or whose server never finds a leader. Declaring such a queue succeeds, consuming it fails
//! within the broker, at once or after a minute, and that error ends the whole connection. So a
//! queue of which this is feared is tried over a connection of its own.
//!
//! Messages of a step queue only wake, and those of dead steps are only counted: what is lost
//! with them comes again. Such a queue is deleted and declared anew once it has been refused
//! often enough. All others hold what people sent, and are left to a person.

use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use standfast_engine::ports::{BrokerError, Source};
use tokio::time::{Instant, timeout};

use super::connection::{Live, channel, leave, separate};
use super::settings::{CALL_BOUND, RabbitSettings, short};
use super::topology;

/// Refusals in a row, over connections of the queue's own, before it is given up.
const REFUSALS_MIN: u32 = 3;
/// The shortest time from the first of them to the last: a broker that has just started, or a
/// cluster that has just lost a node, gets that long to find itself.
const REFUSED_MIN: Duration = Duration::from_secs(10);
/// The same for a queue that was declared anew again and again to no avail: it doubles each time.
const REFUSED_MIN_LONGEST: Duration = Duration::from_secs(600);
/// Longest wait for a queue's answer over a connection of its own: four times what a broker
/// under load gets, since silence proves less than an error.
pub(crate) const ANSWER_BOUND: Duration = Duration::from_secs(20);

/// What is held against one queue.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    arisen: bool,
    /// When the first refusal of a row came.
    since: Option<Instant>,
    refusals: u32,
    /// Times that it was declared anew in a row.
    renewals: u32,
}

impl Suspicion {
    /// From now on the queue is tried over a connection of its own.
    pub(crate) fn arise(&mut self) {
        self.arisen = true;
    }

    pub(crate) fn has_arisen(&self) -> bool {
        self.arisen
    }

    /// True if it was declared anew and is still not served.
    pub(crate) fn outlived_a_renewal(&self) -> bool {
        self.renewals > 0
    }

    /// Notes a refusal over a connection of its own; true if the queue is to be given up.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        self.refusals += 1;
        let doubled = 2_u32.saturating_pow(self.renewals);
        let least = REFUSED_MIN.saturating_mul(doubled).min(REFUSED_MIN_LONGEST);
        self.refusals >= REFUSALS_MIN && now.duration_since(since) >= least
    }

    /// Ends the row: something else was in the way.
    pub(crate) fn interrupted(&mut self) {
        (self.since, self.refusals) = (None, 0);
    }

    /// Begins a new row after the queue was declared anew.
    pub(crate) fn renewed(&mut self) {
        self.interrupted();
        self.renewals = self.renewals.saturating_add(1);
    }

    /// Ends it: the broker gave a consumer.
    pub(crate) fn dispelled(&mut self) {
        self.interrupted();
        self.arisen = false;
    }

    /// Forgets also how often it was declared anew: the consumer has lived for a while.
    pub(crate) fn forgotten(&mut self) {
        *self = Self::default();
    }
}

/// True for a queue whose messages may be lost with it.
pub(crate) fn is_dispensable(source: &Source) -> bool {
    match source {
        Source::Steps(_) | Source::DeadSteps => true,
        Source::Intake | Source::Control { .. } => false,
    }
}

/// Says what becomes of a queue that is not served, and what a person can do.
pub(crate) fn advice(source: &Source, queue: &str, suspicion: &Suspicion) -> String {
    match source {
        Source::Steps(_) | Source::DeadSteps if suspicion.outlived_a_renewal() => format!(
            "deleting it and declaring it anew did not help: restart the broker, then run \
             `rabbitmqctl delete_queue {queue}`; nothing is lost with it"
        ),
        Source::Steps(_) | Source::DeadSteps => {
            "if this goes on it is deleted and declared anew; nothing is lost with it".to_owned()
        }
        Source::Intake => format!(
            "submissions may lie in it, so it is left alone: restart the broker; if that does not \
             help, `rabbitmqctl delete_queue {queue}` gives them up, and it is declared anew"
        ),
        Source::Control { .. } => "restart the broker".to_owned(),
    }
}

/// What came of declaring a queue anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    Done,
    /// Somebody takes from it, so it is served: nothing was done.
    Needless,
}

/// Deletes a queue and declares it anew, unless somebody takes from it meanwhile. Others may be
/// at the same: whoever comes last leaves a queue behind, consumers that were cancelled come
/// back, and what was published in between is woken again by the sweep.
pub(crate) async fn renew(
    settings: &RabbitSettings,
    source: &Source,
) -> Result<Renewal, BrokerError> {
    let live = separate(settings, "look").await?;
    let served = is_served(&live, &settings.names.source(source)).await;
    leave(&live).await;
    if served {
        return Ok(Renewal::Needless);
    }
    let live = separate(settings, "renew").await?; // the look may have cost the one before
    let outcome = declare_anew(&live, settings, source).await;
    leave(&live).await;
    outcome.map(|()| Renewal::Done)
}

/// Twice: RabbitMQ 3.10 deletes a queue without a server and keeps that server's name, looks for
/// that one when it starts the next time, and the queue is dead again. A queue that lives takes
/// its name along.
async fn declare_anew(
    live: &Live,
    settings: &RabbitSettings,
    source: &Source,
) -> Result<(), BrokerError> {
    let channel = channel(live).await?;
    for _ in 0..2 {
        topology::delete(&channel, &settings.names.source(source)).await?;
        topology::declare(&channel, &settings.names, source).await?;
    }
    Ok(())
}

/// True if the broker knows a consumer of a queue.
async fn is_served(live: &Live, queue: &str) -> bool {
    let look = async {
        let channel = channel(live).await.ok()?;
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let found = channel.queue_declare(short(queue).ok()?, options, FieldTable::default());
        Some(found.await.ok()?.consumer_count() > 0)
    };
    timeout(CALL_BOUND, look).await.ok().flatten().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes refusals at these seconds; gives the first at which the queue is given up.
    fn given_up_at(suspicion: &mut Suspicion, seconds: &[u64]) -> Option<u64> {
        let start = Instant::now();
        seconds.iter().copied().find(|at| suspicion.refused(start + Duration::from_secs(*at)))
    }

    #[test]
    fn a_queue_is_given_up_after_some_refusals_over_some_time() {
        assert_eq!(given_up_at(&mut Suspicion::default(), &[0, 1, 2, 3, 9, 10]), Some(10));
        assert_eq!(given_up_at(&mut Suspicion::default(), &[0, 60, 61]), Some(61));
    }

    #[test]
    fn a_row_that_was_interrupted_begins_anew() {
        let mut suspicion = Suspicion::default();
        assert_eq!(given_up_at(&mut suspicion, &[0, 60]), None);
        suspicion.interrupted();
        assert_eq!(given_up_at(&mut suspicion, &[120, 121, 122]), None);
    }

    #[test]
    fn what_does_not_help_is_done_ever_more_seldom() {
        let mut suspicion = Suspicion::default();
        for least in [10, 20, 40, 80, 160, 320, 600, 600] {
            let seconds: Vec<u64> = (0..=700).collect();
            assert_eq!(given_up_at(&mut suspicion, &seconds), Some(least));
            suspicion.renewed();
        }
        suspicion.dispelled(); // a consumer that ends at once is no better
        assert_eq!(given_up_at(&mut suspicion, &[0, 1, 599]), None);
        suspicion.forgotten();
        assert_eq!(given_up_at(&mut suspicion, &[0, 1, 10]), Some(10));
    }

    #[test]
    fn only_what_wakes_or_counts_is_dispensable() {
        let listener = "w".to_owned();
        assert!(!is_dispensable(&Source::Intake) && !is_dispensable(&Source::Control { listener }));
    }
}
