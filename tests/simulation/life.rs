//! One world from its first process to the verdict.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use standfast_domain::commit::{Home, Scope};
use standfast_domain::ids::TaskId;
use standfast_domain::invariants::Records;
use standfast_engine::verify::verify;
use standfast_tests::memory_store::Contents;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::oracle::Case;
use crate::people;
use crate::plans::{self, Drawn};
use crate::process::Process;
use crate::records;
use crate::site::{self, Role};
use crate::trace::pause;
use crate::world::{Snapshot, World};

/// How long after the last fault everything must have come to its end: longer than the longest
/// chain of retries, take-overs and sweeps that plans and product allow.
const SETTLED_WITHIN: Duration = Duration::from_secs(45 * 60);
/// How long the world goes on when everything has ended: time for a late receipt, and for a
/// person to tell what became of an effect.
const AFTERWARDS: Duration = Duration::from_secs(60);
/// How long the removal of what was kept long enough may take.
const REMOVED_WITHIN: Duration = Duration::from_secs(10 * 60);
/// Longer than plans keep their tasks.
const RETENTION_MILLIS: i64 = 31 * 24 * 60 * 60 * 1_000;

/// What became of one world.
pub struct Life {
    pub lines: Vec<String>,
    pub counts: BTreeMap<String, u64>,
    /// All that was stored when everything had ended.
    pub contents: Contents,
    /// What was promised and not kept.
    pub faults: Vec<String>,
}

/// Panics of this program since the last look: a panic in a task of the runtime is seen by
/// nobody else.
pub static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Makes a runtime whose time is virtual.
pub fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_time().start_paused(true);
    builder.build().expect("a runtime without I/O starts")
}

/// Lives through one seed.
pub fn live(seed: u64) -> Life {
    let runtime = runtime();
    let mut life = runtime.block_on(world(seed));
    drop(runtime);
    life.faults.extend(PANICS.lock().unwrap().drain(..));
    life
}

async fn world(seed: u64) -> Life {
    let world = World::new(seed);
    let trouble = world.span(15_000, 90_000);
    let drawn = plans::draw(&mut world.random.lock().unwrap().fork(), trouble);
    for Drawn { key, plan, .. } in &drawn {
        world.trace.say("world", format_args!("{key}: {plan}"));
    }
    settle(&world);
    tokio::spawn(site::weather(world.clone()));
    tokio::spawn(people::person(world.clone()));
    let clients: Vec<JoinHandle<()>> = drawn
        .iter()
        .map(|drawn| tokio::spawn(people::client(world.clone(), drawn.clone())))
        .collect();
    pause(trouble).await;
    world.trace.say("world", format_args!("calm"));
    world.faults.calm(world.trace.elapsed());
    world.calm.cancel();
    let mut faults = Vec::new();
    if !all_ends(&world, clients, &mut faults).await {
        faults.push(format!("not everything had ended {SETTLED_WITHIN:?} after the last fault"));
    }
    pause(AFTERWARDS).await;
    let snapshot = world.snapshot();
    verdict(&world, &drawn, &snapshot, &mut faults).await;
    if faults.is_empty() {
        removal(&world, &mut faults).await;
    }
    world.over.cancel();
    let (lines, counts) = world.trace.take();
    Life { lines, counts, contents: snapshot.contents, faults }
}

/// Starts the processes: the embedded mode's one, or some of each kind.
fn settle(world: &Arc<World>) {
    if world.chance(250) {
        world.trace.count("installation embedded");
        return settle_embedded(world);
    }
    world.trace.count("installation of services");
    settle_services(world);
    if world.chance(600) {
        start(world, Role::Scheduler, "s2");
    }
    if world.chance(500) {
        start(world, Role::Worker(vec!["b", "default"]), "w3");
    }
}

/// Starts the one process of an installation that is embedded.
pub fn settle_embedded(world: &Arc<World>) {
    start(world, Role::Whole, "whole");
}

/// Starts the fewest processes of an installation of services in which one can follow another.
pub fn settle_services(world: &Arc<World>) {
    start(world, Role::Api, "api");
    start(world, Role::Scheduler, "s1");
    start(world, Role::Worker(vec!["default", "b"]), "w1");
    start(world, Role::Worker(vec!["default"]), "w2");
}

fn start(world: &Arc<World>, role: Role, name: &'static str) {
    tokio::spawn(site::supervise(world.clone(), role, name));
}

async fn all_ends(world: &World, clients: Vec<JoinHandle<()>>, faults: &mut Vec<String>) -> bool {
    let until = world.trace.elapsed() + SETTLED_WITHIN;
    while world.trace.elapsed() < until {
        pause(Duration::from_secs(1)).await;
        let asked = clients.iter().all(JoinHandle::is_finished);
        if asked && records::is_quiet(&world.store.contents()) {
            for client in clients {
                if let Err(error) = client.await {
                    faults.push(format!("a client: {error}"));
                }
            }
            return true;
        }
    }
    false
}

async fn verdict(
    world: &Arc<World>,
    drawn: &[Drawn],
    snapshot: &Snapshot,
    faults: &mut Vec<String>,
) {
    let checker = Process::new(world, "check".to_owned(), false);
    let queues = world.queues.lock().unwrap().clone();
    let engine = site::engine(&checker, queues);
    let told = world.told.lock().unwrap().clone();
    let mut all: BTreeMap<TaskId, Records> = BTreeMap::new();
    for drawn in drawn {
        let Some((task, told)) = told.get(&drawn.key) else {
            faults.push(format!("{} was never acknowledged", drawn.key));
            continue;
        };
        let found = records::records(&snapshot.contents, task, faults);
        faults.extend(records::broken(task, &found));
        let settlement = engine.settlement(task).await;
        let mut case = Case::new(world, drawn, (task, told), &found, snapshot);
        case.check();
        if let Some(planned) = world.stops.lock().unwrap().planned(task) {
            match settlement {
                Ok(settlement) => case.settles(&planned, &settlement),
                Err(error) => case.fault(format!("its settlement: {error}")),
            }
        }
        faults.append(&mut case.faults);
        match verify(&engine, task).await {
            Ok(verified) => {
                faults.extend(verified.fault.map(|fault| format!("verify {task}: {fault}")));
            }
            Err(error) => faults.push(format!("verify {task}: {error}")),
        }
        all.insert(task.clone(), found);
    }
    faults.extend(records::index_faults(&snapshot.contents, &all));
    faults.append(&mut world.stops.lock().unwrap().faults);
}

/// Lets the time of retention pass: nothing of any task may be left.
async fn removal(world: &World, faults: &mut Vec<String>) {
    world.faults.jump(world.trace.elapsed(), RETENTION_MILLIS);
    let until = world.trace.elapsed() + REMOVED_WITHIN;
    let left = || {
        let contents = world.store.contents();
        let of_tasks = |scope: &&Scope| matches!(scope, Scope::Task(_));
        let scopes = contents.records.keys().chain(contents.events.keys());
        let records = scopes.filter(of_tasks).count();
        let entries = contents.indexes.iter().filter(|(home, _)| **home != Home::Installation);
        records + entries.map(|(_, indexes)| indexes.len()).sum::<usize>()
    };
    while left() > 0 {
        if world.trace.elapsed() > until {
            faults.push(format!("{} things of removed tasks are left", left()));
            return;
        }
        pause(Duration::from_secs(1)).await;
    }
    world.trace.count("retention passed");
}
