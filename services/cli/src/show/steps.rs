//! Steps, one a line: mark, name, handler, seconds, and what counts.

use serde_json::{Map, Value};
use standfast_protocol::holds::HoldView;
use standfast_protocol::steps::{StepState, StepView, WaitingFor};

use super::quantities::{between, bytes, count, span, when, when_both};
use crate::look::{Look, Tone};
use crate::text;

/// Columns of a name and of a handler; longer ones are cut.
const NAME_WIDTH_MAX: usize = 28;
const HANDLER_WIDTH_MAX: usize = 14;
/// Columns of a duration.
const TIME_WIDTH: usize = 7;
/// Columns that a failure's message has at least.
const MESSAGE_WIDTH_MIN: usize = 12;
/// Columns of an output that is shown instead of a summary.
const OUTPUT_WIDTH_MAX: usize = 60;

/// Widths that all lines of one task share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Widths {
    name: usize,
    handler: usize,
}

impl Widths {
    /// Makes room for a step. Names come from outside, so they are measured as shown.
    pub fn include(&mut self, step: &StepView) {
        let wide = |text: &str, most: usize| text::width(&text::plain(text)).min(most);
        self.name = self.name.max(wide(&step.id, NAME_WIDTH_MAX));
        self.handler = self.handler.max(wide(&step.uses, HANDLER_WIDTH_MAX));
    }

    /// Gives the widths for some steps.
    pub fn of(steps: &[StepView]) -> Self {
        let mut widths = Self::default();
        steps.iter().for_each(|step| widths.include(step));
        widths
    }
}

/// Gives the mark of a state; each has its own, so that none needs a colour.
pub fn mark(state: StepState) -> char {
    match state {
        StepState::Pending => '·',
        StepState::Ready => '…',
        StepState::Running => '▸',
        StepState::Retrying => '↻',
        StepState::Held => '?',
        StepState::Succeeded => '✓',
        StepState::Failed => '✗',
        StepState::Skipped => '-',
        StepState::Cancelled => '■',
    }
}

fn tone(state: StepState) -> Tone {
    match state {
        StepState::Pending | StepState::Ready | StepState::Skipped => Tone::Dim,
        StepState::Running => Tone::Strong,
        StepState::Retrying | StepState::Held | StepState::Cancelled => Tone::Warning,
        StepState::Succeeded => Tone::Good,
        StepState::Failed => Tone::Bad,
    }
}

/// Writes a step's line. Without a terminal it begins with the time at which the step came
/// into its state.
pub fn line(step: &StepView, widths: Widths, look: &Look) -> String {
    let head = head((&step.id, &step.uses), duration(step, look), widths);
    let facts = format!("{head}{}", what_counts(step, look));
    marked(step.state, &step.since, &facts, look)
}

/// An attempt that failed and was not its step's end.
pub struct FailedAttempt<'a> {
    /// The step.
    pub step: &'a str,
    /// Its handler.
    pub uses: &'a str,
    /// How long the attempt took, in milliseconds.
    pub millis: Option<u64>,
    /// When it failed.
    pub at: &'a str,
    /// How.
    pub class: &'a str,
    /// Why.
    pub message: &'a str,
    /// What follows, such as `retry in 2 s`.
    pub then: &'a str,
}

/// Writes the line of such an attempt. Where room is short the message is cut, so that what
/// follows stays readable.
pub fn failed_line(failed: &FailedAttempt<'_>, widths: Widths, look: &Look) -> String {
    let head = head((failed.step, failed.uses), failed.millis, widths);
    let (class, then) = (text::plain(failed.class), failed.then);
    // What somebody took back or ended has not failed by itself.
    let word = if failed.class == "cancelled" { "ended" } else { "failed" };
    let taken = text::width(&format!("{head}{word}:  ({class}) · {then}"));
    let room = look.width.saturating_sub(4 + taken).max(MESSAGE_WIDTH_MIN);
    let message = text::fit(&text::plain(failed.message), room);
    let facts = format!("{head}{word}: {message} ({class}) · {then}");
    marked(StepState::Failed, failed.at, &facts, look)
}

fn head((step, uses): (&str, &str), millis: Option<u64>, widths: Widths) -> String {
    let time = millis.map(span).unwrap_or_default();
    format!(
        "{}  {}  {time:>TIME_WIDTH$}   ",
        text::pad(&text::plain(step), widths.name),
        text::pad(&text::plain(uses), widths.handler),
    )
}

fn marked(state: StepState, since: &str, facts: &str, look: &Look) -> String {
    let facts = text::fit(facts.trim_end(), look.width.saturating_sub(4));
    let mark = look.tone(tone(state), &mark(state).to_string());
    match look.terminal {
        true => format!("  {mark} {facts}"),
        false => format!("{} {mark} {facts}", text::plain(since)),
    }
}

/// How long the last attempt took, or has been running.
fn duration(step: &StepView, look: &Look) -> Option<u64> {
    let started = step.started_at.as_deref()?;
    match step.state {
        StepState::Running => between(started, &look.now.rfc3339()),
        StepState::Succeeded | StepState::Failed | StepState::Cancelled => {
            between(started, attempt_end(step)?)
        }
        StepState::Pending
        | StepState::Ready
        | StepState::Retrying
        | StepState::Held
        | StepState::Skipped => None,
    }
}

/// Gives when the last attempt of a settled step ended: before any hold that settled it.
pub fn attempt_end(step: &StepView) -> Option<&str> {
    let settled_at = step.ended_at.as_deref()?;
    Some(step.attempt_ended_at.as_deref().unwrap_or(settled_at))
}

/// Says in a few words what is worth knowing about a step where it stands.
fn what_counts(step: &StepView, look: &Look) -> String {
    let summary = step.summary.as_deref().map(text::plain);
    match step.state {
        StepState::Pending => String::new(),
        StepState::Ready => match step.waiting_for {
            Some(reason) => format!("waits {}", waiting(reason, &step.queue)),
            None => "ready".to_owned(),
        },
        StepState::Running => running(step, summary),
        StepState::Retrying => {
            let at = step.retry_at.as_deref().map(|at| format!(", again {}", when(at, look)));
            format!("attempt {} {}{}", step.attempt, failure(step), at.unwrap_or_default())
        }
        StepState::Held => match &step.hold {
            Some(hold) => held(hold, look),
            None => "held".to_owned(),
        },
        StepState::Succeeded => succeeded(step, summary),
        StepState::Failed => failure(step),
        StepState::Skipped => summary.unwrap_or_else(|| "skipped".to_owned()),
        StepState::Cancelled => summary.unwrap_or_else(|| "ended with its task".to_owned()),
    }
}

fn running(step: &StepView, summary: Option<String>) -> String {
    let mut parts = Vec::new();
    if step.attempt > 1 {
        parts.push(format!("attempt {}", step.attempt));
    }
    if step.stalled {
        parts.push("stalled: its heartbeat is overdue".to_owned());
    }
    parts.extend(summary);
    parts.join(", ")
}

fn succeeded(step: &StepView, summary: Option<String>) -> String {
    let files = step.artifacts.iter();
    let files = files.map(|file| format!("{}, {}", text::plain(&file.name), bytes(file.bytes)));
    let mut parts: Vec<String> = files.collect();
    // A summary may name the artifact too where there is nothing else to tell.
    let summary = summary.or_else(|| short_form(step.output.as_ref()?));
    parts.extend(summary.filter(|summary| {
        step.artifacts.iter().all(|file| !summary.contains(&text::plain(&file.name)))
    }));
    parts.join(" · ")
}

/// Says in a few words what an output is: a line itself, or how many lines there are.
fn short_form(output: &Value) -> Option<String> {
    let written = match output {
        Value::Object(fields) => fields.get("stdout").unwrap_or(output),
        other => other,
    };
    let Value::String(written) = written else {
        let empty = written.is_null() || written.as_object().is_some_and(Map::is_empty);
        return (!empty).then(|| text::fit(&text::plain(&written.to_string()), OUTPUT_WIDTH_MAX));
    };
    let mut lines = written.lines();
    match (lines.next()?, lines.count() as u64) {
        (only, 0) => Some(text::fit(&text::plain(only), OUTPUT_WIDTH_MAX)),
        (_, more) => Some(count(more + 1, "line")),
    }
}

fn failure(step: &StepView) -> String {
    match &step.failure {
        Some(failure) => {
            format!("failed: {} ({})", text::plain(&failure.message), text::plain(&failure.class))
        }
        None => "failed".to_owned(),
    }
}

/// Says why a step is held and until when.
pub fn held(hold: &HoldView, look: &Look) -> String {
    // A timer's message is its deadline, which is told better from now.
    if let ("timer", Some(deadline)) = (hold.reason.as_str(), hold.deadline.as_deref()) {
        return format!("waits until {}", when_both(deadline, look));
    }
    let deadline = hold.deadline.as_deref().map(|deadline| {
        let then = hold.then.as_deref().map(|then| format!(", then {}", text::plain(then)));
        format!(", until {}{}", when_both(deadline, look), then.unwrap_or_default())
    });
    format!(
        "{}: {}{}",
        text::plain(&hold.reason),
        text::plain(&hold.message),
        deadline.unwrap_or_default()
    )
}

fn waiting(reason: WaitingFor, queue: &str) -> String {
    match reason {
        WaitingFor::NoWorker => {
            format!("for a worker of queue `{}` that has the handler", text::plain(queue))
        }
        WaitingFor::Unsubscribed => {
            format!("for the broker: no worker takes from queue `{}` now", text::plain(queue))
        }
        WaitingFor::Concurrency => "for others to end: as many run as may".to_owned(),
        WaitingFor::Rate => "because as many started as may in this span".to_owned(),
        WaitingFor::QueuePaused => format!("because queue `{}` is paused", text::plain(queue)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::look::samples::{pipe, terminal};
    use crate::show::samples;

    fn steps() -> Vec<StepView> {
        let mut log = samples::step("log", StepState::Succeeded);
        log.summary = Some("20 commits".into());
        let mut draft = samples::step("draft", StepState::Succeeded);
        draft.artifacts = vec![samples::artifact("draft", "RELEASE_NOTES.md", 1_900)];
        draft.summary = Some("RELEASE_NOTES.md, 1.8 KiB".into());
        let mut pay = samples::step("pay", StepState::Held);
        pay.hold = Some(samples::hold("pay", "failures"));
        let mut mail = samples::step("mail", StepState::Retrying);
        mail.failure = Some(samples::failure("timeout", "no answer\u{1b}[2J after 30 s"));
        mail.retry_at = Some("2026-11-29T14:14:15.000Z".into());
        let mut close = samples::step("close", StepState::Ready);
        close.waiting_for = Some(WaitingFor::NoWorker);
        let running = samples::step("a-step-with-a-name-far-beyond-the-usual", StepState::Running);
        vec![log, draft, pay, mail, close, running, samples::step("tidy", StepState::Pending)]
    }

    fn lines(look: &Look) -> String {
        let steps = steps();
        let widths = Widths::of(&steps);
        let lines: Vec<String> = steps.iter().map(|step| line(step, widths, look)).collect();
        lines.join("\n")
    }

    #[test]
    fn steps_on_a_terminal() {
        let lines = lines(&terminal(100));
        assert!(lines.lines().all(|line| text::width(line) <= 100));
        insta::assert_snapshot!(lines);
    }

    #[test]
    fn steps_in_a_pipe() {
        insta::assert_snapshot!(lines(&pipe()));
    }

    #[test]
    fn a_failed_attempt_says_what_follows_however_long_its_message() {
        let long = "x".repeat(300);
        let mut failed = FailedAttempt {
            step: "test",
            uses: "exec",
            millis: Some(120),
            at: "2026-11-29T14:14:10.620Z",
            class: "permanent",
            message: "exit code 1",
            then: "round 2 begins",
        };
        let widths = Widths { name: 4, handler: 4 };
        let expected = "2026-11-29T14:14:10.620Z ✗ test  exec    0.1 s   \
            failed: exit code 1 (permanent) · round 2 begins";
        assert_eq!(failed_line(&failed, widths, &pipe()), expected);
        failed.message = &long;
        let line = failed_line(&failed, widths, &terminal(80));
        assert!(line.ends_with("(permanent) · round 2 begins"), "{line}");
        assert_eq!(text::width(&line), 80);
    }

    #[test]
    fn an_output_is_told_in_a_few_words() {
        let cases = [
            (json!({"stdout": "a\nb\n"}), Some("2 lines")),
            (json!({"stdout": "v1.2\u{1b}\n"}), Some("v1.2␛")),
            (json!({"stdout": ""}), None),
            (json!({"total": 7}), Some("{\"total\":7}")),
            (json!("done"), Some("done")),
            (json!({}), None),
            (json!(null), None),
        ];
        for (output, expected) in cases {
            assert_eq!(short_form(&output).as_deref(), expected, "{output}");
        }
    }

    #[test]
    fn every_state_has_a_mark_of_its_own() {
        let states = [
            StepState::Pending,
            StepState::Ready,
            StepState::Running,
            StepState::Retrying,
            StepState::Held,
            StepState::Succeeded,
            StepState::Failed,
            StepState::Skipped,
            StepState::Cancelled,
        ];
        let marks: std::collections::BTreeSet<char> = states.map(mark).into_iter().collect();
        assert_eq!(marks.len(), states.len());
    }
}
