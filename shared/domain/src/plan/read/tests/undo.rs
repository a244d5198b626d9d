//! Cases of how an effect is undone.

use super::*;

#[test]
fn an_undo_says_how_an_effect_is_undone() {
    let (undo, with) = (|undo: Value| with_step(json!({"undo": undo})), json!({"command": ["x"]}));
    refused(undo(json!({"uses": "x"})), "/steps/1/undo/with: missing field `with`");
    refused(
        undo(json!({"uses": "timer", "with": with})),
        "/steps/1/undo/uses: expected a handler, found `timer`: waiting undoes nothing",
    );
    refused(
        undo(json!({"uses": "exec", "with": with, "retry": {"max_attempts": 4}})),
        "/steps/1/undo/retry/max_attempts: expected a whole number from 1 to 3, found the number 4",
    );
    refused(
        with_step(json!({"effect": {"class": "none"}, "undo": {"uses": "exec", "with": with}})),
        "/steps/1/undo: a step whose effect is `none` has nothing to undo",
    );
    refused(
        with_fields(json!({"finally": [
            {"id": "f", "uses": "exec", "undo": {"uses": "exec", "with": with}}
        ]})),
        "/finally/0/undo: a `finally` step has no `undo`: it runs after what has landed is undone",
    );
    refused(
        with_step(json!({"id": "a~undo-1"})),
        "/steps/1/id: expected a letter or digit, then up to 63 letters, digits, `.`, `_` or `-`, \
         found `a~undo-1` (8 bytes)",
    );
}
