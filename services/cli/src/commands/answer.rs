//! `standfast answer`: ends a hold.

use clap::Args;
use standfast_domain::json::{Limits, read};
use standfast_protocol::holds::AnswerRequest;

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast answer t07-4k9v2mq8r5x1c/draft retry
  standfast answer t07-4k9v2mq8r5x1c/draft skip --note \"written by hand\"
  standfast answer t2c-81hx0qm4z6w3e/pay happened --receipt '{\"id\": \"ch_55\"}'
  standfast answer t2c-81hx0qm4z6w3e/pay not_happened

What may be answered is in `standfast explain TASK`.")]
pub struct AnswerArgs {
    /// The task, or the step that is held
    #[arg(value_name = "TASK[/STEP]")]
    held: String,
    /// The answer, such as retry, skip or stop
    answer: String,
    /// Why, for the history
    #[arg(long)]
    note: Option<String>,
    /// With happened: what the outside world answered, as JSON
    #[arg(long, value_name = "JSON")]
    receipt: Option<String>,
    /// With happened and not_happened: which effect, if several are uncertain
    #[arg(long, value_name = "NAME")]
    effect: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Gives the answer and says where task and step stand after it.
pub async fn execute(args: AnswerArgs) -> Result<Exit, Failure> {
    let (task, step) = split(&args.held);
    let connection = connect(&args.place, Missing::Refuse).await?;
    let receipt = args.receipt.as_deref().map(receipt).transpose()?;
    let request =
        AnswerRequest { answer: args.answer, note: args.note, effect: args.effect, receipt };
    let answered = connection.client.answer(task, step, &request).await?;
    let works = connection.own.is_none();
    connection.close().await;
    if args.json {
        look::json(&answered)?;
        return Ok(Exit::Completed);
    }
    let answer = text::plain(&answered.answer);
    let step = match (&answered.step, answered.step_state) {
        (Some(step), Some(state)) => format!("step `{}` is {state}, ", text::plain(step)),
        (Some(_) | None, _) => String::new(),
    };
    look::line(&format!("answered `{answer}`: {step}the task is {}", answered.state))?;
    if !works && !answered.state.is_ended() {
        look::note(&args.place.idle(Some(&answered.task)));
    }
    Ok(Exit::Completed)
}

/// Reads a receipt as strictly as a plan.
fn receipt(text: &str) -> Result<serde_json::Value, Failure> {
    read(text.as_bytes(), Limits::OUTPUT_INLINE).map_err(|faults| {
        let faults = faults.into_iter().map(|fault| (fault.pointer, fault.message));
        Failure::usage("the receipt is not acceptable JSON").with_faults(faults)
    })
}

fn split(held: &str) -> (&str, Option<&str>) {
    match held.split_once('/') {
        Some((task, step)) => (task, Some(step)),
        None => (held, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_stands_behind_a_slash() {
        assert_eq!(split("t1"), ("t1", None));
        assert_eq!(split("t1/draft"), ("t1", Some("draft")));
        assert_eq!(split("t1/"), ("t1", Some("")));
    }
}
