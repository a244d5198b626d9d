//! What a process counts, read from where it is counted whenever somebody asks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use standfast_brokers::rabbitmq::RabbitBroker;
use standfast_engine::Standing;
use standfast_engine::tally::Tally;
use standfast_worker::QueueGauges;

use super::Watched;
use super::checks::FaultCount;

/// The counts of a process.
pub struct Counts {
    /// Where most of them are counted.
    pub watched: Watched,
    /// Faults of the store's settings and role.
    pub faults: FaultCount,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts").finish_non_exhaustive()
    }
}

impl Collector for Counts {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page(encoder);
        let watched = &self.watched;
        let [commits, refused, wakes, unconfirmed] = watched.engine.counters().read();
        page.counter("standfast_commits", "Commits tried", commits)?;
        page.counter("standfast_commits_refused", "Commits that met a change", refused)?;
        page.counter("standfast_wakes", "Step messages sent to wake workers", wakes)?;
        let help = "Step messages that the broker did not confirm; the sweep sends them again";
        page.counter("standfast_wakes_unconfirmed", help, unconfirmed)?;
        let [sent, unsent, dropped] = watched.engine.counters().read_outgoing();
        page.counter("standfast_outgoing_sent", "Outgoing messages that arrived", sent)?;
        let help = "Tries to send an outgoing message that were not confirmed";
        page.counter("standfast_outgoing_unconfirmed", help, unsent)?;
        let help = "Outgoing messages given up: their reply queue is gone";
        page.counter("standfast_outgoing_dropped", help, dropped)?;
        let (name, help) = ("standfast_commands_refused", "Commands refused, by missing right");
        page.tally(name, help, "right", watched.tokens.refusals().counts())?;
        of_store(&mut page, watched.engine.standing(), read(&self.faults))?;
        if let Some(scheduler) = &watched.scheduler {
            of_scheduler(&mut page, scheduler)?;
        }
        if let Some(worker) = &watched.worker {
            of_worker(&mut page, worker)?;
        }
        match &watched.rabbit {
            Some(rabbit) => of_rabbit(&mut page, rabbit),
            None => Ok(()),
        }
    }
}

fn of_store(page: &mut Page<'_>, standing: &Standing, faults: u64) -> fmt::Result {
    let help = "1 while the store answers and takes writes, else 0";
    page.gauge("standfast_store_up", help, &[], u64::from(standing.is_well()))?;
    let help = "Times that the store went away or refused writes";
    page.counter("standfast_store_outages", help, standing.outages())?;
    let help = "Calls that the store did not carry out";
    page.counter("standfast_store_failures", help, standing.failures())?;
    let help = "Faults of the store's settings and role that lose or refuse data";
    page.gauge("standfast_store_faults", help, &[], faults)
}

fn of_scheduler(page: &mut Page<'_>, gauges: &standfast_scheduler::Gauges) -> fmt::Result {
    for (name, help, count) in [
        ("standfast_scheduler_timer_rounds", "Looks at the timers that ended", &gauges.rounds),
        ("standfast_scheduler_timers_fired", "Timers that did something", &gauges.fired),
        ("standfast_scheduler_claims_taken_over", "Attempts taken over", &gauges.taken_over),
        ("standfast_scheduler_steps_swept", "Lost step messages sent again", &gauges.swept),
        ("standfast_scheduler_outgoing_swept", "Promises kept later", &gauges.outgoing_swept),
        ("standfast_scheduler_tasks_removed", "Tasks removed after retention", &gauges.removed),
    ] {
        page.counter(name, help, read(count))?;
    }
    let name = "standfast_scheduler_steps_dead";
    page.tally(name, "Step messages that died, by reason", "reason", &gauges.dead)?;
    let name = "standfast_intake_messages";
    let help = "Messages dealt with: created, known, or the kind of problem";
    page.tally(name, help, "outcome", &gauges.intake.messages)?;
    let name = "standfast_intake_messages_held";
    page.gauge(name, "Messages that wait for store or broker", &[], read(&gauges.intake.held))
}

fn of_worker(page: &mut Page<'_>, gauges: &standfast_worker::Gauges) -> fmt::Result {
    let name = "standfast_worker_deliveries_spent";
    page.tally(name, "Deliveries that woke for nothing, by reason", "reason", &gauges.spent)?;
    let name = "standfast_worker_deliveries_malformed";
    page.counter(name, "Deliveries that could not be read", read(&gauges.malformed))?;
    let name = "standfast_worker_deliveries_held";
    let help = "Deliveries held because the store does not answer";
    page.gauge(name, help, &[], read(&gauges.held))?;
    let queues: Vec<(String, QueueGauges)> =
        gauges.queues().into_iter().map(|(queue, counts)| (queue.to_string(), counts)).collect();
    let of = |value: fn(&QueueGauges) -> u64| {
        let each = queues.iter().map(move |(queue, counts)| (vec![queue.clone()], value(counts)));
        each.collect::<Vec<_>>()
    };
    let name = "standfast_worker_attempts_running";
    page.family(name, "Attempts that run now", false, &["queue"], of(|q| q.running))?;
    let name = "standfast_worker_subscribed";
    let subscribed = of(|q| u64::from(q.subscribed));
    page.family(name, "1 while the broker has the consumer", false, &["queue"], subscribed)?;
    let name = "standfast_worker_attempts_started";
    page.family(name, "Attempts started", true, &["queue"], of(|q| q.starts))?;
    let outcome = |word: &str, value| {
        let each = of(value).into_iter();
        each.map(|(labels, count)| ([labels, vec![word.to_owned()]].concat(), count))
            .collect::<Vec<_>>()
    };
    let ended = [
        outcome("succeeded", |q| q.succeeded),
        outcome("failed", |q| q.failed),
        outcome("given_up", |q| q.given_up),
    ];
    let (name, labels) = ("standfast_worker_attempts_ended", ["queue", "outcome"]);
    page.family(name, "Attempts ended, by outcome", true, &labels, ended.concat())
}

fn of_rabbit(page: &mut Page<'_>, rabbit: &RabbitBroker) -> fmt::Result {
    let (counts, standing) = (rabbit.counters(), rabbit.standing());
    let (name, help) = ("standfast_rabbitmq_connected", "1 while the connection is open");
    let connected = [("publish", standing.publishing), ("consume", standing.consuming)]
        .map(|(purpose, open)| (vec![purpose.to_owned()], u64::from(open)));
    page.family(name, help, false, &["purpose"], connected.to_vec())?;
    let (name, help) = ("standfast_rabbitmq_blocked", "1 while the broker blocks publishers");
    page.gauge(name, help, &[], u64::from(standing.blocked))?;
    for (name, help, count) in [
        ("standfast_rabbitmq_reconnections", "Connections opened again", counts.reconnections),
        ("standfast_rabbitmq_resubscriptions", "Consumers made again", counts.resubscriptions),
        ("standfast_rabbitmq_renewals", "Queues declared anew, not served before", counts.renewals),
        ("standfast_rabbitmq_confirmed", "Messages confirmed", counts.confirmed),
        ("standfast_rabbitmq_returned", "Messages that found no queue", counts.returned),
        ("standfast_rabbitmq_nacked", "Messages refused", counts.nacked),
        ("standfast_rabbitmq_unanswered", "Messages without an answer", counts.unanswered),
        ("standfast_rabbitmq_acks_lost", "Acknowledgements lost", counts.acks_lost),
    ] {
        page.counter(name, help, count)?;
    }
    Ok(())
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Writes metrics; the format adds `_total` to the names of counters.
struct Page<'e>(DescriptorEncoder<'e>);

impl Page<'_> {
    fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        let metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(count).encode(metric)
    }

    fn tally(&mut self, name: &str, help: &str, label: &str, tally: &Tally) -> fmt::Result {
        let values = tally.read().into_iter().map(|(word, count)| (vec![word.to_owned()], count));
        self.family(name, help, true, &[label], values.collect())
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &[&str], value: u64) -> fmt::Result {
        self.family(name, help, false, labels, vec![(Vec::new(), value)])
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        counts: bool,
        labels: &[&str],
        values: Vec<(Vec<String>, u64)>,
    ) -> fmt::Result {
        let kind = if counts { MetricType::Counter } else { MetricType::Gauge };
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (of, value) in values {
            let of: Vec<(String, String)> =
                labels.iter().map(|label| (*label).to_owned()).zip(of).collect();
            let one = metric.encode_family(&of)?;
            match counts {
                true => ConstCounter::new(value).encode(one)?,
                false => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(one)?,
            }
        }
        Ok(())
    }
}
