//! How following a task ended, as lines.

use std::path::Path;

use standfast_domain::time::Span;
use standfast_protocol::explain::LandedEffect;
use standfast_protocol::tasks::{TaskState, TaskView};

use crate::exit::Exit;
use crate::look::{Look, Tone};
use crate::show::holds;
use crate::show::quantities::{between, count, dollars, span};
use crate::text;

/// Says which task is followed; `whereabouts` is how to find it from elsewhere.
pub fn head(task: &TaskView, whereabouts: &str, look: &Look) -> [String; 2] {
    let (kind, goal) = (text::plain(&task.kind), text::plain(&task.goal));
    let first = text::fit(&format!("{kind} · {goal}"), look.width);
    [look.tone(Tone::Strong, &first), format!("task {} · {whereabouts}", text::plain(&task.id))]
}

/// A task that is followed no further.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The task as it stands.
    pub task: TaskView,
    /// How the program ends.
    pub exit: Exit,
    /// How long the steps' last attempts took, together.
    pub work: Span,
    /// How long only a person could move it while it was followed.
    pub waited: Span,
}

impl Ended {
    /// Says how it ended and what that took.
    pub fn summary(&self, look: &Look) -> String {
        let task = &self.task;
        let (word, tone) = match task.state {
            TaskState::Completed => ("completed in", Tone::Good),
            TaskState::Failed => ("failed after", Tone::Bad),
            TaskState::Cancelled => ("cancelled after", Tone::Warning),
            TaskState::Queued
            | TaskState::Running
            | TaskState::Waiting
            | TaskState::Blocked
            | TaskState::Cancelling => ("stands still after", Tone::Warning),
        };
        let end = task.ended_at.as_deref().unwrap_or(&task.changed_at);
        let took = between(&task.created_at, end).map(span).unwrap_or_default();
        let waited = match self.waited.0 {
            0 => String::new(),
            waited => format!(" ({} waiting for you)", span(waited)),
        };
        format!(
            "{} {took}{waited} · {} · {} of work · {}",
            look.tone(tone, word),
            count(task.attempts, "attempt"),
            span(self.work.0),
            dollars(task.cost_usd_micros)
        )
    }

    /// Says why it failed, or what it waits for and which command answers that. `place` makes
    /// commands find the same state; `resume` is the command that goes on, where that needs
    /// one.
    pub fn reasons(&self, place: &str, resume: Option<&str>, look: &Look) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(failure) = &self.task.failure {
            let step =
                failure.step.as_deref().map(|step| format!("step `{}`: ", text::plain(step)));
            let (message, class) = (text::plain(&failure.message), text::plain(&failure.class));
            lines.push(format!("  {}{message} ({class})", step.unwrap_or_default()));
        }
        if self.exit == Exit::NeedsPerson {
            lines.extend(self.task.holds.iter().flat_map(|hold| holds::lines(hold, place, look)));
            lines.extend(resume.map(|resume| format!("  then go on with: {resume}")));
        }
        lines
    }
}

/// Names what the task left: files on this machine and changes of the outside world.
pub fn left(files: &[impl AsRef<Path>], effects: &[LandedEffect]) -> Vec<String> {
    let files = files.iter().map(|file| {
        let shown = file.as_ref().display().to_string();
        format!("  artifact  {}", text::plain(&shown))
    });
    let effects = effects.iter().map(|effect| {
        let target = effect.target.as_deref().unwrap_or(&effect.name);
        let word = if effect.undone_at.is_some() { "undone" } else { "landed" };
        format!("  {word}    {} → {}", text::plain(&effect.step), text::plain(target))
    });
    files.chain(effects).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::terminal;
    use crate::show::samples;

    fn ended(state: TaskState, exit: Exit) -> Ended {
        let mut task = samples::task("t07-4k9v2mq8r5x1c", state);
        task.created_at = "2026-11-29T14:00:00.000Z".into();
        task.ended_at = state.is_ended().then(|| "2026-11-29T14:00:40.000Z".into());
        Ended { task, exit, work: Span(800), waited: Span(0) }
    }

    #[test]
    fn the_summary_says_what_it_took() {
        let mut ended = ended(TaskState::Completed, Exit::Completed);
        assert_eq!(
            ended.summary(&terminal(80)),
            "completed in 40 s · 4 attempts · 0.8 s of work · $0.12"
        );
        ended.waited = Span(39_000);
        assert!(ended.summary(&terminal(80)).starts_with("completed in 40 s (39 s waiting"));
    }

    #[test]
    fn a_hold_ends_with_the_command_that_answers_it() {
        let mut ended = ended(TaskState::Blocked, Exit::NeedsPerson);
        ended.task.holds = vec![samples::hold("pay", "failures")];
        let look = terminal(100);
        let mut lines = vec![ended.summary(&look)];
        let resume = "standfast run --resume t07-4k9v2mq8r5x1c";
        lines.extend(ended.reasons("", Some(resume), &look));
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn an_uncertain_effect_ends_with_the_commands_that_settle_it() {
        let mut ended = ended(TaskState::Blocked, Exit::NeedsPerson);
        ended.task.holds = vec![samples::uncertain("pay")];
        let resume = "standfast run --resume t2c-81hx0q0000000";
        let lines = ended.reasons("", Some(resume), &terminal(100));
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn a_failure_names_its_step() {
        let mut ended = ended(TaskState::Failed, Exit::Failed);
        let mut failure = samples::failure("permanent", "exit code 2\u{1b}");
        failure.step = Some("pay".into());
        ended.task.failure = Some(failure);
        let lines = ended.reasons("", None, &terminal(80));
        assert_eq!(lines, ["  step `pay`: exit code 2␛ (permanent)"]);
    }

    #[test]
    fn what_is_left_is_named() {
        let effect = LandedEffect {
            step: "publish".into(),
            name: "main".into(),
            target: Some("published/".into()),
            at: String::new(),
            receipt: None,
            can_be_undone: true,
            undone_at: None,
        };
        let undone = LandedEffect { undone_at: Some(String::new()), ..effect.clone() };
        assert_eq!(
            left(&[Path::new("./.standfast/artifacts/t/N.md")], &[effect, undone]),
            [
                "  artifact  ./.standfast/artifacts/t/N.md",
                "  landed    publish → published/",
                "  undone    publish → published/",
            ]
        );
    }
}
