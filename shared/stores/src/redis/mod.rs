//! The store for installations of many processes: one Redis primary, version 6.2 or newer.
//!
//! Every commit goes through one Lua script (`script`), which Redis runs alone: it compares,
//! then writes. Hot calls share one connection (`connection`); health uses a small pool, so
//! that a slow `INFO` holds nobody up.
//!
//! Time: Redis's `TIME`, but never before one given earlier. Each commit stores the latest time
//! (one key, written at most once a script) and each read looks at it; every process also keeps
//! the latest it has seen and hands it to its commits. So whatever is stored at a time is
//! followed only by that time or later ones, for all processes and after a restart. If a clock
//! was wrong and ahead, time stands still until Redis's has caught up, and health says so.

mod answers;
mod begin;
mod connection;
mod health;
mod keys;
mod script;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, Pipeline, RedisError,
    RedisResult, RedisWrite, ServerErrorKind, Value,
};
use async_trait::async_trait;
use deadpool_redis::{Manager, Pool, PoolError, Runtime};
use standfast_domain::commit::{Commit, CommitAnswer, Home, Scope, StoredRecord};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Range, Store, StoreError, StoreHealth};

use self::answers::Reconnect;
pub use self::begin::BeginError;
use self::connection::Shared;
use self::keys::{Key, Prefix};
use self::script::Call;
use crate::limits;

/// Connections for health; two callers at once are already many.
const POOL_SIZE: usize = 2;

/// Keys that one step of a walk over all of Redis looks at.
const SCAN_COUNT: usize = 500;

/// Where Redis is and how patient to be with it.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Such as `redis://user:password@host:6379/0`, or `redis+unix:///path`.
    pub url: String,
    /// Starts every key: up to 32 letters, digits and dashes.
    pub prefix: String,
    /// The longest a call waits for its answer. It must exceed Redis's slowest moment (a fork
    /// for a snapshot, a slow disk under `appendfsync always`), since an answer that comes too
    /// late costs a repeat and a new connection.
    pub response_timeout: Duration,
    /// The longest one attempt to connect takes, with its handshake.
    pub connect_timeout: Duration,
}

impl RedisOptions {
    /// Takes the URL and the usual: prefix `standfast`, 10 s for answers, 5 s to connect.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: "standfast".to_owned(),
            response_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
        }
    }
}

/// Why no store was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The prefix could break the keys.
    #[error("use the key prefix `{0}`: expected 1 to 32 letters, digits or dashes")]
    Prefix(String),
    /// The URL cannot be read.
    #[error("read the redis URL: {0}")]
    Url(String),
    /// Redis did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Keeps everything in one Redis. Cheap to call from any number of tasks at once.
pub struct RedisStore {
    prefix: Prefix,
    shared: Shared,
    pool: Pool,
    /// The script's digest, by which Redis knows it.
    digest: String,
    /// The latest time given, in milliseconds.
    latest: AtomicI64,
}

impl RedisStore {
    /// Checks the options; the first call connects, and each call after a failure tries again.
    pub fn open(options: &RedisOptions) -> Result<Self, ConnectError> {
        let prefix = Prefix::new(&options.prefix)
            .ok_or_else(|| ConnectError::Prefix(options.prefix.clone()))?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(options.response_timeout))
            .set_connection_timeout(Some(options.connect_timeout));
        let url = |error: RedisError| ConnectError::Url(error.to_string());
        let info = options.url.as_str().into_connection_info().map_err(url)?;
        // Commands are small and waited for: without this the kernel holds some back.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_tcp_settings(tcp);
        let manager = Manager::new_with_config(info.clone(), config.clone()).map_err(url)?;
        let pool = Pool::builder(manager)
            .max_size(POOL_SIZE)
            .wait_timeout(Some(options.response_timeout))
            .create_timeout(Some(options.connect_timeout))
            .recycle_timeout(Some(options.response_timeout))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| ConnectError::Url(error.to_string()))?;
        let client = Client::open(info).map_err(url)?;
        Ok(Self {
            prefix,
            shared: Shared::new(client, config),
            pool,
            digest: ::redis::Script::new(script::SOURCE).get_hash().to_owned(),
            latest: AtomicI64::new(0),
        })
    }

    /// Checks the options and that Redis answers.
    pub async fn connect(options: &RedisOptions) -> Result<Self, ConnectError> {
        let store = Self::open(options)?;
        store.now().await?;
        Ok(store)
    }

    /// Removes everything under this store's prefix. For what was made for a while under a
    /// prefix of its own, such as a benchmark; nothing may use it any more. A crash leaves the
    /// rest for the next call.
    pub async fn remove_all(&self) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let mut pipe = Pipeline::with_capacity(1);
            let mut scan = ::redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(self.prefix.all()).arg("COUNT").arg(SCAN_COUNT);
            pipe.add_command(scan);
            let page = self.send_all(&pipe).await?.into_iter().next().unwrap_or_default();
            let mut parts = answers::array(page)?.into_iter();
            cursor = answers::number_in_text(parts.next().unwrap_or_default())?;
            let keys = answers::array(parts.next().unwrap_or_default())?;
            if !keys.is_empty() {
                let mut unlink = ::redis::cmd("UNLINK");
                for key in keys {
                    unlink.arg(answers::bytes(key)?);
                }
                let mut pipe = Pipeline::with_capacity(1);
                pipe.add_command(unlink);
                self.send_all(&pipe).await?;
            }
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Gives the later of a time and the latest given.
    fn not_before(&self, time: Time) -> Time {
        Time(time.0.max(self.latest.fetch_max(time.0, Ordering::AcqRel)))
    }

    /// Sends one command, except that a missing script is the caller's to handle.
    async fn send(&self, cmd: &Cmd) -> Result<RedisResult<Value>, StoreError> {
        let mut live = self.shared.get().await?;
        let result = live.connection.send_packed_command(cmd).await;
        match result.and_then(answers::checked) {
            Ok(value) => Ok(Ok(value)),
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                Ok(Err(error))
            }
            Err(error) => Err(self.judge(&live, &error)),
        }
    }

    /// Sends commands in one round trip and gives a reply for each.
    async fn send_all(&self, pipe: &Pipeline) -> Result<Vec<Value>, StoreError> {
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let mut live = self.shared.get().await?;
        let result = live.connection.send_packed_commands(pipe, 0, pipe.len()).await;
        match result
            .and_then(|all| all.into_iter().map(answers::checked).collect::<RedisResult<Vec<_>>>())
        {
            Ok(values) if values.len() == pipe.len() => Ok(values),
            Ok(values) => Err(StoreError::Corrupt(format!(
                "expected {} replies from redis, found {}",
                pipe.len(),
                values.len()
            ))),
            Err(error) => Err(self.judge(&live, &error)),
        }
    }

    fn judge(&self, live: &connection::Live, error: &RedisError) -> StoreError {
        let verdict = answers::judge(error);
        match verdict.reconnect {
            Reconnect::Now => self.shared.forget(live),
            Reconnect::IfOld if !live.is_fresh() => self.shared.forget(live),
            Reconnect::IfOld | Reconnect::No => {}
        }
        verdict.error
    }

    /// Runs one script. A Redis that does not know it (restarted, failed over, flushed) has done
    /// nothing, so the whole unit is sent again with the source.
    async fn commit_unit(
        &self,
        unit: &[Commit],
        into: &mut Vec<CommitAnswer>,
    ) -> Result<Time, StoreError> {
        let latest = Time(self.latest.load(Ordering::Acquire));
        let digest = Call::Digest(&self.digest);
        let known = self.send(&script::command(digest, &self.prefix, latest, unit)).await?;
        let value = match known {
            Ok(value) => value,
            Err(_) => self
                .send(&script::command(Call::Source, &self.prefix, latest, unit))
                .await?
                .map_err(|error| StoreError::Unavailable(error.to_string()))?,
        };
        script::answers(value, unit, into)
    }

    /// Reads the last two replies of a pipeline that ends with [`push_time`].
    fn take_time(&self, replies: &mut Vec<Value>) -> Result<Time, StoreError> {
        let latest = answers::number_in_text(replies.pop().unwrap_or_default())?;
        let clock = clock(replies.pop().unwrap_or_default())?;
        Ok(self.not_before(Time(clock.0.max(latest))))
    }

    /// Gives what `INFO` says, Redis's time, the latest time stored, and `appendfsync`.
    async fn findings(&self) -> RedisResult<(String, Value, Value, Option<String>)> {
        let mut connection = self.pool.get().await.map_err(from_pool)?;
        let mut pipe = Pipeline::with_capacity(3);
        pipe.cmd("INFO");
        push_time(&mut pipe, &self.prefix);
        let (info, time, stored) = pipe.query_async(&mut connection).await?;
        // Managed services and access lists forbid this one; that is no failure.
        let setting = ::redis::cmd("CONFIG")
            .arg("GET")
            .arg("appendfsync")
            .query_async::<Vec<String>>(&mut connection)
            .await;
        Ok((info, time, stored, setting.ok().and_then(|pair| pair.into_iter().nth(1))))
    }
}

/// Adds Redis's own time and the latest given: two replies.
fn push_time(pipe: &mut Pipeline, prefix: &Prefix) {
    pipe.cmd("TIME");
    pipe.add_command(keyed("GET", &prefix.clock()));
}

fn clock(value: Value) -> Result<Time, StoreError> {
    let mut parts = answers::array(value)?.into_iter();
    let seconds = answers::number_in_text(parts.next().unwrap_or_default())?;
    let micros = answers::number_in_text(parts.next().unwrap_or_default())?;
    Ok(Time(seconds.saturating_mul(1_000).saturating_add(micros / 1_000)))
}

fn keyed(command: &str, key: &Key<'_>) -> Cmd {
    let mut cmd = ::redis::cmd(command);
    cmd.write_arg_fmt(key);
    cmd
}

fn from_pool(error: PoolError) -> RedisError {
    match error {
        PoolError::Backend(error) => error,
        other => (ErrorKind::Io, "take a connection", other.to_string()).into(),
    }
}

fn range_command(prefix: &Prefix, range: &Range) -> Cmd {
    let key = prefix.index(range.home, &range.index);
    let low = match range.after.as_str() {
        "" => "-".to_owned(),
        after => format!("({after}"),
    };
    let high = range.before.as_ref().map_or_else(|| "+".to_owned(), |before| format!("({before}"));
    let mut cmd = if range.reverse {
        let mut cmd = keyed("ZREVRANGEBYLEX", &key);
        cmd.arg(high).arg(low);
        cmd
    } else {
        let mut cmd = keyed("ZRANGEBYLEX", &key);
        cmd.arg(low).arg(high);
        cmd
    };
    cmd.arg("LIMIT").arg(0).arg(range.limit);
    cmd
}

#[async_trait]
impl Store for RedisStore {
    async fn load(
        &self,
        loads: &[Load],
    ) -> Result<(Time, Vec<Vec<Option<StoredRecord>>>), StoreError> {
        limits::check_loads(loads);
        let mut pipe = Pipeline::with_capacity(loads.len() + 2);
        for load in loads.iter().filter(|load| !load.fields.is_empty()) {
            let mut cmd = keyed("HMGET", &self.prefix.records(&load.scope));
            for field in &load.fields {
                cmd.write_arg(field.as_bytes());
            }
            pipe.add_command(cmd);
        }
        push_time(&mut pipe, &self.prefix);
        let mut replies = self.send_all(&pipe).await?;
        let time = self.take_time(&mut replies)?;
        let mut replies = replies.into_iter();
        let mut all = Vec::with_capacity(loads.len());
        for load in loads {
            all.push(if load.fields.is_empty() {
                Vec::new()
            } else {
                let values = answers::array(replies.next().unwrap_or_default())?;
                answers::records(values.into_iter(), load.fields.len())?
            });
        }
        Ok((time, all))
    }

    async fn commit(&self, commits: &[Commit]) -> Result<(Time, Vec<CommitAnswer>), StoreError> {
        limits::check_commits(commits);
        if commits.is_empty() {
            return Ok((self.now().await?, Vec::new()));
        }
        let mut answers = Vec::with_capacity(commits.len());
        let mut time = Time::default();
        for unit in script::units(commits) {
            time = self.not_before(self.commit_unit(unit, &mut answers).await?);
        }
        Ok((time, answers))
    }

    async fn events(
        &self,
        scope: &Scope,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        limits::check_size("events read", limit);
        // Redis counts list positions as signed numbers; no list is that long.
        let (Ok(from), true) = (i64::try_from(from), limit > 0) else {
            return Ok(Vec::new());
        };
        let last = from.saturating_add_unsigned(limit as u64 - 1);
        let mut pipe = Pipeline::with_capacity(1);
        let mut cmd = keyed("LRANGE", &self.prefix.events(scope));
        cmd.arg(from).arg(last);
        pipe.add_command(cmd);
        let replies = self.send_all(&pipe).await?;
        let values = answers::array(replies.into_iter().next().unwrap_or_default())?;
        values.into_iter().map(answers::bytes).collect()
    }

    async fn ranges(&self, ranges: &[Range]) -> Result<Vec<Vec<String>>, StoreError> {
        limits::check_ranges(ranges);
        let mut pipe = Pipeline::with_capacity(ranges.len());
        for range in ranges {
            pipe.add_command(range_command(&self.prefix, range));
        }
        let pages = self.send_all(&pipe).await?.into_iter();
        pages.map(|page| answers::array(page)?.into_iter().map(answers::text).collect()).collect()
    }

    async fn counts(&self, indexes: &[(Home, String)]) -> Result<Vec<u64>, StoreError> {
        let mut pipe = Pipeline::with_capacity(indexes.len());
        for (home, index) in indexes {
            pipe.add_command(keyed("ZCARD", &self.prefix.index(*home, index)));
        }
        let counts = self.send_all(&pipe).await?.into_iter();
        counts.map(|count| Ok(answers::integer(Some(count))?.unsigned_abs())).collect()
    }

    /// One command takes all away at one moment, whatever the limit: unlinking costs Redis the
    /// same for any size, since a thread of its own frees the memory.
    async fn erase(&self, task: &TaskId, limit: usize) -> Result<bool, StoreError> {
        limits::check_size("records and events erased", limit);
        let scope = Scope::Task(task.clone());
        let mut cmd = keyed("UNLINK", &self.prefix.records(&scope));
        cmd.write_arg_fmt(self.prefix.events(&scope));
        let mut pipe = Pipeline::with_capacity(1);
        pipe.add_command(cmd);
        self.send_all(&pipe).await?;
        Ok(false)
    }

    async fn now(&self) -> Result<Time, StoreError> {
        let mut pipe = Pipeline::with_capacity(2);
        push_time(&mut pipe, &self.prefix);
        let mut replies = self.send_all(&pipe).await?;
        self.take_time(&mut replies)
    }

    async fn health(&self) -> Result<StoreHealth, StoreError> {
        let (info, time, stored, appendfsync) =
            self.findings().await.map_err(|error| answers::judge(&error).error)?;
        let clock = clock(time)?;
        let stored = answers::number_in_text(stored)?;
        let latest = Time(stored.max(self.latest.load(Ordering::Acquire)));
        Ok(health::judge(&health::Findings { info: &info, appendfsync, clock, latest }))
    }
}
