//! Tokens, as commands and later endpoints show them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a principal may do in the whole installation.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything, tokens included.
    Admin,
    /// Submits tasks; sees and steers its own.
    Publisher,
    /// Announces handlers and claims attempts.
    Worker,
}

/// Asks for a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Whom it names, such as `user:ana`.
    pub principal: String,
    /// What it allows in the whole installation.
    pub roles: Vec<Role>,
    /// Groups that the principal is a member of, such as `group:finance`.
    #[serde(default)]
    pub groups: Vec<String>,
    /// How long it is valid, in milliseconds; without end when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_ms: Option<u64>,
}

/// A token just made. Only here is the secret shown; the server keeps its SHA-256.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenIssued {
    /// The secret, to be sent as `Authorization: Bearer SECRET`.
    pub secret: String,
    /// What is kept of it.
    pub token: TokenView,
}

/// Hides the secret, so that it does not reach a log by accident.
impl std::fmt::Debug for TokenIssued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenIssued").field("token", &self.token).finish_non_exhaustive()
    }
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Names the token without giving it away.
    pub id: String,
    /// Whom it names.
    pub principal: String,
    /// What it allows.
    pub roles: Vec<Role>,
    /// Groups of the principal.
    #[serde(default)]
    pub groups: Vec<String>,
    /// When it was made.
    pub created_at: String,
    /// When it ends; absent without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// All tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenPage {
    /// The tokens, oldest first.
    pub tokens: Vec<TokenView>,
}
