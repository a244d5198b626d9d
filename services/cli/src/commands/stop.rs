//! `standfast stop`: stops a task for good, or all that match a filter; or says what a stop would
//! do or has done.

use clap::Args;
use standfast_protocol::stops::StopPlanQuery;
use standfast_protocol::tasks::{StopMode, StopRequest, Stopped, TaskState};
use standfast_sdk::Client;

use super::list::FilterArgs;
use super::stop_many::{self, How};
use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::stops;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast stop t07-4k9v2mq8r5x1c --reason \"wrong branch\"
  standfast stop t07-4k9v2mq8r5x1c --preview --mode undo
  standfast stop t07-4k9v2mq8r5x1c --mode undo --digest 41c7d09ab2f3
  standfast stop t07-4k9v2mq8r5x1c --report
  standfast stop --state queued --label team=tools --count
  standfast stop --state queued --label team=tools --reason \"wrong branch\"
  standfast stop --waiting failures --older 2d

A stop of one task asks nothing: it is stored at once. To look first, use --preview, and stop by
the digest that it shows: if the task has moved since, nothing is stopped and the new plan is
shown. A stop by filters counts first and asks.")]
pub struct StopArgs {
    /// The task's id; without it, filters say which tasks
    task: Option<String>,
    /// Nothing new starts; halt: running attempts are told to end; drain: they may finish;
    /// undo: as halt, then what has landed is undone, the last first
    #[arg(long, value_parser = mode, default_value = "halt")]
    mode: StopMode,
    /// Show what a stop of this mode would do; stop nothing
    #[arg(long, requires = "task", conflicts_with_all = ["report", "digest", "reason"])]
    preview: bool,
    /// Stop only by the plan with this digest, whole or its first 8 digits or more
    #[arg(long, requires = "task", conflicts_with = "report")]
    digest: Option<String>,
    /// Show what the stop came to, item by item; stop nothing
    #[arg(long, requires = "task", conflicts_with_all = ["reason", "mode"])]
    report: bool,
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

/// Stops the task, twice is once; or looks at what that would do or has done.
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
    if args.preview || args.report {
        let look = (!args.report).then_some(args.mode);
        let shown = look_at(&connection.client, &task, look, args.json, &args.place).await;
        connection.close().await;
        return shown;
    }
    let request = StopRequest { mode: args.mode, reason: args.reason, digest: args.digest };
    let stopped = connection.client.stop(&task, &request).await?;
    let works = connection.own.is_none();
    connection.close().await;
    match args.json {
        true => look::json(&stopped)?,
        false => print(&stopped, works, &args.place.arguments())?,
    }
    Ok(Exit::Completed)
}

/// Shows what a stop of a mode would do; without one, what the stop came to.
async fn look_at(
    client: &Client,
    task: &str,
    preview: Option<StopMode>,
    json: bool,
    place: &Place,
) -> Result<Exit, Failure> {
    let place = place.arguments();
    let show = |text: &[String]| look::lines(stops::lines(text, &place, &Look::of_stdout()));
    if let Some(mode) = preview {
        let plan = client.stop_plan(task, &StopPlanQuery { mode }).await?;
        match json {
            true => look::json(&plan)?,
            false => show(&plan.text)?,
        }
    } else {
        let settlement = client.settlement(task).await?;
        match json {
            true => look::json(&settlement)?,
            false => show(&settlement.text)?,
        }
    }
    Ok(Exit::Completed)
}

fn print(stopped: &Stopped, works: bool, place: &str) -> Result<(), Failure> {
    let by = text::plain(&stopped.stop.by);
    let (id, state) = (text::plain(&stopped.id), stopped.state);
    let mode = text::plain(&stopped.stop.mode);
    look::line(&format!("task {id} is {state}, stopped by {by} at {} ({mode})", stopped.stop.at))?;
    look::note(&format!("what it comes to: standfast stop {id} --report{place}"));
    if !works && state == TaskState::Cancelling {
        let command = format!("standfast run --resume {id}{place}");
        look::note(&format!("what must still run at its end runs with: {command}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_modes_are_refused_by_name() {
        for known in StopMode::ALL {
            assert_eq!(mode(known.as_str()), Ok(known));
        }
        assert!(mode("kill").unwrap_err().contains("`undo`"));
    }
}
