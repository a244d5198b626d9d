//! How the program ends: its exit codes, which scripts may rely on.

use std::process::ExitCode;

use standfast_protocol::tasks::TaskState;

/// An exit code with its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done; a task that was waited for has completed.
    Completed = 0,
    /// Something went wrong on the way; nothing is said about the task.
    Error = 1,
    /// The task that was waited for has failed.
    Failed = 2,
    /// The task that was waited for was stopped.
    Cancelled = 3,
    /// Only a person or a signal can move the task.
    NeedsPerson = 4,
    /// The command line cannot be understood (`EX_USAGE` of sysexits).
    Usage = 64,
    /// Ended by Ctrl-C (128 + SIGINT, as shells have it).
    Interrupted = 130,
}

impl Exit {
    /// Gives the exit code for a task that has ended; none for one that has not.
    pub fn of_ended(state: TaskState) -> Option<Self> {
        match state {
            TaskState::Completed => Some(Self::Completed),
            TaskState::Failed => Some(Self::Failed),
            TaskState::Cancelled => Some(Self::Cancelled),
            TaskState::Queued
            | TaskState::Running
            | TaskState::Waiting
            | TaskState::Blocked
            | TaskState::Cancelling => None,
        }
    }

    /// Maps what clap made of a command line: help and version are no errors, and its own
    /// code for a wrong one would read as "the task failed".
    pub fn of_parsing(error: &clap::Error) -> Self {
        if error.use_stderr() { Self::Usage } else { Self::Completed }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_that_scripts_rely_on() {
        let all = [
            (Exit::Completed, 0),
            (Exit::Error, 1),
            (Exit::Failed, 2),
            (Exit::Cancelled, 3),
            (Exit::NeedsPerson, 4),
            (Exit::Usage, 64),
            (Exit::Interrupted, 130),
        ];
        for (exit, code) in all {
            assert_eq!(exit as u8, code, "{exit:?}");
        }
    }

    #[test]
    fn only_ended_tasks_have_an_exit_code() {
        for &state in TaskState::ALL {
            assert_eq!(Exit::of_ended(state).is_some(), state.is_ended(), "{state}");
        }
        assert_eq!(Exit::of_ended(TaskState::Cancelled), Some(Exit::Cancelled));
    }
}
