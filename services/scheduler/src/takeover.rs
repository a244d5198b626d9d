//! Takes attempts from workers that fell silent.
//!
//! A claim is taken over only if the store's clock says that it has expired *and* this process,
//! on its own monotonic clock, saw the store answering and taking writes, and the claim
//! unrenewed, for a whole claim length. So neither an outage of the store, nor one that only
//! refuses writes (heartbeats among them), nor a jumping clock fences anybody.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use standfast_domain::commit::{Home, IndexChange, Scope};
use standfast_domain::decide::Command;
use standfast_domain::ids::{Partition, Principal};
use standfast_domain::index::{CLAIMS, ClaimEntry};
use standfast_domain::record::{Claim, Key, Record};
use standfast_engine::ports::{BATCH_MAX, Range};
use standfast_engine::{Engine, EngineError};

use crate::scheduler::{Duty, Shared};

/// Silence between two looks, in looks, after which what was seen before counts no more.
const LOOKS_MISSED_MAX: u32 = 3;

/// The take-over duty: for each claim's entry, when it was first seen as it is. A renewal
/// writes another entry.
#[derive(Default)]
pub(crate) struct TakeOver {
    seen: BTreeMap<String, Duration>,
    looked_at: Option<Duration>,
    /// Outages of the store that had begun at the last look.
    outages: u64,
}

impl Duty for TakeOver {
    const NAME: &'static str = "take-over";

    async fn round(&mut self, shared: &Shared) -> Result<(), EngineError> {
        let engine = &shared.engine;
        let length = shared.settings.claim_length.to_std();
        let members = match all(engine, shared.partitions()).await {
            Ok(members) => members,
            Err(error) => {
                self.seen.clear(); // the store was not seen answering
                return Err(error);
            }
        };
        let monotonic = engine.clock().monotonic();
        let gap = self.looked_at.map_or(Duration::ZERO, |at| monotonic.saturating_sub(at));
        if gap > length / 10 * LOOKS_MISSED_MAX {
            self.seen.clear(); // this process slept
        }
        self.looked_at = Some(monotonic);
        let (well, outages) = (engine.standing().is_well(), engine.standing().outages());
        if !well || outages != self.outages {
            self.seen.clear(); // no heartbeat could be stored
        }
        self.outages = outages;
        let before = std::mem::take(&mut self.seen);
        for member in members {
            let first = before.get(&member).copied().unwrap_or(monotonic);
            self.seen.insert(member, first);
        }
        let now = engine.now().await?;
        let mut first_error = None;
        for (member, first) in &self.seen {
            let Some(entry) = ClaimEntry::parse(member) else { continue };
            if entry.expires_at > now {
                continue;
            }
            let watched = monotonic.saturating_sub(*first);
            match take(shared, member, &entry, watched).await {
                Ok(()) => {}
                Err(error) if error.is_outage() => {
                    self.seen.clear(); // the store was not seen answering
                    return Err(error);
                }
                Err(error) => first_error = Some(error), // one task must not strand the others
            }
        }
        first_error.map_or(Ok(()), Err)
    }
}

async fn take(
    shared: &Shared,
    member: &str,
    entry: &ClaimEntry,
    watched: Duration,
) -> Result<(), EngineError> {
    let engine = &shared.engine;
    let claim = read_claim(engine, entry).await?;
    let Some(claim) = claim.filter(|claim| claim.expires_at == entry.expires_at) else {
        let member = member.to_owned();
        let gone = IndexChange { index: CLAIMS.to_owned(), member, add: false };
        return engine.change_indexes(Scope::Task(entry.task.clone()), vec![gone]).await;
    };
    if watched < claim.length.to_std() {
        return Ok(());
    }
    tracing::info!(task = %entry.task, step = %entry.step, attempt = claim.attempt,
        worker = %claim.worker, "attempt taken over: its worker fell silent");
    let step = entry.step.clone();
    let command = Command::ExpireClaim { step, attempt: claim.attempt, proven: false };
    let done = engine.execute(&entry.task, command, Principal::system(), Vec::new()).await?;
    shared.gauges.taken_over.fetch_add(u64::from(done.acted), Ordering::Relaxed);
    Ok(())
}

async fn read_claim(engine: &Engine, entry: &ClaimEntry) -> Result<Option<Claim>, EngineError> {
    let key = Key::Claim(entry.step.clone());
    Ok(match engine.read(&entry.task, std::slice::from_ref(&key)).await?.remove(&key) {
        Some(Some(Record::Claim(claim))) => Some(claim),
        _ => None,
    })
}

/// Lists all claims of the partitions, expired or not.
async fn all(engine: &Engine, partitions: Vec<Partition>) -> Result<Vec<String>, EngineError> {
    let mut open: Vec<Range> = partitions
        .into_iter()
        .map(|partition| Range {
            home: Home::Partition(partition),
            index: CLAIMS.to_owned(),
            after: String::new(),
            before: None,
            limit: BATCH_MAX,
            reverse: false,
        })
        .collect();
    let mut members = Vec::new();
    while !open.is_empty() {
        let pages = engine.store().ranges(&open).await?;
        let mut next = Vec::new();
        for (range, page) in open.into_iter().zip(pages) {
            if page.len() == range.limit
                && let Some(last) = page.last()
            {
                next.push(Range { after: last.clone(), ..range });
            }
            members.extend(page);
        }
        open = next;
    }
    Ok(members)
}

/// Ends all claims at the start of the embedded mode, whose exclusive lock proves that no
/// earlier process lives. Gives how many there were.
pub async fn end_all_claims(engine: &Engine) -> Result<usize, EngineError> {
    let mut ended = 0;
    for member in all(engine, Partition::all().collect()).await? {
        let Some(entry) = ClaimEntry::parse(&member) else { continue };
        let Some(claim) = read_claim(engine, &entry).await? else { continue };
        let step = entry.step;
        let command = Command::ExpireClaim { step, attempt: claim.attempt, proven: true };
        engine.execute(&entry.task, command, Principal::system(), Vec::new()).await?;
        ended += 1;
    }
    Ok(ended)
}
