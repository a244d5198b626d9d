//! The processes of an installation over Redis and RabbitMQ, and how each of them ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use standfast_api::admin::Admin;
use standfast_brokers::rabbitmq::RabbitBroker;
use standfast_engine::ports::{Broker, Store, StoreError};
use standfast_stores::redis::{BeginError, RedisStore};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::brokers::{self, BrokerArgs};
use super::logging::{self, LogArgs};
use super::parts::Parts;
use super::signals::Interrupts;
use super::stores;
use super::watch::Watched;
use crate::exit::Exit;
use crate::failure::Failure;

/// How long what is away is waited for at the start, before a supervisor should try again.
pub const START_WAIT: Duration = Duration::from_secs(30);
/// The shortest and the longest pause between two looks at a Redis that is away.
const STORE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long an ending process waits for the confirms of what it sends; the sweep sends the rest.
const OUTBOX_CLOSES: Duration = Duration::from_secs(2);

/// Where operators ask.
#[derive(Args, Clone, Copy, Debug)]
pub struct AdminArgs {
    /// Where operators ask for health and metrics, a port of 127.0.0.1 or HOST:PORT; nowhere
    /// when not given
    #[arg(long, env = "STANDFAST_ADMIN_ADDR", value_name = "[HOST:]PORT", hide_env_values = true)]
    #[arg(value_parser = admin_addr)]
    pub admin_addr: Option<SocketAddr>,
}

/// Reads an address; a port alone is one of the loopback address.
pub fn admin_addr(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    text.parse().map_err(|_| "expected a port, or an address such as 127.0.0.1:9090".to_owned())
}

/// What every process of an installation is told.
#[derive(Args, Clone, Debug)]
pub struct InstallationArgs {
    /// The Redis that holds the installation, such as redis://user:password@host:6379/0
    #[arg(long, env = "STANDFAST_REDIS", value_name = "URL", hide_env_values = true)]
    redis: String,
    /// Prefix of all keys in Redis
    #[arg(long, env = "STANDFAST_REDIS_PREFIX", value_name = "NAME", hide_env_values = true)]
    #[arg(default_value = stores::PREFIX)]
    redis_prefix: String,
    #[command(flatten)]
    broker: BrokerArgs,
    /// Where the blobs are, a folder that all processes share
    #[arg(long, env = "STANDFAST_BLOBS", value_name = "URL", hide_env_values = true)]
    blobs: String,
    /// Take plans with checkable and irreversible effects although Redis answers before a write
    /// is on disk: what it loses at a crash of its host may then be sent twice
    #[arg(long, env = "STANDFAST_ACCEPT_RELAXED_DURABILITY", hide_env_values = true)]
    accept_relaxed_durability: bool,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// One process: what it works with, and how it is told to end.
pub struct Process {
    /// What it works with.
    pub parts: Parts,
    /// What of it its operator can look at; see [`Process::watch`].
    pub watched: Watched,
    /// Cancelled by the first signal: take nothing new.
    pub shutdown: CancellationToken,
    /// Cancelled by the second one: end now.
    pub hurry: CancellationToken,
    admin_addr: Option<SocketAddr>,
    tasks: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts logging, connects, and begins to listen for signals. `wait` is how
    /// long a broker that is away is waited for; without it the process starts all the same.
    /// Nothing is given if it is told to end before that.
    pub async fn start(
        args: &InstallationArgs,
        wait: Option<Duration>,
        allow_private_addresses: bool,
    ) -> Result<Option<Self>, Failure> {
        logging::start(&args.log)?;
        let mut interrupts = Interrupts::listen()?;
        let (parts, rabbit) = tokio::select! {
            biased;
            connected = connect(args, wait, allow_private_addresses) => connected?,
            () = interrupts.next() => {
                tracing::info!("told to end before it began");
                return Ok(None);
            }
        };
        if args.accept_relaxed_durability {
            parts.engine.accept_relaxed_durability();
        }
        let (shutdown, hurry) = (CancellationToken::new(), CancellationToken::new());
        tokio::spawn(pass_on(interrupts, shutdown.clone(), hurry.clone()));
        let watched = Watched { rabbit: Some(rabbit), ..Watched::of(&parts.engine, &parts.tokens) };
        let admin_addr = args.admin.admin_addr;
        Ok(Some(Self { parts, watched, shutdown, hurry, admin_addr, tasks: Vec::new() }))
    }

    /// Begins to look at what is watched, and to answer operators. Gives what they are shown.
    pub async fn watch(&mut self) -> Result<Admin, Failure> {
        let admin = self.watched.clone().admin();
        if let Some(address) = self.admin_addr {
            self.tasks.push(serve_admin(address, admin.clone(), &self.shutdown).await?);
        }
        Ok(admin)
    }

    /// Waits for what still serves, and says how the process ends.
    pub async fn end(self) -> Exit {
        for task in self.tasks {
            // A panic there was reported by the runtime.
            let _ = task.await;
        }
        self.parts.engine.close_outbox(OUTBOX_CLOSES).await;
        Exit::Completed
    }
}

async fn connect(
    args: &InstallationArgs,
    wait: Option<Duration>,
    allow_private_addresses: bool,
) -> Result<(Parts, Arc<RabbitBroker>), Failure> {
    let store = Arc::new(stores::redis(&args.redis, &args.redis_prefix)?);
    answers(&store, START_WAIT).await?;
    let settings = brokers::settings(&args.broker)
        .map_err(|fault| Failure::usage(format!("failed to {fault}")))?;
    let broker = RabbitBroker::connect(settings, wait).await.map_err(brokers::failure)?;
    let rabbit = Arc::new(broker);
    let broker: Arc<dyn Broker> = rabbit.clone();
    let parts = Parts::start(store, broker, &args.blobs, allow_private_addresses).await?;
    Ok((parts, rabbit))
}

/// Waits until Redis answers; nothing of a process can begin before.
/// What no waiting can cure is told at once.
async fn answers(store: &RedisStore, wait: Duration) -> Result<(), Failure> {
    let (deadline, mut pause) = (Instant::now() + wait, STORE_PAUSES.0);
    let mut said = false;
    loop {
        let begun = match store.begin().await {
            Ok(()) => store.now().await,
            Err(BeginError::Store(error)) => Err(error),
            Err(error @ BeginError::Unusable(_)) => {
                return Err(Failure::new(format!("failed to {error}")));
            }
        };
        let Err(error) = begun else { return Ok(()) };
        let mended_by_time = matches!(error, StoreError::Unavailable(_));
        if !mended_by_time || Instant::now() + pause > deadline {
            return Err(stores::failure(error.into()));
        }
        if !said {
            tracing::warn!(%error, "redis is not reached; retrying");
            said = true;
        }
        tokio::time::sleep(pause).await;
        pause = STORE_PAUSES.1.min(pause * 2);
    }
}

/// Answers operators at an address of their own until the shutdown.
pub async fn serve_admin(
    address: SocketAddr,
    admin: Admin,
    shutdown: &CancellationToken,
) -> Result<JoinHandle<()>, Failure> {
    let listener = listen(address).await?;
    let serving = standfast_api::admin::serve(listener, admin, shutdown.clone());
    Ok(tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "health and metrics are served no more");
        }
    }))
}

/// Binds an address, or says what to do.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::new(format!("failed to listen on {address}: {error}"))
            .and("is another process there?")
    })
}

async fn pass_on(
    mut interrupts: Interrupts,
    shutdown: CancellationToken,
    hurry: CancellationToken,
) {
    interrupts.next().await;
    tracing::info!("ending; a second signal ends at once");
    shutdown.cancel();
    interrupts.next().await;
    hurry.cancel();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_the_loopback_address() {
        assert_eq!(admin_addr("9090"), Ok(SocketAddr::from(([127, 0, 0, 1], 9090))));
        assert_eq!(admin_addr("0.0.0.0:1"), Ok(SocketAddr::from(([0, 0, 0, 0], 1))));
        assert!(admin_addr("here").is_err());
    }
}
