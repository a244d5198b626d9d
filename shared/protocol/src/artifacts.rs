//! Files that steps leave behind.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One artifact; its bytes are immutable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    /// The step that left it.
    pub step: String,
    /// Its name within the step; set by the plan or the handler.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes, in 64 lower-case hex digits.
    pub sha256: String,
    /// Path of the bytes on this api.
    pub url: String,
}

/// All artifacts of a task's settled steps, by step and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactPage {
    /// The artifacts.
    pub artifacts: Vec<ArtifactView>,
}
