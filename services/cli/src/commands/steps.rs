//! `standfast steps`: a task's steps.

use clap::Args;
use standfast_protocol::holds::HoldClass;
use standfast_protocol::steps::{StepPage, StepState, StepView};

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::progress::all_steps;
use crate::show::steps;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast steps t07-4k9v2mq8r5x1c

Marks: ✓ succeeded, ✗ failed, - skipped, ■ cancelled, ▸ running, ↻ retrying, ? held, … ready,
· pending.")]
pub struct StepsArgs {
    /// The task's id
    task: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Lists every step.
pub async fn execute(args: StepsArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let all = all_steps(&connection.client, &args.task).await?;
    let idle = connection.own.is_some() && all.iter().any(moves);
    connection.close().await;
    if idle {
        look::note(&args.place.idle(Some(&args.task)));
    }
    if args.json {
        look::json(&StepPage { steps: all, next_cursor: None })?;
        return Ok(Exit::Completed);
    }
    let look = Look::of_stdout();
    let widths = steps::Widths::of(&all);
    look::lines(all.iter().map(|step| steps::line(step, widths, &look)))?;
    Ok(Exit::Completed)
}

/// Says whether a step would go on by itself if somebody worked.
fn moves(step: &StepView) -> bool {
    let waits = step.hold.as_ref().is_some_and(|hold| hold.class == HoldClass::Waiting);
    match step.state {
        StepState::Ready | StepState::Running | StepState::Retrying => true,
        StepState::Held => waits,
        StepState::Pending
        | StepState::Succeeded
        | StepState::Failed
        | StepState::Skipped
        | StepState::Cancelled => false,
    }
}
