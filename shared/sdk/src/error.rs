//! What can go wrong between a program and Standfast.

use standfast_protocol::problem::{Problem, ProblemKind};

/// An error of the client, the publisher or the worker; the text fits after "failed to".
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused; the problem says what and why.
    #[error("have the request accepted: {0}")]
    Problem(Box<Problem>),
    /// No answer came within the patience given.
    #[error("reach {url}: {}; is the api running there?", root(source))]
    Unreachable {
        /// The address that was asked.
        url: String,
        /// The last attempt's error.
        source: reqwest::Error,
    },
    /// The connection stands, but the answer did not come in time.
    #[error("get an answer from {url} in time")]
    Silent {
        /// The address that was asked.
        url: String,
    },
    /// Something answered, but not as a Standfast api does.
    #[error("understand the answer of {url}: {why}")]
    Unexpected {
        /// The address that was asked.
        url: String,
        /// What was wrong with the answer.
        why: String,
    },
    /// An argument cannot be used.
    #[error("{0}")]
    Setup(String),
    /// The AMQP broker could not be used.
    #[error("use the broker: {0}")]
    Broker(#[from] lapin::Error),
    /// The broker did not do its part in time, or refused it.
    #[error("publish: {0}")]
    NotPublished(String),
    /// The broker has the submission, but no reply came in time. Submitting again with the same
    /// key gives the task's id.
    #[error("get a reply for key `{key}` in time; submit it again with the same key to ask again")]
    NoReply {
        /// The idempotency key that was used.
        key: String,
    },
    /// A file could not be read.
    #[error("read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A value could not be written as JSON.
    #[error("write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Writes the sentence, since this is what a `main` that returns the error shows.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "failed to {self}")
    }
}

impl Error {
    /// Gives the kind of problem, if the server refused with one that is known here.
    pub fn problem(&self) -> Option<ProblemKind> {
        match self {
            Self::Problem(problem) => problem.known(),
            _ => None,
        }
    }

    /// Says whether the same call may succeed later without anything else changing.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Problem(problem) => passing_status(problem.status),
            Self::Unreachable { .. }
            | Self::Silent { .. }
            | Self::Broker(_)
            | Self::NotPublished(_) => true,
            Self::Unexpected { .. }
            | Self::NoReply { .. }
            | Self::Setup(_)
            | Self::File { .. }
            | Self::Json(_) => false,
        }
    }
}

/// Says whether a status means "not now" rather than "no".
pub(crate) fn passing_status(status: u16) -> bool {
    status == 429 || status >= 500
}

/// Gives the innermost cause: the outer ones only say that a request was sent.
fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
