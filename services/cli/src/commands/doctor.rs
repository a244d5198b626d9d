//! `standfast doctor`: what is wrong with an installation, and what to do about it.

use clap::Args;
use standfast_protocol::health::{DoctorCheck, DoctorReport, Severity};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look, Tone};
use crate::text;
use crate::wiring::brokers::AnyBrokerArgs;
use crate::wiring::examine;
use crate::wiring::stores::StoreArgs;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast doctor --redis redis://127.0.0.1:6379 --amqp amqp://127.0.0.1:5672/%2f
  standfast doctor --data ./.standfast --counts

Exit code 1 if there is a fault; warnings alone are 0.")]
pub struct DoctorArgs {
    /// Also count the entries of each index
    #[arg(long)]
    counts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    broker: AnyBrokerArgs,
    /// Where the blobs are, such as file:///var/lib/standfast/blobs
    #[arg(long, env = "STANDFAST_BLOBS", hide_env_values = true, value_name = "URL")]
    blobs: Option<String>,
}

/// Makes every check, whatever the others found.
pub async fn execute(args: DoctorArgs) -> Result<Exit, Failure> {
    let mut checks = examine::store(&args.store, args.blobs.as_deref(), args.counts).await;
    checks.extend(examine::broker(&args.broker).await);
    let report = DoctorReport { checks };
    match args.json {
        true => look::json(&report)?,
        false => look::lines(lines(&report, &Look::of_stdout()))?,
    }
    Ok(if report.is_ok() { Exit::Completed } else { Exit::Error })
}

fn lines(report: &DoctorReport, look: &Look) -> Vec<String> {
    report.checks.iter().flat_map(|check| check_lines(check, look)).collect()
}

fn check_lines(check: &DoctorCheck, look: &Look) -> Vec<String> {
    let (word, tone) = match (check.ok, check.severity) {
        (true, _) => ("ok", Tone::Good),
        (false, Severity::Info) => ("note", Tone::Dim),
        (false, Severity::Warning) => ("warning", Tone::Warning),
        (false, Severity::Error) => ("fault", Tone::Bad),
    };
    let word = look.tone(tone, &format!("{word:<8}"));
    let mut lines = vec![format!("{word} {}: {}", check.name, text::plain(&check.found))];
    if !check.advice.is_empty() {
        lines.push(format!("{:9}→ {}", "", text::plain(&check.advice)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::terminal;

    fn check(name: &str, ok: bool, severity: Severity, advice: &str) -> DoctorCheck {
        DoctorCheck {
            name: name.into(),
            ok,
            severity,
            found: "found\u{1b}".into(),
            advice: advice.into(),
        }
    }

    #[test]
    fn each_check_says_how_it_is_and_what_to_do() {
        let report = DoctorReport {
            checks: vec![
                check("store", true, Severity::Error, ""),
                check("clock", false, Severity::Warning, "correct it"),
                check("broker", false, Severity::Error, "start it"),
                check("index timers", false, Severity::Info, ""),
            ],
        };
        assert_eq!(
            lines(&report, &terminal(80)),
            [
                "ok       store: found␛",
                "warning  clock: found␛",
                "         → correct it",
                "fault    broker: found␛",
                "         → start it",
                "note     index timers: found␛",
            ]
        );
    }
}
