//! The processes of an installation over Redis and RabbitMQ, and how each of them ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::Args;
use standfast_api::admin::{Admin, Check};
use standfast_brokers::rabbitmq::RabbitBroker;
use standfast_engine::Engine;
use standfast_engine::ports::Broker;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::brokers::{self, BrokerArgs};
use super::logging::{self, LogArgs};
use super::parts::Parts;
use super::signals::Interrupts;
use super::stores;
use crate::exit::Exit;
use crate::failure::Failure;

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
    /// Where operators ask for health and metrics; nowhere when not given
    #[arg(long, env = "STANDFAST_ADMIN_ADDR", value_name = "HOST:PORT", hide_env_values = true)]
    admin_addr: Option<SocketAddr>,
    #[command(flatten)]
    log: LogArgs,
}

/// One process: what it works with, and how it is told to end.
pub struct Process {
    /// What it works with.
    pub parts: Parts,
    /// What its operator is told.
    pub admin: Admin,
    /// Cancelled by the first signal: take nothing new.
    pub shutdown: CancellationToken,
    /// Cancelled by the second one: end now.
    pub hurry: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts logging, connects, and begins to listen for signals and operators. `wait` is how
    /// long a broker that is away is waited for; without it the process starts all the same.
    pub async fn start(
        args: &InstallationArgs,
        wait: Option<Duration>,
        allow_private_addresses: bool,
    ) -> Result<Self, Failure> {
        logging::start(&args.log)?;
        let interrupts = Interrupts::listen()?;
        let store = Arc::new(stores::redis(&args.redis, &args.redis_prefix)?);
        let settings = brokers::settings(&args.broker)
            .map_err(|fault| Failure::usage(format!("failed to {fault}")))?;
        let broker = RabbitBroker::connect(settings, wait).await.map_err(brokers::failure)?;
        let broker: Arc<dyn Broker> = Arc::new(broker);
        let parts = Parts::start(store, broker, &args.blobs, allow_private_addresses).await?;
        let (shutdown, hurry) = (CancellationToken::new(), CancellationToken::new());
        tokio::spawn(pass_on(interrupts, shutdown.clone(), hurry.clone()));
        let admin = Admin::new(checks(&parts.engine), Arc::default(), None);
        let mut process = Self { parts, admin, shutdown, hurry, tasks: Vec::new() };
        if let Some(address) = args.admin_addr {
            process.serve_admin(address).await?;
        }
        Ok(process)
    }

    async fn serve_admin(&mut self, address: SocketAddr) -> Result<(), Failure> {
        let listener = listen(address).await?;
        let serving =
            standfast_api::admin::serve(listener, self.admin.clone(), self.shutdown.clone());
        self.tasks.push(tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "health and metrics are served no more");
            }
        }));
        Ok(())
    }

    /// Waits for what still serves, and says how the process ends.
    pub async fn end(self) -> Exit {
        for task in self.tasks {
            // A panic there was reported by the runtime.
            let _ = task.await;
        }
        Exit::Completed
    }
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

fn checks(engine: &Engine) -> Vec<Arc<dyn Check>> {
    vec![Arc::new(StoreCheck(engine.clone())), Arc::new(BrokerCheck(engine.clone()))]
}

struct StoreCheck(Engine);

#[async_trait]
impl Check for StoreCheck {
    fn name(&self) -> &str {
        "store"
    }

    async fn check(&self) -> Result<(), String> {
        self.0.store().now().await.map(|_| ()).map_err(|error| error.to_string())
    }
}

struct BrokerCheck(Engine);

#[async_trait]
impl Check for BrokerCheck {
    fn name(&self) -> &str {
        "broker"
    }

    async fn check(&self) -> Result<(), String> {
        let health = self.0.broker().health().await;
        match health.connected {
            true => Ok(()),
            false => Err(health.faults.join("; ")),
        }
    }
}
