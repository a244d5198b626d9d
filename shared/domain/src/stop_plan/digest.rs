//! The name of a stop plan.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::item::{Item, Now, Subject};
use crate::canonical::{canonical, hex};
use crate::ids::TaskId;
use crate::record::{EffectClass, StopMode};

/// Gives SHA-256 of the canonical form of items, mode and task, in hex. It is written item by
/// item, its keys in their order: what ten thousand items say is never in memory as a whole.
pub(super) fn digest(task: &TaskId, mode: StopMode, items: &[Item], covers_claims: bool) -> String {
    let named = items.iter().filter_map(|item| match covers_claims {
        true => Some(named(item)),
        false => unclaimed(item),
    });
    let mut hash = Sha256::new();
    hash.update(r#"{"items":["#);
    for (place, item) in named.enumerate() {
        hash.update(if place > 0 { "," } else { "" });
        hash.update(canonical(&item));
    }
    hash.update(r#"],"mode":"#);
    hash.update(canonical(&json!(mode)));
    hash.update(r#","task":"#);
    hash.update(canonical(&json!(task)));
    hash.update("}");
    hex(&hash.finalize())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::digest_hex;
    use crate::ids::StepId;
    use crate::stop_plan::Fate;

    #[test]
    fn a_digest_is_that_of_the_canonical_form() {
        let task = TaskId::random([1; 16]);
        let item = |name| {
            let subject = Subject::Step { step: StepId::new(name).unwrap() };
            let says = Some("a \"quoted\" line\n".to_owned());
            Item { says, ..Item::new(subject, Now::Pending, Fate::WillNotHappen) }
        };
        for items in [vec![], vec![item("a")], vec![item("a"), item("b")]] {
            let whole = json!({ "task": task, "mode": StopMode::Drain, "items": items });
            let written = digest(&task, StopMode::Drain, &items, true);
            assert_eq!(written, digest_hex(&whole), "{whole}");
        }
    }
}
