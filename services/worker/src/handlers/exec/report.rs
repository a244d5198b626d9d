//! What an attempt of `exec` reports, given what was seen of it.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde_json::{Map, Value, json};

use super::super::secrets::Masker;
use super::super::{
    Class, FAILURE_TEXT_BYTES_MAX, Failure, Job, Report, Sent, Success, shorten, strict_json,
};
use super::outcome::{self, Outcome};
use super::run::Ending;
use super::{ExecSettings, Form, Input};

/// Bytes of a command and of a last line within a message.
const QUOTED_BYTES_MAX: usize = 1024;

/// What was seen of an attempt.
pub(super) struct Seen {
    /// What ended it.
    pub ending: Ending,
    /// How the first process ended, if it ended by itself.
    pub status: Option<ExitStatus>,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// The end of its standard error, and whether there was more.
    pub stderr: (Vec<u8>, bool),
    /// Where it may have written its outcome.
    pub outcome: PathBuf,
    /// Hides the secrets; texts go through it before they are cut, because half a secret is
    /// not found any more.
    pub masker: Masker,
}

impl Seen {
    fn stdout_text(&self) -> String {
        let text = String::from_utf8_lossy(&self.stdout);
        let end = if self.ending == Ending::TooMuch { self.masker.cut(&text) } else { text.len() };
        trimmed(self.masker.text(&text[..end]))
    }

    fn stderr_text(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr.0);
        let start = if self.stderr.1 { self.masker.start(&text) } else { 0 };
        trimmed(self.masker.text(&text[start..]))
    }

    fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }
}

/// Decides the report; no secret is in it.
pub(super) fn report(settings: &ExecSettings, job: &Job, input: &Input, seen: &Seen) -> Report {
    let outcome = outcome::read(&seen.outcome, &seen.masker);
    let cost = outcome.as_ref().ok().and_then(Option::as_ref).map_or(0, |o| o.cost_usd_micros);
    let failure = match seen.ending {
        Ending::Exit => return exited(input, seen, outcome),
        Ending::Cancelled => Failure::new(Class::Cancelled, "exec: cancelled"),
        Ending::TimeOver => {
            let time = job.deadline;
            Failure::new(Class::Timeout, format!("exec: not done after its time of {time:?}"))
        }
        Ending::TooMuch => {
            let limit = settings.output_bytes_max;
            let message = format!(
                "exec: standard output has more than {limit} bytes, the limit; \
                 write large results to a file and name it as artifact"
            );
            Failure::new(Class::Permanent, message)
        }
    };
    let output = failure_output(seen);
    Failure { cost_usd_micros: cost, ..failure }.with_output(output).into()
}

fn exited(input: &Input, seen: &Seen, outcome: Result<Option<Outcome>, String>) -> Report {
    let expected = seen.code().is_some_and(|code| input.expect_exit.contains(&code));
    match outcome {
        Ok(Some(Outcome { error: Some(failure), .. })) => {
            let output = failure.output.clone().unwrap_or_else(|| failure_output(seen));
            let sent = match failure.sent.clone() {
                Sent::Landed(_) => Sent::Landed(output.clone()),
                other => other,
            };
            Failure { sent, ..failure.with_output(output) }.into()
        }
        Ok(outcome) if expected => succeeded(input.form, seen, outcome.unwrap_or_default()),
        Err(fault) if expected => permanent(seen, &format!("the outcome file: {fault}")).into(),
        Ok(outcome) => {
            let cost_usd_micros = outcome.map_or(0, |outcome| outcome.cost_usd_micros);
            Failure { cost_usd_micros, ..unexpected(input, seen, "") }.into()
        }
        // A program that failed may well have been in the middle of writing.
        Err(fault) => unexpected(input, seen, &format!("; its outcome file: {fault}")).into(),
    }
}

fn succeeded(form: Form, seen: &Seen, outcome: Outcome) -> Report {
    let output = match outcome.output {
        Some(output) => output,
        None => match own_output(form, seen) {
            Ok(output) => output,
            Err(fault) => {
                let message = format!("standard output is not the JSON asked for: {fault}");
                return permanent(seen, &message).into();
            }
        },
    };
    Report::Succeeded(Success {
        output,
        artifacts: outcome.artifacts,
        cost_usd_micros: outcome.cost_usd_micros,
        checkpoint: outcome.checkpoint,
        then: outcome.then,
        kept: false,
    })
}

fn own_output(form: Form, seen: &Seen) -> Result<Value, String> {
    let mut output = Map::new();
    output.insert("exit_code".to_owned(), seen.code().into());
    let stdout = match form {
        Form::Absent => return Ok(Value::Object(output)),
        Form::Text => seen.stdout_text().into(),
        Form::Json => seen.masker.value(strict_json::parse(&seen.stdout)?),
    };
    output.insert("stdout".to_owned(), stdout);
    output.insert("stderr".to_owned(), seen.stderr_text().into());
    if seen.stderr.1 {
        output.insert("stderr_truncated".to_owned(), true.into());
    }
    Ok(Value::Object(output))
}

fn permanent(seen: &Seen, message: &str) -> Failure {
    let message = format!("exec: {}", seen.masker.text(message));
    Failure::new(Class::Permanent, message).with_output(failure_output(seen))
}

fn unexpected(input: &Input, seen: &Seen, addition: &str) -> Failure {
    let command = seen.masker.text(&input.command.join(" "));
    let how = match (seen.code(), seen.status.and_then(|status| status.signal())) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    let stderr = seen.stderr_text();
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).map(str::trim);
    let last = last.map(|line| format!(": {}", shorten(line, QUOTED_BYTES_MAX)));
    let message = format!(
        "exec: `{}` {how}{}{}",
        shorten(&command, QUOTED_BYTES_MAX),
        last.unwrap_or_default(),
        seen.masker.text(addition)
    );
    Failure::new(Class::Retryable, message).with_output(failure_output(seen))
}

fn failure_output(seen: &Seen) -> Value {
    let end = |text: String| {
        let from = text.len().saturating_sub(FAILURE_TEXT_BYTES_MAX);
        text[text.ceil_char_boundary(from)..].to_owned()
    };
    let (stdout, stderr) = (end(seen.stdout_text()), end(seen.stderr_text()));
    json!({ "exit_code": seen.code(), "stdout": stdout, "stderr": stderr })
}

/// Gives a program's text without the line ends at its end.
fn trimmed(mut text: String) -> String {
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    text
}
