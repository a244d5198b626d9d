//! `standfast pause` and `standfast resume`: nothing new starts, and it goes on.

use clap::Args;
use standfast_protocol::tasks::{PauseRequest, Paused};

use crate::connect::{Connection, Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast pause t07-4k9v2mq8r5x1c --reason \"the supplier is down\"
  standfast resume t07-4k9v2mq8r5x1c

Attempts that run go on; nothing new starts, and deadlines and time limits given as spans stand
still. A pause may be repeated: it says whether anything still runs.")]
pub struct PauseArgs {
    /// The task's id
    task: String,
    /// Why, for the history
    #[arg(long)]
    reason: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Pauses the task; twice is once.
pub async fn pause(args: PauseArgs) -> Result<Exit, Failure> {
    let (connection, request) = open(&args).await?;
    let paused = connection.client.pause(&args.task, &request).await?;
    connection.close().await;
    show(&args, &paused)
}

/// Ends every pause of the task; twice is once.
pub async fn resume(args: PauseArgs) -> Result<Exit, Failure> {
    let (connection, request) = open(&args).await?;
    let paused = connection.client.resume(&args.task, &request).await?;
    connection.close().await;
    show(&args, &paused)
}

async fn open(args: &PauseArgs) -> Result<(Connection, PauseRequest), Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    Ok((connection, PauseRequest { reason: args.reason.clone() }))
}

fn show(args: &PauseArgs, paused: &Paused) -> Result<Exit, Failure> {
    match args.json {
        true => look::json(paused)?,
        false => look::line(&line(paused))?,
    }
    Ok(Exit::Completed)
}

/// Says in a line where the task stands.
fn line(paused: &Paused) -> String {
    let id = text::plain(&paused.id);
    match &paused.pause {
        Some(pause) if pause.drained => {
            format!("task {id} is paused since {}, and no attempt runs", text::plain(&pause.since))
        }
        Some(pause) => format!(
            "task {id} is paused since {}; attempts that run go on",
            text::plain(&pause.since)
        ),
        None => format!("task {id} is not paused; it is {}", paused.state),
    }
}

#[cfg(test)]
mod tests {
    use standfast_protocol::tasks::{PauseView, TaskState};

    use super::*;

    #[test]
    fn a_line_says_whether_attempts_still_run() {
        let since = "2026-11-29T14:00:00Z".to_owned();
        let said = |pause| line(&Paused { id: "t07-x".into(), state: TaskState::Blocked, pause });
        let pause = |drained| Some(PauseView { since: since.clone(), drained });
        assert!(said(pause(true)).ends_with("no attempt runs"));
        assert!(said(pause(false)).ends_with("attempts that run go on"));
        assert_eq!(said(None), "task t07-x is not paused; it is blocked");
    }
}
