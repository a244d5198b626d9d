//! What a task has changed outside, or may have: its effects as readers see them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::holds::AnswerView;

/// Where an effect stands.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EffectStanding {
    /// Its attempt is about to send it, or has.
    InFlight,
    /// Its attempt has ended, and it is not known whether it has happened.
    Uncertain,
    /// It has happened; it is never sent again.
    Landed,
    /// It is known not to have happened.
    NotLanded,
}

impl EffectStanding {
    /// Gives the standing as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Uncertain => "uncertain",
            Self::Landed => "landed",
            Self::NotLanded => "not_landed",
        }
    }
}

impl std::fmt::Display for EffectStanding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request or a receipt. What fits inline has its `value`, what does not has its `blob`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Exchange {
    /// The value itself. Secrets in it are references, as in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// Where the value is kept, if it is too large to be given here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<BlobView>,
}

/// A value that is kept in the blobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlobView {
    /// The blob's name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// SHA-256 of its bytes, in 64 lower-case hex digits.
    pub sha256: String,
}

/// One change to the outside world, in its newest generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EffectView {
    /// The step that makes it.
    pub step: String,
    /// Its name within the step; the one that a plan declares is `main`.
    pub name: String,
    /// What may be done while it is not known whether it has happened: `none`, `idempotent`,
    /// `checkable`, `irreversible`.
    pub class: String,
    /// Rises each time a person lets it be sent additionally; the first is 1.
    pub generation: u32,
    /// The key under which the outside world may know it.
    pub key: String,
    /// Where it stands.
    pub standing: EffectStanding,
    /// How it is known that it has not happened: `not_sent`, `refused`, `checked`, `answered`;
    /// present when `not_landed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// Since when it stands there.
    pub since: String,
    /// When its undo was done; only when `landed`, and only if a stop has undone it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_at: Option<String>,
    /// When its intent was recorded.
    pub intended_at: String,
    /// Nothing is sent after this.
    pub send_before: String,
    /// No check and no repeat comes before this.
    pub settled_by: String,
    /// The worker that recorded the intent.
    pub worker: String,
    /// The attempt that did.
    pub attempt: u32,
    /// Whom or what it touches, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it does, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
    /// Digest of the exact request.
    pub request_sha256: String,
    /// The stored request, or the step's resolved input where that is the request; absent if a
    /// `redo` many rounds ago has replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Exchange>,
    /// What the outside world answered; present when `landed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Exchange>,
    /// What may be answered, with the commands; only when `uncertain`, and not while an attempt
    /// runs that may still find out.
    #[serde(default)]
    pub answers: Vec<AnswerView>,
}

/// Query of a list of effects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EffectQuery {
    /// Effects a page, 1 to 200; 50 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// One page of effects, in the order of the plan and by name. It may hold fewer than `limit`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EffectPage {
    /// The effects.
    pub effects: Vec<EffectView>,
    /// Cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
