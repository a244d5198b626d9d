//! The first look at a Redis: what no waiting can cure is told at once, with what to do.

use ::redis::{ErrorKind, RedisError};
use standfast_engine::ports::StoreError;

use super::{RedisStore, answers, health};

/// Why nothing can begin on a Redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// It does not answer, or not yet: waiting may help.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It answers, and says no: only another address, or another Redis, helps.
    #[error("use this redis: {0}")]
    Unusable(String),
}

impl RedisStore {
    /// Asks Redis, over a connection of its own, whether it lets us in and is of a kind that can
    /// be used.
    pub async fn begin(&self) -> Result<(), BeginError> {
        let mut connection = self.shared.connect_apart().await.map_err(|error| judge(&error))?;
        let mut info = ::redis::cmd("INFO");
        let said = info.arg("cluster").query_async::<String>(&mut connection).await;
        let said = match said {
            Ok(said) => said,
            // Access lists may forbid this one; what else they forbid is told where it is asked.
            Err(error) if error.code() == Some("NOPERM") => return Ok(()),
            Err(error) => return Err(judge(&error)),
        };
        match said.lines().any(|line| line.trim() == "cluster_enabled:1") {
            true => Err(BeginError::Unusable(format!("it {}", health::IN_CLUSTER_MODE))),
            false => Ok(()),
        }
    }
}

/// Tells apart what may pass and what is refused for good. The password and the number of the
/// database are those of the URL, and a process keeps its URL.
fn judge(error: &RedisError) -> BeginError {
    let is = |code: &str| error.code() == Some(code);
    let refused = if error.kind() == ErrorKind::AuthenticationFailed || is("WRONGPASS") {
        "it refuses the user or password of the URL"
    } else if is("NOAUTH") || said(error, "Authentication required") {
        "it wants a password, and the URL has none"
    } else if said(error, "DB index") {
        "it has no database of the number at the end of the URL"
    } else {
        return BeginError::Store(answers::judge(error).error);
    };
    BeginError::Unusable(refused.to_owned())
}

/// True if Redis gave such a reason when it did not let the connection choose its database.
fn said(error: &RedisError, reason: &str) -> bool {
    error.detail().is_some_and(|detail| detail.contains(reason))
}
