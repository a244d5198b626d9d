//! Whether a task's history and records agree.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a check of one task found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifyReport {
    /// Whether the chain of events is whole and folding it gives the stored records.
    pub ok: bool,
    /// Events read.
    pub events: u64,
    /// The first fault found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<VerifyFault>,
}

/// Where history and records differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VerifyFault {
    /// The event at which the chain breaks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The record that differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// What is wrong, in a sentence.
    pub message: String,
}
