//! A task as it goes along: a line for each step that settles and, on a terminal, those under
//! way redrawn below.

mod end;
mod follow;
mod keep;
mod news;
mod people;
mod screen;

use standfast_protocol::limits::PAGE_LIMIT_MAX;
use standfast_protocol::steps::{StepQuery, StepView};
use standfast_sdk::Client;

use crate::failure::Failure;

pub use end::Ended;
pub use end::head;
pub use end::left;
pub use follow::Watch;
pub use follow::follow;
pub use keep::keep_artifacts;
pub use screen::Screen;

/// Reads every step of a task, page by page, in the order of the plan.
pub async fn all_steps(client: &Client, task: &str) -> Result<Vec<StepView>, Failure> {
    let mut query = StepQuery { limit: Some(PAGE_LIMIT_MAX), cursor: None };
    let mut steps = Vec::new();
    loop {
        let page = client.steps(task, &query).await?;
        steps.extend(page.steps);
        if page.next_cursor.is_none() {
            return Ok(steps);
        }
        query.cursor = page.next_cursor;
    }
}
