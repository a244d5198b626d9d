//! Opens the store that is named on the command line.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use standfast_brokers::in_process::InProcessBroker;
use standfast_engine::ports::Store;
use standfast_engine::time::{SystemClock, SystemIds};
use standfast_engine::{Engine, EngineError};
use standfast_stores::redb::{OpenError, RedbStore};
use standfast_stores::redis::{RedisOptions, RedisStore};

use crate::connect::DATA_DEFAULT;
use crate::failure::Failure;

/// What every key and queue name starts with unless another prefix is set.
pub const PREFIX: &str = "standfast";

/// Names a store.
#[derive(Args, Clone, Debug)]
pub struct StoreArgs {
    /// The Redis that holds the installation, such as redis://user:password@host:6379/0
    #[arg(long, env = "STANDFAST_REDIS", value_name = "URL", hide_env_values = true)]
    pub redis: Option<String>,
    /// Prefix of all keys in Redis
    #[arg(long, env = "STANDFAST_REDIS_PREFIX", hide_env_values = true, value_name = "NAME")]
    #[arg(default_value = PREFIX)]
    pub redis_prefix: String,
    /// Folder of the state, where no Redis is named
    #[arg(long, env = "STANDFAST_DATA", hide_env_values = true, value_name = "DIR")]
    #[arg(default_value = DATA_DEFAULT)]
    pub data: PathBuf,
}

/// Opens the store.
pub async fn open(args: &StoreArgs) -> Result<Arc<dyn Store>, Failure> {
    match &args.redis {
        Some(url) => Ok(Arc::new(redis(url, &args.redis_prefix)?)),
        None => Ok(Arc::new(folder(args.data.clone()).await?)),
    }
}

/// Makes a store of a Redis; nothing is connected yet.
pub fn redis(url: &str, prefix: &str) -> Result<RedisStore, Failure> {
    let options = RedisOptions { prefix: prefix.to_owned(), ..RedisOptions::new(url) };
    RedisStore::open(&options).map_err(|error| Failure::new(format!("failed to {error}")))
}

/// Opens a folder, making it where it is missing, for its owner alone.
pub async fn folder(data: PathBuf) -> Result<RedbStore, Failure> {
    try_folder(data).await?.map_err(not_opened)
}

/// Opens a folder; the inner error is the store's own, for callers that wait for the folder.
pub async fn try_folder(data: PathBuf) -> Result<Result<RedbStore, OpenError>, Failure> {
    let opened = tokio::task::spawn_blocking(move || {
        make_folder(&data).map_err(|source| OpenError::Io { path: data.clone(), source })?;
        RedbStore::open(&data)
    });
    opened.await.map_err(|error| Failure::new(format!("failed to open the folder: {error}")))
}

/// Says why a folder was not opened, and what to do.
pub fn not_opened(error: OpenError) -> Failure {
    let failure = Failure::new(format!("failed to {error}"));
    match error {
        OpenError::Held(_) => failure,
        OpenError::Io { .. } => failure.and("look at the folder's owner and free space"),
        OpenError::Corrupt { .. } => failure.and("restore a copy, or start with another --data"),
        OpenError::Newer { .. } => failure.and("use the version that wrote it, or a newer one"),
    }
}

fn make_folder(data: &std::path::Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(data)
}

/// Starts an engine for commands that look after the installation and move no task: its queues
/// are its own, so that nothing it does needs a broker.
pub async fn engine(args: &StoreArgs) -> Result<Engine, Failure> {
    let store = open(args).await?;
    Ok(start(store))
}

/// Starts such an engine over a store.
pub fn start(store: Arc<dyn Store>) -> Engine {
    let broker = Arc::new(InProcessBroker::new());
    Engine::start(store, broker, Arc::new(SystemClock::default()), Arc::new(SystemIds))
}

/// Says why the engine did not do something.
pub fn failure(error: EngineError) -> Failure {
    match error {
        EngineError::Refused(refusal) => Failure::new(refusal.to_string()),
        EngineError::Store(error) => {
            Failure::new(format!("failed to {error}")).and("see what is missing: standfast doctor")
        }
    }
}
