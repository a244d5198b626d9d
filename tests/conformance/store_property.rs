//! Random calls, given to all stores and to a model of a few maps, have the same answers.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use standfast_domain::commit::{Commit, CommitAnswer, CommitId, Guard, Home, Scope, StoredRecord};
use standfast_engine::ports::{Load, Range, Store};

use crate::support::{Make, Place, commit, partition, task_id};

const FIELDS: [&str; 4] = ["header", "a", "ab", ""];
const INDEXES: [&str; 2] = ["i", "ij"];
const MEMBERS: [&str; 5] = ["", "a", "a\0", "ab", "b"];

/// What the port promises, without anything that could fail.
#[derive(Default)]
struct Model {
    records: BTreeMap<(Scope, String), StoredRecord>,
    events: BTreeMap<Scope, Vec<Vec<u8>>>,
    indexes: BTreeMap<(Home, String), BTreeSet<String>>,
}

impl Model {
    fn record(&self, scope: &Scope, field: &str) -> Option<StoredRecord> {
        self.records.get(&(scope.clone(), field.to_owned())).cloned()
    }

    fn events(&self, scope: &Scope) -> &[Vec<u8>] {
        self.events.get(scope).map_or(&[], Vec::as_slice)
    }

    fn commit(&mut self, commit: &Commit) -> CommitAnswer {
        let stands = self.stands(commit);
        let allowed = commit.guards.iter().all(|guard| {
            self.record(&commit.scope, &guard.field).map(|found| found.version) == guard.version
        }) && (commit.events.is_empty()
            || self.events(&commit.scope).len() as u64 == commit.first_event);
        if !stands && allowed {
            self.write(commit);
        }
        let records = commit.returns.iter().map(|field| self.record(&commit.scope, field));
        CommitAnswer { applied: stands || allowed, records: records.collect() }
    }

    fn stands(&self, commit: &Commit) -> bool {
        if !commit.events.is_empty() {
            let found = self.events(&commit.scope).get(commit.first_event as usize);
            return found.is_some_and(|event| event.starts_with(commit.id.to_string().as_bytes()));
        }
        let first = commit.writes.iter().find(|(_, bytes)| bytes.is_some());
        first
            .and_then(|(field, _)| self.record(&commit.scope, field))
            .is_some_and(|found| found.version == commit.id)
    }

    fn write(&mut self, commit: &Commit) {
        for (field, bytes) in &commit.writes {
            let key = (commit.scope.clone(), field.clone());
            match bytes {
                Some(bytes) => {
                    let record = StoredRecord { version: commit.id, bytes: bytes.clone() };
                    self.records.insert(key, record);
                }
                None => drop(self.records.remove(&key)),
            }
        }
        let events = self.events.entry(commit.scope.clone()).or_default();
        events.extend(commit.events.iter().cloned());
        for change in &commit.indexes {
            let key = (commit.scope.home(), change.index.clone());
            let members = self.indexes.entry(key).or_default();
            if change.add {
                members.insert(change.member.clone());
            } else {
                members.remove(&change.member);
            }
        }
    }
}

/// What a random guard demands.
#[derive(Clone, Copy, Debug)]
enum Demand {
    Absent,
    AsItIs,
    Foreign,
}

/// A commit to be made once the model says what is current; or an earlier one again.
#[derive(Clone, Debug)]
enum Step {
    Fresh {
        scope: usize,
        guards: Vec<(usize, Demand)>,
        writes: BTreeMap<usize, Option<Vec<u8>>>,
        events: usize,
        /// Added to the right number of the first event.
        slip: u64,
        indexes: Vec<(usize, usize, bool)>,
        returns: Vec<usize>,
    },
    Again(usize),
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let demand = prop_oneof![
        1 => Just(Demand::Absent),
        6 => Just(Demand::AsItIs),
        1 => Just(Demand::Foreign),
    ];
    let guards = prop::collection::vec((0..FIELDS.len(), demand), 0..3);
    let bytes = prop::option::weighted(0.7, prop::collection::vec(any::<u8>(), 0..20));
    let writes = prop::collection::btree_map(0..FIELDS.len(), bytes, 0..4);
    let slip = prop_oneof![8 => Just(0), 1 => Just(1_u64)];
    let change = (0..INDEXES.len(), 0..MEMBERS.len(), any::<bool>());
    let indexes = prop::collection::vec(change, 0..5);
    let returns = prop::collection::vec(0..FIELDS.len(), 0..4);
    let fresh = (0..3_usize, guards, writes, 0..3_usize, slip, indexes, returns).prop_map(
        |(scope, guards, writes, events, slip, indexes, returns)| Step::Fresh {
            scope,
            guards,
            writes,
            events,
            slip,
            indexes,
            returns,
        },
    );
    let step = prop_oneof![4 => fresh, 1 => any::<usize>().prop_map(Step::Again)];
    prop::collection::vec(prop::collection::vec(step, 1..5), 1..12)
}

fn scopes() -> [Scope; 3] {
    let id = task_id(1);
    [Scope::Task(id.clone()), Scope::Partition(id.partition()), Scope::Partition(partition(0))]
}

fn build(step: &Step, model: &Model, earlier: &[Commit]) -> Option<Commit> {
    let (scope, guards, writes, events, slip, indexes, returns) = match step {
        Step::Again(number) => return earlier.get(number % earlier.len().max(1)).cloned(),
        Step::Fresh { scope, guards, writes, events, slip, indexes, returns } => {
            (scope, guards, writes, events, slip, indexes, returns)
        }
    };
    let scope = &scopes()[*scope];
    let mut made = commit(scope);
    for (field, demand) in guards {
        let field = FIELDS[*field].to_owned();
        let version = match demand {
            Demand::Absent => None,
            Demand::AsItIs => model.record(scope, &field).map(|found| found.version),
            Demand::Foreign => Some(CommitId(1)),
        };
        made.guards.push(Guard { field, version });
    }
    made.writes =
        writes.iter().map(|(field, bytes)| (FIELDS[*field].to_owned(), bytes.clone())).collect();
    let first = model.events(scope).len() as u64 + slip;
    made = made.events(first, &["x", "y", "z"][..*events]);
    for (index, member, add) in indexes {
        let (index, member) = (INDEXES[*index], MEMBERS[*member]);
        made = if *add { made.add(index, member) } else { made.take(index, member) };
    }
    let returns: Vec<&str> = returns.iter().map(|field| FIELDS[*field]).collect();
    Some(made.returns(&returns))
}

async fn compare(calls: &[Vec<Step>], stores: &[Box<dyn Store>]) -> Result<(), TestCaseError> {
    let (mut model, mut earlier) = (Model::default(), Vec::new());
    for steps in calls {
        // Steps of one call are built in turn, so that each knows what the one before it wrote.
        let (mut call, mut wanted) = (Vec::new(), Vec::new());
        for step in steps {
            if let Some(made) = build(step, &model, &earlier) {
                wanted.push(model.commit(&made));
                earlier.push(made.clone());
                call.push(made);
            }
        }
        for store in stores {
            let (_, found) = store.commit(&call).await.unwrap();
            prop_assert_eq!(&found, &wanted, "{:?}", call);
        }
    }
    for store in stores {
        compare_contents(&model, &**store).await?;
    }
    Ok(())
}

async fn compare_contents(model: &Model, store: &dyn Store) -> Result<(), TestCaseError> {
    for scope in scopes() {
        let fields = FIELDS.map(str::to_owned).to_vec();
        let load = Load { scope: scope.clone(), fields };
        let found = store.load(&[load]).await.unwrap().1.remove(0);
        let wanted: Vec<_> = FIELDS.iter().map(|field| model.record(&scope, field)).collect();
        prop_assert_eq!(found, wanted);
        prop_assert_eq!(store.events(&scope, 0, 500).await.unwrap(), model.events(&scope));
        for index in INDEXES.map(str::to_owned) {
            let key = (scope.home(), index);
            let wanted: Vec<String> =
                model.indexes.get(&key).into_iter().flatten().cloned().collect();
            prop_assert_eq!(
                store.counts(std::slice::from_ref(&key)).await.unwrap(),
                [wanted.len() as u64]
            );
            let (home, index) = key;
            let (after, before) = (String::new(), None);
            let page = Range { home, index, after, before, limit: 500, reverse: false };
            prop_assert_eq!(store.ranges(&[page]).await.unwrap().remove(0), wanted);
        }
    }
    Ok(())
}

#[test]
fn random_commits_have_the_same_answers_everywhere() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&steps(), |calls| {
        let places = [Place::redis(), Place::redb(), Place::Memory];
        runtime.block_on(async {
            let [redis, redb, memory] = &places;
            let stores = [redis.open().await, redb.open().await, memory.open().await];
            compare(&calls, &stores).await
        })
    });
    outcome.unwrap();
}
