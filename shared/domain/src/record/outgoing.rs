//! What leaves: a message that a commit promises to send.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::time::Time;

/// An entry of the outbox. It is written with the commit whose consequence it is, and removed
/// once the message is known to have arrived; no decision reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// When it was committed, by the store's clock; set by the decision that promised it. The
    /// sweep goes by age.
    pub at: Time,
    /// What is sent and where to, as the engine wrote it; opaque here.
    pub message: Value,
}
