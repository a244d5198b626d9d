//! The handler `exec`: runs a program, without a shell.
//!
//! # Input
//!
//! - `command`: the program and its arguments; a program with a `/` that is not absolute is
//!   looked up in the attempt's directory, one without on the `PATH`
//! - `stdin`: what the program reads: a text as it is, any other JSON in its compact form;
//!   absent: nothing
//! - `env`: further variables; names that begin with `STANDFAST_` are refused
//! - `expect_exit`: the exit codes of success; `[0]` if absent
//! - `output`: `text` (the default): standard output as text; `json`: read as one JSON value;
//!   `none`: kept in the log alone
//!
//! `${{ secrets.NAME }}` in a text of `command`, `stdin` or `env` is replaced just before the
//! start; the values are masked as `***` in log, messages and outputs.
//!
//! # Environment
//!
//! The program starts in the attempt's directory with `PATH`, `HOME` and `LANG` of the worker,
//! a `TMPDIR` of its own, `STANDFAST_TASK`, `STANDFAST_STEP`, `STANDFAST_ATTEMPT`,
//! `STANDFAST_ROUND`, `STANDFAST_INPUTS` (the directory of the needed steps' artifacts),
//! `STANDFAST_OUTCOME` and `STANDFAST_PROGRESS` (files it may write, see below), in an attempt
//! after one that said how far it was `STANDFAST_LAST_DETAILS` (what that one said last), in a
//! task that was submitted with a W3C trace context `TRACEPARENT`, and three marks by which its
//! processes are found again. Nothing else of the worker's environment is passed on.
//!
//! # Progress
//!
//! The last whole line of the file that `STANDFAST_PROGRESS` names (all of it if it has no line
//! end; up to 4 KiB) is shown beside the step while the program runs, and handed to the next
//! attempt if this one does not succeed. Signs of life, of which a step's `timeout.heartbeat`
//! wants one again and again, are output of any kind and a change of either file.
//!
//! # Output
//!
//! `{ "exit_code": 0, "stdout": …, "stderr": "…" }`. Line ends at the end of a text are cut
//! off, as `$(…)` does in a shell. More than 64 MiB of standard output end the attempt;
//! of standard error the last 64 KiB are kept, with `"stderr_truncated": true` if there was
//! more.
//!
//! A program can say more in the file that `STANDFAST_OUTCOME` names; an `output` there
//! replaces all of the above:
//!
//! ```json
//! { "output": {"words": 812}, "artifacts": ["notes.md"], "cost": {"usd": "0.12"},
//!   "checkpoint": "drafted", "then": [{"id": "check", "uses": "exec"}] }
//! ```
//!
//! or, instead of a success, with any exit code:
//!
//! ```json
//! { "error": {"class": "rate_limited", "message": "asked to wait", "retry_after": "30s",
//!             "output": null}, "cost": {"usd": 0.01} }
//! ```
//!
//! # Failure
//!
//! An exit code that is not expected, and a signal: `retryable`, unless the outcome file has
//! an `error`, whose class then counts. A program that cannot be found or run, an outcome
//! file or JSON output with faults, too much output: `permanent`. The failure's output has
//! the same shape as a success's, with the ends of both texts.
//!
//! # Effects
//!
//! What a program changes outside, nobody can tell from its command: the step's author declares
//! it (`effect`), and without that it is run again after a crash. Of a declared effect the
//! intent is recorded before the program starts, and `STANDFAST_EFFECT_KEY` is the key that
//! stays the same on every repeat. A success says that it has happened. A failure says nothing,
//! unless the program was never started, or its outcome file has `"effect": "happened"` or
//! `"not_happened"` within `error`. As the `check` of an effect, exit code 0 says that it has
//! happened and 1 that it has not.
//!
//! # The end
//!
//! When the first process ends, everything it left behind is killed. On cancellation and when
//! the time is over all processes get SIGTERM, after the grace period SIGKILL; that reaches
//! those that left their group or session as well. What is guaranteed about processes that
//! try to escape is told at the top of `family.rs`.

mod family;
mod outcome;
mod processes;
mod progress;
mod report;
mod run;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::record::EffectClass;

pub use family::reap_orphans;

use super::fields::{Fields, kind, shown, templated};
use super::{Failure, Fault, Handler, Job, OUTPUT_BYTES_MAX, Report, faults_failure};

/// Names of variables that belong to Standfast.
const RESERVED_PREFIX: &str = "STANDFAST_";
/// The fields of an input.
const FIELDS: [&str; 5] = ["command", "stdin", "env", "expect_exit", "output"];

/// What an operator sets for `exec`.
#[derive(Clone, Debug)]
pub struct ExecSettings {
    /// How long processes have between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Bytes of standard output after which an attempt fails.
    pub output_bytes_max: usize,
    /// Names the data directory, for [`reap_orphans`]; the same after a restart.
    pub home_id: String,
}

impl ExecSettings {
    /// Gives the defaults for a data directory.
    pub fn new(home_id: impl Into<String>) -> Self {
        Self {
            grace: Duration::from_secs(5),
            output_bytes_max: OUTPUT_BYTES_MAX,
            home_id: home_id.into(),
        }
    }
}

/// The handler `exec`.
pub struct Exec {
    settings: ExecSettings,
}

impl Exec {
    /// Makes the handler.
    pub fn new(settings: ExecSettings) -> Self {
        Self { settings }
    }
}

#[async_trait]
impl Handler for Exec {
    fn name(&self) -> &str {
        "exec"
    }

    fn check(&self, input: &Value) -> Vec<Fault> {
        read_input(input).1
    }

    /// Nobody can tell from a command what it changes: its author declares it.
    fn effect(&self, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }

    /// Exit code 1 says so.
    fn says_no(&self, failure: &Failure) -> bool {
        failure.output.as_ref().is_some_and(|output| output["exit_code"] == 1)
    }

    async fn run(&self, job: Job) -> Report {
        match read_input(&job.input) {
            (Some(input), faults) if faults.is_empty() => {
                run::run(&self.settings, &job, input).await
            }
            (_, faults) => faults_failure("exec", &faults).into(),
        }
    }
}

/// How standard output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json,
    Absent,
}

/// An input whose shape is right; its texts may still name secrets.
#[derive(Clone, Debug, PartialEq)]
struct Input {
    command: Vec<String>,
    stdin: Option<Value>,
    env: Vec<(String, String)>,
    expect_exit: Vec<i32>,
    form: Form,
}

/// Reads an input and gathers its faults; what is templated as a whole passes, with a
/// default in its place.
fn read_input(input: &Value) -> (Option<Input>, Vec<Fault>) {
    let mut fields = Fields::new(input, &FIELDS);
    let command = read_command(&mut fields);
    let env = read_env(&mut fields);
    let expect_exit = read_expect_exit(&mut fields);
    let form = read_form(&mut fields);
    let stdin = fields.get("stdin").cloned();
    let read = command.map(|command| Input { command, stdin, env, expect_exit, form });
    (read, fields.finish())
}

fn read_command(fields: &mut Fields<'_>) -> Option<Vec<String>> {
    let value = fields.required("command")?;
    if templated(value) {
        return Some(Vec::new());
    }
    let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
        let message = format!(
            "expected a list of the program and its arguments, found {}; \
             for a shell write [sh, -c, …]",
            shown(value)
        );
        fields.fault("/command", message);
        return None;
    };
    let mut command = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let pointer = format!("/command/{index}");
        match item {
            Value::String(text) if text.is_empty() && index == 0 => {
                fields.fault(&pointer, "the program is an empty string");
            }
            Value::String(text) if text.contains('\0') => {
                fields.fault(&pointer, "an argument cannot hold a NUL character");
            }
            Value::String(text) => command.push(text.clone()),
            other @ (Value::Number(_) | Value::Bool(_)) => {
                let cure = "quote it, or in a template write `string(…)` around it";
                let found = kind(other);
                fields.fault(&pointer, format!("expected a string, found {found}: {cure}"));
            }
            other => fields.fault(&pointer, format!("expected a string, found {}", kind(other))),
        }
    }
    Some(command)
}

fn read_env(fields: &mut Fields<'_>) -> Vec<(String, String)> {
    let env = fields.texts("env");
    for (name, value) in &env {
        let pointer = format!("/env/{}", super::fields::escape(name));
        let head = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        if !head || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            fields.fault(&pointer, "a name is a letter or `_`, then letters, digits or `_`");
        }
        if name.starts_with(RESERVED_PREFIX) {
            fields.fault(&pointer, format!("names with {RESERVED_PREFIX} are reserved"));
        }
        if value.contains('\0') {
            fields.fault(&pointer, "a value cannot hold a NUL character");
        }
    }
    env
}

fn read_expect_exit(fields: &mut Fields<'_>) -> Vec<i32> {
    let Some(value) = fields.get("expect_exit").filter(|value| !templated(value)) else {
        return vec![0];
    };
    let code = |item: &Value| item.as_u64().and_then(|n| u8::try_from(n).ok()).map(i32::from);
    let codes: Option<Vec<i32>> = value.as_array().and_then(|items| {
        let wanted = items.iter().filter(|item| !templated(item));
        wanted.map(code).collect()
    });
    match codes {
        Some(codes) if value.as_array().is_some_and(|items| !items.is_empty()) => codes,
        Some(_) | None => {
            let message =
                format!("expected a list of exit codes from 0 to 255, found {}", shown(value));
            fields.fault("/expect_exit", message);
            vec![0]
        }
    }
}

fn read_form(fields: &mut Fields<'_>) -> Form {
    let Some(value) = fields.get("output").filter(|value| !templated(value)) else {
        return Form::Text;
    };
    match value.as_str() {
        Some("text") => Form::Text,
        Some("json") => Form::Json,
        Some("none") => Form::Absent,
        Some(_) | None => {
            let message = format!("expected `text`, `json` or `none`, found {}", shown(value));
            fields.fault("/output", message);
            Form::Text
        }
    }
}

#[cfg(test)]
mod tests;
