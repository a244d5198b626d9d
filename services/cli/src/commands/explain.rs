//! `standfast explain`: the six questions.

use clap::Args;

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::explain;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast explain t07-4k9v2mq8r5x1c")]
pub struct ExplainArgs {
    /// The task's id
    task: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Asks the six questions and shows the answers.
pub async fn execute(args: ExplainArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let answers = connection.client.explain(&args.task).await?;
    connection.close().await;
    match args.json {
        true => look::json(&answers)?,
        false => look::lines(explain::lines(&answers, &Look::of_stdout()))?,
    }
    Ok(Exit::Completed)
}
