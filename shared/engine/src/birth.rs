//! Writes a large plan's immutable records before the header makes its task visible.
//!
//! The first commit claims the task's place for one body; each further one, and the birth
//! itself, demand that the place is still that body's. So two bodies under one key never mix:
//! the later one is refused like one that comes after the birth. A place whose submitter
//! crashed is free again after a minute, and what was written is removed by a timer.

use standfast_domain::commit::{Commit, CommitId, Guard, IndexChange, Scope};
use standfast_domain::decide::{Command, Given, Submission, ahead, decide, written_at_birth};
use standfast_domain::ids::TaskId;
use standfast_domain::index;
use standfast_domain::record::{Key, Record};
use standfast_domain::refusal::{Halt, Refusal};
use standfast_domain::time::{Span, Time};
use standfast_domain::view::View;

use crate::ports::{BATCH_MAX, Load, StoreError};
use crate::{Engine, EngineError};

/// How long a body keeps its place without a birth: far longer than writing takes.
const PLACE_KEPT: Span = Span::from_secs(60);

/// What stands in a task's place before its birth.
enum Place {
    /// This body's claim, under this version.
    Own(CommitId),
    /// Another body's claim, made at this time.
    Other(Time),
    /// The task is born; the submission itself finds out whether it is the same.
    Born,
}

pub(crate) async fn write_ahead(
    engine: &Engine,
    task: &TaskId,
    submission: &Submission,
) -> Result<(), EngineError> {
    let payloads = payloads(engine, task, submission).await?;
    loop {
        match take_place(engine, task, &submission.sha256).await? {
            Place::Born => return Ok(()),
            Place::Own(version) => {
                if write(engine, task, version, &payloads).await? {
                    return Ok(());
                }
            }
            Place::Other(since) => {
                if engine.now().await?.since(since) < PLACE_KEPT {
                    return Err(Refusal::KeyReused(task.clone()).into());
                }
                while engine.store().erase(task, BATCH_MAX).await? {}
            }
        }
    }
}

/// Gives the records of the birth; those that the birth itself does not carry.
async fn payloads(
    engine: &Engine,
    task: &TaskId,
    submission: &Submission,
) -> Result<Vec<(Key, Record)>, EngineError> {
    let mut view = View::new(task.clone());
    view.load(Key::Header, None, None);
    let given = Given { now: engine.now().await?, actor: submission.submitted_by.clone() };
    let command = Command::Submit(Box::new(submission.clone()));
    match decide(&view, &command, &given) {
        Ok(decision) => {
            let ahead = decision.payloads.into_iter().filter(|(key, _)| !written_at_birth(key));
            Ok(ahead.collect())
        }
        Err(Halt::Refuse(refusal)) => Err(refusal.into()),
        Err(Halt::Need(_)) => Ok(Vec::new()), // an unborn view knows everything
    }
}

async fn take_place(engine: &Engine, task: &TaskId, sha256: &str) -> Result<Place, EngineError> {
    let now = engine.now().await?;
    let own = Record::Value(ahead(sha256, now));
    let absent = |key: Key| Guard { field: key.field(), version: None };
    let commit = Commit {
        id: engine.commit_id(),
        scope: Scope::Task(task.clone()),
        guards: vec![absent(Key::Header), absent(Key::Ahead)],
        writes: vec![(Key::Ahead.field(), Some(own.encode()))],
        first_event: 0,
        events: Vec::new(),
        indexes: index::entries(task, &Key::Ahead, &own)
            .into_iter()
            .map(|(index, member)| IndexChange { index, member, add: true })
            .collect(),
        returns: Vec::new(),
    };
    let id = commit.id;
    if engine.commit_raw(commit).await? {
        return Ok(Place::Own(id));
    }
    let fields = vec![Key::Header.field(), Key::Ahead.field()];
    let load = Load { scope: Scope::Task(task.clone()), fields };
    let (_, loaded) = engine.store().load(&[load]).await?;
    let mut loaded = loaded.into_iter().flatten();
    if loaded.next().flatten().is_some() {
        return Ok(Place::Born);
    }
    let Some(stored) = loaded.next().flatten() else { return Ok(Place::Other(Time(0))) };
    let record = Record::decode(&Key::Ahead, &stored.bytes)
        .map_err(|error| StoreError::Corrupt(error.to_string()))?;
    Ok(match &record {
        Record::Value(found) if found["sha256"] == sha256 => Place::Own(stored.version),
        Record::Value(found) => Place::Other(Time(found["at"].as_i64().unwrap_or(0))),
        _ => Place::Other(Time(0)),
    })
}

/// Writes the records in parts; false if the place was taken by another body, or the task born.
async fn write(
    engine: &Engine,
    task: &TaskId,
    version: CommitId,
    payloads: &[(Key, Record)],
) -> Result<bool, EngineError> {
    for part in payloads.chunks(BATCH_MAX / 2) {
        let commit = Commit {
            id: engine.commit_id(),
            scope: Scope::Task(task.clone()),
            guards: vec![
                Guard { field: Key::Header.field(), version: None },
                Guard { field: Key::Ahead.field(), version: Some(version) },
            ],
            writes: part.iter().map(|(key, record)| (key.field(), Some(record.encode()))).collect(),
            first_event: 0,
            events: Vec::new(),
            indexes: Vec::new(),
            returns: Vec::new(),
        };
        if !engine.commit_raw(commit).await? {
            return Ok(false);
        }
    }
    Ok(true)
}
