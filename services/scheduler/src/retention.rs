//! Removes ended tasks after their retention: blobs, index entries, records, events; and what
//! submissions that were given up have left.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use standfast_domain::commit::{IndexChange, Scope};
use standfast_domain::decide::TimerKind;
use standfast_domain::ids::TaskId;
use standfast_domain::index::{TIMERS, TimerEntry, entries, time_key};
use standfast_domain::record::{Key, Record};
use standfast_domain::time::Span;
use standfast_engine::EngineError;
use standfast_engine::ports::{BATCH_MAX, StoreError};

use crate::scheduler::{Duty, Shared};
use crate::walk;

/// Due entries of one partition that one round looks through.
const ROUND_MAX: usize = BATCH_MAX;
/// How long a task whose removal failed is left alone.
const LATER: Duration = Duration::from_secs(60);

/// The retention duty.
#[derive(Default)]
pub(crate) struct Retention {
    later: BTreeMap<String, Duration>,
}

impl Duty for Retention {
    const NAME: &'static str = "retention";

    async fn round(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let engine = &shared.engine;
        let monotonic = engine.clock().monotonic();
        self.later.retain(|_, until| *until > monotonic);
        let before = Some(time_key(engine.now().await?.after(Span::from_millis(1))));
        let own = |member: &String| {
            let kind = TimerEntry::parse(member).map(|entry| entry.kind);
            matches!(kind, Some(TimerKind::Remove | TimerKind::Birth))
                && !self.later.contains_key(member)
        };
        let partitions = shared.partitions();
        let due = walk::until_enough(engine, partitions, TIMERS, before, ROUND_MAX, own).await?;
        for member in due {
            let Some(entry) = TimerEntry::parse(&member) else { continue };
            let removed = match entry.kind {
                TimerKind::Remove => remove(shared, &entry.task, &member).await,
                TimerKind::Birth => give_up_birth(shared, &entry.task, &member).await,
                TimerKind::Retry
                | TimerKind::Hold
                | TimerKind::GiveUp
                | TimerKind::Queue
                | TimerKind::Deadline => continue,
            };
            if let Err(error) = removed {
                if !engine.standing().is_well() {
                    return Err(error); // not this task's trouble: no need to leave it alone
                }
                tracing::warn!(task = %entry.task, %error, "task not removed; tried again");
                self.later.insert(member, monotonic + LATER);
            }
        }
        Ok(())
    }
}

/// Removes all about an ended task. The timer's entry goes last, so that a crash on the way
/// leads back here.
async fn remove(shared: &Shared, task: &TaskId, member: &str) -> Result<(), EngineError> {
    let engine = &shared.engine;
    let mut records = engine.read(task, &[Key::Header, Key::Meta, Key::Owner]).await?;
    let mut stale = Vec::new();
    for key in [Key::Header, Key::Meta, Key::Owner] {
        let Some(record) = records.remove(&key).flatten() else { continue };
        if let Record::Header(header) = &record
            && (!header.state.is_final() || header.uncleared)
        {
            return Ok(()); // not ended, or the work sweep clears it first
        }
        let own = (TIMERS.to_owned(), member.to_owned());
        stale.extend(entries(task, &key, &record).into_iter().filter(|entry| *entry != own));
    }
    let gone = |(index, member)| IndexChange { index, member, add: false };
    let scope = Scope::Task(task.clone());
    engine.change_indexes(scope, stale.into_iter().map(gone).collect()).await?;
    erase(shared, task, member).await?;
    shared.gauges.removed.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Removes what a submission wrote ahead if its task was never born.
async fn give_up_birth(shared: &Shared, task: &TaskId, member: &str) -> Result<(), EngineError> {
    let records = shared.engine.read(task, &[Key::Header]).await?;
    if records.into_values().flatten().next().is_none() {
        return erase(shared, task, member).await;
    }
    let index = TIMERS.to_owned();
    let gone = IndexChange { index, member: member.to_owned(), add: false };
    shared.engine.change_indexes(Scope::Task(task.clone()), vec![gone]).await
}

async fn erase(shared: &Shared, task: &TaskId, member: &str) -> Result<(), EngineError> {
    let unavailable = |error: standfast_engine::blobs::BlobError| {
        EngineError::Store(StoreError::Unavailable(error.to_string()))
    };
    shared.blobs.remove_task(task).await.map_err(unavailable)?;
    while shared.engine.store().erase(task, BATCH_MAX).await? {}
    let index = TIMERS.to_owned();
    let gone = IndexChange { index, member: member.to_owned(), add: false };
    shared.engine.change_indexes(Scope::Task(task.clone()), vec![gone]).await
}
