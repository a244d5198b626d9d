//! Fires timers that are due: retries, timer steps, queue times, total times, deadlines.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use standfast_domain::commit::{IndexChange, Scope};
use standfast_domain::decide::{Command, TimerKind};
use standfast_domain::ids::Principal;
use standfast_domain::index::{TIMERS, TimerEntry, entries, time_key};
use standfast_domain::record::Key;
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;
use standfast_engine::EngineError;

use crate::scheduler::{Duty, Shared};
use crate::{not_started, walk};

/// Timers of one partition that one round takes.
const ROUND_MAX: usize = 200;
/// Timers that are fired at the same time.
const PARALLEL: usize = 64;
/// How long a timer that could not fire yet is left alone.
const DEFERRED: Duration = Duration::from_secs(5);
/// How long one is left alone whose task cannot be read: a person must look.
const DEFERRED_UNREADABLE: Duration = Duration::from_secs(60);

/// The timer duty.
#[derive(Default)]
pub(crate) struct Timers {
    deferred: BTreeMap<String, Duration>,
}

impl Duty for Timers {
    const NAME: &'static str = "timers";

    async fn round(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let engine = &shared.engine;
        let monotonic = engine.clock().monotonic();
        self.deferred.retain(|_, until| *until > monotonic);
        let before = Some(time_key(engine.now().await?.after(Span::from_millis(1))));
        let own = |member: &String| {
            let kind = TimerEntry::parse(member).map(|entry| entry.kind);
            let removal = matches!(kind, Some(TimerKind::Remove | TimerKind::Birth)); // retention's
            kind.is_some() && !removal && !self.deferred.contains_key(member)
        };
        let partitions = shared.partitions();
        let fresh = walk::until_enough(engine, partitions, TIMERS, before, ROUND_MAX, own).await?;
        let results: Vec<(String, Result<Fired, EngineError>)> = futures::stream::iter(fresh)
            .map(|member| fire(shared, member))
            .buffer_unordered(PARALLEL)
            .collect()
            .await;
        let mut first_error = None;
        for (member, result) in results {
            match result {
                Ok(Fired::Acted) => {
                    shared.gauges.fired.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Fired::Stale) => {}
                Ok(Fired::NotYet) => {
                    self.deferred.insert(member, monotonic + DEFERRED);
                }
                Err(error) if error.is_outage() => first_error = Some(error),
                Err(error) => {
                    // One task's trouble must neither strand the others nor look like a
                    // scheduler that stands still.
                    tracing::error!(timer = member, %error, "timer not fired; tried again");
                    self.deferred.insert(member, monotonic + DEFERRED_UNREADABLE);
                }
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        shared.gauges.timers_round();
        Ok(())
    }
}

enum Fired {
    Acted,
    NotYet,
    Stale,
}

/// Fires one timer and removes its entry if it leads to nothing any more.
async fn fire(shared: &Shared, member: String) -> (String, Result<Fired, EngineError>) {
    let fired = fire_entry(shared, &member).await;
    (member, fired)
}

async fn fire_entry(shared: &Shared, member: &str) -> Result<Fired, EngineError> {
    let engine = &shared.engine;
    let Some(entry) = TimerEntry::parse(member) else { return Ok(Fired::NotYet) };
    let why = not_started::why(shared, &entry).await?;
    let command = Command::FireTimer { step: entry.step.clone(), kind: entry.kind, why };
    match engine.execute(&entry.task, command, Principal::system(), Vec::new()).await {
        Ok(done) if done.acted => return Ok(Fired::Acted),
        Ok(_) | Err(EngineError::Refused(Refusal::NoTask(_) | Refusal::NoStep(_))) => {}
        Err(error) => return Err(error),
    }
    let key = entry.step.clone().map_or(Key::Header, Key::Step);
    let record = engine.read(&entry.task, std::slice::from_ref(&key)).await?.remove(&key);
    let stands = record.flatten().is_some_and(|record| {
        entries(&entry.task, &key, &record).contains(&(TIMERS.to_owned(), member.to_owned()))
    });
    if stands {
        return Ok(Fired::NotYet);
    }
    let gone = IndexChange { index: TIMERS.to_owned(), member: member.to_owned(), add: false };
    engine.change_indexes(Scope::Task(entry.task), vec![gone]).await?;
    Ok(Fired::Stale)
}
