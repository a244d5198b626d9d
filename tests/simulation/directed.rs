//! Single turns of fate that random worlds come to seldom, each in a world where nothing else
//! goes wrong.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use standfast_domain::commit::Commit;
use standfast_domain::event::Change;
use standfast_domain::ids::TaskId;
use standfast_domain::record::StopMode;

use crate::faults::Fault;
use crate::life::{runtime, settle_embedded, settle_services};
use crate::outside::PLAY;
use crate::people;
use crate::plans::{Drawn, Wish};
use crate::trace::pause;
use crate::wishes::ask_for;
use crate::world::World;

/// When the task is submitted.
const SUBMITTED: Duration = Duration::from_secs(60);
/// Longer than any of these tasks takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Submits a plan of one step to an installation of services, lets something befall the world,
/// and waits for the task's end.
fn lives(step: Value, befalls: impl AsyncFnOnce(&Arc<World>)) -> (Arc<World>, Vec<Change>) {
    lives_in(settle_services, step, befalls)
}

/// Does so in an installation of some kind.
fn lives_in(
    settle: fn(&Arc<World>),
    step: Value,
    befalls: impl AsyncFnOnce(&Arc<World>),
) -> (Arc<World>, Vec<Change>) {
    runtime().block_on(async {
        let world = World::quiet(7);
        settle(&world);
        let plan = json!({ "kind": "test", "steps": [step], "retention": "30d" });
        let (at, wishes) = (SUBMITTED, Vec::new());
        let drawn = Drawn { key: "task-0".to_owned(), plan, at, wishes };
        tokio::spawn(people::client(world.clone(), drawn));
        befalls(&world).await;
        let until = world.trace.elapsed() + PATIENCE;
        let ended = |change: &Change| matches!(change, Change::TaskEnded { .. });
        while !changes(&world).iter().any(ended) {
            assert!(world.trace.elapsed() < until, "{:#?}", world.trace.take().0);
            pause(Duration::from_millis(100)).await;
        }
        pause(Duration::from_secs(120)).await; // for whoever comes too late
        world.over.cancel();
        let changes = changes(&world);
        (world, changes)
    })
}

fn step(ms: u64, kind: &str, effect: Value) -> Value {
    json!({ "id": "s0", "uses": PLAY, "timeout": { "attempt": "200s" }, "effect": effect,
            "with": { "acts": [{ "kind": kind, "ms": ms }, { "kind": "succeeds", "ms": 10 }] } })
}

fn changes(world: &World) -> Vec<Change> {
    let history = world.history.lock().unwrap();
    let of = |task: &TaskId| history.events[task].iter().map(|seen| seen.event.change.clone());
    history.events.keys().flat_map(of).collect()
}

async fn first_start(world: &World) -> String {
    loop {
        if let Some(start) = world.outside.starts().first() {
            return start.process.clone();
        }
        pause(Duration::from_millis(10)).await;
    }
}

/// Asks for something as the client of the one task.
async fn wishes(world: &World, wish: Wish) {
    let task = world.told.lock().unwrap()["task-0"].0.clone();
    ask_for(world, "task-0", &task, wish).await;
}

fn senders(world: &World) -> Vec<u32> {
    world.ledger.sent().iter().map(|sent| sent.request.attempt).collect()
}

fn accepted(changes: &[Change]) -> Option<u32> {
    changes.iter().find_map(|change| match change {
        Change::StepSucceeded { attempt, .. } => Some(*attempt),
        _ => None,
    })
}

#[test]
fn who_was_taken_over_sends_nothing_though_nobody_could_tell_it() {
    for class in ["idempotent", "irreversible"] {
        let acts = step(60_000, "deaf", json!({ "class": class }));
        let (world, changes) = lives(acts, async |world| {
            let name = first_start(world).await;
            let until = world.trace.elapsed() + Duration::from_secs(59);
            world.processes.lock().unwrap()[&name].cut_off(until);
        });
        assert_eq!((accepted(&changes), senders(&world)), (Some(2), vec![2]), "{class}");
    }
}

#[test]
fn an_intent_whose_answer_was_lost_is_as_old_as_its_first_call() {
    let acts = step(10, "succeeds", json!({ "class": "irreversible" }));
    let (world, changes) = lives(acts, async |world| {
        let intends = |change: &Change| matches!(change, Change::EffectIntended { .. });
        *world.cuts_off.lock().unwrap() = Some((intends, Duration::from_secs(15)));
    });
    let history = world.history.lock().unwrap();
    let intents = history.events.values().flatten().filter_map(|seen| match seen.event.change {
        Change::EffectIntended { window, .. } => Some((seen.elapsed, window.to_std())),
        _ => None,
    });
    let intents: Vec<(Duration, Duration)> = intents.collect();
    let sent: Vec<Duration> = world.ledger.sent().iter().map(|sent| sent.at).collect();
    assert_eq!((intents.len(), sent.len(), accepted(&changes)), (2, 1, Some(1)));
    assert!(sent[0] <= intents[1].0 + intents[1].1, "{sent:?} {intents:?}");
}

#[test]
fn an_outage_longer_than_a_claim_fences_nobody() {
    let acts = step(120_000, "succeeds", json!({ "class": "none" }));
    let (_, changes) = lives(acts, async |world| {
        first_start(world).await;
        let now = world.trace.elapsed();
        world.faults.lasts(Fault::LongOutage, now, now + Duration::from_secs(90));
    });
    assert_eq!(accepted(&changes), Some(1));
}

/// True for a heartbeat: it alone writes a claim and is no event, but for claims of later steps.
fn is_renewal(commit: &Commit) -> bool {
    let claims = commit.writes.iter().any(|(field, _)| field.starts_with("claim/"));
    claims && commit.events.is_empty()
}

#[test]
fn outages_between_looks_that_cost_each_heartbeat_fence_nobody() {
    let acts = step(120_000, "succeeds", json!({ "class": "none" }));
    let (_, changes) = lives_in(settle_embedded, acts, async |world| {
        first_start(world).await;
        *world.fails.lock().unwrap() = Some(is_renewal);
    });
    assert_eq!(accepted(&changes), Some(1));
}

#[test]
fn a_clock_that_went_back_fences_nobody_whose_own_has_stood_still() {
    let acts = step(120_000, "succeeds", json!({ "class": "none" }));
    let (_, changes) = lives(acts, async |world| {
        pause(Duration::from_secs(1)).await;
        let workers = ["w1.1", "w2.1"].map(|name| world.processes.lock().unwrap()[name].clone());
        workers.iter().for_each(|worker| worker.freeze(true));
        pause(Duration::from_secs(50)).await;
        world.faults.jump(world.trace.elapsed(), -300_000);
        workers.iter().for_each(|worker| worker.thaw());
    });
    assert_eq!(accepted(&changes), Some(1));
}

#[test]
fn a_worker_that_stands_still_for_longer_than_a_claim_is_taken_over() {
    let acts = step(120_000, "succeeds", json!({ "class": "none" }));
    let (_, changes) = lives(acts, async |world| {
        let name = first_start(world).await;
        let process = world.processes.lock().unwrap()[&name].clone();
        process.freeze(false);
        pause(Duration::from_secs(100)).await;
        process.thaw();
    });
    assert_eq!(accepted(&changes), Some(2));
}

#[test]
fn a_receipt_that_comes_after_a_take_over_ends_the_hold() {
    let acts = step(10, "succeeds", json!({ "class": "irreversible" }));
    let (world, changes) = lives(acts, async |world| {
        while world.ledger.sent().is_empty() {
            pause(Duration::from_millis(1)).await;
        }
        let name = world.ledger.sent()[0].process.clone();
        let until = world.trace.elapsed() + Duration::from_secs(100);
        world.processes.lock().unwrap()[&name].cut_off(until);
    });
    let held = |change: &Change| matches!(change, Change::StepHeld { .. });
    assert!(changes.iter().any(held), "{changes:#?}");
    assert_eq!((accepted(&changes), world.ledger.sent().len()), (Some(2), 1));
}

#[test]
fn a_receipt_that_comes_after_the_end_of_its_task_is_taken() {
    let acts = step(10, "succeeds", json!({ "class": "irreversible" }));
    let (_, changes) = lives(acts, async |world| {
        while world.ledger.sent().is_empty() {
            pause(Duration::from_millis(1)).await;
        }
        let name = world.ledger.sent()[0].process.clone();
        let until = world.trace.elapsed() + Duration::from_secs(100);
        world.processes.lock().unwrap()[&name].cut_off(until);
        wishes(world, Wish::Stop(StopMode::Halt)).await;
    });
    let ended = changes.iter().position(|change| matches!(change, Change::TaskEnded { .. }));
    let landed = changes.iter().position(|change| matches!(change, Change::EffectLanded { .. }));
    assert!(ended < landed, "{changes:#?}");
}

#[test]
fn who_has_not_heard_that_its_attempt_was_stopped_sends_before_the_next_one_begins() {
    let acts = step(6_000, "deaf", json!({ "class": "idempotent" }));
    let (world, changes) = lives(acts, async |world| {
        let name = first_start(world).await;
        let until = world.trace.elapsed() + Duration::from_secs(50);
        world.processes.lock().unwrap()[&name].cut_off(until);
        wishes(world, Wish::StopAttempt).await;
    });
    assert_eq!((accepted(&changes), senders(&world)), (Some(2), vec![1, 2]));
}

#[test]
fn who_has_heard_that_its_attempt_was_stopped_sends_nothing() {
    let acts = step(12_000, "deaf", json!({ "class": "idempotent" }));
    let (world, changes) = lives(acts, async |world| {
        first_start(world).await;
        wishes(world, Wish::StopAttempt).await;
    });
    assert_eq!((accepted(&changes), senders(&world)), (Some(2), vec![2]));
}
