//! `standfast attempt`: what concerns one attempt of a step.

use clap::{Args, Subcommand};
use standfast_protocol::bulk_stops::StopAttemptRequest;
use standfast_protocol::steps::StepState;

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast attempt stop t07-4k9v2mq8r5x1c/draft --reason \"its worker hangs\"")]
pub struct AttemptArgs {
    #[command(subcommand)]
    command: AttemptCommand,
}

#[derive(Debug, Subcommand)]
enum AttemptCommand {
    /// End a running attempt at no charge, so that another one starts
    Stop(StopArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast attempt stop t07-4k9v2mq8r5x1c/draft --attempt 2

The task goes on. The next attempt runs on whatever worker has room, which may be the same one.")]
struct StopArgs {
    /// The step
    #[arg(value_name = "TASK/STEP", value_parser = place)]
    step: (String, String),
    /// Which attempt; without it, the one that runs now
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// Why, for the history
    #[arg(long)]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

fn place(text: &str) -> Result<(String, String), String> {
    let (task, step) = text.split_once('/').ok_or("expected TASK/STEP")?;
    Ok((task.to_owned(), step.to_owned()))
}

/// Carries out a subcommand.
pub async fn execute(args: AttemptArgs) -> Result<Exit, Failure> {
    match args.command {
        AttemptCommand::Stop(args) => stop(args).await,
    }
}

/// Stops the attempt; twice is once.
async fn stop(args: StopArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let (client, (task, step)) = (&connection.client, &args.step);
    let attempt = match args.attempt {
        Some(attempt) => attempt,
        None => {
            let view = client.step(task, step).await?;
            if view.state != StepState::Running {
                let message = format!("no attempt of step `{}` runs", text::plain(step));
                return Err(Failure::new(message).and(format!("the step is {}", view.state)));
            }
            view.attempt
        }
    };
    let request = StopAttemptRequest { reason: args.reason };
    let stopped = client.stop_attempt(task, step, attempt, &request).await?;
    connection.close().await;
    if args.json {
        look::json(&stopped)?;
        return Ok(Exit::Completed);
    }
    let what = if stopped.stopped { "is stopped" } else { "was over already" };
    let step = text::plain(&stopped.step);
    look::line(&format!(
        "attempt {attempt} of step `{step}` {what}, the step is {}",
        stopped.state
    ))?;
    Ok(Exit::Completed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_named_with_its_task() {
        assert_eq!(place("t/s"), Ok(("t".to_owned(), "s".to_owned())));
        assert!(place("t").is_err());
    }
}
