//! The checks of `standfast doctor`: each looks at one thing and says what to do about it.

use std::collections::BTreeSet;

use standfast_brokers::rabbitmq::RabbitBroker;
use standfast_domain::commit::Home;
use standfast_domain::ids::{Partition, Queue};
use standfast_domain::index::{self, ready_index};
use standfast_domain::time::Time;
use standfast_engine::blobs::Blobs;
use standfast_engine::installation::Installation;
use standfast_engine::ports::{Broker, Depth, Source, StoreHealth};
use standfast_engine::registry::{Registry, WorkerInfo};
use standfast_engine::{Engine, EngineError, schedulers};
use standfast_protocol::health::{DoctorCheck, Severity};

use super::brokers::{self, AnyBrokerArgs};
use super::embedded;
use super::endpoint;
use super::parts::no_blobs;
use super::stores::{self, StoreArgs};
use crate::failure::Failure;
use crate::look;
use crate::show::quantities::{count, span};

/// How far the store's clock may be from this machine's: timers follow the store's.
const CLOCK_DIFFERENCE_MS_MAX: u64 = 2_000;

/// Names the check of what could not be accepted.
const REJECTED: &str = "rejected messages";
/// Names the check of step messages that died.
const DEAD_STEPS: &str = "dead step messages";

/// Looks at the store and what is stored.
pub async fn store(args: &StoreArgs, blobs: Option<&str>, counts: bool) -> Vec<DoctorCheck> {
    if args.redis.is_none()
        && let Some(endpoint) = endpoint::answering(&args.data).await
    {
        // The folder is open elsewhere, which is as good a sign as this process could get.
        let found = format!("process {} holds {} and answers", endpoint.pid, args.data.display());
        return vec![fine("store", found)];
    }
    if args.redis.is_none() && !embedded::exists(&args.data) {
        let found = format!("there is no state in {}", args.data.display());
        let advice = "run a plan first, name its folder with --data, or a store with --redis";
        return vec![problem("store", Severity::Error, found, advice)];
    }
    let engine = match stores::engine(args).await {
        Ok(engine) => engine,
        Err(failure) => return vec![fault("store", failure)],
    };
    let mut checks = store_health(&engine).await;
    if checks.iter().any(|check| !check.ok && check.severity == Severity::Error) {
        return checks;
    }
    checks.push(clock(&engine).await);
    if args.redis.is_some() {
        checks.extend(crew(&engine).await); // a folder's own process is all there is to it
    }
    if let Some(url) = blobs {
        checks.push(blobs_marker(&engine, url).await);
    }
    if counts {
        checks.extend(entries(&engine).await);
    }
    checks
}

/// Looks at the broker, if one is named.
pub async fn broker(args: &AnyBrokerArgs) -> Vec<DoctorCheck> {
    let Some(args) = args.named() else { return Vec::new() };
    let broker = match brokers::connect(&args).await {
        Ok(broker) => broker,
        Err(failure) => return vec![fault("broker", failure)],
    };
    let health = broker.health().await;
    let place = broker.settings().place();
    let mut checks = vec![fine("broker", format!("{} at {place}", health.product))];
    let advice = |fault: String| problem("broker", Severity::Error, fault, "");
    checks.extend(health.faults.into_iter().map(advice));
    checks.push(rejected(&broker).await);
    checks.push(dead_steps(&broker).await);
    broker.close().await;
    checks
}

async fn store_health(engine: &Engine) -> Vec<DoctorCheck> {
    match engine.store().health().await {
        Ok(health) => health_checks(health),
        Err(error) => {
            let advice = "start the store, or mend its address or the network";
            vec![problem("store", Severity::Error, format!("failed to {error}"), advice)]
        }
    }
}

fn health_checks(health: StoreHealth) -> Vec<DoctorCheck> {
    let mut checks = vec![fine("store", health.product), durability(health.durable)];
    let fault = |found| problem("store", Severity::Error, found, "");
    let warning = |found| problem("store", Severity::Warning, found, "");
    checks.extend(health.faults.into_iter().map(fault));
    checks.extend(health.warnings.into_iter().map(warning));
    checks
}

/// Says what a write survives, and which steps are refused for it.
fn durability(durable: bool) -> DoctorCheck {
    if durable {
        return fine("durability", "full: each write is on disk before it is answered".to_owned());
    }
    let found = "relaxed: the last second or so may be lost at a crash of the store's host, so \
                 steps with checkable and irreversible effects are refused";
    let advice = "set `appendonly yes` and `appendfsync always` in Redis; or accept that such an \
                  effect may happen twice: start api, scheduler and workers with \
                  --accept-relaxed-durability";
    problem("durability", Severity::Warning, found.to_owned(), advice)
}

async fn clock(engine: &Engine) -> DoctorCheck {
    match engine.store().now().await {
        Ok(now) => clock_check(now, look::now()),
        Err(error) => problem("clock", Severity::Error, format!("failed to {error}"), ""),
    }
}

fn clock_check(store: Time, local: Time) -> DoctorCheck {
    let (ahead, behind) = (store.since(local).0, local.since(store).0);
    let difference = ahead.max(behind);
    if difference <= CLOCK_DIFFERENCE_MS_MAX {
        return fine("clock", format!("the store's and this machine's differ by {difference} ms"));
    }
    let word = if ahead > behind { "ahead of" } else { "behind" };
    let found = format!("the store's is {} {word} this machine's", span(difference));
    let advice = "let both follow a time server; timers go by the store's";
    problem("clock", Severity::Warning, found, advice)
}

/// Looks who works. An installation that was just made has nobody, which is no fault of it; steps
/// that nobody takes are.
async fn crew(engine: &Engine) -> Vec<DoctorCheck> {
    let mut checks = vec![match schedulers::living(engine).await {
        Ok(living) => schedulers_check(living),
        Err(error) => fault("schedulers", stores::failure(error)),
    }];
    match unserved(engine).await {
        Ok((workers, waiting)) => {
            checks.push(workers_check(&workers));
            checks.extend(waiting.iter().map(|(queue, steps)| unserved_check(queue, *steps)));
        }
        Err(error) => checks.push(fault("workers", stores::failure(error))),
    }
    checks
}

/// Gives the workers that live, and the queues with ready steps that none of them takes from.
async fn unserved(engine: &Engine) -> Result<(Vec<WorkerInfo>, Vec<(Queue, u64)>), EngineError> {
    let workers = Registry::new(engine.clone()).workers().await?;
    let mut waiting = Vec::new();
    for queue in engine.queues().await? {
        let takes = |worker: &WorkerInfo| {
            worker.queues.contains(&queue) && !worker.unsubscribed.contains(&queue)
        };
        if workers.iter().any(takes) {
            continue;
        }
        let index = ready_index(&queue);
        let homes: Vec<(Home, String)> =
            Partition::all().map(|part| (Home::Partition(part), index.clone())).collect();
        let steps = engine.store().counts(&homes).await?.iter().sum();
        waiting.extend((steps > 0).then_some((queue, steps)));
    }
    Ok((workers, waiting))
}

fn schedulers_check(living: usize) -> DoctorCheck {
    match living {
        0 => {
            let advice = "start one: standfast scheduler; clocks, retries and attempts of lost \
                          workers wait for it";
            problem("schedulers", Severity::Info, "none lives".to_owned(), advice)
        }
        living => fine("schedulers", format!("{living} live")),
    }
}

fn workers_check(workers: &[WorkerInfo]) -> DoctorCheck {
    if workers.is_empty() {
        let advice = "start one: standfast worker --queue default";
        return problem("workers", Severity::Info, "none lives".to_owned(), advice);
    }
    let queues: BTreeSet<&str> =
        workers.iter().flat_map(|worker| &worker.queues).map(Queue::as_str).collect();
    let queues: Vec<&str> = queues.into_iter().collect();
    fine("workers", format!("{} live, of the queues {}", workers.len(), queues.join(", ")))
}

fn unserved_check(queue: &Queue, steps: u64) -> DoctorCheck {
    let found = format!("{} ready, and no live worker takes from it", count(steps, "step"));
    let advice = format!("start one: standfast worker --queue {queue}");
    problem(&format!("queue {queue}"), Severity::Warning, found, &advice)
}

async fn blobs_marker(engine: &Engine, url: &str) -> DoctorCheck {
    let installation = match Installation::open(engine).await {
        Ok(installation) => installation,
        Err(error) => return fault("blobs", stores::failure(error)),
    };
    match Blobs::open(url, &installation.id).await {
        Ok(_) => fine("blobs", format!("{url} belongs to installation {}", installation.id)),
        Err(error) => fault("blobs", no_blobs(error)),
    }
}

/// Counts what stands in each index, over all partitions.
async fn entries(engine: &Engine) -> Vec<DoctorCheck> {
    let queues = match engine.queues().await {
        Ok(queues) => queues,
        Err(error) => return vec![fault("indexes", stores::failure(error))],
    };
    let fixed = [index::TASKS, index::TIMERS, index::WORK, index::CLAIMS, index::OUTBOX];
    let names = fixed.into_iter().map(str::to_owned).chain(queues.iter().map(ready_index));
    let mut checks = Vec::new();
    for name in names {
        let homes: Vec<(Home, String)> =
            Partition::all().map(|part| (Home::Partition(part), name.clone())).collect();
        let counted = engine.store().counts(&homes).await;
        let title = format!("index {name}");
        checks.push(match counted {
            Ok(counts) => fine(&title, count_entries(counts.iter().sum())),
            Err(error) => problem(&title, Severity::Error, format!("failed to {error}"), ""),
        });
    }
    checks
}

fn count_entries(number: u64) -> String {
    match number {
        1 => "1 entry".to_owned(),
        number => format!("{number} entries"),
    }
}

async fn rejected(broker: &RabbitBroker) -> DoctorCheck {
    match broker.rejected_count().await {
        Ok(messages) => rejected_check(messages, &broker.settings().names().rejected()),
        Err(error) => fault(REJECTED, brokers::failure(error)),
    }
}

fn rejected_check(messages: u64, queue: &str) -> DoctorCheck {
    if messages == 0 {
        return fine(REJECTED, format!("none in {queue}"));
    }
    let found = format!("{} in {queue}", count(messages, "message"));
    let advice = "`standfast dead list` says why; mend the cause, then send each again with \
                  `standfast dead requeue ID`, or drop it";
    problem(REJECTED, Severity::Warning, found, advice)
}

async fn dead_steps(broker: &RabbitBroker) -> DoctorCheck {
    match broker.depth_of(&Source::DeadSteps).await {
        Ok(depth) => dead_steps_check(&depth, &broker.settings().names().dead_steps()),
        Err(error) => fault(DEAD_STEPS, brokers::failure(error)),
    }
}

/// They only woke, and a scheduler takes them soon: they pile up where there is none.
fn dead_steps_check(depth: &Depth, queue: &str) -> DoctorCheck {
    if depth.ready == 0 {
        return fine(DEAD_STEPS, format!("none in {queue}"));
    }
    let found = format!("{} in {queue}", count(depth.ready, "message"));
    if depth.consumers > 0 {
        return fine(DEAD_STEPS, format!("{found}, which a scheduler is taking"));
    }
    let advice =
        "start a scheduler: it counts them, says why they died and wakes their steps again";
    problem(DEAD_STEPS, Severity::Warning, found, advice)
}

fn fine(name: &str, found: String) -> DoctorCheck {
    DoctorCheck {
        name: name.to_owned(),
        ok: true,
        severity: Severity::Info,
        found,
        advice: String::new(),
    }
}

fn problem(name: &str, severity: Severity, found: String, advice: &str) -> DoctorCheck {
    let (name, advice) = (name.to_owned(), advice.to_owned());
    DoctorCheck { name, ok: false, severity, found, advice }
}

fn fault(name: &str, failure: Failure) -> DoctorCheck {
    problem(name, Severity::Error, failure.message, &failure.lines.join("; "))
}

#[cfg(test)]
mod tests {
    use standfast_domain::ids::WorkerId;

    use super::*;

    #[test]
    fn clocks_that_differ_are_a_warning() {
        let check = clock_check(Time(10_000), Time(12_000));
        assert!(check.ok, "{check:?}");
        let check = clock_check(Time(10_000), Time(12_001));
        assert_eq!((check.ok, check.severity), (false, Severity::Warning));
        assert!(check.found.contains("2.0 s behind"), "{}", check.found);
        assert!(clock_check(Time(90_000), Time(0)).found.contains("ahead of"));
    }

    #[test]
    fn what_the_store_reports_is_a_check_each() {
        let health = StoreHealth {
            product: "redis 7.0.15".into(),
            durable: false,
            faults: vec!["set maxmemory-policy noeviction".into()],
            warnings: vec!["set appendfsync always".into()],
        };
        let checks = health_checks(health);
        let severities: Vec<_> = checks.iter().map(|check| (check.ok, check.severity)).collect();
        let expected = [
            (true, Severity::Info),
            (false, Severity::Warning),
            (false, Severity::Error),
            (false, Severity::Warning),
        ];
        assert_eq!(severities, expected);
        assert!(checks[1].found.contains("may be lost"));
        assert!(checks[1].advice.contains("--accept-relaxed-durability"));
    }

    #[test]
    fn who_works_is_named_and_who_is_missing_too() {
        let worker = |queue: &str| WorkerInfo {
            worker: WorkerId::new("w").unwrap(),
            principal: None,
            queues: vec![Queue::new(queue).unwrap()],
            unsubscribed: Vec::new(),
            handlers: Vec::new(),
            load: None,
            expires_at: Time(0),
        };
        let workers = [worker("night"), worker("default"), worker("night")];
        assert_eq!(workers_check(&workers).found, "3 live, of the queues default, night");
        assert_eq!(schedulers_check(2).found, "2 live");
        for check in [workers_check(&[]), schedulers_check(0)] {
            assert_eq!((check.ok, check.severity), (false, Severity::Info), "{check:?}");
            assert!(check.advice.starts_with("start one: standfast "), "{check:?}");
        }
        let check = unserved_check(&Queue::new("night").unwrap(), 1);
        assert_eq!((check.name.as_str(), check.severity), ("queue night", Severity::Warning));
        assert!(check.found.starts_with("1 step ready"), "{check:?}");
        assert!(check.advice.ends_with("--queue night"), "{check:?}");
    }

    #[test]
    fn messages_that_died_are_a_warning_with_their_number_queue_and_cure() {
        let good = |check: DoctorCheck| (check.ok, check.found);
        assert_eq!(good(rejected_check(0, "q")), (true, "none in q".to_owned()));
        let depth = |ready, consumers| dead_steps_check(&Depth { ready, consumers }, "q");
        assert_eq!(good(depth(0, 0)), (true, "none in q".to_owned()));
        let taken = "1 message in q, which a scheduler is taking".to_owned();
        assert_eq!(good(depth(1, 1)), (true, taken));
        for (check, cure) in
            [(rejected_check(3, "q"), "standfast dead list"), (depth(3, 0), "start a scheduler")]
        {
            let found = (check.ok, check.severity, check.found.as_str());
            assert_eq!(found, (false, Severity::Warning, "3 messages in q"));
            assert!(check.advice.contains(cure), "{check:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fresh_folder_is_healthy_and_one_without_state_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let args = StoreArgs {
            redis: None,
            redis_prefix: stores::PREFIX.to_owned(),
            data: dir.path().join("state"),
        };
        let blobs = dir.path().join("blobs").display().to_string();
        let checks = store(&args, Some(&blobs), true).await;
        assert_eq!((checks.len(), checks[0].ok, args.data.exists()), (1, false, false));
        drop(stores::folder(args.data.clone()).await.expect("a folder can be made"));
        let checks = store(&args, Some(&blobs), true).await;
        assert!(checks.iter().all(|check| check.ok), "{checks:?}");
        let names: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names[..5], ["store", "durability", "clock", "blobs", "index tasks"]);
    }
}
