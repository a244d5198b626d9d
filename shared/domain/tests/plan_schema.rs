//! The published schema: it is current, and it agrees with the reader.

#![expect(
    clippy::disallowed_methods,
    reason = "the published file is read here; the domain itself never does"
)]

use std::path::PathBuf;

use serde_json::{Value, json};
use standfast_domain::plan::read::read;
use standfast_domain::plan::schema::plan_schema;

const UPDATE: &str = "UPDATE_SCHEMA";

fn published() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/plan.schema.json")
}

fn validator() -> jsonschema::Validator {
    let schema = plan_schema();
    jsonschema::meta::validate(&schema).expect("the schema follows its own meta-schema");
    jsonschema::draft202012::new(&schema).expect("the schema is one")
}

/// The design's example, without what this version does not have.
fn example() -> Value {
    json!({
        "kind": "release-notes",
        "goal": "Release notes of the last 20 commits, published after a person has read them",
        "input": {"count": 20},
        "owner": "user:ana",
        "viewers": ["user:ben"],
        "labels": {"team": "tools"},
        "deadline": {"at": "2036-11-29T16:20:00+01:00", "then": "fail"},
        "artifacts": ["draft/RELEASE_NOTES.md"],
        "steps": [
            {
                "id": "log",
                "uses": "exec",
                "with": {"command": ["git", "-C", "${{ plan.dir }}", "log", "-n",
                    "${{ string(input.count) }}", "--format=%h %s"]},
                "timeout": {"queue": "1h", "attempt": "30s", "heartbeat": "10s", "total": "2h"}
            },
            {
                "id": "draft",
                "needs": ["log"],
                "uses": "exec",
                "with": {"command": ["${{ plan.dir }}/draft-notes"],
                    "stdin": "${{ steps.log.output.stdout }}"},
                "artifact": "RELEASE_NOTES.md",
                "retry": {"max_attempts": 4, "backoff": "1s", "factor": 2, "max_backoff": "1m",
                    "max_elapsed": "10m"},
                "checkpoint": "drafted"
            },
            {
                "id": "wait",
                "needs": ["draft"],
                "uses": "timer",
                "with": {"for": "${{ input.wait }}"}
            },
            {
                "id": "publish",
                "needs": ["wait"],
                "uses": "exec",
                "with": {"command": ["cp", "inputs/draft/RELEASE_NOTES.md",
                    "${{ plan.dir }}/published/notes.md"]},
                "on_failure": {"redo": "draft", "max": 2}
            }
        ],
        "finally": [
            {
                "id": "tidy",
                "uses": "exec",
                "with": {"command": ["rm", "-rf", "${{ plan.dir }}/.draft"]}
            }
        ],
        "complete_when": "steps.publish.status == \"succeeded\""
    })
}

#[test]
fn the_published_schema_is_current() {
    let mut current = serde_json::to_string_pretty(&plan_schema()).expect("a schema is JSON");
    current.push('\n');
    let path = published();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &current).expect("docs/plan.schema.json can be written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    // As values: the order of keys follows from what else is built in the same workspace.
    let stored: Value = serde_json::from_str(&stored).unwrap_or_default();
    assert!(
        stored == plan_schema(),
        "docs/plan.schema.json is not current: run \
         `{UPDATE}=1 cargo test -p standfast-domain --test plan_schema` and commit the file"
    );
}

#[test]
fn the_example_is_accepted_by_schema_and_reader() {
    let errors: Vec<String> =
        validator().iter_errors(&example()).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(read(&example()).faults, []);
}

#[test]
fn the_schemas_own_example_is_accepted_by_both() {
    let example = plan_schema()["examples"][0].clone();
    assert!(validator().is_valid(&example));
    assert_eq!(read(&example).faults, []);
}

#[test]
fn what_a_schema_can_see_is_refused_by_both() {
    let validator = validator();
    for (pointer, value) in [
        ("/kind", json!("a b")),
        ("/kind", json!(7)),
        ("/goal", json!("x".repeat(4097))),
        ("/input", json!([])),
        ("/owner", json!("ana")),
        ("/viewers", json!("user:ben")),
        ("/labels/team", json!("a\nb")),
        ("/labels/a b", json!("x")),
        ("/labels/team", json!(1)),
        ("/idempotency_key", json!(" x")),
        ("/artifacts/0", json!("draft")),
        ("/deadline/in", json!("1h")),
        ("/deadline", json!({"in": "1h"})),
        ("/deadline/then", json!("explode")),
        ("/retention", json!("1.5h")),
        ("/retention", json!("")),
        ("/complete_when", json!("x".repeat(1025))),
        ("/lease", json!({})),
        ("/approvers", json!(["ana"])),
        ("/steps", json!([])),
        ("/steps/0", json!({"id": "log"})),
        ("/steps/0/id", json!("a/b")),
        ("/steps/0/uses", json!("approval")),
        ("/steps/0/uses", json!("task")),
        ("/steps/0/effect", json!({})),
        ("/steps/0/nedes", json!([])),
        ("/steps/0/with", json!("x")),
        ("/steps/0/if", json!("")),
        ("/steps/0/timeout/queue", json!(60)),
        ("/steps/0/timeout/heartbeat", json!("often")),
        ("/steps/0/timeout/attempt", json!(30)),
        ("/steps/1/needs", json!(["log", "log"])),
        ("/steps/1/retry/max_attempts", json!(0)),
        ("/steps/1/retry/max_attempts", json!(1001)),
        ("/steps/1/retry/factor", json!(0.5)),
        ("/steps/1/retry/backoff", json!("30m1h")),
        ("/steps/1/artifact", json!("../x")),
        ("/steps/1/artifact", json!("a//x")),
        ("/steps/1/artifact", json!("/x")),
        ("/steps/1/checkpoint", json!("a b")),
        ("/steps/2/with", json!({})),
        ("/steps/2/with", json!({"for": "1s", "until": "2036-11-29T16:20:00Z"})),
        ("/steps/2/with/for", json!(1.5)),
        ("/steps/2/with/for", json!("-1s")),
        ("/steps/2/queue", json!("q")),
        ("/steps/3/on_failure", json!("explode")),
        ("/steps/3/on_failure", json!({"redo": "draft"})),
        ("/finally/0/undo", json!({})),
    ] {
        let mut plan = example();
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer has a slash");
        match plan.pointer_mut(parent).expect("the example has the place") {
            Value::Array(items) => items[field.parse::<usize>().expect("a number")] = value.clone(),
            object => object[field] = value.clone(),
        }
        assert!(!read(&plan).faults.is_empty(), "the reader takes {value} at {pointer}");
        assert!(!validator.is_valid(&plan), "the schema takes {value} at {pointer}");
    }
}
