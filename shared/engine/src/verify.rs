//! Checks a task's log against its hashes and its records: folding the one gives the other.

use standfast_domain::commit::Scope;
use standfast_domain::event::{Change, FIRST_HASH, decode_event, verify_event};
use standfast_domain::evolve::evolve;
use standfast_domain::ids::TaskId;
use standfast_domain::record::{DecodeError, Header, Key, Record};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::view::View;

use crate::ports::BATCH_MAX;
use crate::{Engine, EngineError};

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

/// Compares the digest of an output or receipt that an event names with the record.
async fn wrong_digest(
    engine: &Engine,
    task: &TaskId,
    change: &Change,
) -> Result<Option<String>, EngineError> {
    let (step, key, sha256, what) = match change {
        Change::StepSucceeded { step, round, output_sha256, .. } => {
            (step, Key::Output(step.clone(), *round), output_sha256, "output")
        }
        Change::EffectLanded {
            step, name, generation, receipt_sha256, output_round: None, ..
        } => {
            let key = Key::Receipt(step.clone(), name.clone(), *generation);
            (step, key, receipt_sha256, "receipt")
        }
        _ => return Ok(None),
    };
    let record = engine.read(task, std::slice::from_ref(&key)).await?.remove(&key).flatten();
    let Some(Record::Payload(payload)) = record else {
        return Ok(Some(format!("the {what} of step `{step}` is missing")));
    };
    let value = serde_json::to_value(&payload).unwrap_or_default();
    let same = standfast_domain::canonical::digest_hex(&value) == *sha256;
    Ok((!same).then(|| format!("the {what} of step `{step}` is not the one that was recorded")))
}

/// True for records that the log gives whole.
fn is_folded(key: &Key) -> bool {
    matches!(key, Key::Header | Key::Gate | Key::Step(_) | Key::Effects(_))
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
