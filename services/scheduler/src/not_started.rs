//! Says why no worker has started a step, for the failure that its queue time ends in: what
//! workers have announced is known here, and not to the rules.

use standfast_domain::decide::TimerKind;
use standfast_domain::index::TimerEntry;
use standfast_domain::plan::Uses;
use standfast_domain::record::{Key, Record};
use standfast_engine::EngineError;
use standfast_engine::registry::{Lack, lack};

use crate::scheduler::Shared;

/// Gives the reason if the entry is a queue time's and something is known to be in the way.
pub(crate) async fn why(
    shared: &Shared,
    entry: &TimerEntry,
) -> Result<Option<String>, EngineError> {
    let (TimerKind::Queue, Some(step)) = (entry.kind, &entry.step) else { return Ok(None) };
    let key = Key::Definition(step.clone());
    let read = shared.engine.read(&entry.task, std::slice::from_ref(&key)).await?.remove(&key);
    let Some(Some(Record::Definition(definition))) = read else { return Ok(None) };
    let Uses::Handler(handler) = &definition.plan.uses else { return Ok(None) };
    let queue = &definition.plan.queue;
    let workers = shared.registry.workers().await?;
    Ok(lack(&workers, queue, handler).map(|lack| match lack {
        Lack::NoWorker => format!("no live worker of queue `{queue}` has handler `{handler}`"),
        Lack::Unsubscribed => {
            format!("no worker took from queue `{queue}`: the broker was away or did not serve it")
        }
        Lack::Concurrency => {
            format!("all workers of queue `{queue}` that have handler `{handler}` are full")
        }
    }))
}
