//! Carries out follow-ups that a crash left behind: steps to release, dependents to tell,
//! tasks to complete or to end.

use standfast_domain::commit::{Home, IndexChange, Scope};
use standfast_domain::index::{WORK, entries, parse_step_member};
use standfast_domain::record::Key;
use standfast_domain::refusal::Refusal;
use standfast_engine::EngineError;
use standfast_engine::ports::Range;

use crate::scheduler::{Duty, Shared};

/// Entries of one partition that one round takes.
const ROUND_MAX: usize = 100;

/// The duty.
pub(crate) struct WorkSweep;

impl Duty for WorkSweep {
    const NAME: &'static str = "work sweep";

    async fn round(&mut self, shared: &Shared) -> Result<(), EngineError> {
        sweep(shared).await
    }
}

async fn sweep(shared: &Shared) -> Result<(), EngineError> {
    let ranges: Vec<Range> = shared
        .partitions()
        .into_iter()
        .map(|partition| Range {
            home: Home::Partition(partition),
            index: WORK.to_owned(),
            after: String::new(),
            before: None,
            limit: ROUND_MAX,
            reverse: false,
        })
        .collect();
    let mut first_error = None;
    for member in shared.engine.store().ranges(&ranges).await?.into_iter().flatten() {
        if let Err(error) = follow(shared, member).await {
            first_error = Some(error); // one task's trouble must not strand the others
        }
    }
    first_error.map_or(Ok(()), Err)
}

async fn follow(shared: &Shared, member: String) -> Result<(), EngineError> {
    let Some((task, step)) = parse_step_member(&member) else { return Ok(()) };
    match shared.engine.follow_up(&task, step.as_ref()).await {
        Ok(true) => return Ok(()),
        Ok(false) | Err(EngineError::Refused(Refusal::NoTask(_) | Refusal::NoStep(_))) => {}
        Err(error) => return Err(error),
    }
    let key = step.map_or(Key::Header, Key::Step);
    let record = shared.engine.read(&task, std::slice::from_ref(&key)).await?.remove(&key);
    let stands = record.flatten().is_some_and(|record| {
        entries(&task, &key, &record).contains(&(WORK.to_owned(), member.clone()))
    });
    if stands {
        return Ok(()); // it waits for something, such as an attempt that is ending
    }
    let gone = IndexChange { index: WORK.to_owned(), member, add: false };
    shared.engine.change_indexes(Scope::Task(task), vec![gone]).await
}
