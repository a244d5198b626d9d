//! Places where stores can be opened, and short words to make commits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use standfast_domain::commit::{
    Commit, CommitAnswer, CommitId, Guard, Home, IndexChange, Scope, StoredRecord,
};
use standfast_domain::ids::{Partition, TaskId};
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Range, Store};
use standfast_stores::redb::RedbStore;
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::memory_store::MemoryStore;
use tempfile::TempDir;

/// Where a store keeps its things; what is left there goes when this is dropped.
pub enum Place {
    Redis(RedisOptions),
    Redb(TempDir),
    Memory,
}

impl Place {
    /// Takes a fresh prefix in the Redis that all tests share.
    pub fn redis() -> Self {
        let url = std::env::var("STANDFAST_TEST_REDIS")
            .unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
        let unique = uuid::Uuid::now_v7().simple().to_string();
        let mut options = RedisOptions::new(url);
        options.prefix = format!("test-{}", &unique[8..]);
        Self::Redis(options)
    }

    /// Makes a fresh directory.
    pub fn redb() -> Self {
        Self::Redb(tempfile::tempdir().expect("a temporary directory can be made"))
    }

    pub async fn open(&self) -> Box<dyn Store> {
        match self {
            Self::Redis(options) => {
                Box::new(RedisStore::connect(options).await.unwrap_or_else(|error| {
                    panic!(
                        "no Redis answers at {} ({error}): start one, or name another in \
                         STANDFAST_TEST_REDIS",
                        options.url
                    )
                }))
            }
            Self::Redb(directory) => {
                Box::new(RedbStore::open(directory.path()).expect("a fresh directory opens"))
            }
            Self::Memory => Box::new(MemoryStore::new(system_time)),
        }
    }

    /// Lists keys under the prefix; a file has none.
    pub fn keys(&self) -> Vec<String> {
        match self {
            Self::Redis(options) => {
                let client = redis::Client::open(options.url.as_str()).unwrap();
                let mut connection = client.get_connection().unwrap();
                let pattern = format!("{{{}:*", options.prefix);
                let found = redis::cmd("SCAN")
                    .cursor_arg(0)
                    .arg("MATCH")
                    .arg(pattern)
                    .arg("COUNT")
                    .arg(1_000)
                    .clone()
                    .iter::<String>(&mut connection)
                    .unwrap()
                    .collect::<redis::RedisResult<Vec<_>>>();
                found.unwrap()
            }
            Self::Redb(_) | Self::Memory => Vec::new(),
        }
    }
}

fn system_time() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    Time(i64::try_from(since.as_millis()).expect("a time of this age"))
}

impl Drop for Place {
    fn drop(&mut self) {
        // A panic here would hide the one that ended the test.
        if let Self::Redis(options) = self
            && let Ok(client) = redis::Client::open(options.url.as_str())
            && let Ok(mut connection) = client.get_connection()
        {
            for key in self.keys() {
                let _ = redis::cmd("DEL").arg(key).exec(&mut connection);
            }
        }
    }
}

pub fn task() -> Scope {
    Scope::Task(task_id(1))
}

pub fn task_id(seed: u8) -> TaskId {
    TaskId::random([seed; 16])
}

pub fn partition(number: u8) -> Partition {
    Partition::new(number).expect("tests use numbers below 64")
}

/// Starts a commit with an id that is not used again.
pub fn commit(scope: &Scope) -> Commit {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // An odd factor spreads the numbers over all 64 bits without two becoming one.
    let id = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Commit {
        id: CommitId(id),
        scope: scope.clone(),
        guards: Vec::new(),
        writes: Vec::new(),
        first_event: 0,
        events: Vec::new(),
        indexes: Vec::new(),
        returns: Vec::new(),
    }
}

/// Words to go on with.
pub trait Make: Sized {
    fn guard(self, field: &str, version: Option<CommitId>) -> Self;
    fn put(self, field: &str, bytes: impl AsRef<[u8]>) -> Self;
    fn remove(self, field: &str) -> Self;
    fn events(self, first: u64, bodies: &[&str]) -> Self;
    fn add(self, index: &str, member: &str) -> Self;
    fn take(self, index: &str, member: &str) -> Self;
    fn returns(self, fields: &[&str]) -> Self;
}

impl Make for Commit {
    fn guard(mut self, field: &str, version: Option<CommitId>) -> Self {
        self.guards.push(Guard { field: field.to_owned(), version });
        self
    }

    fn put(mut self, field: &str, bytes: impl AsRef<[u8]>) -> Self {
        self.writes.push((field.to_owned(), Some(bytes.as_ref().to_vec())));
        self
    }

    fn remove(mut self, field: &str) -> Self {
        self.writes.push((field.to_owned(), None));
        self
    }

    fn events(mut self, first: u64, bodies: &[&str]) -> Self {
        self.first_event = first;
        self.events = bodies.iter().map(|body| format!("{}{body}", self.id).into()).collect();
        self
    }

    fn add(mut self, index: &str, member: &str) -> Self {
        let (index, member) = (index.to_owned(), member.to_owned());
        self.indexes.push(IndexChange { index, member, add: true });
        self
    }

    fn take(mut self, index: &str, member: &str) -> Self {
        let (index, member) = (index.to_owned(), member.to_owned());
        self.indexes.push(IndexChange { index, member, add: false });
        self
    }

    fn returns(mut self, fields: &[&str]) -> Self {
        self.returns = fields.iter().map(|field| (*field).to_owned()).collect();
        self
    }
}

/// Commits several in one call.
pub async fn commit_all(store: &dyn Store, commits: &[Commit]) -> Vec<CommitAnswer> {
    store.commit(commits).await.expect("the store answers").1
}

/// Commits one and says whether it is stored.
pub async fn applied(store: &dyn Store, commit: &Commit) -> bool {
    commit_all(store, std::slice::from_ref(commit)).await[0].applied
}

pub async fn load(store: &dyn Store, scope: &Scope, fields: &[&str]) -> Vec<Option<StoredRecord>> {
    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
    let load = Load { scope: scope.clone(), fields };
    store.load(&[load]).await.expect("the store answers").1.remove(0)
}

/// Gives a record's bytes as text.
pub async fn text(store: &dyn Store, scope: &Scope, field: &str) -> Option<String> {
    let record = load(store, scope, &[field]).await.remove(0)?;
    Some(String::from_utf8(record.bytes).expect("this record is text"))
}

pub fn range(home: Home, index: &str) -> Range {
    let (index, after) = (index.to_owned(), String::new());
    Range { home, index, after, before: None, limit: 500, reverse: false }
}

pub async fn members(store: &dyn Store, range: Range) -> Vec<String> {
    store.ranges(&[range]).await.expect("the store answers").remove(0)
}

/// Gives events without the ids they start with.
pub async fn bodies(store: &dyn Store, scope: &Scope, from: u64, limit: usize) -> Vec<String> {
    let events = store.events(scope, from, limit).await.expect("the store answers");
    let body = |event: Vec<u8>| String::from_utf8(event[CommitId::CHARS..].to_vec());
    events.into_iter().map(|event| body(event).expect("these events are text")).collect()
}
