//! `standfast logs`: what attempts wrote.

use std::io::Write;

use clap::Args;
use standfast_protocol::limits::WAIT_MS_MAX;
use standfast_protocol::logs::{LogPage, LogQuery};
use standfast_protocol::steps::{StepState, StepView};
use standfast_sdk::Client;

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::progress::all_steps;
use crate::show::quantities::bytes;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast logs t07-4k9v2mq8r5x1c              every step that has begun
  standfast logs t07-4k9v2mq8r5x1c draft --follow")]
pub struct LogsArgs {
    /// The task's id
    task: String,
    /// The step; every step that has begun when not given
    step: Option<String>,
    /// The attempt; the last one when not given
    #[arg(long, value_name = "N", requires = "step")]
    attempt: Option<u32>,
    /// Go on until the attempt is over
    #[arg(long, short)]
    follow: bool,
    /// Print JSON, one page of text a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Shows the log of one step, or of all that have begun, one after the other.
pub async fn execute(args: LogsArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let reader = Reader { client: &connection.client, args: &args };
    match &args.step {
        Some(step) => reader.show(step).await?,
        None => reader.show_all().await?,
    }
    connection.close().await;
    Ok(Exit::Completed)
}

struct Reader<'a> {
    client: &'a Client,
    args: &'a LogsArgs,
}

impl Reader<'_> {
    async fn show_all(&self) -> Result<(), Failure> {
        let steps = all_steps(self.client, &self.args.task).await?;
        let mut begun: Vec<&StepView> = steps.iter().filter(|step| step.attempt > 0).collect();
        if begun.is_empty() {
            look::note("no step has begun");
        }
        // Running ones last: with `--follow` the others would never be reached.
        begun.sort_by_key(|step| step.state == StepState::Running);
        for step in begun {
            if !self.args.json {
                let (id, attempt) = (text::plain(&step.id), step.attempt);
                look::line(&format!("── {id}, attempt {attempt} ──"))?;
            }
            self.show(&step.id).await?;
        }
        Ok(())
    }

    async fn show(&self, step: &str) -> Result<(), Failure> {
        let mut query = LogQuery {
            attempt: self.args.attempt,
            offset: Some(0),
            wait_ms: self.args.follow.then_some(WAIT_MS_MAX),
        };
        loop {
            let page = self.client.log(&self.args.task, step, &query).await?;
            self.print(&page)?;
            let more = !page.text.is_empty() || self.args.follow;
            if page.ended || !more {
                return Ok(());
            }
            // One attempt is followed to its end, not into the next one. A step that has not
            // begun yet has attempt 0, which is waited out.
            query.attempt = query.attempt.or((page.attempt > 0).then_some(page.attempt));
            query.offset = Some(page.next_offset);
        }
    }

    fn print(&self, page: &LogPage) -> Result<(), Failure> {
        if self.args.json {
            return look::json_line(page);
        }
        if page.dropped_bytes > 0 {
            let size = bytes(page.dropped_bytes);
            look::line(&format!("… {size} were not kept …"))?;
        }
        let mut out = std::io::stdout().lock();
        out.write_all(text::plain_lines(&page.text).as_bytes())?;
        Ok(out.flush()?)
    }
}
