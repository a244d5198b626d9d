//! `standfast stop`: stops a task for good, or all that match a filter.

use clap::Args;
use standfast_protocol::tasks::{StopMode, StopRequest, TaskState};

use super::list::FilterArgs;
use super::stop_many::{self, How};
use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast stop t07-4k9v2mq8r5x1c --reason \"wrong branch\"
  standfast stop --state queued --label team=tools --count
  standfast stop --state queued --label team=tools --reason \"wrong branch\"

What a stop would do now is the sixth answer of `standfast explain TASK`.")]
pub struct StopArgs {
    /// The task's id; without it, filters say which tasks
    task: Option<String>,
    /// Nothing new starts; halt: running attempts are told to end; drain: they may finish;
    /// undo: as halt, then what has landed is undone, the last first
    #[arg(long, value_parser = mode, default_value = "halt")]
    mode: StopMode,
    /// Why, for the history
    #[arg(long)]
    reason: Option<String>,
    /// With filters: only say how many tasks would be stopped
    #[arg(long, conflicts_with = "task")]
    count: bool,
    /// With filters: stop them without asking
    #[arg(long, conflicts_with = "task")]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    place: Place,
}

fn mode(word: &str) -> Result<StopMode, String> {
    StopMode::parse(word).ok_or_else(|| "expected `halt`, `drain` or `undo`".to_owned())
}

/// Stops the task; twice is once.
pub async fn execute(args: StopArgs) -> Result<Exit, Failure> {
    let filter = stop_many::filter(args.filter);
    let Some(task) = args.task else {
        let StopArgs { mode, reason, count, yes, json, place, .. } = args;
        let how = How { mode, reason, count, yes, json };
        return stop_many::execute(filter, how, &place).await;
    };
    if !filter.is_empty() {
        return Err(Failure::usage("name a task or filters, not both"));
    }
    let connection = connect(&args.place, Missing::Refuse).await?;
    let request = StopRequest { mode: args.mode, reason: args.reason };
    let stopped = connection.client.stop(&task, &request).await?;
    let works = connection.own.is_none();
    connection.close().await;
    if args.json {
        look::json(&stopped)?;
        return Ok(Exit::Completed);
    }
    let by = text::plain(&stopped.stop.by);
    let (id, state) = (text::plain(&stopped.id), stopped.state);
    look::line(&format!("task {id} is {state}, stopped by {by} at {}", stopped.stop.at))?;
    if !works && state == TaskState::Cancelling {
        let place = args.place.arguments();
        let command = format!("standfast run --resume {id}{place}");
        look::note(&format!("what must still run at its end runs with: {command}"));
    }
    Ok(Exit::Completed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_by_their_words() {
        let words = ["halt", "drain", "undo"].map(mode);
        assert_eq!(words, [StopMode::Halt, StopMode::Drain, StopMode::Undo].map(Ok));
        assert!(mode("kill").unwrap_err().contains("`undo`"));
    }
}
