//! `standfast list`: tasks, newest first.

use clap::{Args, ValueEnum};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Span;
use standfast_protocol::limits::PAGE_LIMIT_MAX;
use standfast_protocol::tasks::{TaskPage, TaskQuery, TaskState, TaskView};

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::tasks;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast list --state blocked
  standfast list --waiting failures --older 1h
  standfast list --label team=tools --all --json")]
pub struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Tasks a page
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(PAGE_LIMIT_MAX)))]
    limit: Option<u32>,
    /// Go on after the page that named this cursor
    #[arg(long, conflicts_with = "all")]
    cursor: Option<String>,
    /// Show every page
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Which tasks are meant: those that match all of it.
#[derive(Args, Clone, Debug)]
pub struct FilterArgs {
    /// Only tasks in this state
    #[arg(long, value_enum)]
    state: Option<State>,
    /// Only tasks of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only tasks of this owner, such as user:ana
    #[arg(long, value_name = "PRINCIPAL")]
    owner: Option<String>,
    /// Only tasks with this label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Only tasks accepted at or after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    created_after: Option<String>,
    /// Only tasks accepted before this time
    #[arg(long, value_name = "TIME")]
    created_before: Option<String>,
    /// Only tasks with an open hold, of this reason if one is named; the longest wait first
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "any")]
    #[arg(value_parser = reason)]
    waiting: Option<String>,
    /// Only tasks with an open hold that is as old as this, such as 30m, 1h or 2d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    older: Option<u64>,
}

impl FilterArgs {
    /// Gives the filters of a list, with a page's size.
    pub fn query(self, limit: Option<u32>) -> TaskQuery {
        TaskQuery {
            state: self.state.map(TaskState::from),
            kind: self.kind,
            owner: self.owner,
            labels: self.labels,
            created_after: self.created_after,
            created_before: self.created_before,
            waiting: self.waiting,
            older_ms: self.older,
            limit,
            ..TaskQuery::default()
        }
    }
}

/// A task's state, as it is typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    Queued,
    Running,
    Waiting,
    Blocked,
    Cancelling,
    Cancelled,
    Completed,
    Failed,
}

impl From<State> for TaskState {
    fn from(state: State) -> Self {
        match state {
            State::Queued => Self::Queued,
            State::Running => Self::Running,
            State::Waiting => Self::Waiting,
            State::Blocked => Self::Blocked,
            State::Cancelling => Self::Cancelling,
            State::Cancelled => Self::Cancelled,
            State::Completed => Self::Completed,
            State::Failed => Self::Failed,
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Takes a hold's reason, which the server knows best, but no task's id: the word behind a flag
/// that may go without one is the flag's.
fn reason(text: &str) -> Result<String, String> {
    match TaskId::parse(text) {
        Ok(task) => Err(format!(
            "that is a task's id, not a reason; name a task without filters, as in `standfast stop \
             {task}` or `standfast explain {task}`"
        )),
        Err(_) => Ok(text.to_owned()),
    }
}

fn span(text: &str) -> Result<u64, String> {
    let span = Span::parse(text).ok_or("expected a span such as `30m`, `1h` or `2d`")?;
    Ok(span.0)
}

/// Lists one page, or all of them one after the other.
pub async fn execute(args: ListArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let mut query = args.filter.query(args.limit.or(args.all.then_some(PAGE_LIMIT_MAX)));
    query.cursor = args.cursor;
    let mut page = connection.client.list(&query).await?;
    while args.all
        && let Some(cursor) = page.next_cursor.take()
    {
        query.cursor = Some(cursor);
        let next = connection.client.list(&query).await?;
        page.tasks.extend(next.tasks);
        page.next_cursor = next.next_cursor;
    }
    let moves = |task: &TaskView| !task.state.is_ended() && task.state != TaskState::Blocked;
    let idle = connection.own.is_some() && page.tasks.iter().any(moves);
    connection.close().await;
    print(&page, query.by_holds(), args.json)?;
    if idle {
        look::note(&args.place.idle(None));
    }
    Ok(Exit::Completed)
}

fn print(page: &TaskPage, waiting: bool, json: bool) -> Result<(), Failure> {
    if json {
        return look::json(page);
    }
    if page.tasks.is_empty() {
        look::note("no such tasks");
    }
    look::lines(match waiting {
        true => tasks::waiting(&page.tasks, &Look::of_stdout()),
        false => tasks::table(&page.tasks, &Look::of_stdout()),
    })?;
    if let Some(cursor) = &page.next_cursor {
        look::note(&format!("there are more: --cursor {cursor}, or --all"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_can_be_typed_as_it_is_shown() {
        let typed: Vec<TaskState> =
            State::value_variants().iter().map(|&state| state.into()).collect();
        assert_eq!(typed, TaskState::ALL);
        for state in State::value_variants() {
            let name = state.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(name, TaskState::from(*state).as_str());
        }
    }
}
