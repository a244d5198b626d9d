//! `standfast stop` with filters: counts first, asks, and stops page by page.

use std::io::{self, BufRead, IsTerminal, Write};

use serde::Serialize;
use standfast_protocol::bulk_stops::{
    CountStopsRequest, StopFilter, StopManyRequest, StopRefused, StopsDone,
};
use standfast_protocol::tasks::StopMode;
use standfast_sdk::Client;

use super::list::FilterArgs;
use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::text;

/// Tasks that are named one by one where they were not stopped; the others are counted.
const NAMED_MAX: usize = 20;

/// What is asked for besides the filter.
pub struct How {
    /// What happens to running attempts and to what has landed.
    pub mode: StopMode,
    /// Why, for the history of each.
    pub reason: Option<String>,
    /// Only count.
    pub count: bool,
    /// Do not ask.
    pub yes: bool,
    /// Print JSON.
    pub json: bool,
}

/// How many tasks match.
#[derive(Serialize)]
struct Counted {
    tasks: u64,
    refused: Vec<StopRefused>,
}

/// Gives the filter as it is sent.
pub fn filter(args: FilterArgs) -> StopFilter {
    let query = args.query(None);
    StopFilter {
        state: query.state,
        kind: query.kind,
        owner: query.owner,
        labels: query.labels.into_iter().collect(),
        created_after: query.created_after,
        created_before: query.created_before,
        waiting: query.waiting,
        older_ms: query.older_ms,
        as_of: None,
    }
}

/// Counts, asks, stops. Broken off anywhere, the same command goes on where it was.
pub async fn execute(mut filter: StopFilter, how: How, place: &Place) -> Result<Exit, Failure> {
    if filter.is_empty() {
        let message = "name a task, or filters such as --state, --label or --waiting; a stop \
                       without them would mean every task";
        return Err(Failure::usage(message));
    }
    let connection = connect(place, Missing::Refuse).await?;
    let counted = count(&connection.client, &mut filter, how.mode).await?;
    let outcome = match proceed(&counted, &how)? {
        false => None,
        true => Some(stop(&connection.client, filter, &how, &counted).await?),
    };
    connection.close().await;
    match outcome {
        Some(done) if how.json => look::json(&done)?,
        Some(done) => show(&done)?,
        None => {}
    }
    Ok(Exit::Completed)
}

/// Counts, and bounds the filter by the time of that, so that what comes later, or is held
/// later, is not meant.
async fn count(
    client: &Client,
    filter: &mut StopFilter,
    mode: StopMode,
) -> Result<Counted, Failure> {
    let mut counted = Counted { tasks: 0, refused: Vec::new() };
    let mut request = CountStopsRequest { filter: filter.clone(), mode, cursor: None };
    let mut now = None;
    loop {
        let page = client.count_stops(&request).await?;
        counted.tasks += page.tasks;
        counted.refused.extend(page.refused);
        now.get_or_insert(page.now);
        request.cursor = page.next_cursor;
        if request.cursor.is_none() {
            break;
        }
    }
    filter.as_of = now.clone().filter(|_| filter.by_holds());
    if filter.created_before.is_none() {
        filter.created_before = now;
    }
    Ok(counted)
}

/// Says what was counted, and whether to go on: as told, or as a person answers.
fn proceed(counted: &Counted, how: &How) -> Result<bool, Failure> {
    if how.count && how.json {
        look::json(counted)?;
        return Ok(false);
    }
    let tasks = counted.tasks;
    let would = format!("{} would be stopped ({})", many(tasks), how.mode.as_str());
    if how.count {
        look::line(&would)?;
        name_refused(&counted.refused);
        return Ok(false);
    }
    look::note(&would);
    name_refused(&counted.refused);
    if how.yes || tasks == 0 {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        let failure = Failure::usage("nobody is there to confirm that");
        return Err(failure.and("add --yes to stop them, or --count to count alone"));
    }
    let mut out = io::stderr().lock();
    write!(out, "Stop {}? [y/N] ", many(tasks))?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    let yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !yes {
        look::note("nothing was stopped");
    }
    Ok(yes)
}

async fn stop(
    client: &Client,
    filter: StopFilter,
    how: &How,
    counted: &Counted,
) -> Result<StopsDone, Failure> {
    let mut done = StopsDone::default();
    let mut request = StopManyRequest {
        filter,
        mode: how.mode,
        reason: how.reason.clone(),
        expected: counted.tasks,
        cursor: None,
    };
    loop {
        let page = client.stop_many(&request).await.map_err(|error| {
            let stopped = format!("{} stopped before that", many(done.stopped));
            Failure::from(error).and(stopped).and("the same command goes on where this one ended")
        })?;
        done.stopped += page.stopped;
        done.already += page.already;
        done.refused.extend(page.refused);
        request.cursor = page.next_cursor;
        if request.cursor.is_none() {
            return Ok(done);
        }
        if page.stopped > 0 && !how.json {
            look::note(&format!("stopped {} of {}", done.stopped, counted.tasks));
        }
    }
}

fn show(done: &StopsDone) -> Result<(), Failure> {
    let already = match done.already {
        0 => String::new(),
        count => format!("; {count} had been stopped before"),
    };
    look::line(&format!("{} stopped{already}", many(done.stopped)))?;
    name_refused(&done.refused);
    Ok(())
}

fn name_refused(refused: &[StopRefused]) {
    if refused.is_empty() {
        return;
    }
    look::note(&format!("{} not:", many(refused.len() as u64)));
    for StopRefused { id, why } in refused.iter().take(NAMED_MAX) {
        look::note(&format!("  {}: {}", text::plain(id), text::plain(why)));
    }
    if refused.len() > NAMED_MAX {
        look::note(&format!("  and {} more", refused.len() - NAMED_MAX));
    }
}

fn many(count: u64) -> String {
    format!("{count} task{}", if count == 1 { "" } else { "s" })
}
