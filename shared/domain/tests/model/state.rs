//! What one state of the check consists of, and what of it tells states apart.
//!
//! A state is all that exists: the store, the caches of two processes, what two workers know,
//! the messages under way, the time, and ledgers of what has happened. Its fingerprint leaves
//! out what no rule reads, so that states that can only behave alike are one:
//!
//! - the ids of commits. Of a cached record only one thing matters: whether its version is
//!   still the store's. Ids never come back, so all versions that are not are alike.
//! - the log's envelope in the header, which `decide` and `evolve` never read.
//! - words for people, and the times at which things ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use standfast_domain::commit::{Commit, CommitId, Guard};
use standfast_domain::event::FIRST_HASH;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::index::Entry;
use standfast_domain::invariants::Records;
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::{Claim, Gate, Header, Key, Record, Standing, Status};
use standfast_domain::time::Time;
use standfast_domain::view::View;

use super::effects::{Outside, Stage};
use super::rules::Broken;

/// A record as the store holds it.
pub struct Kept {
    pub record: Record,
    /// The name it is stored under.
    pub field: String,
    pub version: CommitId,
    /// What tells it from other records, in a number.
    pub print: u64,
}

/// A message that wakes a worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    pub step: StepId,
    pub attempt: u32,
    pub epoch: u32,
}

/// What a handler said at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Success,
    Failure(FailureClass),
}

/// An attempt that a worker believes to be its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub step: StepId,
    pub attempt: u32,
    pub epoch: u32,
    /// How far it has come with its effect.
    pub stage: Stage,
    /// When it may not send any more.
    pub send_before: Time,
    /// What it has told already, if the answer to that was lost.
    pub told: Option<Said>,
}

/// How much may still happen that could happen for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Crashes, lost and repeated messages, lost answers, hand-backs, takings-over of workers
    /// that live.
    pub faults: u8,
    /// Failures of handlers.
    pub failures: u8,
    /// Answers of a person.
    pub answers: u8,
    /// Stops that a person asks for.
    pub stops: u8,
    /// Stops of single attempts that a person asks for.
    pub attempt_stops: u8,
    /// Pauses that a person asks for; each may be ended.
    pub pauses: u8,
}

/// All that exists.
#[derive(Clone)]
pub struct State {
    pub records: Arc<BTreeMap<Key, Arc<Kept>>>,
    pub entries: Arc<BTreeSet<Entry>>,
    pub views: [Arc<View>; 2],
    pub workers: [Option<Run>; 2],
    pub messages: BTreeSet<Message>,
    pub now: Time,
    pub left: Bounds,
    /// Which attempts have started.
    pub started: Arc<BTreeSet<(StepId, u32)>>,
    /// Which steps have settled, and in which round.
    pub settled: Arc<BTreeSet<(StepId, u32)>>,
    /// What the outside world knows of steps' effects.
    pub outside: BTreeMap<StepId, Outside>,
    /// Which effects are known to have happened, by generation.
    pub receipts: Arc<BTreeSet<(StepId, u32)>>,
    /// The rule that was broken on the way here.
    pub broken: Option<Broken>,
    commits: u64,
    stored: u64,
    cached: [u64; 2],
}

impl State {
    /// Makes the state in which nothing is stored.
    pub fn new(task: &TaskId, now: Time, left: Bounds) -> Self {
        let view = Arc::new(View::new(task.clone()));
        Self {
            records: Arc::default(),
            entries: Arc::default(),
            views: [view.clone(), view],
            workers: [None, None],
            messages: BTreeSet::new(),
            now,
            left,
            started: Arc::default(),
            settled: Arc::default(),
            outside: BTreeMap::new(),
            receipts: Arc::default(),
            broken: None,
            commits: 0,
            stored: 0,
            cached: [0, 0],
        }
    }

    /// Gives the id of the next commit.
    pub fn next_commit(&self) -> CommitId {
        CommitId(self.commits + 1)
    }

    /// Writes a commit wholly or not at all, as a store does.
    pub fn commit(&mut self, commit: &Commit, view: &View) -> bool {
        let stored = |field: &str| self.records.values().find(|kept| kept.field == field);
        let holds = |guard: &Guard| stored(&guard.field).map(|kept| kept.version) == guard.version;
        if !commit.guards.iter().all(holds) {
            return false;
        }
        let changed: Vec<_> = view.changes().filter(|(_, before, now)| before != now).collect();
        let named = changed.iter().map(|(key, _, now)| (key.field(), now.is_some()));
        let written = commit.writes.iter().map(|(field, bytes)| (field.clone(), bytes.is_some()));
        assert!(named.eq(written), "a commit writes what has changed");
        let records = Arc::make_mut(&mut self.records);
        for (key, _, now) in changed {
            match now {
                Some(record) => {
                    let (field, print) = (key.field(), print(key, record));
                    let kept = Kept { record: record.clone(), field, version: commit.id, print };
                    records.insert(key.clone(), Arc::new(kept));
                }
                None => {
                    records.remove(key);
                }
            }
        }
        let entries = Arc::make_mut(&mut self.entries);
        for change in &commit.indexes {
            let entry = (change.index.clone(), change.member.clone());
            match change.add {
                true => entries.insert(entry),
                false => entries.remove(&entry),
            };
        }
        self.commits += 1;
        let mut stored = DefaultHasher::new();
        self.records.values().for_each(|kept| stored.write_u64(kept.print));
        self.entries.hash(&mut stored);
        self.stored = stored.finish();
        true
    }

    /// Sets the cache of a process, and finds anew what caches know that the store does not.
    pub fn cache(&mut self, process: usize, mut view: View) {
        view.forget(&Key::Owner); // no command of any setting looks at it
        self.views[process] = Arc::new(view);
        self.cached = [0, 1].map(|process| self.print_of_cache(process));
    }

    fn print_of_cache(&self, process: usize) -> u64 {
        let view = &self.views[process];
        let mut cached = DefaultHasher::new();
        for key in view.known() {
            key.hash(&mut cached);
            let stored = self.records.get(&key).map(|kept| kept.version);
            let same = view.version(&key) == stored;
            same.hash(&mut cached);
            if !same {
                let record = view.get(&key).expect("it is known");
                cached.write_u64(record.map_or(0, |record| print(&key, record)));
            }
        }
        cached.finish()
    }

    /// True if a process knows all records as they are stored.
    pub fn is_current(&self, process: usize) -> bool {
        let view = &self.views[process];
        let same = |(key, kept): (&Key, &Arc<Kept>)| view.version(key) == Some(kept.version);
        self.records.iter().filter(|(key, _)| **key != Key::Owner).all(same)
    }

    /// True if a process knows the last logged commit, as the one that made it does.
    pub fn is_abreast(&self, process: usize) -> bool {
        let stored = self.records.get(&Key::Header).map(|kept| kept.version);
        self.views[process].version(&Key::Header) == stored
    }

    /// Gives the number that tells apart what is stored.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Gives the number that tells states apart.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Gives a record.
    pub fn get(&self, key: &Key) -> Option<&Record> {
        self.records.get(key).map(|kept| &kept.record)
    }

    /// Gives the header.
    pub fn header(&self) -> &Header {
        match self.get(&Key::Header) {
            Some(Record::Header(header)) => header,
            _ => panic!("the task is not born"),
        }
    }

    /// Gives the gate.
    pub fn gate(&self) -> Gate {
        match self.get(&Key::Gate) {
            Some(Record::Gate(gate)) => gate.clone(),
            _ => Gate::default(),
        }
    }

    /// Lists the claims.
    pub fn claims(&self) -> impl Iterator<Item = (&StepId, &Claim)> {
        self.records.iter().filter_map(|(key, kept)| match (key, &kept.record) {
            (Key::Claim(step), Record::Claim(claim)) => Some((step, claim)),
            _ => None,
        })
    }

    /// Lists the steps that have a state, and what they are doing.
    pub fn statuses(&self) -> impl Iterator<Item = (&StepId, &Status)> {
        self.records.iter().filter_map(|(key, kept)| match (key, &kept.record) {
            (Key::Step(step), Record::Step(state)) => Some((step, &state.status)),
            _ => None,
        })
    }

    /// Lists the members of an index.
    pub fn members<'a>(&'a self, index: &'a str) -> impl Iterator<Item = &'a String> {
        self.entries.iter().filter(move |(name, _)| name == index).map(|(_, member)| member)
    }

    /// Gives all records.
    pub fn all(&self) -> Records {
        self.records.iter().map(|(key, kept)| (key.clone(), kept.record.clone())).collect()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.stored);
        self.cached.hash(state);
        for run in &self.workers {
            let run = run.as_ref();
            let told = run.and_then(|run| run.told).map(|said| match said {
                Said::Success => "success",
                Said::Failure(class) => class.as_str(),
            });
            run.map(|run| (&run.step, run.attempt, run.epoch, told)).hash(state);
            run.map(|run| (run.stage, run.send_before)).hash(state);
        }
        self.messages.hash(state);
        self.now.hash(state);
        self.left.hash(state);
        self.started.hash(state);
        self.settled.hash(state);
        self.outside.hash(state);
        self.receipts.hash(state);
        self.broken.is_some().hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint()
    }
}

/// Shows what one looks for in the trail to a broken rule.
impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<_> = self.statuses().collect();
        f.debug_struct("State")
            .field("broken", &self.broken.as_ref().map(|broken| (broken.rule, &broken.why)))
            .field("phase", &self.header().phase)
            .field("gate", &self.gate())
            .field("steps", &steps)
            .field("claims", &self.claims().collect::<Vec<_>>())
            .field("entries", &self.entries)
            .field("outside", &self.outside)
            .field("workers", &self.workers)
            .field("messages", &self.messages)
            .field("now", &self.now)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// Gives a number for what rules read of a record.
fn print(key: &Key, record: &Record) -> u64 {
    let mut plain = record.clone();
    match &mut plain {
        Record::Header(header) => {
            header.next_event = 0;
            header.hash = FIRST_HASH.to_owned();
        }
        Record::Step(state) => {
            if let Some(last) = &mut state.last {
                (last.started_at, last.ended_at) = (Time(0), Time(0));
                last.after_stop = false; // only settlements read it
            }
            state.after_stop = false;
            if let Some(failure) = &mut state.failure {
                failure.at = Time(0);
                if failure.class == FailureClass::Lost {
                    failure.message.clear(); // it names a worker and a time
                }
            }
            match &mut state.status {
                Status::Succeeded { at }
                | Status::Failed { at, .. }
                | Status::Skipped { at, .. } => {
                    *at = Time(0);
                }
                Status::Held { hold } => hold.message.clear(),
                Status::Pending | Status::Ready { .. } | Status::Retrying { .. } => {}
            }
        }
        Record::Landing(landing) => landing.at = Time(0),
        Record::Effects(effects) => {
            for effect in effects.values_mut() {
                effect.intended_at = Time(0);
                (effect.after_stop, effect.intended_after_stop) = (false, false);
                effect.uncertain_at_stop = None;
                match &mut effect.standing {
                    Standing::Landed { at, .. } | Standing::NotLanded { at, .. } => *at = Time(0),
                    Standing::Uncertain { since } => *since = Time(0),
                    Standing::InFlight => {}
                }
            }
        }
        _ => {}
    }
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    plain.encode().hash(&mut hasher);
    hasher.finish()
}
