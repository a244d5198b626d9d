//! `standfast scheduler`: moves time along for an installation, and takes in its messages.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use standfast_engine::submission::RETENTION_DEFAULT;
use standfast_scheduler::{Intake, Scheduler, Settings};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::wiring::embedded::process_id;
use crate::wiring::processes::{InstallationArgs, Process};

/// How long a broker that is away is waited for before a supervisor should try again.
const BROKER_WAIT: Duration = Duration::from_secs(30);

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast scheduler --redis redis://127.0.0.1:6379 --amqp amqp://127.0.0.1:5672/%2f \\
      --blobs file:///var/lib/standfast/blobs

Any number may run; they share the partitions out among themselves.")]
pub struct SchedulerArgs {
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Carries out its duties until told to end.
pub async fn execute(args: SchedulerArgs) -> Result<Exit, Failure> {
    let process = Process::start(&args.installation, Some(BROKER_WAIT), false).await?;
    let parts = &process.parts;
    let intake = Intake {
        engine: parts.engine.clone(),
        tokens: parts.tokens.clone(),
        registry: parts.registry.clone(),
        handlers: Arc::new(parts.handlers.clone()),
        retention: RETENTION_DEFAULT,
    };
    let settings = Settings::new(process_id("s"));
    let scheduler = Scheduler::new(parts.engine.clone(), parts.blobs.clone(), settings);
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
