//! `standfast effects`: what a task has changed outside, or may have.

use clap::Args;
use standfast_protocol::limits::PAGE_LIMIT_MAX;
use standfast_protocol::task_effects::{EffectPage, EffectQuery, EffectView};
use standfast_sdk::Client;

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::effects;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast effects t2c-81hx0qm4z6w3e
  standfast effects t2c-81hx0qm4z6w3e --json

Marks: ? uncertain, ▸ in flight, ✓ landed, - not landed. The uncertain ones come first, each with
the commands that settle it.")]
pub struct EffectsArgs {
    /// The task's id
    task: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Lists every effect.
pub async fn execute(args: EffectsArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let all = all_effects(&connection.client, &args.task).await?;
    connection.close().await;
    match args.json {
        true => look::json(&EffectPage { effects: all, next_cursor: None })?,
        false => {
            let place = args.place.arguments();
            look::lines(effects::lines(&all, &place, &Look::of_stdout()))?;
        }
    }
    Ok(Exit::Completed)
}

/// Reads every effect of a task, page by page, in the order of the plan.
async fn all_effects(client: &Client, task: &str) -> Result<Vec<EffectView>, Failure> {
    let mut query = EffectQuery { limit: Some(PAGE_LIMIT_MAX), cursor: None };
    let mut effects = Vec::new();
    loop {
        let page = client.effects(task, &query).await?;
        effects.extend(page.effects);
        if page.next_cursor.is_none() {
            return Ok(effects);
        }
        query.cursor = page.next_cursor;
    }
}
