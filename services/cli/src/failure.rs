//! Why a command could not do its work: one sentence, what to do next, and an exit code.

use std::io;

use standfast_protocol::problem::{Problem, ProblemKind};
use standfast_sdk::Error;

use crate::exit::Exit;
use crate::text;

/// A command's failure, as a person is told of it on stderr.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code to end with.
    pub exit: Exit,
    /// What went wrong, in a sentence; empty for an end without a word.
    pub message: String,
    /// Faults one a line, then what to do next.
    pub lines: Vec<String>,
}

impl Failure {
    /// Makes a failure of a sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self { exit: Exit::Error, message: message.into(), lines: Vec::new() }
    }

    /// Makes a failure of the command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, ..Self::new(message) }
    }

    /// Ends without a word, because it was said already or nobody listens.
    pub fn silent(exit: Exit) -> Self {
        Self { exit, ..Self::new("") }
    }

    /// Adds a line: a fault, or what to do next.
    pub fn and(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Adds faults, one a line: `pointer: message`.
    pub fn with_faults(mut self, faults: impl IntoIterator<Item = (String, String)>) -> Self {
        self.lines.extend(faults.into_iter().map(|(pointer, message)| {
            let place = if pointer.is_empty() { "/".to_owned() } else { pointer };
            format!("{place}: {message}")
        }));
        self
    }

    /// Gives the lines for stderr, free of control characters.
    pub fn to_lines(&self) -> Vec<String> {
        if self.message.is_empty() && self.lines.is_empty() {
            return Vec::new();
        }
        let head = format!("standfast: {}", text::plain(&self.message));
        let rest = self.lines.iter().map(|line| format!("  {}", text::plain(line)));
        std::iter::once(head).chain(rest).collect()
    }
}

/// Failing to write is failing, except into a pipe that nobody reads any more.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::silent(Exit::Completed),
            _ => Self::new(format!("failed to write the output: {error}")),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Problem(problem) => of_problem(*problem),
            other => Self::new(format!("failed to {other}")),
        }
    }
}

fn of_problem(problem: Problem) -> Failure {
    let advice = advice(problem.known());
    let sentence = if problem.detail.is_empty() { problem.title } else { problem.detail };
    let plan = problem.stop_plan.map(|plan| plan.text).unwrap_or_default();
    let faults = problem.errors.into_iter().map(|fault| (fault.pointer, fault.message));
    // A single fault may be the sentence already.
    let faults = faults.filter(|(pointer, message)| sentence != format!("{pointer}: {message}"));
    let faults: Vec<(String, String)> = faults.collect();
    let failure = Failure::new(sentence).with_faults(faults);
    let failure = plan.into_iter().fold(failure, Failure::and);
    match advice {
        Some(advice) => failure.and(advice),
        None => failure,
    }
}

/// Says what to do next where the problem itself cannot know: it does not see this terminal.
fn advice(kind: Option<ProblemKind>) -> Option<&'static str> {
    match kind? {
        ProblemKind::Unauthorized => Some("put a valid token into STANDFAST_TOKEN"),
        ProblemKind::NotFound => Some("see the tasks that you may see: standfast list"),
        ProblemKind::Unavailable => Some("see what is missing: standfast doctor"),
        ProblemKind::InvalidPlan
        | ProblemKind::InvalidJson
        | ProblemKind::InvalidRequest
        | ProblemKind::BadCursor
        | ProblemKind::Forbidden
        | ProblemKind::MethodNotAllowed
        | ProblemKind::KeyReused
        | ProblemKind::Fenced
        | ProblemKind::NotApplicable
        | ProblemKind::PlanMoved
        | ProblemKind::TooLarge
        | ProblemKind::UnsupportedMediaType
        | ProblemKind::BadHost
        | ProblemKind::TooMany
        | ProblemKind::Internal => None,
    }
}

#[cfg(test)]
mod tests {
    use standfast_protocol::problem::Fault;

    use super::*;

    #[test]
    fn faults_of_a_plan_stand_one_a_line() {
        let fault = |pointer: &str, message: &str| Fault {
            pointer: pointer.into(),
            message: message.into(),
        };
        let problem = Problem::new(ProblemKind::InvalidPlan, "the plan has 2 faults")
            .with_errors(vec![fault("/steps/0/id", "missing"), fault("", "too \u{1b}[2Jlong")]);
        let failure = Failure::from(Error::Problem(Box::new(problem)));
        assert_eq!(failure.exit, Exit::Error);
        assert_eq!(
            failure.to_lines(),
            ["standfast: the plan has 2 faults", "  /steps/0/id: missing", "  /: too ␛[2Jlong"]
        );
    }

    #[test]
    fn a_missing_token_says_where_to_put_it() {
        let problem = Problem::new(ProblemKind::Unauthorized, "a valid token is needed");
        let lines = Failure::from(Error::Problem(Box::new(problem))).to_lines();
        assert_eq!(lines[1], "  put a valid token into STANDFAST_TOKEN");
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_no_error() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit, failure.to_lines().len()), (Exit::Completed, 0));
    }
}
