//! Reads the records that views are made of, many tasks in few calls of the store.

use std::collections::BTreeMap;

use standfast_domain::commit::Scope;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::record::{
    Claim, Definition, Gate, Header, Key, LIST_CHUNK, Meta, Part, Phase, Record, StepState,
};
use standfast_domain::time::Time;
use standfast_engine::ports::{BATCH_MAX, Load, StoreError};
use standfast_engine::{Engine, EngineError};
use standfast_protocol::steps::{StepState as Word, WaitingFor};

use crate::Api;
use crate::present;
use crate::problems::Fail;

/// Records of one task, by key; those that do not exist are left out.
pub(crate) type Records = BTreeMap<Key, Record>;

/// What every view of a task needs.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub task: TaskId,
    pub header: Header,
    pub gate: Gate,
    /// What was submitted, with the owner of now.
    pub meta: Meta,
}

/// A step that is neither settled nor still waiting for others.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// Its place in the plan, from 1.
    pub number: u64,
    pub step: StepId,
    pub state: StepState,
    pub claim: Option<Claim>,
    pub part: Part,
}

/// A task and all its steps that are at work or held.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    pub base: Base,
    pub now: Time,
    /// In plan order.
    pub live: Vec<Live>,
    /// The step that made the task fail.
    pub cause: Option<(StepId, StepState)>,
    /// What its next ready step waits for, once that was looked for.
    pub waiting_for: Option<WaitingFor>,
    /// Names that were walked.
    walked: u64,
}

/// Reads records of several tasks. The records of one task are read at one moment if they are
/// at most [`BATCH_MAX`].
pub(crate) async fn records(
    engine: &Engine,
    wants: &[(TaskId, Vec<Key>)],
) -> Result<Vec<Records>, EngineError> {
    let mut found: Vec<Records> = wants.iter().map(|_| Records::new()).collect();
    let mut calls: Vec<Vec<(usize, &[Key])>> = vec![Vec::new()];
    let mut room = BATCH_MAX;
    for (at, (_, keys)) in wants.iter().enumerate() {
        for part in keys.chunks(BATCH_MAX) {
            if part.len() > room {
                calls.push(Vec::new());
                room = BATCH_MAX;
            }
            room -= part.len();
            calls.last_mut().expect("never empty").push((at, part));
        }
    }
    for call in calls.iter().filter(|call| !call.is_empty()) {
        let loads: Vec<Load> = call
            .iter()
            .map(|(at, keys)| Load {
                scope: Scope::Task(wants[*at].0.clone()),
                fields: keys.iter().map(Key::field).collect(),
            })
            .collect();
        let (_, answers) = engine.store().load(&loads).await?;
        for ((at, keys), stored) in call.iter().zip(answers) {
            for (key, stored) in keys.iter().zip(stored) {
                let Some(stored) = stored else { continue };
                let record = Record::decode(key, &stored.bytes)
                    .map_err(|error| StoreError::Corrupt(error.to_string()))?;
                found[*at].insert(key.clone(), record);
            }
        }
    }
    Ok(found)
}

/// Reads records of one task.
pub(crate) async fn of_task(
    engine: &Engine,
    task: &TaskId,
    keys: Vec<Key>,
) -> Result<Records, EngineError> {
    let mut found = records(engine, &[(task.clone(), keys)]).await?;
    Ok(found.pop().unwrap_or_default())
}

/// Takes the base of a task out of its records, if it exists.
pub(crate) fn base(task: TaskId, records: &mut Records) -> Option<Base> {
    let Some(Record::Header(header)) = records.remove(&Key::Header) else { return None };
    let Some(Record::Meta(mut meta)) = records.remove(&Key::Meta) else { return None };
    if let Some(Record::Owner(now)) = records.remove(&Key::Owner) {
        meta.owner = now.owner;
    }
    let gate = match records.remove(&Key::Gate) {
        Some(Record::Gate(gate)) => gate,
        _ => Gate::default(),
    };
    Some(Base { task, header, gate, meta: *meta })
}

/// The records that make a [`Base`].
pub(crate) const BASE_KEYS: [Key; 4] = [Key::Header, Key::Gate, Key::Meta, Key::Owner];

/// Reads a task, whoever asks: whether the caller may see it is for [`crate::auth::On`].
pub(crate) async fn find(api: &Api, task: &TaskId) -> Result<Option<Base>, EngineError> {
    let mut found = of_task(api.engine(), task, BASE_KEYS.to_vec()).await?;
    Ok(base(task.clone(), &mut found))
}

/// Reads the definition of a step of a task; a step that the plan lacks is not found.
pub(crate) async fn definition(
    engine: &Engine,
    task: &TaskId,
    step: &StepId,
) -> Result<Definition, Fail> {
    let key = Key::Definition(step.clone());
    match of_task(engine, task, vec![key.clone()]).await?.remove(&key) {
        Some(Record::Definition(definition)) => Ok(*definition),
        _ => Err(Fail::not_found(format!("failed to find step `{step}` in task {task}"))),
    }
}

impl Survey {
    /// Counts the steps that the header says are at work or held.
    fn expected(&self) -> usize {
        let header = &self.base.header;
        match header.phase {
            Phase::Ended { .. } => 0,
            Phase::Main | Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } => {
                (header.active + header.waiting + header.blocked) as usize
            }
        }
    }

    /// Takes in the next names with their records.
    fn take(&mut self, names: &[StepId], records: &mut Records) {
        for step in names {
            self.walked += 1;
            let key = Key::Step(step.clone());
            let Some(Record::Step(state)) = records.remove(&key) else { continue };
            let claim = match records.remove(&Key::Claim(step.clone())) {
                Some(Record::Claim(claim)) => Some(claim),
                _ => None,
            };
            if present::step::is_live(&state) {
                let part = self.base.meta.part(step);
                let (number, step) = (self.walked, step.clone());
                self.live.push(Live { number, step, state, claim, part });
            }
        }
    }
}

/// Says how many step records a survey of the task may have to read.
pub(crate) fn survey_cost(base: &Base) -> usize {
    let header = &base.header;
    let none = header.active + header.waiting + header.blocked == 0;
    match header.phase {
        Phase::Ended { .. } => 0,
        _ if none => 0,
        Phase::Main | Phase::Closing { .. } | Phase::Undoing { .. } | Phase::Finally { .. } => {
            (header.steps + header.undos) as usize + base.meta.finally.len()
        }
    }
}

/// Finds the steps at work or held of several tasks, chunk by chunk of their step names, until
/// as many are found as the headers say.
pub(crate) async fn survey(engine: &Engine, bases: Vec<Base>) -> Result<Vec<Survey>, EngineError> {
    let now = engine.now().await?;
    let start =
        |base| Survey { base, now, live: Vec::new(), cause: None, waiting_for: None, walked: 0 };
    let mut surveys: Vec<Survey> = bases.into_iter().map(start).collect();
    let mut chunk = 0;
    loop {
        let wanting: Vec<usize> = (0..surveys.len())
            .filter(|at| {
                let survey = &surveys[*at];
                chunk < survey.base.header.order_chunks && survey.live.len() < survey.expected()
            })
            .collect();
        if wanting.is_empty() {
            break;
        }
        walk(engine, &mut surveys, &wanting, chunk).await?;
        chunk += 1;
    }
    find_causes(engine, &mut surveys).await?;
    Ok(surveys)
}

async fn walk(
    engine: &Engine,
    surveys: &mut [Survey],
    wanting: &[usize],
    chunk: u32,
) -> Result<(), EngineError> {
    let task = |at: &usize| surveys[*at].base.task.clone();
    let orders: Vec<_> = wanting.iter().map(|at| (task(at), vec![Key::Order(chunk)])).collect();
    let names: Vec<Vec<StepId>> = records(engine, &orders)
        .await?
        .into_iter()
        .map(|mut found| match found.remove(&Key::Order(chunk)) {
            Some(Record::Names(names)) => names,
            _ => Vec::new(),
        })
        .collect();
    let wants: Vec<(TaskId, Vec<Key>)> = wanting
        .iter()
        .zip(&names)
        .map(|(at, names)| {
            let each = names.iter();
            let mut keys = vec![Key::Header, Key::Gate];
            keys.extend(each.flat_map(|step| [Key::Step(step.clone()), Key::Claim(step.clone())]));
            (task(at), keys)
        })
        .collect();
    let found = records(engine, &wants).await?;
    for ((at, names), mut records) in wanting.iter().zip(&names).zip(found) {
        let survey = &mut surveys[*at];
        // A small task's header, read together with its steps, agrees with them.
        if names.len() * 2 + 2 <= BATCH_MAX
            && let Some(Record::Header(header)) = records.remove(&Key::Header)
        {
            survey.base.header = header;
            if let Some(Record::Gate(gate)) = records.remove(&Key::Gate) {
                survey.base.gate = gate;
            }
        }
        survey.take(names, &mut records);
    }
    Ok(())
}

/// Reads the steps that made tasks fail.
async fn find_causes(engine: &Engine, surveys: &mut [Survey]) -> Result<(), EngineError> {
    let failed: Vec<(usize, StepId)> = surveys
        .iter()
        .enumerate()
        .filter_map(|(at, survey)| {
            let reason = survey.base.header.failure.as_deref()?;
            Some((at, present::task::failing_step(reason)?))
        })
        .collect();
    let wants: Vec<(TaskId, Vec<Key>)> = failed
        .iter()
        .map(|(at, step)| (surveys[*at].base.task.clone(), vec![Key::Step(step.clone())]))
        .collect();
    for ((at, step), records) in failed.into_iter().zip(records(engine, &wants).await?) {
        if let Some(Record::Step(state)) = records.into_values().next() {
            surveys[at].cause = Some((step, state));
        }
    }
    Ok(())
}

/// Surveys one task.
pub(crate) async fn survey_one(engine: &Engine, base: Base) -> Result<Survey, Fail> {
    let mut surveys = survey(engine, vec![base]).await?;
    surveys.pop().ok_or_else(|| Fail::internal(&"a survey of one task gave none"))
}

/// Finds what tasks wait for that have ready steps and none that runs: one definition a task,
/// and what workers have announced.
pub(crate) async fn find_waits(api: &Api, surveys: &mut [Survey]) -> Result<(), EngineError> {
    let mut waiting: Vec<(usize, StepState, TaskId, StepId)> = Vec::new();
    for (at, survey) in surveys.iter().enumerate() {
        let runs = survey.live.iter().any(|live| live.claim.is_some());
        if runs || !survey.base.gate.holds.is_empty() {
            continue;
        }
        let phase = &survey.base.header.phase;
        let word = |live: &&Live| present::step::state(phase, live.part, &live.state, false);
        if let Some(live) = survey.live.iter().find(|live| word(live) == Word::Ready) {
            let task = survey.base.task.clone();
            waiting.push((at, live.state.clone(), task, live.step.clone()));
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let workers = api.workers().await?;
    let wants: Vec<(TaskId, Vec<Key>)> = waiting
        .iter()
        .map(|(_, _, task, step)| (task.clone(), vec![Key::Definition(step.clone())]))
        .collect();
    let found = records(api.engine(), &wants).await?;
    for ((at, state, _, _), records) in waiting.into_iter().zip(found) {
        if let Some(Record::Definition(definition)) = records.into_values().next() {
            surveys[at].waiting_for = crate::steps::waiting_for(&definition, &state, &workers);
        }
    }
    Ok(())
}

/// Reads all names a step needs.
pub(crate) async fn needs(
    engine: &Engine,
    task: &TaskId,
    step: &StepId,
    count: u32,
) -> Result<Vec<StepId>, EngineError> {
    let chunks = count.div_ceil(LIST_CHUNK as u32);
    let keys: Vec<Key> = (0..chunks).map(|chunk| Key::Needs(step.clone(), chunk)).collect();
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let mut found = of_task(engine, task, keys.clone()).await?;
    let mut names = Vec::new();
    for key in &keys {
        if let Some(Record::Names(part)) = found.remove(key) {
            names.extend(part);
        }
    }
    Ok(names)
}

#[cfg(test)]
impl Survey {
    /// Makes a survey for tests of what is shown.
    pub fn of(base: Base, live: Vec<Live>) -> Self {
        Self { base, now: Time(0), live, cause: None, waiting_for: None, walked: 0 }
    }
}
