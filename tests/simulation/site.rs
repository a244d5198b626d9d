//! The processes of an installation and what befalls them: started, frozen, killed, told to end,
//! started again under a new name.

use std::sync::Arc;
use std::time::Duration;

use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::ids::{Queue, WorkerId};
use standfast_engine::claims::Claims;
use standfast_engine::registry::Registry;
use standfast_engine::{Engine, EngineError};
use standfast_scheduler::{Scheduler, end_all_claims, forget_schedulers, publish_ready};
use standfast_worker::handlers::Handler;
use standfast_worker::{BuiltinHandlers, EnvironmentSecrets, Worker};
use tokio_util::sync::CancellationToken;

use crate::broker::{WireBroker, purge};
use crate::faults::Fault;
use crate::outside::{Nowhere, Play};
use crate::process::{Own, Process};
use crate::store::WireStore;
use crate::trace::pause;
use crate::world::World;

/// How long a process that was told to end may take before it is killed.
const SHUTDOWN_MAX: Duration = Duration::from_secs(60);

/// What a process is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Api,
    Worker(Vec<&'static str>),
    Scheduler,
    /// All in one process, with the queues within it: the embedded mode.
    Whole,
}

/// A process that runs.
struct Running {
    process: Arc<Process>,
    shutdown: CancellationToken,
    hurry: CancellationToken,
    ended: CancellationToken,
}

/// What the roles are made of.
struct Parts {
    process: Arc<Process>,
    engine: Engine,
    claims: Arc<Claims>,
    registry: Arc<Registry>,
    handlers: BuiltinHandlers,
}

impl Parts {
    fn new(process: &Arc<Process>, queues: InProcessBroker) -> Self {
        let engine = engine(process, queues);
        let play = Arc::new(Play::new(process));
        let handlers = BuiltinHandlers::new([play.clone() as Arc<dyn Handler>]);
        let registry = Arc::new(Registry::new(engine.clone()));
        let blobs = process.world.blobs.clone();
        let known = Arc::new(handlers.clone());
        let claims = Arc::new(Claims::new(engine.clone(), blobs, known, registry.clone()));
        play.works_for(&claims);
        Self { process: process.clone(), engine, claims, registry, handlers }
    }

    fn id(&self) -> WorkerId {
        WorkerId::new(self.process.name.clone()).unwrap()
    }

    fn worker(&self, queues: &[&str]) -> Worker {
        let world = &self.process.world;
        let settings = standfast_worker::Settings {
            worker: self.id(),
            queues: queues.iter().map(|name| Queue::new(*name).unwrap()).collect(),
            concurrency: u16::try_from(world.between(1, 4)).unwrap(),
            stay: u32::try_from(world.between(0, 3)).unwrap(),
            grace: world.span(0, 5_000),
            claim_length: world.claim_length,
            attempts: "/standfast-simulates-and-has-no-folder".into(),
            secrets: Arc::new(EnvironmentSecrets::default()),
        };
        let nowhere = Nowhere { process: self.process.clone(), blobs: world.blobs.clone() };
        Worker::new(settings, self.claims.clone(), self.registry.clone(), self.handlers.clone())
            .with_directories(Arc::new(nowhere))
    }

    fn scheduler(&self) -> Scheduler {
        let world = &self.process.world;
        let settings = standfast_scheduler::Settings {
            claim_length: world.claim_length,
            timers_every: world.span(500, 2_000),
            ..standfast_scheduler::Settings::new(self.id())
        };
        Scheduler::new(self.engine.clone(), world.blobs.clone(), settings)
    }
}

/// Starts an engine over a process's ports.
pub fn engine(process: &Arc<Process>, queues: InProcessBroker) -> Engine {
    Engine::start(
        Arc::new(WireStore(process.clone())),
        Arc::new(WireBroker::new(process.clone(), queues)),
        Arc::new(Own(process.clone())),
        Arc::new(Own(process.clone())),
    )
}

/// Gives the handlers of a process.
pub fn handlers(process: &Arc<Process>) -> BuiltinHandlers {
    BuiltinHandlers::new([Arc::new(Play::new(process)) as Arc<dyn Handler>])
}

fn start(world: &Arc<World>, role: &Role, name: String) -> Running {
    let whole = *role == Role::Whole;
    let process = Process::new(world, name, whole);
    world.processes.lock().unwrap().insert(process.name.clone(), process.clone());
    world.trace.say(&process.name, format_args!("begins as {role:?}"));
    let queues = if whole {
        let fresh = InProcessBroker::new();
        *world.queues.lock().unwrap() = fresh.clone();
        fresh
    } else {
        world.queues.lock().unwrap().clone()
    };
    let parts = Parts::new(&process, queues);
    let (shutdown, hurry) = (CancellationToken::new(), CancellationToken::new());
    let ended = CancellationToken::new();
    let running = Running { process, shutdown, hurry, ended };
    let (shutdown, hurry) = (running.shutdown.clone(), running.hurry.clone());
    let ended = running.ended.clone();
    let role = role.clone();
    tokio::spawn(async move {
        let why = match role {
            Role::Api => {
                *parts.process.world.api.lock().unwrap() = Some(parts.engine.clone());
                std::future::pending().await
            }
            Role::Worker(queues) => {
                let worker = parts.worker(&queues);
                worker.run(shutdown, hurry).await.err().map(|error| error.to_string())
            }
            Role::Scheduler => {
                parts.scheduler().run(shutdown).await;
                None
            }
            Role::Whole => embedded(&parts, shutdown, hurry).await,
        };
        parts.process.pass().await;
        let why = why.unwrap_or_else(|| "as it was told".to_owned());
        parts.process.world.trace.say(&parts.process.name, format_args!("ends: {why}"));
        ended.cancel();
    });
    running
}

/// Does what the embedded mode does at its start, then works. Gives why it could not begin.
async fn embedded(
    parts: &Parts,
    shutdown: CancellationToken,
    hurry: CancellationToken,
) -> Option<String> {
    let begun: Result<(), EngineError> = async {
        end_all_claims(&parts.engine).await?;
        forget_schedulers(&parts.engine).await?;
        publish_ready(&parts.engine).await?;
        Ok(())
    }
    .await;
    if let Err(error) = begun {
        return Some(error.to_string());
    }
    *parts.process.world.api.lock().unwrap() = Some(parts.engine.clone());
    let worker = parts.worker(&["default"]).following_queues();
    let work = async {
        let worked = worker.run(shutdown.clone(), hurry).await;
        shutdown.cancel(); // one of the two alone is no installation
        worked
    };
    let (worked, ()) = tokio::join!(work, parts.scheduler().run(shutdown.clone()));
    worked.err().map(|error| error.to_string())
}

/// Keeps one process of a role running until the world is over, and lets befall it what does.
pub async fn supervise(world: Arc<World>, role: Role, name: &'static str) {
    for generation in 1.. {
        let running = start(&world, &role, format!("{name}.{generation}"));
        while !running.ended.is_cancelled() && !running.process.is_down() {
            let wait = world.span(1_000, 30_000);
            tokio::select! {
                biased;
                () = running.ended.cancelled() => {}
                () = running.process.down() => {}
                () = world.over.cancelled() => {
                    running.process.kill();
                    return;
                }
                () = pause(wait) => befall(&world, &role, &running).await,
            }
        }
        running.process.kill(); // what of it still runs has ended with it
        if role == Role::Api || role == Role::Whole {
            *world.api.lock().unwrap() = None;
        }
        let rest = world.span(10, 10_000);
        tokio::select! {
            biased;
            () = world.calm.cancelled() => pause(Duration::from_millis(10)).await,
            () = pause(rest) => {}
        }
    }
}

async fn befall(world: &World, role: &Role, running: &Running) {
    let kinds = [Fault::Killed, Fault::Stopped, Fault::Suspended, Fault::ShutDown, Fault::CutOff];
    let kinds = world.faults.of(&kinds);
    if kinds.is_empty() || world.faults.is_calm() {
        return;
    }
    let fault = *world.random.lock().unwrap().pick(&kinds);
    let process = &running.process;
    match fault {
        Fault::Killed => process.kill(),
        Fault::Stopped | Fault::Suspended => {
            process.freeze(fault == Fault::Suspended);
            world.trace.say(&process.name, format_args!("{fault:?}"));
            let span = world.span(100, 60_000);
            tokio::select! {
                biased;
                () = world.calm.cancelled() => {}
                () = pause(span) => {}
            }
            if !world.faults.is_calm() && world.chance(150) {
                process.kill();
            } else {
                world.trace.say(&process.name, format_args!("goes on"));
                process.thaw();
            }
        }
        Fault::ShutDown => {
            if *role == Role::Api {
                return; // ends without a word, like one that is killed
            }
            running.shutdown.cancel();
            if world.chance(300) {
                running.hurry.cancel();
            }
            world.trace.say(&process.name, format_args!("{fault:?}"));
            tokio::select! {
                biased;
                () = running.ended.cancelled() => {}
                () = pause(SHUTDOWN_MAX) => process.kill(),
            }
        }
        Fault::CutOff => process.cut_off(world.trace.elapsed() + world.span(100, 40_000)),
        other => panic!("{other:?} befalls no process"),
    }
    world.trace.count(&fault.name());
    world.trace.say(&process.name, format_args!("{fault:?} done"));
}

/// Lets befall the store, the broker and the clock what does, until the calm.
pub async fn weather(world: Arc<World>) {
    let kinds = world.faults.of(&[
        Fault::StoreDown,
        Fault::LongOutage,
        Fault::ReadOnly,
        Fault::BrokerDown,
        Fault::Purged,
        Fault::ClockForward,
        Fault::ClockBack,
    ]);
    while !kinds.is_empty() {
        let wait = world.span(1_000, 30_000);
        pause(wait).await;
        if world.faults.is_calm() {
            return;
        }
        let fault = *world.random.lock().unwrap().pick(&kinds);
        let now = world.trace.elapsed();
        let until = now + world.span(200, 15_000);
        match fault {
            Fault::Purged => {
                let queues = world.queues.lock().unwrap().clone();
                for name in ["default", "b"] {
                    let taken = purge(&queues, &Queue::new(name).unwrap()).await;
                    world.trace.say("world", format_args!("purged {name} of {taken}"));
                }
            }
            Fault::ClockForward => {
                let most = if world.chance(200) { 3_600_000 } else { 60_000 };
                let millis = world.between(1, most);
                world.faults.jump(now, i64::try_from(millis).unwrap());
            }
            Fault::ClockBack => {
                let millis = world.between(1, 60_000);
                world.faults.jump(now, -i64::try_from(millis).unwrap());
            }
            Fault::LongOutage => {
                let claim = world.claim_length.0;
                let until = now + world.span(claim * 5 / 4, claim * 3);
                world.faults.lasts(fault, now, until);
            }
            lasting => world.faults.lasts(lasting, now, until),
        }
        world.trace.count(&fault.name());
        world.trace.say("world", format_args!("{fault:?}"));
    }
}
