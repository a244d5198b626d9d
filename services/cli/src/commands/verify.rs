//! `standfast verify`: whether a task's history and records agree.

use clap::Args;
use standfast_protocol::verify::{VerifyFault, VerifyReport};

use crate::connect::{Missing, Place, connect};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::show::quantities::count;
use crate::text;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast verify t07-4k9v2mq8r5x1c")]
pub struct VerifyArgs {
    /// The task's id
    task: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Checks the task; a fault is exit code 1.
pub async fn execute(args: VerifyArgs) -> Result<Exit, Failure> {
    let connection = connect(&args.place, Missing::Refuse).await?;
    let report = connection.client.verify(&args.task).await?;
    connection.close().await;
    match args.json {
        true => look::json(&report)?,
        false => look::line(&sentence(&report))?,
    }
    Ok(if report.ok { Exit::Completed } else { Exit::Error })
}

fn sentence(report: &VerifyReport) -> String {
    let events = count(report.events, "event");
    match &report.fault {
        None if report.ok => format!("✓ {events}: the chain is whole, the records follow from it"),
        None => format!("✗ {events}: history and records differ"),
        Some(fault) => format!("✗ {}{}", place(fault), text::plain(&fault.message)),
    }
}

fn place(fault: &VerifyFault) -> String {
    let event = fault.sequence.map(|sequence| format!("event {sequence}: "));
    let record = fault.record.as_deref().map(|record| format!("record {}: ", text::plain(record)));
    format!("{}{}", event.unwrap_or_default(), record.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_its_event() {
        let fault = VerifyFault {
            sequence: Some(12),
            record: Some("step:log".into()),
            message: "the hash does not follow".into(),
        };
        let report = VerifyReport { ok: false, events: 12, fault: Some(fault) };
        assert_eq!(sentence(&report), "✗ event 12: record step:log: the hash does not follow");
        let report = VerifyReport { ok: true, events: 1, fault: None };
        assert!(sentence(&report).starts_with("✓ 1 event: "));
    }
}
