//! Checks a task's log against its hashes and its records: folding the one gives the other.

use standfast_domain::canonical::digest_hex;
use standfast_domain::commit::Scope;
use standfast_domain::digest::RecordsDigest;
use standfast_domain::event::{Change, FIRST_HASH, decode_event, verify_event};
use standfast_domain::evolve::evolve;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::record::{DecodeError, Header, Key, LIST_CHUNK, Record};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::view::View;

use crate::ports::BATCH_MAX;
use crate::{Engine, EngineError};

/// Definitions that are read at a time: what comes with each is read behind them.
const DEFINITIONS_AT_A_TIME: usize = 100;

/// What a check came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Events that were checked and found whole.
    pub events: u64,
    /// The first fault, naming the event or record.
    pub fault: Option<String>,
    /// The number of the event that the fault is about, from 1; none for a record.
    pub sequence: Option<u64>,
}

/// Checks a task. One that changes meanwhile is checked once more.
pub async fn verify(engine: &Engine, task: &TaskId) -> Result<Verified, EngineError> {
    loop {
        let before = header(engine, task).await?.next_event;
        let verified = check(engine, task).await?;
        if verified.fault.is_none() || header(engine, task).await?.next_event == before {
            return Ok(verified);
        }
    }
}

async fn header(engine: &Engine, task: &TaskId) -> Result<Header, EngineError> {
    match engine.read(task, &[Key::Header]).await?.remove(&Key::Header) {
        Some(Some(Record::Header(header))) => Ok(header),
        _ => Err(Refusal::NoTask(task.clone()).into()),
    }
}

async fn check(engine: &Engine, task: &TaskId) -> Result<Verified, EngineError> {
    let stored = header(engine, task).await?;
    let mut view = View::new(task.clone());
    let mut hash = FIRST_HASH.to_owned();
    let mut number = 0;
    while number < stored.next_event {
        let page = engine.store().events(&Scope::Task(task.clone()), number, BATCH_MAX).await?;
        if page.is_empty() {
            return Ok(faulty(number, "it is missing".to_owned()));
        }
        for bytes in page.iter().take((stored.next_event - number) as usize) {
            hash = match verify_event(number, bytes, &hash) {
                Ok(hash) => hash,
                Err(error) => return Ok(faulty(number, reason(error))),
            };
            if let Some(fault) = fold(engine, &mut view, number, bytes).await? {
                return Ok(faulty(number, fault));
            }
            number += 1;
        }
    }
    if hash != stored.hash {
        let fault = "it is not the one that the header names".to_owned();
        return Ok(Verified { events: number, fault: Some(fault), sequence: Some(number) });
    }
    let fault = compare(engine, &view, &stored).await?;
    Ok(Verified { events: number, fault, sequence: None })
}

/// Reports a fault of the event with this number from 0, as people count: from 1.
fn faulty(number: u64, fault: String) -> Verified {
    Verified { events: number, fault: Some(fault), sequence: Some(number + 1) }
}

/// Gives what is wrong with an event, without the place, which is told beside it.
fn reason(error: DecodeError) -> String {
    match error {
        DecodeError::Malformed { reason, .. } => reason,
        newer @ DecodeError::Newer { .. } => newer.to_string(),
    }
}

/// Folds one event; gives a fault if it cannot follow from those before it.
async fn fold(
    engine: &Engine,
    view: &mut View,
    number: u64,
    bytes: &[u8],
) -> Result<Option<String>, EngineError> {
    let event = match decode_event(number, bytes) {
        Ok(stored) => stored.event,
        Err(error) => return Ok(Some(reason(error))),
    };
    if let Some(fault) = wrong_digest(engine, view.task(), &event.change).await? {
        return Ok(Some(fault.to_string()));
    }
    loop {
        let savepoint = view.savepoint();
        match evolve(view, &event) {
            Ok(()) => {
                view.todo.clear();
                return Ok(None);
            }
            Err(Halt::Need(keys)) => {
                view.rollback(savepoint);
                load_immutable(engine, view, keys).await?;
            }
            Err(Halt::Refuse(refusal)) => {
                return Ok(Some(format!("it does not follow: {refusal}")));
            }
        }
    }
}

/// Loads immutable records as they are; what changes starts out absent and comes from the log.
async fn load_immutable(
    engine: &Engine,
    view: &mut View,
    keys: Vec<Key>,
) -> Result<(), EngineError> {
    let (immutable, mutable): (Vec<Key>, Vec<Key>) = keys.into_iter().partition(Key::is_immutable);
    for (key, record) in engine.read(view.task(), &immutable).await? {
        view.load(key, record, None);
    }
    mutable.into_iter().for_each(|key| view.load_absent(key));
    Ok(())
}

/// Compares the digests of immutable records that an event names with the records.
async fn wrong_digest(
    engine: &Engine,
    task: &TaskId,
    change: &Change,
) -> Result<Option<String>, EngineError> {
    let (what, found, said) = match change {
        Change::StepSucceeded { step, round, output_sha256, .. } => {
            let key = Key::Output(step.clone(), *round);
            let found = payload_digest(engine, task, key).await?;
            (format!("the output of step `{step}`"), found, output_sha256)
        }
        Change::EffectLanded {
            step, name, generation, receipt_sha256, output_round: None, ..
        } => {
            let key = Key::Receipt(step.clone(), name.clone(), *generation);
            let found = payload_digest(engine, task, key).await?;
            (format!("the receipt of step `{step}`"), found, receipt_sha256)
        }
        Change::StepReady { step, round, with_sha256: Some(said), .. } => {
            let key = Key::Resolution(step.clone(), *round);
            let found = payload_digest(engine, task, key).await?;
            (format!("the resolved input of step `{step}`"), found, said)
        }
        Change::StepsAdded { by, steps, definitions_sha256 } => {
            let names: Vec<StepId> = steps.iter().map(|(step, _)| step.clone()).collect();
            let mut digest = RecordsDigest::default();
            add_definitions(engine, task, &names, &mut digest).await?;
            let names: Vec<&str> = names.iter().map(StepId::as_str).collect();
            let what = format!("a definition that `{by}` added (of {})", names.join(", "));
            (what, Some(digest.finish()), definitions_sha256)
        }
        Change::UndoAdded { step, definitions_sha256, .. } => {
            let mut digest = RecordsDigest::default();
            add_definitions(engine, task, std::slice::from_ref(step), &mut digest).await?;
            let what = format!("the definition of `{step}`");
            (what, Some(digest.finish()), definitions_sha256)
        }
        Change::TaskSubmitted { records_sha256, .. } if !records_sha256.is_empty() => {
            let found = Some(plan_digest(engine, task).await?);
            ("the plan (`meta`, or a step's definition)".to_owned(), found, records_sha256)
        }
        _ => return Ok(None),
    };
    Ok(match found {
        None => Some(format!("{what} is missing")),
        Some(found) if found != *said => Some(format!("{what} is not what was recorded")),
        Some(_) => None,
    })
}

async fn payload_digest(
    engine: &Engine,
    task: &TaskId,
    key: Key,
) -> Result<Option<String>, EngineError> {
    let record = engine.read(task, std::slice::from_ref(&key)).await?.remove(&key).flatten();
    let value = match record {
        Some(Record::Payload(payload)) => serde_json::to_value(&payload).unwrap_or_default(),
        Some(Record::Value(value)) => value,
        _ => return Ok(None),
    };
    Ok(Some(digest_hex(&value)))
}

/// Digests what was kept of a submission: the meta, then each step in plan order.
async fn plan_digest(engine: &Engine, task: &TaskId) -> Result<String, EngineError> {
    let mut digest = RecordsDigest::default();
    let read = engine.read(task, &[Key::Meta, Key::Header]).await?;
    if let Some(Some(meta)) = read.get(&Key::Meta) {
        digest.add(&Key::Meta, meta);
    }
    let chunks = match read.get(&Key::Header) {
        Some(Some(Record::Header(header))) => header.order_chunks,
        _ => 0,
    };
    for chunk in 0..chunks {
        let key = Key::Order(chunk);
        let names = engine.read(task, std::slice::from_ref(&key)).await?.remove(&key).flatten();
        let Some(Record::Names(names)) = names else { continue };
        let names = submitted(engine, task, names).await?;
        add_definitions(engine, task, &names, &mut digest).await?;
    }
    Ok(digest.finish())
}

/// Leaves out the steps that outcomes have added since, and runs of an undo.
async fn submitted(
    engine: &Engine,
    task: &TaskId,
    names: Vec<StepId>,
) -> Result<Vec<StepId>, EngineError> {
    let keys: Vec<Key> = names.iter().cloned().map(Key::Definition).collect();
    let records = engine.read(task, &keys).await?;
    let added = |step: &StepId| match records.get(&Key::Definition(step.clone())) {
        Some(Some(Record::Definition(definition))) => {
            definition.added_by.is_some() || definition.undo_of.is_some()
        }
        _ => false,
    };
    Ok(names.into_iter().filter(|step| !added(step)).collect())
}

async fn add_definitions(
    engine: &Engine,
    task: &TaskId,
    names: &[StepId],
    digest: &mut RecordsDigest,
) -> Result<(), EngineError> {
    for names in names.chunks(DEFINITIONS_AT_A_TIME) {
        let keys: Vec<Key> = names.iter().cloned().map(Key::Definition).collect();
        let definitions = engine.read(task, &keys).await?;
        let mut all = Vec::new();
        for key in keys {
            let Some(Some(Record::Definition(found))) = definitions.get(&key) else { continue };
            let step = found.plan.id.clone();
            all.push(key);
            let needs = found.needs_count.div_ceil(LIST_CHUNK as u32);
            all.extend((0..needs).map(|chunk| Key::Needs(step.clone(), chunk)));
            let lists = found.dependents_chunks;
            all.extend((0..lists).map(|chunk| Key::Dependents(step.clone(), chunk)));
        }
        let records = engine.read(task, &all).await?;
        for key in all {
            if let Some(Some(record)) = records.get(&key) {
                digest.add(&key, record);
            }
        }
    }
    Ok(())
}

/// True for records that the log gives whole.
fn is_folded(key: &Key) -> bool {
    matches!(key, Key::Header | Key::Gate | Key::Owner | Key::Step(_) | Key::Effects(_))
}

/// Compares what the log gives with what is stored, record by record.
async fn compare(
    engine: &Engine,
    view: &View,
    stored: &Header,
) -> Result<Option<String>, EngineError> {
    let folded: Vec<(Key, Option<Record>)> = view
        .changes()
        .filter(|(key, _, _)| is_folded(key))
        .map(|(key, _, now)| (key.clone(), now.cloned()))
        .collect();
    let keys: Vec<Key> = folded.iter().map(|(key, _)| key.clone()).collect();
    let mut records = engine.read(view.task(), &keys).await?;
    for (key, expected) in folded {
        let found = records.remove(&key).flatten();
        let expected = match expected {
            Some(Record::Header(header)) => Some(Record::Header(Header {
                next_event: stored.next_event,
                hash: stored.hash.clone(),
                ..header
            })),
            other => other,
        };
        if found != expected {
            return Ok(Some(format!("record `{}` is not what the log gives", key.field())));
        }
    }
    Ok(None)
}
