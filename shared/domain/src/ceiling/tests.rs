//! Cases of plans at their submitter's ceiling.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::plan::read::read;
use crate::rights::Role;

fn ceiling(value: Value) -> Ceiling {
    serde_json::from_value(value).unwrap()
}

fn under(ceiling: Ceiling, plan: &Value) -> Vec<String> {
    let me = Identity::new(Principal::new("user:me").unwrap(), Role::Publisher);
    let me = Identity { ceiling: Arc::new(ceiling), ..me };
    let draft = read(plan);
    assert_eq!(draft.faults, []);
    let faults = beyond(&me, &draft.plan);
    faults.into_iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect()
}

fn plan() -> Value {
    json!({
        "kind": "k",
        "retention": "30d",
        "owner": "user:boss",
        "approvers": ["group:finance", "user:eve"],
        "viewers": ["user:ben"],
        "steps": [
            {"id": "a", "uses": "http", "queue": "night", "timeout": {"attempt": "2h"}},
            {"id": "wait", "uses": "timer", "with": {"for": "1h"}},
            {
                "id": "b", "uses": "exec", "retry": {"max_attempts": 9},
                "effect": {"class": "irreversible"},
            },
        ],
        "finally": [{"id": "c", "uses": "exec"}],
    })
}

#[test]
fn everything_beyond_a_ceiling_is_told_at_once_by_its_place() {
    let bound = json!({
        "handlers": ["http"], "queues": ["default"], "effects": ["none"],
        "limits": {"max_attempts": 3, "attempt_timeout": "1h", "retention": "7d"},
        "approvers": ["group:*"], "viewers": ["user:ben"],
    });
    insta::assert_snapshot!(under(ceiling(bound), &plan()).join("\n"));
}

#[test]
fn an_open_ceiling_bounds_the_owner_alone() {
    let told = under(Ceiling::default(), &plan());
    assert_eq!(
        told,
        ["/owner: you may not name `user:boss` as owner; leave it out to own the task"]
    );
}

#[test]
fn defaults_count_as_if_they_were_written() {
    let bound = json!({"limits": {"max_attempts": 2, "attempt_timeout": "10m"}});
    let told = under(ceiling(bound), &json!({"kind": "k", "steps": [{"id": "a", "uses": "http"}]}));
    assert_eq!(
        told,
        [
            "/steps/0/retry/max_attempts: 3 attempts are beyond your 2",
            "/steps/0/timeout/attempt: 30m is beyond your 10m",
        ]
    );
}

#[test]
fn names_are_one_a_kind_or_anyone() {
    let ana = Principal::new("user:ana").unwrap();
    for (text, takes) in
        [("*", true), ("user:*", true), ("user:ana", true), ("group:*", false), ("user:an", false)]
    {
        let naming = Naming::new(text).unwrap();
        assert_eq!((naming.takes(&ana), naming.to_string().as_str()), (takes, text));
    }
    for text in ["", "ana", "user:a*", "robot:*", "**", "user*"] {
        assert!(Naming::new(text).is_err(), "{text}");
    }
}

#[test]
fn a_ceiling_reads_back_and_refuses_what_it_does_not_know() {
    let text = json!({
        "handlers": ["http"], "effects": ["idempotent"], "owners": ["user:*"],
        "limits": {"attempt_timeout": "1h30m"},
    });
    let read = ceiling(text.clone());
    assert_eq!(serde_json::to_value(&read).unwrap(), text);
    assert_eq!(serde_json::to_value(Ceiling::default()).unwrap(), json!({}));
    for wrong in [
        json!({"handler": []}),
        json!({"limits": {"attempt_timeout": "soon"}}),
        json!({"owners": ["ana"]}),
        json!({"effects": ["wild"]}),
    ] {
        assert!(serde_json::from_value::<Ceiling>(wrong.clone()).is_err(), "{wrong}");
    }
    let none: Ceiling = ceiling(json!({"limits": {"max_attempts": 0}}));
    assert_eq!(none.faults().len(), 1);
}
