//! How workers outside change the world once: an intent before, a receipt or a "no" after.
//!
//! ```text
//! worker                                  api
//!   | POST …/effects/{name}                 |   the intent, stored before anything is sent
//!   | <-- send, within the window           |   kept: it has happened, here is its receipt
//!   | ==> the outside world, with the key   |   check: find out first; ended: the attempt is over
//!   | POST …/effects/{name}/receipt         |   it has happened: said once, never sent again
//!   | or …/effects/{name}/not-landed        |   it is known not to have happened
//! ```
//!
//! A worker that dies between intent and receipt leaves an effect of which nobody knows whether
//! it has happened; its class says what may be done then. A receipt is taken under any epoch and
//! in any state, also long after the claim is over: a fence closes the course of a task, not
//! the truth.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What may be done about an effect of which it is not known whether it has happened.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EffectClass {
    /// The same request under the same key may be sent again.
    Idempotent,
    /// It can be asked whether it has happened.
    Checkable,
    /// Only a person can find out; it is never sent again by itself.
    Irreversible,
}

/// How it is known that an effect has not happened.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum NotLanded {
    /// The failure came before anything was sent.
    NotSent,
    /// The other side said no.
    Refused,
    /// A check said so.
    Checked,
}

/// The one effect that a step declares in its plan, as a claim hands it over. It is named
/// `main`. If it is `idempotent` the claim is its intent and the completion its receipt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeclaredEffect {
    /// Its class.
    pub class: EffectClass,
    /// The key under which the outside world may know it, the same on every repeat.
    pub key: String,
    /// Whom or what it touches, in the plan's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it does, in the plan's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
    /// Its receipt, if it has happened already: it is not sent again. Absent otherwise; a
    /// receipt may be null.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub kept: Option<Value>,
}

/// Records that an attempt is about to change something outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IntentRequest {
    /// The worker's id.
    pub worker: String,
    /// The attempt's number.
    pub attempt: u32,
    /// The task's epoch.
    pub epoch: u32,
    /// Its class.
    pub class: EffectClass,
    /// The exact request: the same on every repeat, or a person is asked. Absent or null: the
    /// step's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Value>,
    /// How long after now it may be sent, in milliseconds; at most
    /// [`crate::limits::SEND_WINDOW_MS_MAX`], otherwise
    /// [`crate::limits::SEND_WINDOW_MS_DEFAULT`]. The worker keeps it on its own monotonic
    /// clock, from before its first call for this intent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    /// How long the request may take once it is sent, in milliseconds; at most
    /// [`crate::limits::SEND_TIMEOUT_MS_MAX`], otherwise
    /// [`crate::limits::SEND_TIMEOUT_MS_DEFAULT`]. Nothing is checked or repeated before both
    /// are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_timeout_ms: Option<u64>,
    /// Whom or what it touches, for people; at most [`crate::limits::WORDS_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it does, for people; at most [`crate::limits::WORDS_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
}

/// What is to be done about an effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum IntentAnswer {
    /// Send it now, before the window is over. An answer that comes after it is not for
    /// sending: tell `not_sent` and ask again.
    Send {
        /// The key under which the outside world may know it.
        key: String,
    },
    /// It has happened: do not send it.
    Kept {
        /// What the outside world answered.
        receipt: Value,
    },
    /// An earlier attempt may have sent it: find out whether it has happened, tell, and ask
    /// again if it has not.
    Check {
        /// The key under which the outside world may know it.
        key: String,
    },
    /// The attempt is over: its task is ending, or a person is needed. Send and report nothing.
    Ended,
}

/// Tells that an effect has happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptRequest {
    /// The id of the worker that recorded the intent, or has checked it.
    pub worker: String,
    /// Its attempt's number.
    pub attempt: u32,
    /// The task's epoch when it claimed.
    pub epoch: u32,
    /// What the outside world answered; null when not given.
    #[serde(default)]
    pub receipt: Value,
}

/// Tells that an effect has not happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NotLandedRequest {
    /// The id of the worker that recorded the intent, or has checked it.
    pub worker: String,
    /// Its attempt's number.
    pub attempt: u32,
    /// The task's epoch when it claimed.
    pub epoch: u32,
    /// How that is known.
    pub how: NotLanded,
}

/// What a failed attempt tells of the effect that its step declares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EffectEnd {
    /// It has not happened.
    NotLanded(NotLanded),
    /// It has happened all the same; this is the receipt.
    Landed(Value),
}

/// Reads a value that is there, be it null.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_and_ends_read_as_they_are_documented() {
        let send = IntentAnswer::Send { key: "t/s/n/1".to_owned() };
        for (answer, text) in [
            (send, json!({"do": "send", "key": "t/s/n/1"})),
            (IntentAnswer::Kept { receipt: json!(null) }, json!({"do": "kept", "receipt": null})),
            (IntentAnswer::Ended, json!({"do": "ended"})),
        ] {
            assert_eq!(serde_json::to_value(&answer).unwrap(), text);
            assert_eq!(serde_json::from_value::<IntentAnswer>(text).unwrap(), answer);
        }
        let end = EffectEnd::NotLanded(NotLanded::NotSent);
        assert_eq!(serde_json::to_value(end).unwrap(), json!({"not_landed": "not_sent"}));
        let end: EffectEnd = serde_json::from_value(json!({"landed": {"id": 7}})).unwrap();
        assert_eq!(end, EffectEnd::Landed(json!({"id": 7})));
    }

    #[test]
    fn a_kept_receipt_may_be_null() {
        let text = json!({"class": "idempotent", "key": "k", "kept": null});
        let declared: DeclaredEffect = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(declared.kept, Some(Value::Null));
        assert_eq!(serde_json::to_value(&declared).unwrap(), text);
        let without = json!({"class": "idempotent", "key": "k"});
        assert_eq!(serde_json::from_value::<DeclaredEffect>(without).unwrap().kept, None);
    }

    #[test]
    fn an_intent_must_name_its_class() {
        let body = json!({"worker": "w", "attempt": 1, "epoch": 1});
        assert!(serde_json::from_value::<IntentRequest>(body).is_err());
        let body = json!({"worker": "w", "attempt": 1, "epoch": 1, "class": "none"});
        assert!(serde_json::from_value::<IntentRequest>(body).is_err());
    }
}
