//! `standfast worker`: runs steps of an installation.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use standfast_bench::Noop;
use standfast_domain::ids::Queue;
use standfast_domain::time::Span;
use standfast_worker::handlers::Handler;
use standfast_worker::handlers::exec::reap_orphans;
use standfast_worker::{BuiltinHandlers, EnvironmentSecrets, Settings, Worker};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::wiring::embedded::process_id;
use crate::wiring::processes::{InstallationArgs, Process, START_WAIT};

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast worker --queue default --queue research --concurrency 4 \\
      --redis redis://127.0.0.1:6379 --amqp amqp://127.0.0.1:5672/%2f \\
      --blobs file:///var/lib/standfast/blobs

Told to end, it takes nothing new, finishes what fits into the grace period, and hands back the
rest at no charge.")]
pub struct WorkerArgs {
    /// A queue to take from; may be repeated
    #[arg(long = "queue", env = "STANDFAST_QUEUE", value_name = "NAME", hide_env_values = true)]
    #[arg(value_parser = queue, value_delimiter = ',', default_value = "default")]
    queues: Vec<Queue>,
    /// Attempts that run at a time, over all queues
    #[arg(long, env = "STANDFAST_CONCURRENCY", value_name = "N", hide_env_values = true)]
    #[arg(default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
    /// Steps that a slot may take over in a row, without a message, from what its steps release
    /// in the same queue; others of the queue wait meanwhile
    #[arg(long, env = "STANDFAST_STAY", value_name = "N", hide_env_values = true)]
    #[arg(default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    stay: u32,
    /// How long attempts may go on after the worker was told to end
    #[arg(long, env = "STANDFAST_GRACE", value_name = "SPAN", hide_env_values = true)]
    #[arg(value_parser = span, default_value = "30s")]
    grace: Duration,
    /// Folder for the attempts' own folders
    #[arg(long, env = "STANDFAST_ATTEMPTS", value_name = "DIR", hide_env_values = true)]
    attempts: Option<PathBuf>,
    /// Folder with a file for each secret, beside STANDFAST_SECRET_NAME in the environment
    #[arg(long, env = "STANDFAST_SECRETS", value_name = "DIR", hide_env_values = true)]
    secrets: Option<PathBuf>,
    /// Let `http` steps reach loopback and private addresses
    #[arg(long, env = "STANDFAST_ALLOW_PRIVATE_ADDRESSES", hide_env_values = true)]
    allow_private_addresses: bool,
    /// How long a claim lasts unless renewed; the same for all processes of an installation.
    /// Hidden: shorter than the usual 30 s serves tests, and drops attempts when the store is slow.
    #[arg(long, env = "STANDFAST_CLAIM_LENGTH", value_name = "SPAN", hide = true)]
    #[arg(value_parser = claim_length, default_value = "30s")]
    claim_length: Span,
    /// Run steps of `noop` too, which do nothing. Hidden: the benchmark measures with them.
    #[arg(long, hide = true)]
    noop: bool,
    #[command(flatten)]
    installation: InstallationArgs,
}

fn with_noop(handlers: &BuiltinHandlers) -> BuiltinHandlers {
    let noop: Arc<dyn Handler> = Arc::new(Noop);
    let others = handlers.names().filter_map(|name| handlers.get(name));
    BuiltinHandlers::new(others.chain([noop]))
}

fn queue(text: &str) -> Result<Queue, String> {
    Queue::new(text).map_err(|fault| fault.to_string())
}

fn span(text: &str) -> Result<Duration, String> {
    let span = Span::parse(text).ok_or("expected a span such as 30s, 10m or 1h30m")?;
    Ok(span.to_std())
}

/// Reads a claim's length: heartbeats come each third of it, so a second is the least.
pub fn claim_length(text: &str) -> Result<Span, String> {
    let wanted = || "expected a span from 1s to 1h, such as 30s".to_owned();
    let span = Span::parse(text).ok_or_else(wanted)?;
    let fits = (Span::from_secs(1)..=Span::from_secs(3_600)).contains(&span);
    fits.then_some(span).ok_or_else(wanted)
}

/// Works until told to end.
pub async fn execute(args: WorkerArgs) -> Result<Exit, Failure> {
    let wait = Some(START_WAIT);
    let started = Process::start(&args.installation, wait, args.allow_private_addresses).await?;
    let Some(mut process) = started else { return Ok(Exit::Completed) };
    let parts = &process.parts;
    reap_orphans(&parts.installation.id);
    let attempts = args.attempts.unwrap_or_else(|| std::env::temp_dir().join("standfast-attempts"));
    let settings = Settings {
        worker: process_id("w"),
        queues: args.queues,
        concurrency: args.concurrency,
        stay: args.stay,
        grace: args.grace,
        claim_length: args.claim_length,
        attempts,
        secrets: Arc::new(EnvironmentSecrets { folder: args.secrets }),
    };
    tracing::info!(worker = %settings.worker, "the worker works");
    let (claims, registry) = (parts.claims.clone(), parts.registry.clone());
    let handlers = match args.noop {
        true => with_noop(&parts.handlers),
        false => parts.handlers.clone(),
    };
    let worker = Worker::new(settings, claims, registry, handlers);
    process.watched.worker = Some(worker.gauges());
    process.watch().await?;
    let worked = worker.run(process.shutdown.clone(), process.hurry.clone()).await;
    worked.map_err(|error| Failure::new(format!("failed to {error}")))?;
    Ok(process.end().await)
}
