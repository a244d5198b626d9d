//! `standfast hand-over`: gives a task to another owner.

use clap::Args;
use standfast_domain::ids::Principal;
use standfast_protocol::tasks::HandOverRequest;

use crate::commands::token::principal;
use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast hand-over t07-4k9v2mq8r5x1c --to user:ben --reason \"on holiday until May\"
  standfast hand-over t07-4k9v2mq8r5x1c --to group:finance

Only its owner or an admin can. Who submitted it goes on seeing it.")]
pub struct HandOverArgs {
    /// The task's id
    task: String,
    /// Who is to own it, such as user:ben or group:finance
    #[arg(long, value_name = "PRINCIPAL", value_parser = principal)]
    to: Principal,
    /// Why, for the history
    #[arg(long)]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Hands the task over; twice is once.
pub async fn execute(args: HandOverArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let request = HandOverRequest { to: args.to.to_string(), reason: args.reason };
    let handed = connection.client.hand_over(&args.task, &request).await?;
    connection.close().await;
    if args.json {
        look::json(&handed)?;
        return Ok(Exit::Completed);
    }
    let (id, owner) = (text::plain(&handed.id), text::plain(&handed.owner));
    look::line(&format!("task {id} is {}, owned by {owner}", handed.state))?;
    Ok(Exit::Completed)
}
