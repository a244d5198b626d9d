//! Cases of reading plans: each fault by its place.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::ids::StepId;
use crate::plan::{OnFailure, Retry, Timeouts, Uses};
use crate::record::EffectClass;
use crate::time::{Span, Time};

/// Reads a plan and gives `pointer: message`, a line each.
fn faults_of(value: &Value) -> String {
    let faults = read(value).faults;
    let lines: Vec<String> =
        faults.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect();
    lines.join("\n")
}

/// Puts fields into a plan that is right without them.
fn with_fields(fields: Value) -> Value {
    let mut plan = json!({"kind": "k", "steps": [{"id": "a", "uses": "exec"}]});
    merge(&mut plan, fields);
    plan
}

/// Puts fields into the second step of a plan that is right without them.
fn with_step(fields: Value) -> Value {
    let mut step = json!({"id": "b", "uses": "exec", "needs": ["a"]});
    merge(&mut step, fields);
    with_fields(json!({"steps": [{"id": "a", "uses": "exec", "artifact": "notes.md"}, step]}))
}

fn merge(into: &mut Value, fields: Value) {
    let (Value::Object(into), Value::Object(fields)) = (into, fields) else {
        panic!("a test merges objects");
    };
    into.extend(fields);
}

#[track_caller]
fn refused(plan: Value, right: &str) {
    assert_eq!(faults_of(&plan), right);
}

#[track_caller]
fn accepted(plan: Value) -> Plan {
    read(&plan).into_plan().unwrap_or_else(|faults| panic!("{plan}: {faults:#?}"))
}

fn full_plan() -> Value {
    json!({
        "kind": "release-notes",
        "goal": "Release notes of the last 20 commits",
        "input": {"count": 20},
        "owner": "user:ana",
        "operators": ["group:maintainers"],
        "viewers": ["user:ben"],
        "labels": {"team": "tools"},
        "idempotency_key": "notes 2026-11-29",
        "artifacts": ["draft/RELEASE_NOTES.md"],
        "deadline": {"in": "48h", "then": "pause"},
        "retention": "7d",
        "complete_when": "steps.publish.status == \"succeeded\"",
        "steps": [
            {"id": "log", "uses": "exec", "with": {"command": ["git", "log"]},
             "timeout": {"attempt": "30s"}},
            {"id": "draft", "needs": ["log"], "uses": "exec", "artifact": "RELEASE_NOTES.md",
             "retry": {"max_attempts": 4, "backoff": "1s", "factor": 2, "max_backoff": "1m",
                       "max_elapsed": "10m"},
             "checkpoint": "drafted"},
            {"id": "wait", "needs": ["draft"], "uses": "timer", "with": {"for": "1h30m"}},
            {"id": "publish", "needs": ["wait"], "uses": "exec", "queue": "slow",
             "if": "input.count > 0", "timeout": {"attempt": "1m", "total": "1h"},
             "on_failure": {"redo": "draft", "max": 2}}
        ],
        "finally": [{"id": "tidy", "uses": "exec"}]
    })
}

#[test]
fn a_plan_is_read_with_all_its_parts() {
    let plan = accepted(full_plan());
    assert_eq!(plan.kind.as_str(), "release-notes");
    assert_eq!(plan.input, json!({"count": 20}));
    let when = When::In(Span::from_secs(48 * 3600));
    assert_eq!(plan.deadline, Some(Deadline { when, then: DeadlineThen::Pause }));
    assert_eq!(plan.retention, Some(Span::from_secs(7 * 24 * 3600)));
    assert_eq!(plan.artifacts, ["draft/RELEASE_NOTES.md"]);
    assert_eq!(plan.steps[0].with, json!({"command": ["git", "log"]}));
    assert_eq!(plan.steps[1].retry.max_elapsed, Some(Span::from_secs(600)));
    assert_eq!(plan.steps[2].uses, Uses::Timer);
    assert_eq!(plan.steps[3].condition.as_deref(), Some("input.count > 0"));
    let draft = StepId::new("draft").expect("a name");
    assert_eq!(plan.steps[3].on_failure, Some(OnFailure::Redo { step: draft, max: 2 }));
    assert_eq!(plan.finally[0].id.as_str(), "tidy");
}

#[test]
fn what_is_not_given_has_its_default() {
    let plan = accepted(with_fields(json!({})));
    let step = &plan.steps[0];
    assert_eq!((plan.goal.as_str(), &plan.input), ("", &json!({})));
    assert_eq!((step.queue.as_str(), &step.with), ("default", &json!({})));
    assert_eq!(step.retry, Retry::default());
    assert_eq!(step.on_failure, None);
}

#[test]
fn one_wait_makes_room_for_the_other() {
    let retry = |rules: Value| accepted(with_step(json!({"retry": rules}))).steps[1].retry;
    let long = retry(json!({"backoff": "5m"}));
    assert_eq!((long.backoff, long.max_backoff), (Span::from_secs(300), Span::from_secs(300)));
    let short = retry(json!({"max_backoff": "200ms"}));
    assert_eq!((short.backoff, short.max_backoff), (Span(200), Span(200)));
}

#[test]
fn six_faults_are_six_faults() {
    let plan = json!({
        "goal": 7,
        "labels": {"a/b": "x"},
        "lease": {},
        "steps": [
            {"id": "a", "uses": "exec", "needs": ["nobody"]},
            {"id": "b", "uses": "approval"}
        ]
    });
    insta::assert_snapshot!(faults_of(&plan));
    assert_eq!(read(&plan).faults.len(), 6);
}

#[test]
fn what_is_no_object_is_refused_as_such() {
    refused(json!([]), ": expected a plan, an object, found an array");
    refused(
        with_fields(json!({"steps": {}})),
        "/steps: expected an array of steps, found an object",
    );
    refused(with_fields(json!({"steps": []})), "/steps: expected at least one step, found none");
    refused(
        with_fields(json!({"steps": [7]})),
        "/steps/0: expected a step, an object, found the number 7",
    );
    refused(
        with_fields(json!({"input": [1]})),
        "/input: expected the task's input, an object, found an array",
    );
    refused(
        with_step(json!({"with": "x"})),
        "/steps/1/with: expected a handler's input, an object, found `x`",
    );
    refused(
        with_step(json!({"needs": "a"})),
        "/steps/1/needs: expected an array of step names, found `a`",
    );
}

#[test]
fn the_people_of_a_task_are_principals_and_few() {
    let many: Vec<String> = (0..=PEOPLE_MAX).map(|n| format!("user:u{n}")).collect();
    for part in ["approvers", "operators", "viewers"] {
        let fault = format!("/{part}: expected at most 32 principals, found 33");
        refused(with_fields(json!({part: many})), &fault);
        let draft = read(&with_fields(json!({part: ["user:ana", "group:finance"]})));
        assert_eq!(draft.faults, [], "{part}");
    }
    let named = read(&with_fields(json!({"approvers": ["group:finance"]}))).plan.approvers;
    assert_eq!(named, [Principal::new("group:finance").unwrap()]);
}

#[test]
fn grammar_of_later_versions_is_refused_by_name() {
    let right = "/lease: `lease` is not available in this version";
    refused(with_fields(json!({"lease": null})), right);
    let of_steps = ["approval", "concurrency", "priority", "cost", "reads", "workspace"];
    for name in of_steps {
        let right = format!("/steps/1/{name}: `{name}` is not available in this version");
        refused(with_step(json!({name: null})), &right);
    }
    for name in ["approval", "input", "signal", "task"] {
        let right = format!("/steps/1/uses: `{name}` is not available in this version");
        refused(with_step(json!({"uses": name})), &right);
    }
}

#[test]
fn an_effect_says_what_may_be_repeated() {
    refused(
        with_step(json!({"effect": {"class": "risky"}})),
        "/steps/1/effect/class: expected `none`, `idempotent`, `checkable` or `irreversible`, \
        found `risky`",
    );
    let check = json!({"uses": "exec", "with": {"command": ["true"]}});
    refused(
        with_step(json!({"effect": {"class": "idempotent", "check": check}})),
        "/steps/1/effect/check: only a `checkable` effect has a check",
    );
    refused(
        with_step(json!({"effect": {"class": "checkable", "check": {"uses": "exec"}}})),
        "/steps/1/effect/check/with: missing field `with`",
    );
    let plan = accepted(with_step(json!({"effect": {"class": "checkable", "check": check}})));
    let effect = plan.steps[1].effect.clone().expect("it was read");
    assert_eq!(effect.class, EffectClass::Checkable);
    assert!(effect.check.is_some(), "{effect:?}");
}

#[test]
fn all_four_time_limits_are_read() {
    let spans = json!({"queue": "1m", "attempt": "2m", "heartbeat": "3s", "total": "1h"});
    let read = accepted(with_step(json!({"timeout": spans})));
    let wanted = Timeouts {
        queue: Some(Span::from_secs(60)),
        attempt: Span::from_secs(120),
        heartbeat: Some(Span::from_secs(3)),
        total: Some(Span::from_secs(3600)),
    };
    assert_eq!(read.steps[1].timeout, wanted);
    for name in ["queue", "attempt", "heartbeat", "total"] {
        let right = format!("/steps/1/timeout/{name}: expected a span longer than 0, found `0s`");
        refused(with_step(json!({"timeout": {name: "0s"}})), &right);
    }
}

#[test]
fn unknown_fields_are_refused_with_what_was_meant() {
    insta::assert_snapshot!(faults_of(&with_step(json!({
        "nedes": [], "a/b": 1, "retry": {"max_attempt": 1}, "timeout": {"attempts": "1s"},
        "on_failure": {"redo": "a", "max": 1, "then": 1}
    }))));
}

#[test]
fn values_of_the_plan_are_checked() {
    insta::assert_snapshot!(faults_of(&with_fields(json!({
        "kind": "a b",
        "goal": "x".repeat(4097),
        "owner": "ana",
        "viewers": ["user:ben", 7],
        "labels": {"long": "x".repeat(129), "line": "a\nb", "number": 1},
        "idempotency_key": "é",
        "artifacts": ["a", "b/x", "a/x"],
        "deadline": {"in": "1h", "at": "soon", "then": "explode"},
        "retention": "4000d",
        "complete_when": " ",
    }))));
}

#[test]
fn values_of_a_step_are_checked() {
    insta::assert_snapshot!(faults_of(&with_step(json!({
        "uses": "a/b",
        "queue": "",
        "needs": ["a", "a", "b", 7],
        "if": "x".repeat(1025),
        "timeout": {"attempt": "0s", "total": -1},
        "retry": {"max_attempts": 0, "factor": 0.5, "backoff": "2s", "max_backoff": "1s"},
        "artifact": "../x",
        "checkpoint": "a b",
        "on_failure": "explode",
    }))));
}

#[test]
fn paths_of_artifacts_stay_inside() {
    for path in ["a", "out/notes.md", ".hidden", "a..b", "é"] {
        accepted(with_step(json!({"artifact": path})));
    }
    let long = "x".repeat(256);
    for path in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\0b", "a\nb", long.as_str()] {
        assert_ne!(faults_of(&with_step(json!({"artifact": path}))), "", "{path:?}");
    }
}

#[test]
fn a_required_artifact_is_one_that_its_step_declares() {
    let plan = |entry: &str| {
        let mut plan = with_step(json!({}));
        merge(&mut plan, json!({"artifacts": [entry]}));
        plan
    };
    accepted(plan("a/notes.md"));
    refused(plan("a/x"), "/artifacts/0: expected `a/notes.md`, which `a` declares, found `a/x`");
}

#[test]
fn numbers_that_only_look_whole_are_refused() {
    for value in [json!(3.0), json!("3"), json!(1001), json!(u64::MAX), json!(-1), json!(null)] {
        let text = faults_of(&with_step(json!({"retry": {"max_attempts": value}})));
        assert!(text.contains("expected a whole number from 1 to 1000, found"), "{text}");
    }
}

#[test]
fn ids_are_unique_over_all_steps() {
    refused(
        with_fields(json!({"finally": [{"id": "a", "uses": "exec"}]})),
        "/finally/0/id: duplicate step `a`: already in `steps`, number 1",
    );
}

#[test]
fn steps_and_finally_do_not_need_each_other() {
    let step = |id: &str, need: &str| json!({"id": id, "uses": "exec", "needs": [need]});
    refused(
        json!({"kind": "k", "steps": [step("a", "z")], "finally": [step("z", "a")]}),
        "/finally/0/needs/0: `a` is a step of `steps`: a step of `finally` may need only steps of \
         `finally`\n/steps/0/needs/0: `z` is a step of `finally`: a step of `steps` may need only \
         steps of `steps`",
    );
}

#[test]
fn every_cycle_is_named() {
    let step = |id: &str, needs: &[&str]| json!({"id": id, "uses": "exec", "needs": needs});
    refused(
        with_fields(json!({"steps": [
            step("a", &["x", "b"]), step("b", &["c"]), step("c", &["a"]),
            step("x", &["y"]), step("y", &["x"]), step("free", &["a"])
        ]})),
        "/steps/0/needs/1: steps need each other in a circle: `a` → `b` → `c` → `a`\n\
         /steps/3/needs/0: steps need each other in a circle: `x` → `y` → `x`",
    );
    let ring: Vec<Value> =
        (0..20).map(|i| step(&format!("s{i}"), &[&format!("s{}", (i + 1) % 20)])).collect();
    refused(
        with_fields(json!({"steps": ring})),
        "/steps/0/needs/0: steps need each other in a circle: `s0` → `s1` → `s2` → `s3` → `s4` → \
         `s5` → `s6` → `s7` → 12 more → `s0`",
    );
}

#[test]
fn a_redo_goes_upstream() {
    let redo = |step: &str| with_step(json!({"on_failure": {"redo": step, "max": 1}}));
    accepted(redo("a"));
    for step in ["b", "nobody"] {
        let at = "/steps/1/on_failure/redo";
        refused(redo(step), &format!("{at}: expected a step upstream of this one, found `{step}`"));
    }
    refused(
        with_step(json!({"on_failure": {"redo": "a"}})),
        "/steps/1/on_failure/max: missing field `max`",
    );
}

fn chain(count: usize, last: Value) -> Value {
    let mut steps: Vec<Value> = (0..count)
        .map(|i| match i {
            0 => json!({"id": "s0", "uses": "x"}),
            _ => json!({"id": format!("s{i}"), "uses": "x", "needs": [format!("s{}", i - 1)]}),
        })
        .collect();
    merge(&mut steps[count - 1], last);
    with_fields(json!({"steps": steps}))
}

#[test]
fn a_redo_runs_at_most_200_steps() {
    let redo = json!({"on_failure": {"redo": "s0", "max": 1}});
    accepted(chain(200, redo.clone()));
    let at = "/steps/200/on_failure/redo";
    refused(chain(201, redo), &format!("{at}: expected a redo of at most 200 steps, found 201"));
}

#[test]
fn ten_thousand_steps_are_read_and_one_more_is_not() {
    assert_eq!(accepted(chain(10_000, json!({}))).steps.len(), 10_000);
    refused(
        chain(10_001, json!({})),
        "/steps: expected at most 10000 steps with `finally`, found 10001",
    );
}

#[test]
fn a_hundred_finally_steps_are_read_and_one_more_is_not() {
    let with_finally = |count: usize| {
        let mut plan = chain(1, json!({}));
        let step = |n| json!({"id": format!("f{n}"), "uses": "exec"});
        plan["finally"] = (0..count).map(step).collect();
        plan
    };
    assert_eq!(accepted(with_finally(100)).finally.len(), 100);
    let message = "/finally: expected at most 100 `finally` steps, found 101";
    refused(with_finally(101), message);
}

#[test]
fn ten_thousand_redos_of_the_whole_chain_are_all_judged() {
    let mut plan = chain(10_000, json!({}));
    for step in plan["steps"].as_array_mut().expect("a list").iter_mut().skip(1) {
        merge(step, json!({"on_failure": {"redo": "s0", "max": 1}}));
    }
    assert_eq!(read(&plan).faults.len(), 10_000 - 200);
}

#[test]
fn a_timer_waits_and_no_worker_runs_it() {
    let timer = |with: Value| with_step(json!({"uses": "timer", "with": with}));
    for with in [
        json!({"for": "0s"}),
        json!({"for": "3660d"}),
        json!({"for": "${{ input.wait }}"}),
        json!({"until": "1970-01-01T00:00:00Z"}),
        json!({"until": "at ${{ input.at }}"}),
    ] {
        accepted(timer(with));
    }
    insta::assert_snapshot!(faults_of(&with_step(json!({
        "uses": "timer", "with": {"for": 10, "untill": 1}, "queue": "q", "retry": {}
    }))));
    let neither = "/steps/1/with: expected one of `for` and `until`, found neither";
    refused(with_step(json!({"uses": "timer"})), neither);
}

#[test]
fn a_faulty_step_keeps_what_could_be_read() {
    let plan = json!({"kind": "k", "steps": [
        {"id": "a b", "uses": "exec", "if": "input.go", "with": {"x": "${{ input.y }}"}},
        {"id": "b", "uses": "approval", "needs": ["a", 7]},
        "nothing"
    ], "finally": [{"uses": "exec"}]});
    let draft = read(&plan);
    let [a, b, nothing] = draft.plan.steps.as_slice() else { panic!("three steps stay three") };
    assert_eq!(a.condition.as_deref(), Some("input.go"));
    assert_eq!(a.with, json!({"x": "${{ input.y }}"}));
    assert_eq!((&b.uses, b.needs.len()), (&Uses::Timer, 1));
    assert_eq!(nothing.id.as_str(), "0.unreadable.2");
    assert_eq!(draft.plan.finally[0].id.as_str(), "0.unreadable.3");
    assert!(draft.into_plan().is_err());
}

#[test]
fn a_deadline_may_be_a_time() {
    let deadline = json!({"at": "2026-11-29T16:20:00+01:00", "then": "stop"});
    let plan = accepted(with_fields(json!({"deadline": deadline})));
    let time = Time::parse_rfc3339("2026-11-29T15:20:00Z").expect("a time");
    let right = Deadline { when: When::At(time), then: DeadlineThen::Stop };
    assert_eq!(plan.deadline, Some(right));
    refused(
        with_fields(json!({"deadline": {}})),
        "/deadline: expected one of `in` and `at`, found \
        neither\n/deadline/then: missing field `then`",
    );
}

#[test]
fn added_steps_may_need_steps_that_are_not_known_here() {
    let (steps, faults) = read_added_steps(
        &json!([
            {"id": "x", "uses": "exec", "needs": ["old"], "on_failure": {"redo": "old", "max": 1}},
            {"id": "y", "uses": "exec", "needs": ["x"], "on_failure": {"redo": "x", "max": 1}}
        ]),
        "/then",
    );
    assert_eq!((steps.len(), faults), (2, vec![]));
}

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

#[test]
fn faults_of_added_steps_stand_within_the_outcome() {
    let (_, faults) = read_added_steps(
        &json!([
            {"id": "x", "uses": "exec", "needs": ["y"]},
            {"id": "y", "uses": "exec", "needs": ["x"]},
            {"id": "x", "uses": "exec", "approval": {}},
            {"id": "z", "uses": "exec", "on_failure": {"redo": "x", "max": 1}}
        ]),
        "/then",
    );
    let places: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
    let right = ["/then/0/needs/0", "/then/2/approval", "/then/2/id", "/then/3/on_failure/redo"];
    assert_eq!(places, right);
    assert_eq!(read_added_steps(&json!({}), "/then").1[0].pointer, "/then");
}

#[test]
fn hostile_plans_are_answered_within_bounds() {
    let steps: Vec<Value> = (0..9_000)
        .map(|i| json!({"id": format!("s{i}"), "uses": "x", "needs": [format!("t{i}")]}))
        .collect();
    let draft = read(&with_fields(json!({"steps": steps})));
    let bytes: usize = draft.faults.iter().map(|f| f.pointer.len() + f.message.len()).sum();
    assert!(draft.faults.len() >= 9_000 && bytes < 2 * 1024 * 1024, "{bytes}");
}

/// JSON that uses the grammar's names, so that all of the reader is reached.
fn plan_like() -> impl Strategy<Value = Value> {
    let words = [
        "kind",
        "goal",
        "steps",
        "finally",
        "id",
        "uses",
        "needs",
        "with",
        "if",
        "timeout",
        "attempt",
        "retry",
        "backoff",
        "max_backoff",
        "factor",
        "on_failure",
        "redo",
        "max",
        "deadline",
        "in",
        "at",
        "then",
        "labels",
        "artifacts",
        "artifact",
        "for",
        "until",
        "timer",
        "exec",
        "a",
        "b",
        "a/b",
        "1s",
        "2026-11-29T00:00:00Z",
        "${{ x }}",
        "",
    ];
    let word = prop::sample::select(words.to_vec());
    let leaf = prop_oneof![
        4 => word.clone().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 200, 10, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::btree_map(word.clone(), inner, 0..10).prop_map(|map| {
                Value::Object(map.into_iter().map(|(key, item)| (key.to_owned(), item)).collect())
            }),
        ]
    })
}

/// A list of steps with random needs and redos among few names.
fn step_lists() -> impl Strategy<Value = Value> {
    let name = || prop::sample::select(vec!["a", "b", "c", "d", "e"]);
    let step = (name(), prop::collection::vec(name(), 0..3), prop::option::of(name())).prop_map(
        |(id, needs, redo)| match redo {
            Some(redo) => {
                let on_failure = json!({"redo": redo, "max": 1});
                json!({"id": id, "uses": "x", "needs": needs, "on_failure": on_failure})
            }
            None => json!({"id": id, "uses": "x", "needs": needs}),
        },
    );
    prop::collection::vec(step, 1..6).prop_map(Value::Array)
}

proptest! {
    #[test]
    fn no_json_makes_it_panic(value in plan_like(), steps in plan_like()) {
        let _ = read(&value);
        let _ = read(&with_fields(json!({"steps": [steps.clone()], "finally": steps.clone()})));
        let _ = read_added_steps(&json!([steps.clone()]), "");
        let _ = timer_due(&steps, Time(0));
    }

    #[test]
    fn a_plan_without_faults_has_no_cycle_and_only_upstream_redos(steps in step_lists()) {
        if let Ok(plan) = read(&with_fields(json!({"steps": steps}))).into_plan() {
            for step in &plan.steps {
                let upstream = crate::plan::graph::upstream(&plan.steps, &step.id);
                prop_assert!(!upstream.contains(&step.id));
                if let Some(OnFailure::Redo { step: target, .. }) = &step.on_failure {
                    prop_assert!(upstream.contains(target));
                }
            }
        }
    }
}
