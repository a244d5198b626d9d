//! Wakes workers again for ready steps whose message was lost.
//!
//! What is ready stands in the store; messages only wake. If a queue holds fewer messages than
//! there are ready steps, the oldest steps are published again: at most 500 at a time, each
//! after a growing interval, so that a large backlog floods nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use standfast_domain::commit::{Home, IndexChange, Scope};
use standfast_domain::ids::{Partition, Queue};
use standfast_domain::index::{entries, parse_ready_member, ready_index, time_key};
use standfast_domain::record::{Gate, Key, Record, Status};
use standfast_domain::stage::Wake;
use standfast_domain::time::{Span, Time};
use standfast_engine::{Engine, EngineError};

use crate::scheduler::{Duty, Shared};
use crate::walk;

/// How old a ready step must be before its message counts as lost.
const LOST_AFTER: Span = Span::from_secs(10);
/// Steps that one round publishes again.
const ROUND_MAX: usize = 500;
/// The interval before the same step is published once more; doubled each time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The longest such interval.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// The duty: for each step published again, when it may be once more; and the queues whose
/// messages the broker did not take at the last look.
#[derive(Default)]
pub(crate) struct ReadySweep {
    refused: BTreeSet<Queue>,
    published: BTreeMap<(String, String), (Duration, Duration)>,
}

impl Duty for ReadySweep {
    const NAME: &'static str = "ready sweep";

    async fn round(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let monotonic = shared.engine.clock().monotonic();
        self.published.retain(|_, (until, _)| *until + AGAIN_AFTER_MAX > monotonic);
        let mut first_error = None;
        for queue in shared.engine.queues().await? {
            if let Err(error) = self.queue(shared, &queue, monotonic).await {
                first_error = Some(error); // one queue's trouble must not strand the others
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}

impl ReadySweep {
    async fn queue(
        &mut self,
        shared: &Shared,
        queue: &Queue,
        monotonic: Duration,
    ) -> Result<(), EngineError> {
        let engine = &shared.engine;
        let index = ready_index(queue);
        let homes: Vec<(Home, String)> =
            Partition::all().map(|p| (Home::Partition(p), index.clone())).collect();
        let ready: u64 = engine.store().counts(&homes).await?.iter().sum();
        if ready == 0 {
            return Ok(());
        }
        let waiting = match engine.broker().depth(queue).await {
            Ok(depth) => depth.ready,
            Err(error) => {
                tracing::debug!(%queue, %error, "queue not counted");
                return Ok(()); // the broker is away: it is looked at again
            }
        };
        let missing = usize::try_from(ready.saturating_sub(waiting)).unwrap_or(ROUND_MAX);
        if missing == 0 {
            return Ok(());
        }
        let now = engine.now().await?;
        let due = |member: &String| {
            let key = (index.clone(), member.clone());
            self.published.get(&key).is_none_or(|(until, _)| *until <= monotonic)
        };
        let mut lost = oldest(engine, &index, shared.partitions(), now, due).await?;
        lost.truncate(missing.min(ROUND_MAX));
        let (mut wakes, mut members, mut first_error) = (Vec::new(), Vec::new(), None);
        for member in lost {
            match check(engine, &index, &member).await {
                Ok(Some(wake)) => {
                    wakes.push(wake);
                    members.push(member);
                }
                Ok(None) => {}
                Err(error) if error.is_outage() => return Err(error),
                Err(error) => {
                    first_error = Some(error); // one step must not strand the others
                    self.later((index.clone(), member), monotonic);
                }
            }
        }
        if !wakes.is_empty() {
            let taken = engine.wake_again(&wakes).await;
            let mut sent = 0;
            // What the broker did not take, because the queue is full or it reads nothing, has
            // not been sent: it is tried again in the next round.
            for (member, _) in members.into_iter().zip(&taken).filter(|(_, taken)| **taken) {
                sent += 1;
                self.later((index.clone(), member), monotonic);
            }
            self.report(queue, sent, taken.len() - sent);
            shared.gauges.swept.fetch_add(sent as u64, Ordering::Relaxed);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Leaves a step alone for a while, each time for longer.
    fn later(&mut self, key: (String, String), monotonic: Duration) {
        let last = self.published.get(&key).map_or(AGAIN_AFTER / 2, |(_, last)| *last);
        let next = (last * 2).min(AGAIN_AFTER_MAX);
        self.published.insert(key, (monotonic + next, next));
    }

    /// Logs what was sent, and once that the broker does not take what waits.
    fn report(&mut self, queue: &Queue, sent: usize, failed: usize) {
        if sent > 0 {
            tracing::info!(%queue, sent, failed, "step messages sent again");
        }
        match failed {
            0 => {
                self.refused.remove(queue);
            }
            _ if self.refused.insert(queue.clone()) => {
                tracing::warn!(%queue, failed, "the broker does not take step messages; they wait");
            }
            _ => {}
        }
    }
}

/// Wakes workers for all that is ready, the oldest first: at the start of the embedded mode,
/// whose queues forgot everything. Gives how many messages the broker took.
pub async fn publish_ready(engine: &Engine) -> Result<usize, EngineError> {
    let mut sent = 0;
    for queue in engine.queues().await? {
        let index = ready_index(&queue);
        let all = Partition::all().collect();
        let mut members =
            walk::until_enough(engine, all, &index, None, usize::MAX, |_| true).await?;
        members.sort(); // they begin with their time
        for part in members.chunks(ROUND_MAX) {
            let mut wakes = Vec::new();
            for member in part {
                wakes.extend(check(engine, &index, member).await?);
            }
            let taken = engine.wake_again(&wakes).await;
            sent += taken.into_iter().filter(|taken| *taken).count();
        }
    }
    Ok(sent)
}

/// Lists the oldest entries that count as lost and pass `due`, in order of age.
async fn oldest(
    engine: &Engine,
    index: &str,
    partitions: Vec<Partition>,
    now: Time,
    due: impl Fn(&String) -> bool,
) -> Result<Vec<String>, EngineError> {
    let before = time_key(Time(now.0.saturating_sub_unsigned(LOST_AFTER.0)));
    let mut members =
        walk::until_enough(engine, partitions, index, Some(before), ROUND_MAX, due).await?;
    members.sort();
    Ok(members)
}

/// Makes the wake of an entry, or removes the entry if its step is not ready any more.
async fn check(engine: &Engine, index: &str, member: &str) -> Result<Option<Wake>, EngineError> {
    let Some((_, task, step)) = parse_ready_member(member) else { return Ok(None) };
    let (step_key, claim_key) = (Key::Step(step.clone()), Key::Claim(step.clone()));
    let keys = [step_key.clone(), claim_key.clone(), Key::Gate, Key::Header];
    let mut records = engine.read(&task, &keys).await?;
    let ended = !matches!(records.remove(&Key::Header), Some(Some(Record::Header(header)))
        if !header.state.is_final());
    let claimed = records.remove(&claim_key).flatten().is_some();
    let gate = match records.remove(&Key::Gate) {
        Some(Some(Record::Gate(gate))) => gate,
        _ => Gate::default(),
    };
    let record = records.remove(&step_key).flatten();
    let stands = record.as_ref().is_some_and(|record| {
        entries(&task, &step_key, record).contains(&(index.to_owned(), member.to_owned()))
    });
    if ended || claimed || !stands {
        let gone = IndexChange { index: index.to_owned(), member: member.to_owned(), add: false };
        engine.change_indexes(Scope::Task(task), vec![gone]).await?;
        return Ok(None);
    }
    if !gate.holds.is_empty() {
        return Ok(None); // nothing of the task starts; the answer wakes
    }
    let epoch = gate.epoch;
    Ok(match record {
        Some(Record::Step(state)) => match state.status {
            Status::Ready { queue, .. } => {
                Some(Wake { queue, task, step, epoch, attempt: state.attempt })
            }
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use standfast_brokers::in_process::InProcessBroker;
    use standfast_domain::commit::Commit;
    use standfast_domain::ids::{StepId, TaskId, WorkerId};
    use standfast_domain::record::{Header, StepState};
    use standfast_engine::blobs::Blobs;
    use standfast_engine::installation::Installation;
    use standfast_engine::ports::{Broker, Source};
    use standfast_engine::time::{SystemClock, SystemIds};
    use standfast_stores::redb::RedbStore;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{Scheduler, Settings};

    /// Writes a task whose step has been ready for some time.
    async fn ready_long_ago(engine: &Engine, queue: &Queue) -> TaskId {
        let task = TaskId::random([3; 16]);
        let since = Time(engine.now().await.unwrap().0 - 11_000);
        let step = Key::Step(StepId::new("a").unwrap());
        let status = Status::Ready { since, queue: queue.clone() };
        let state = Record::Step(StepState { status, ..StepState::pending(0) });
        let header = Record::Header(Header::new(since, 1, 0, None));
        let entries = entries(&task, &step, &state).into_iter();
        let commit = Commit {
            id: engine.commit_id(),
            scope: Scope::Task(task.clone()),
            guards: Vec::new(),
            writes: vec![
                (Key::Header.field(), Some(header.encode())),
                (step.field(), Some(state.encode())),
            ],
            first_event: 0,
            events: Vec::new(),
            indexes: entries
                .map(|(index, member)| IndexChange { index, member, add: true })
                .collect(),
            returns: Vec::new(),
        };
        assert!(engine.commit_raw(commit).await.unwrap());
        task
    }

    #[tokio::test]
    async fn a_scheduler_wakes_again_for_a_step_whose_message_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(RedbStore::open(dir.path()).unwrap());
        let (broker, clock) = (Arc::new(InProcessBroker::new()), Arc::new(SystemClock::default()));
        let engine = Engine::start(store, broker.clone(), clock, Arc::new(SystemIds));
        let queue = Queue::new("lost").unwrap();
        engine.know_queues([&queue].into_iter()).await.unwrap();
        let task = ready_long_ago(&engine, &queue).await;
        let mut messages = broker.subscribe(Source::Steps(queue), 1).await.unwrap();
        let installation = Installation::open(&engine).await.unwrap();
        let url = dir.path().join("blobs").display().to_string();
        let blobs = Blobs::open(&url, &installation.id).await.unwrap();
        let settings = Settings {
            sweeps_every: Duration::from_millis(10),
            ..Settings::new(WorkerId::new("s1").unwrap())
        };
        let scheduler = Scheduler::new(engine, blobs, settings);
        let (gauges, ending) = (scheduler.gauges(), CancellationToken::new());
        let running = tokio::spawn(scheduler.run(ending.clone()));
        let bound = Duration::from_secs(10);
        let woken = tokio::time::timeout(bound, messages.next()).await;
        let delivery = woken.expect("a step message within ten seconds").unwrap();
        let body: serde_json::Value = serde_json::from_slice(&delivery.body).unwrap();
        assert_eq!((&body["task"], &body["step"]), (&task.as_str().into(), &"a".into()));
        ending.cancel();
        running.await.unwrap();
        assert_eq!(gauges.swept.load(Ordering::Relaxed), 1);
    }
}
