//! Those who use an installation: clients that submit and stop, and a person who answers holds.
//! They know what they were told, and ask again for as long as they were told nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use standfast_domain::decide::{Command, Submission};
use standfast_domain::hold::Answer;
use standfast_domain::ids::{Principal, StepId, TaskId};
use standfast_domain::record::{Header, Key, Record, Status, StopMode};
use standfast_domain::refusal::Refusal;
use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
use standfast_engine::{Done, Engine, EngineError};
use tokio::time::timeout;

use crate::plans::Drawn;
use crate::process::Process;
use crate::site::handlers;
use crate::trace::pause;
use crate::world::{Told, World};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long after the calm the person answers anything, before only what leads to an end.
const EXPERIMENTS: Duration = Duration::from_secs(60);

/// Asks the api until it answers, whether yes or no.
async fn ask<T, F: Future<Output = Result<T, EngineError>> + Send>(
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
    let Some(stop) = drawn.stop else { return };
    pause(stop).await;
    let command = Command::Stop {
        reason: Some("as it was drawn".to_owned()),
        mode: StopMode::ALL[usize::try_from(stop.as_millis() % 3).expect("below three")],
    };
    let answer = ask(&world, |api| tell(api, task.clone(), command.clone())).await;
    let moment = world.trace.say("client", format_args!("stop of {task}: {}", word(&answer)));
    if answer.is_ok() {
        world.trace.count("stop acknowledged");
        world.told.lock().unwrap().get_mut(&drawn.key).unwrap().1.stopped = Some(moment);
    }
}

async fn tell(api: Engine, task: TaskId, command: Command) -> Result<Done, EngineError> {
    api.execute(&task, command, Principal::local(), Vec::new()).await
}

fn word<T>(answer: &Result<T, Refusal>) -> String {
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
    let found = ask(world, |api| find_hold(api, task.clone())).await;
    let Ok(Some((step, answers))) = found else {
        return;
    };
    let timer = answers.first() == Some(&Answer::Skip) && answers.len() == 2;
    if timer && !world.chance(150) {
        return; // it ends by itself
    }
    let mut wanted: Vec<Answer> =
        answers.iter().copied().filter(|answer| *answer != Answer::Stop).collect();
    if ending && wanted.contains(&Answer::Skip) {
        wanted = vec![Answer::Skip];
    }
    let stop = world.chance(60);
    let answer = match stop {
        true => Answer::Stop,
        false => *world.random.lock().unwrap().pick(&wanted),
    };
    let (note, effect, receipt) = (None, None, None);
    let command = Command::Answer { step: step.clone(), answer, note, effect, receipt };
    if stop {
        // Whether it was taken cannot be known from a lost answer and a later refusal.
        world.told.lock().unwrap().get_mut(key).unwrap().1.answered_stop = true;
    }
    let told = ask(world, |api| tell(api, task.clone(), command.clone())).await;
    let of = step.map_or_else(String::new, |step| format!("/{step}"));
    world.trace.say("person", format_args!("{answer} to {task}{of}: {}", word(&told)));
}

type FoundHold = Option<(Option<StepId>, &'static [Answer])>;

/// Finds a hold as explain would show it: of the task, else of its first held step.
async fn find_hold(api: Engine, task: TaskId) -> Result<FoundHold, EngineError> {
    let mut records = api.read(&task, &[Key::Header, Key::Gate]).await?;
    let Some(Some(Record::Header(header))) = records.remove(&Key::Header) else { return Ok(None) };
    if header.state.is_final() {
        return Ok(None);
    }
    if let Some(Some(Record::Gate(gate))) = records.remove(&Key::Gate)
        && let Some(hold) = gate.holds.first()
    {
        let paused = gate.holds.iter().all(|hold| hold.reason.answers().len() == 2);
        if !paused || header.blocked == 0 {
            return Ok(Some((None, hold.reason.answers())));
        }
    }
    if header.blocked + header.waiting == 0 {
        return Ok(None);
    }
    let first = holds(&api, &task, &header).await?.pop_first();
    Ok(first.map(|(step, answers)| (Some(step), answers)))
}

async fn holds(
    api: &Engine,
    task: &TaskId,
    header: &Header,
) -> Result<BTreeMap<StepId, &'static [Answer]>, EngineError> {
    let mut found = BTreeMap::new();
    for chunk in 0..header.order_chunks {
        let key = Key::Order(chunk);
        let names = match api.read(task, std::slice::from_ref(&key)).await?.remove(&key) {
            Some(Some(Record::Names(names))) => names,
            _ => Vec::new(),
        };
        let keys: Vec<Key> = names.into_iter().map(Key::Step).collect();
        for (key, record) in api.read(task, &keys).await? {
            if let (Key::Step(step), Some(Record::Step(state))) = (key, record)
                && let Status::Held { hold } = state.status
            {
                found.insert(step, hold.reason.answers());
            }
        }
    }
    Ok(found)
}
