//! What a step changes outside: each change's intent, and what became of it.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_zero;
use crate::ids::{Principal, StepId, WorkerId};
use crate::time::Time;

/// Effects of one step over its whole life: they stand in one record, which each intent
/// rewrites.
pub const EFFECTS_MAX: usize = 64;
/// The name of the one effect that a step declares in its plan.
pub const MAIN_EFFECT: &str = "main";

/// What may be done about an effect of which it is not known whether it has happened.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// Nothing changes outside: run again.
    None,
    /// The same request under the same key may be sent again.
    Idempotent,
    /// It can be asked whether it has happened.
    Checkable,
    /// Only a person can find out; it is never sent again by itself.
    Irreversible,
}

impl EffectClass {
    /// All classes, the mildest first.
    pub const ALL: [Self; 4] = [Self::None, Self::Idempotent, Self::Checkable, Self::Irreversible];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Idempotent => "idempotent",
            Self::Checkable => "checkable",
            Self::Irreversible => "irreversible",
        }
    }

    /// Reads the word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }

    /// True if an intent is stored before it is sent, so that the store must keep what it has
    /// answered.
    pub fn needs_durable_store(self) -> bool {
        match self {
            Self::Checkable | Self::Irreversible => true,
            Self::None | Self::Idempotent => false,
        }
    }
}

impl fmt::Display for EffectClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where an effect stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "standing")]
pub enum Standing {
    /// Its attempt is about to send it, or has.
    InFlight,
    /// Its attempt has ended without saying what became of it.
    Uncertain {
        /// Since when.
        since: Time,
    },
    /// It has happened; never sent again.
    Landed {
        /// Since when that is known.
        at: Time,
        /// Digest of the receipt.
        receipt_sha256: String,
        /// The round whose output is the receipt; none: it is a record of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_round: Option<u32>,
    },
    /// It is known not to have happened.
    NotLanded {
        /// Since when that is known.
        at: Time,
        /// How that is known.
        how: NotLanded,
    },
}

/// How it is known that an effect has not happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotLanded {
    /// The failure came before anything was sent.
    NotSent,
    /// The other side said no.
    Refused,
    /// Its check said so.
    Checked,
    /// A person said so.
    Answered,
}

impl NotLanded {
    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Refused => "refused",
            Self::Checked => "checked",
            Self::Answered => "answered",
        }
    }
}

/// One change to the outside world, in its newest generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effect {
    /// Its class.
    pub class: EffectClass,
    /// Rises each time a person lets it be sent additionally; the first is 1.
    pub generation: u32,
    /// Where it stands.
    #[serde(flatten)]
    pub standing: Standing,
    /// Digest of the exact request.
    pub request_sha256: String,
    /// The attempt under which the request is a record of its own; none: the request is the
    /// step's resolved input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_attempt: Option<u32>,
    /// The attempt that recorded the intent.
    pub attempt: u32,
    /// Who runs or ran that attempt: a receipt is taken from nobody else.
    pub worker: WorkerId,
    /// As whom it claimed: whoever comes as somebody else cannot speak for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
    /// When the intent was recorded.
    pub intended_at: Time,
    /// Nothing is sent after this; the sender keeps it on its own monotonic clock.
    pub send_before: Time,
    /// No check and no repeat before this: `send_before` and the longest time of the request.
    pub settled_by: Time,
    /// True if an earlier attempt may have sent it too, under the same key: that this one has not
    /// does not say that it has not happened.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeated: bool,
    /// Whom or what it touches, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it does, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
    /// True if it came to stand where it stands after the task was stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_stop: bool,
    /// True if its intent was recorded after the task was stopped, or if what was known not to
    /// have happened came to stand elsewhere only then: it is no item of the stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub intended_after_stop: bool,
    /// Since when it was uncertain as the task was stopped, if it has come to stand elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertain_at_stop: Option<Time>,
}

impl Effect {
    /// True if it is open and its class does not let it rest: the task cannot complete.
    pub fn is_owed(&self) -> bool {
        self.is_open() && self.class.needs_durable_store()
    }

    /// True while it is not known whether it has happened.
    pub fn is_open(&self) -> bool {
        match self.standing {
            Standing::InFlight | Standing::Uncertain { .. } => true,
            Standing::Landed { .. } | Standing::NotLanded { .. } => false,
        }
    }

    /// True if it was known not to have happened when the task was stopped.
    pub(crate) fn was_closed(&self) -> bool {
        matches!(self.standing, Standing::NotLanded { .. }) && !self.after_stop
    }

    /// True once it is known to have happened.
    pub fn has_landed(&self) -> bool {
        matches!(self.standing, Standing::Landed { .. })
    }
}

/// An effect that has landed and can be undone. Its place in the order of landing is its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landing {
    /// The step.
    pub step: StepId,
    /// The effect's name.
    pub name: String,
    /// The generation that has landed.
    pub generation: u32,
    /// When that became known.
    pub at: Time,
    /// The round whose output is the receipt; none: it is a record of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_round: Option<u32>,
    /// The landing before it whose undo had not begun when this one came; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub below: u32,
}

/// All effects of a step, by name.
pub type Effects = BTreeMap<String, Effect>;

/// Gives the key under which the outside world may know an effect, the same on every repeat.
pub fn effect_key(
    task: &crate::ids::TaskId,
    step: &crate::ids::StepId,
    name: &str,
    generation: u32,
) -> String {
    format!("{task}/{step}/{name}/{generation}")
}

/// What step and header count of a step's effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectCounts {
    /// All names.
    pub all: u32,
    /// Those that are owed.
    pub owed: u32,
    /// Generations that have happened.
    pub landed: u32,
}

impl EffectCounts {
    /// Counts a step's effects. A generation is opened only once the one before has landed.
    pub fn of(effects: &Effects) -> Self {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let landed = |effect: &Effect| effect.generation - u32::from(!effect.has_landed());
        Self {
            all: count(effects.len()),
            owed: count(effects.values().filter(|effect| effect.is_owed()).count()),
            landed: effects.values().map(landed).sum(),
        }
    }
}
