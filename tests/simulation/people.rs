//! Those who use an installation: clients that submit and stop, and a person who answers holds.
//! They know what they were told, and ask again for as long as they were told nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use standfast_domain::decide::{Command, Submission};
use standfast_domain::hold::{Answer, HeldEffect, Hold, HoldReason};
use standfast_domain::ids::{Principal, StepId, TaskId};
use standfast_domain::record::{Key, Payload, Record, Status, effect_key};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Time;
use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
use standfast_engine::{Done, Engine, EngineError};
use tokio::time::timeout;

use crate::plans::Drawn;
use crate::process::Process;
use crate::site::handlers;
use crate::trace::pause;
use crate::wishes;
use crate::world::{Said, Told, World};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long after the calm the person answers anything, before only what leads to an end.
const EXPERIMENTS: Duration = Duration::from_secs(60);

/// Asks the api until it answers, whether yes or no.
pub async fn ask<T, F: Future<Output = Result<T, EngineError>> + Send>(
    world: &World,
    question: impl Fn(Engine) -> F,
) -> Result<T, Refusal> {
    loop {
        let api = world.api.lock().unwrap().clone();
        if let Some(api) = api {
            match timeout(PATIENCE, question(api)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(EngineError::Refused(refusal))) => return Err(refusal),
                Ok(Err(EngineError::Store(_))) | Err(_) => {}
            }
        }
        pause(Duration::from_millis(700)).await;
    }
}

/// Submits a task, sometimes twice, and stops it if that was drawn.
pub async fn client(world: Arc<World>, drawn: Drawn) {
    pause(drawn.at).await;
    let submission = submission(&world, &drawn);
    let submit = |api: Engine| {
        let submission = submission.clone();
        async move { api.submit(submission).await }
    };
    let task = match ask(&world, submit).await {
        Ok((task, _)) => task,
        Err(refusal) => panic!("{} was refused: {refusal}", drawn.key),
    };
    world.trace.say("client", format_args!("{} acknowledged as {task}", drawn.key));
    let told = (task.clone(), Told::default());
    world.told.lock().unwrap().insert(drawn.key.clone(), told);
    if world.chance(200) {
        let again = ask(&world, submit).await;
        assert_eq!(again, Ok((task.clone(), false)), "the same key is the same task");
        world.trace.count("submission repeated");
    }
    for (after, wish) in &drawn.wishes {
        pause(*after).await;
        wishes::ask_for(&world, &drawn.key, &task, *wish).await;
    }
}

pub async fn tell(api: Engine, task: TaskId, command: Command) -> Result<Done, EngineError> {
    api.execute(&task, command, Principal::local(), Vec::new()).await
}

pub fn word<T>(answer: &Result<T, Refusal>) -> String {
    answer.as_ref().err().map_or_else(|| "taken".to_owned(), Refusal::to_string)
}

fn submission(world: &Arc<World>, drawn: &Drawn) -> Submission {
    let submitted = Submitted {
        body: drawn.plan.clone(),
        plan_dir: None,
        by: Principal::local(),
        key: Some(drawn.key.clone()),
        traceparent: None,
    };
    let nobody = Process::new(world, "plans".to_owned(), false);
    let checked = prepare(submitted, RETENTION_DEFAULT, &handlers(&nobody), &BTreeSet::new());
    checked.unwrap_or_else(|faults| panic!("{faults:?} in {}", drawn.plan))
}

/// Answers holds, one task at a time, until the world is over.
pub async fn person(world: Arc<World>) {
    let mut calm_since = None;
    while !world.over.is_cancelled() {
        let wait = world.span(1_000, 12_000);
        pause(wait).await;
        if world.faults.is_calm() && calm_since.is_none() {
            calm_since = Some(world.trace.elapsed());
        }
        let ending = calm_since.is_some_and(|at| world.trace.elapsed() > at + EXPERIMENTS);
        let tasks: Vec<(String, TaskId)> = {
            let told = world.told.lock().unwrap();
            told.iter().map(|(key, (task, _))| (key.clone(), task.clone())).collect()
        };
        for (key, task) in tasks {
            answer_one(&world, &key, &task, ending).await;
        }
    }
}

async fn answer_one(world: &World, key: &str, task: &TaskId, ending: bool) {
    let found = ask(world, |api| find_holds(api, task.clone())).await;
    let Ok(mut found) = found else { return };
    if found.is_empty() {
        return;
    }
    let place = world.random.lock().unwrap().below(found.len() as u64);
    let Found { step, hold, ended } = found.swap_remove(usize::try_from(place).unwrap());
    let timer = hold.reason == HoldReason::Timer;
    if (timer && !world.chance(150)) || (ended && !world.chance(100)) {
        return; // it ends by itself, or is nobody's hurry
    }
    let answers = hold.reason.answers();
    let stop = !ended && answers.contains(&Answer::Stop) && world.chance(60);
    match (&hold.effect, &step) {
        (Some(effect), Some(step)) if !stop && hold.reason != HoldReason::UndoFailed => {
            let place = Place { task, step, hold: &hold, effect, ended };
            return settle(world, &place).await;
        }
        _ => {}
    }
    let mut wanted: Vec<Answer> =
        answers.iter().copied().filter(|answer| *answer != Answer::Stop).collect();
    if ending && wanted.contains(&Answer::Skip) {
        wanted = vec![Answer::Skip];
    }
    let answer = match stop {
        true => Answer::Stop,
        false => *world.random.lock().unwrap().pick(&wanted),
    };
    let (note, effect, receipt) = (None, None, None);
    let command = Command::Answer { step: step.clone(), answer, note, effect, receipt };
    if stop {
        // Whether it was taken cannot be known from a lost answer and a later refusal.
        world.told.lock().unwrap().get_mut(key).unwrap().1.asked_stop = true;
    }
    let told = ask(world, |api| tell(api, task.clone(), command.clone())).await;
    let of = step.map_or_else(String::new, |step| format!("/{step}"));
    world.trace.say("person", format_args!("{answer} to {task}{of}: {}", word(&told)));
}

/// An effect that needs a person.
struct Place<'a> {
    task: &'a TaskId,
    step: &'a StepId,
    hold: &'a Hold,
    effect: &'a HeldEffect,
    /// True if its task has ended, so that nothing waits for the answer.
    ended: bool,
}

/// Answers what needs a person about an effect: of an uncertain one what the outside's ledger
/// says at that very moment, of a changed one whatever the person likes.
async fn settle(world: &World, place: &Place<'_>) {
    let Place { task, step, hold, effect, ended } = *place;
    let also = world.chance(500);
    let told = ask(world, |api| {
        let truth = world.ledger.look(&effect.key);
        let answer = match (hold.reason, &truth) {
            (HoldReason::EffectChanged, _) if also => Answer::SendAlso,
            (HoldReason::EffectChanged, _) => Answer::Keep,
            (_, Some(_)) => Answer::Happened,
            (_, None) => Answer::NotHappened,
        };
        let text = format_args!("looks for {}, finds {truth:?}, says {answer}", effect.key);
        let looked = world.trace.say("person", text);
        let said = Said { task: task.clone(), step: step.clone(), answer, looked };
        world.said.lock().unwrap().push(said);
        let receipt = truth.filter(|_| answer == Answer::Happened).map(Payload::Inline);
        let (step, note, name) = (Some(step.clone()), None, Some(effect.name.clone()));
        let command = Command::Answer { step, answer, note, effect: name, receipt };
        tell(api, task.clone(), command)
    })
    .await;
    if told.is_ok() && ended {
        world.trace.count("truth told after the end");
    }
    if told.as_ref().is_err_and(|refusal| refusal.to_string().contains("still be under way")) {
        world.trace.count("truth told too early");
    }
    world.trace.say("person", format_args!("about {}: {}", effect.key, word(&told)));
}

/// What needs a person, or may be settled by one.
struct Found {
    step: Option<StepId>,
    hold: Hold,
    ended: bool,
}

/// Finds a hold of the task, else those of its steps. In a task that has ended, finds effects
/// whose truth nobody knows.
async fn find_holds(api: Engine, task: TaskId) -> Result<Vec<Found>, EngineError> {
    let mut records = api.read(&task, &[Key::Header, Key::Gate]).await?;
    let Some(Some(Record::Header(header))) = records.remove(&Key::Header) else {
        return Ok(Vec::new());
    };
    let ended = header.state.is_final();
    if !ended
        && let Some(Some(Record::Gate(gate))) = records.remove(&Key::Gate)
        && let Some(hold) = gate.holds.first()
    {
        let paused = gate.holds.iter().all(|hold| hold.reason.answers().len() == 2);
        if !paused || header.blocked == 0 {
            return Ok(vec![Found { step: None, hold: hold.clone(), ended }]);
        }
    }
    let wanted = if ended { header.effects_owed } else { header.blocked + header.waiting };
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let key = |step| if ended { Key::Effects(step) } else { Key::Step(step) };
    let mut found = Vec::new();
    for chunk in 0..header.order_chunks {
        let order = Key::Order(chunk);
        let names = match api.read(&task, std::slice::from_ref(&order)).await?.remove(&order) {
            Some(Some(Record::Names(names))) => names,
            _ => Vec::new(),
        };
        let keys: Vec<Key> = names.into_iter().map(key).collect();
        let records = api.read(&task, &keys).await?;
        let holds = records.into_iter().filter_map(|(key, record)| held(&task, key, record?));
        found.extend(holds.map(|(step, hold)| Found { step: Some(step), hold, ended }));
    }
    Ok(found)
}

/// Gives the hold that a step's record has, or that a person could make of an open effect.
fn held(task: &TaskId, key: Key, record: Record) -> Option<(StepId, Hold)> {
    match (key, record) {
        (Key::Step(step), Record::Step(state)) => match state.status {
            Status::Held { hold } => Some((step, *hold)),
            _ => None,
        },
        (Key::Effects(step), Record::Effects(effects)) => {
            let (name, effect) = effects.into_iter().find(|(_, effect)| effect.is_owed())?;
            let key = effect_key(task, &step, &name, effect.generation);
            let effect = Some(HeldEffect { name, key, request_sha256: None });
            let hold = Hold::new(HoldReason::UncertainEffect, "", Time(0));
            Some((step, Hold { effect, ..hold }))
        }
        _ => None,
    }
}
