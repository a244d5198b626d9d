//! `standfast events`: a task's history, once or as it happens.

use clap::Args;
use standfast_protocol::events::{EventQuery, EventView};
use standfast_protocol::limits::PAGE_LIMIT_MAX;
use standfast_sdk::Client;

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::events;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast events t07-4k9v2mq8r5x1c --follow
  standfast events t07-4k9v2mq8r5x1c --after 12 --json")]
pub struct EventsArgs {
    /// The task's id
    task: String,
    /// Show events as they happen, until the task has ended
    #[arg(long, short)]
    follow: bool,
    /// Begin after this event's number
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// Print JSON, one event a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Shows the history; followed, a broken connection is resumed where it broke.
pub async fn execute(args: EventsArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let after = args.after.map(|number| number.to_string());
    if args.follow {
        let mut events = connection.client.events(&args.task, after);
        while let Some(event) = events.next().await? {
            print(&event, args.json)?;
        }
    } else {
        once(&connection.client, &args.task, after, args.json).await?;
    }
    connection.close().await;
    Ok(Exit::Completed)
}

/// Shows what has happened so far, page by page.
async fn once(
    client: &Client,
    task: &str,
    mut after: Option<String>,
    json: bool,
) -> Result<(), Failure> {
    loop {
        let limit = Some(PAGE_LIMIT_MAX);
        let query = EventQuery { after: after.take(), limit, ..EventQuery::default() };
        let page = client.event_page(task, &query).await?;
        for event in &page.events {
            print(event, json)?;
        }
        if page.ended || page.events.is_empty() {
            return Ok(());
        }
        after = Some(page.next);
    }
}

fn print(event: &EventView, json: bool) -> Result<(), Failure> {
    match json {
        true => look::json_line(event),
        false => look::line(&events::line(event, &Look::of_stdout())),
    }
}
