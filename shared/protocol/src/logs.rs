//! Logs of attempts, read in pages.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::is_false;

/// Query of an attempt's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogQuery {
    /// The attempt; the last one when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Byte to begin at, counted over all that the attempt wrote; 0 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// How long to wait for text when there is none yet, in milliseconds; at most 30,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// A part of an attempt's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// The attempt that wrote it; 0 when none has started.
    pub attempt: u32,
    /// The text, cut between characters; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// Byte at which the text begins; above the offset asked for when bytes were dropped.
    pub offset: u64,
    /// Byte to ask for next.
    pub next_offset: u64,
    /// Bytes between the offset asked for and `offset` that were not kept.
    #[serde(default)]
    pub dropped_bytes: u64,
    /// Whether the attempt is over and the text reaches to its end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ended: bool,
}
