//! The name of a stop plan.

use serde_json::{Value, json};

use super::item::{Item, Now, Subject};
use crate::canonical::digest_hex;
use crate::ids::TaskId;
use crate::record::{EffectClass, StopMode};

/// Gives SHA-256 of the canonical form of all items, in hex.
pub(super) fn digest(task: &TaskId, mode: StopMode, items: &[Item], covers_claims: bool) -> String {
    let named: Vec<Value> = items
        .iter()
        .filter_map(|item| match covers_claims {
            true => Some(named(item)),
            false => unclaimed(item),
        })
        .collect();
    digest_hex(&json!({ "task": task, "mode": mode, "items": named }))
}

fn named(item: &Item) -> Value {
    serde_json::to_value(item).expect("an item is plain data")
}

/// Names an item as if nobody had claimed anything: what runs is named as a step that is ready,
/// and what a claim alone lets fly is not named.
fn unclaimed(item: &Item) -> Option<Value> {
    match &item.subject {
        Subject::Attempt { step, attempt } => {
            Some(json!({ "kind": "step", "step": step, "attempt": attempt }))
        }
        Subject::Step { step } if item.now == Now::Ready => {
            Some(json!({ "kind": "step", "step": step, "attempt": item.attempt }))
        }
        Subject::Effect { .. } if is_by_claim(item) => None,
        Subject::Effect { .. }
        | Subject::Step { .. }
        | Subject::Hold { .. }
        | Subject::Deadline
        | Subject::Finally { .. } => Some(named(item)),
    }
}

/// True for an effect that no record knows of: its attempt's claim is the intent.
fn is_by_claim(item: &Item) -> bool {
    item.class == Some(EffectClass::Idempotent) && item.request_sha256.is_none()
}
