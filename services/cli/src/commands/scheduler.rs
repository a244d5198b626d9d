//! `standfast scheduler`: moves time along for an installation, and takes in its messages.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use standfast_domain::ceiling::Ceiling;
use standfast_domain::time::Span;
use standfast_scheduler::{Intake, Scheduler, Settings};

use crate::commands::ceiling;
use crate::commands::worker::claim_length;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::wiring::embedded::process_id;
use crate::wiring::processes::{InstallationArgs, Process, START_WAIT};
use crate::wiring::retain::RetainArgs;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast scheduler --redis redis://127.0.0.1:6379 --amqp amqp://127.0.0.1:5672/%2f \\
      --blobs file:///var/lib/standfast/blobs

Any number may run; they share the partitions out among themselves.")]
pub struct SchedulerArgs {
    #[command(flatten)]
    retain: RetainArgs,
    /// How long a claim lasts unless renewed; the same for all processes of an installation.
    /// Hidden: shorter than the usual 30 s serves tests, and drops attempts when the store is slow.
    #[arg(long, env = "STANDFAST_CLAIM_LENGTH", value_name = "SPAN", hide = true)]
    #[arg(value_parser = claim_length, default_value = "30s")]
    claim_length: Span,
    /// Take messages of the broker's users only if something was granted to them; see
    /// standfast token create --amqp-user. Without it any of them publishes as user:NAME, within
    /// the ceiling for those without a grant
    #[arg(long, env = "STANDFAST_AMQP_GRANTED_USERS_ONLY", hide_env_values = true)]
    amqp_granted_users_only: bool,
    /// File of the ceiling for users of the broker without a grant, as for standfast token create.
    /// By default: effects none and idempotent; 100 attempts of 24h; 30d of retention; nobody else
    /// named
    #[arg(long, env = "STANDFAST_AMQP_CEILING", hide_env_values = true, value_name = "FILE")]
    #[arg(conflicts_with = "amqp_granted_users_only")]
    amqp_ceiling: Option<PathBuf>,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Carries out its duties until told to end.
pub async fn execute(args: SchedulerArgs) -> Result<Exit, Failure> {
    let ungranted = match (&args.amqp_ceiling, args.amqp_granted_users_only) {
        (_, true) => None,
        (Some(file), false) => Some(Arc::new(ceiling::of_file(file)?)),
        (None, false) => Some(Arc::new(Ceiling::of_ungranted_users())),
    };
    let started = Process::start(&args.installation, Some(START_WAIT), false).await?;
    let Some(mut process) = started else { return Ok(Exit::Completed) };
    let parts = &process.parts;
    let settings = Settings { claim_length: args.claim_length, ..Settings::new(process_id("s")) };
    let scheduler = Scheduler::new(parts.engine.clone(), parts.blobs.clone(), settings);
    let intake = Intake {
        engine: parts.engine.clone(),
        tokens: parts.tokens.clone(),
        registry: parts.registry.clone(),
        handlers: Arc::new(parts.handlers.clone()),
        retention: args.retain.retain,
        ungranted,
        gauges: scheduler.gauges().intake.clone(),
    };
    process.watched.scheduler = Some(scheduler.gauges());
    process.watch().await?;
    tracing::info!("the scheduler works");
    tokio::select! {
        _ = async {
            tokio::join!(
                scheduler.run(process.shutdown.clone()),
                intake.run(process.shutdown.clone()),
            )
        } => {}
        () = process.hurry.cancelled() => {}
    }
    Ok(process.end().await)
}
