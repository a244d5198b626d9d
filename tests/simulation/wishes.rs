//! What clients ask of a running task: to stop it in all ways, to stop one attempt, to pause it and
//! let it go on.

use standfast_domain::decide::Command;
use standfast_domain::ids::{Principal, StepId, TaskId};
use standfast_domain::record::{Key, Record, StopMode};
use standfast_domain::refusal::Refusal;
use standfast_engine::stopping::{ByPlan, Planned, StoppedBy};
use standfast_engine::{Engine, EngineError};

use crate::people::{ask, tell, word};
use crate::plans::Wish;
use crate::trace::pause;
use crate::world::{Told, World};

/// How often a client looks again at a task that moves, before it stops it as it is.
const LOOKS_MAX: u32 = 5;

/// Asks for something that a client may want of a running task, and remembers what it was told.
pub async fn ask_for(world: &World, key: &str, task: &TaskId, wish: Wish) {
    let why = Some("as it was drawn".to_owned());
    match wish {
        Wish::Stop(mode) => stop(world, key, task, mode).await,
        Wish::StopAsShown(mode) => stop_as_shown(world, key, task, mode).await,
        Wish::StopAttempt => stop_attempt(world, key, task).await,
        Wish::Pause => simply(world, task, wish, Command::Pause { reason: why }).await,
        Wish::Resume => simply(world, task, wish, Command::Resume { reason: why }).await,
    }
}

fn remember(world: &World, key: &str, change: impl FnOnce(&mut Told)) {
    change(&mut world.told.lock().unwrap().get_mut(key).unwrap().1);
}

async fn simply(world: &World, task: &TaskId, wish: Wish, command: Command) {
    let answer = ask(world, |api| tell(api, task.clone(), command.clone())).await;
    world.trace.say("client", format_args!("{wish:?} {task}: {}", word(&answer)));
    if answer.is_ok() {
        world.trace.count(&format!("{wish:?} acknowledged"));
    }
}

async fn stop(world: &World, key: &str, task: &TaskId, mode: StopMode) {
    remember(world, key, |told| told.asked_stop = true);
    let command = Command::Stop { reason: Some("as it was drawn".to_owned()), mode };
    let answer = ask(world, |api| tell(api, task.clone(), command.clone())).await;
    let text = format_args!("stop with {} {task}: {}", mode.as_str(), word(&answer));
    let moment = world.trace.say("client", text);
    if answer.is_ok() {
        world.trace.count("stop acknowledged");
        remember(world, key, |told| told.stopped = told.stopped.or(Some(moment)));
    }
}

/// Looks at what a stop would do, thinks about it, and asks for exactly that; looks again if it
/// has become something else. Names the digest in full or by its first digits.
async fn stop_as_shown(world: &World, key: &str, task: &TaskId, mode: StopMode) {
    for _ in 0..LOOKS_MAX {
        let look = |api: Engine| async move { api.stop_plans(task, &[mode]).await };
        let shown = match ask(world, look).await {
            Ok(mut plans) => plans.pop(),
            Err(refusal) => {
                let text = format_args!("finds nothing to stop of {task}: {refusal}");
                world.trace.say("client", text);
                return;
            }
        };
        let digest = shown.as_ref().and_then(Planned::digest).map(str::to_owned);
        let Some(mut digest) = digest else {
            world.trace.count("a task moved faster than it was read");
            continue;
        };
        world.trace.say("client", format_args!("is shown {digest} of {task}"));
        if world.chance(500) {
            digest.truncate(12);
        }
        let thinks = world.span(0, 1_500);
        pause(thinks).await;
        remember(world, key, |told| told.asked_stop = true);
        let by = &ByPlan { mode, reason: None, digest };
        let told = ask(world, |api: Engine| async move {
            api.stop_by_plan(task, by, &Principal::local(), &[]).await
        });
        match told.await {
            Ok(StoppedBy::Stopped(_)) => {
                let moment = world.trace.say("client", format_args!("stopped {task} as shown"));
                world.trace.count("stop acknowledged");
                return remember(world, key, |told| told.stopped = told.stopped.or(Some(moment)));
            }
            Ok(StoppedBy::Moved(_)) => {
                world.trace.say("client", format_args!("{task} is not as shown any more"));
                world.trace.count("stop refused, the plan has moved");
            }
            Err(refusal) => {
                world.trace.say("client", format_args!("{task} as shown: {refusal}"));
                return;
            }
        }
    }
    stop(world, key, task, mode).await;
}

/// Stops one of the attempts that run, if any does.
async fn stop_attempt(world: &World, key: &str, task: &TaskId) {
    let Ok(running) = ask(world, |api| running(api, task.clone())).await else { return };
    if running.is_empty() {
        world.trace.say("client", format_args!("finds no attempt of {task} to stop"));
        return;
    }
    let (step, attempt) = world.random.lock().unwrap().pick(&running).clone();
    let wanted = (step.clone(), attempt);
    remember(world, key, |told| told.stopped_attempts.extend([wanted]));
    let reason = Some("as it was drawn".to_owned());
    let command = Command::StopAttempt { step: step.clone(), attempt, reason };
    let answer: Result<_, Refusal> =
        ask(world, |api| tell(api, task.clone(), command.clone())).await;
    let text = format_args!("stop attempt {attempt} of {task}/{step}: {}", word(&answer));
    world.trace.say("client", text);
    if answer.is_ok() {
        world.trace.count("attempt stop acknowledged");
    }
}

/// Lists the attempts of a task that run.
async fn running(api: Engine, task: TaskId) -> Result<Vec<(StepId, u32)>, EngineError> {
    let mut records = api.read(&task, &[Key::Header]).await?;
    let Some(Some(Record::Header(header))) = records.remove(&Key::Header) else {
        return Ok(Vec::new());
    };
    let mut running = Vec::new();
    for chunk in 0..header.order_chunks {
        let order = Key::Order(chunk);
        let names = match api.read(&task, std::slice::from_ref(&order)).await?.remove(&order) {
            Some(Some(Record::Names(names))) => names,
            _ => Vec::new(),
        };
        let claims: Vec<Key> = names.into_iter().map(Key::Claim).collect();
        for (key, record) in api.read(&task, &claims).await? {
            if let (Key::Claim(step), Some(Record::Claim(claim))) = (key, record) {
                running.push((step, claim.attempt));
            }
        }
    }
    running.sort();
    Ok(running)
}
