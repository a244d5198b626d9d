//! The JSON Schema (2020-12) of a plan, made from the grammar that the reader follows.
//!
//! A schema cannot say everything: names that must exist, cycles, redos and limits in bytes
//! are for the reader. What the schema refuses, the reader refuses too.

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::grammar::USES_LATER;
use super::grammar::{
    CHECK, DEADLINE, EFFECT, NOT_OF_TIMERS, PLAN, REDO, RETRY, RETRY_UNDO, STEP, Shape, TIMEOUT,
    TIMER, UNDO,
};
use super::read::{
    ARTIFACT_BYTES_MAX, ATTEMPTS_MAX, EXPRESSION_BYTES_MAX, GOAL_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX, LABEL_BYTES_MAX, LABELS_MAX, PEOPLE_MAX, STEPS_MAX, WORDS_BYTES_MAX,
};
use crate::ids::{Principal, StepId};
use crate::record::EffectClass;

/// Where the schema is published.
pub const PLAN_SCHEMA_ID: &str = "https://standfast.dev/schema/plan.json";

/// Gives the JSON Schema of a plan as its author writes it.
pub fn plan_schema() -> Value {
    let mut schema = object(&PLAN);
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": PLAN_SCHEMA_ID,
        "title": "A plan of Standfast",
        "description": "What a task is for, its steps, and when it is done.",
        "examples": [example()],
        "$defs": { "step": step() },
    });
    extend(&mut schema, head);
    schema
}

fn example() -> Value {
    json!({
        "kind": "greeting",
        "goal": "Greet a person, an hour later",
        "input": { "name": "Ana" },
        "steps": [
            { "id": "wait", "uses": "timer", "with": { "for": "1h" } },
            {
                "id": "greet",
                "needs": ["wait"],
                "uses": "exec",
                "with": { "command": ["echo", "Hello, ${{ input.name }}"] },
                "timeout": { "attempt": "30s" },
                "retry": { "max_attempts": 3, "backoff": "1s" }
            }
        ]
    })
}

fn extend(schema: &mut Value, more: Value) {
    if let (Value::Object(schema), Value::Object(more)) = (schema, more) {
        schema.extend(more);
    }
}

/// Makes the schema of a shape; its fields' words become descriptions.
fn object(shape: &Shape) -> Value {
    let mut properties = Map::new();
    for field in shape.fields {
        let mut form = (field.form)();
        extend(&mut form, json!({ "description": field.says }));
        properties.insert(field.name.to_owned(), form);
    }
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": shape.required,
        "properties": properties,
    })
}

fn step() -> Value {
    let mut timer: Map<String, Value> =
        NOT_OF_TIMERS.iter().map(|name| ((*name).to_owned(), Value::Bool(false))).collect();
    let mut with = object(&TIMER);
    extend(&mut with, json!({ "minProperties": 1, "maxProperties": 1 }));
    timer.insert("with".to_owned(), with);
    let mut step = object(&STEP);
    let rule = json!({
        "description": "One step of a plan.",
        "if": { "properties": { "uses": { "const": "timer" } }, "required": ["uses"] },
        "then": { "required": ["with"], "properties": timer },
    });
    extend(&mut step, rule);
    step
}

/// Takes the pattern from the type that checks the text.
fn pattern_of<T: JsonSchema>() -> Value {
    let schema = T::json_schema(&mut SchemaGenerator::default());
    json!({ "type": "string", "pattern": schema.get("pattern") })
}

pub(super) fn name() -> Value {
    pattern_of::<StepId>()
}

pub(super) fn principal() -> Value {
    pattern_of::<Principal>()
}

pub(super) fn principals() -> Value {
    json!({ "type": "array", "items": principal(), "maxItems": PEOPLE_MAX })
}

pub(super) fn text() -> Value {
    json!({ "type": "string", "maxLength": GOAL_BYTES_MAX })
}

pub(super) fn any_object() -> Value {
    json!({ "type": "object" })
}

pub(super) fn labels() -> Value {
    json!({
        "type": "object",
        "maxProperties": LABELS_MAX,
        "propertyNames": name(),
        "additionalProperties": {
            "type": "string",
            "maxLength": LABEL_BYTES_MAX,
            "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"
        },
        "examples": [{ "team": "tools" }]
    })
}

pub(super) fn idempotency_key() -> Value {
    json!({
        "type": "string",
        "maxLength": IDEMPOTENCY_KEY_BYTES_MAX,
        "pattern": "^[!-~]([ -~]*[!-~])?$"
    })
}

pub(super) fn artifact_list() -> Value {
    json!({
        "type": "array",
        "uniqueItems": true,
        "items": { "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}/." },
        "examples": [["draft/RELEASE_NOTES.md"]]
    })
}

pub(super) fn deadline() -> Value {
    let mut schema = object(&DEADLINE);
    let rule = json!({ "oneOf": [{ "required": ["in"] }, { "required": ["at"] }] });
    extend(&mut schema, rule);
    schema
}

pub(super) fn deadline_then() -> Value {
    json!({ "enum": ["pause", "fail", "stop"] })
}

const SPAN_PATTERN: &str = "^(?=.)([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";

pub(super) fn span() -> Value {
    json!({ "type": "string", "pattern": SPAN_PATTERN, "examples": ["30s", "1h30m", "7d"] })
}

pub(super) fn time() -> Value {
    json!({
        "type": "string",
        "format": "date-time",
        "pattern": TIME_PATTERN,
        "examples": ["2026-11-29T16:20:00+01:00"]
    })
}

const TIME_PATTERN: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}";
const TEMPLATE_PATTERN: &str = "\\$\\{\\{";

pub(super) fn span_or_template() -> Value {
    json!({
        "type": "string",
        "anyOf": [{ "pattern": SPAN_PATTERN }, { "pattern": TEMPLATE_PATTERN }],
        "examples": ["30s", "${{ input.wait }}"]
    })
}

pub(super) fn time_or_template() -> Value {
    json!({
        "type": "string",
        "anyOf": [{ "pattern": TIME_PATTERN }, { "pattern": TEMPLATE_PATTERN }],
        "examples": ["2026-11-29T16:20:00+01:00", "${{ input.at }}"]
    })
}

pub(super) fn expression() -> Value {
    json!({
        "type": "string",
        "maxLength": EXPRESSION_BYTES_MAX,
        "pattern": "\\S",
        "examples": ["steps.publish.status == \"succeeded\""]
    })
}

pub(super) fn steps() -> Value {
    json!({
        "type": "array",
        "minItems": 1,
        "maxItems": STEPS_MAX,
        "items": { "$ref": "#/$defs/step" }
    })
}

pub(super) fn finally() -> Value {
    json!({ "type": "array", "maxItems": STEPS_MAX, "items": { "$ref": "#/$defs/step" } })
}

pub(super) fn uses() -> Value {
    let mut schema = name();
    extend(&mut schema, json!({ "not": { "enum": USES_LATER }, "examples": ["exec", "timer"] }));
    schema
}

pub(super) fn needs() -> Value {
    json!({ "type": "array", "uniqueItems": true, "items": name() })
}

pub(super) fn timeout() -> Value {
    object(&TIMEOUT)
}

pub(super) fn retry() -> Value {
    object(&RETRY)
}

pub(super) fn attempts() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": ATTEMPTS_MAX })
}

pub(super) fn factor() -> Value {
    json!({ "type": "number", "minimum": 1, "maximum": 100 })
}

pub(super) fn artifact() -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": ARTIFACT_BYTES_MAX,
        "pattern": "^(?!(.*/)?\\.{0,2}(/|$))[^\\u0000-\\u001f\\u007f-\\u009f]+$",
        "examples": ["RELEASE_NOTES.md"]
    })
}

pub(super) fn on_failure() -> Value {
    json!({ "oneOf": [{ "enum": ["fail", "continue", "pause"] }, object(&REDO)] })
}

pub(super) fn effect() -> Value {
    let mut schema = object(&EFFECT);
    let rule = json!({
        "if": { "required": ["check"] },
        "then": { "properties": { "class": { "const": EffectClass::Checkable } } },
    });
    extend(&mut schema, rule);
    schema
}

pub(super) fn effect_class() -> Value {
    json!({ "enum": EffectClass::ALL })
}

pub(super) fn words() -> Value {
    json!({ "type": "string", "maxLength": WORDS_BYTES_MAX })
}

pub(super) fn check() -> Value {
    object(&CHECK)
}

pub(super) fn undo() -> Value {
    object(&UNDO)
}

pub(super) fn handler() -> Value {
    let mut schema = name();
    let known = json!({ "enum": USES_LATER.iter().chain(&["timer"]).collect::<Vec<_>>() });
    extend(&mut schema, json!({ "not": known, "examples": ["exec", "http"] }));
    schema
}

pub(super) fn retry_undo() -> Value {
    object(&RETRY_UNDO)
}

pub(super) fn attempts_undo() -> Value {
    json!({ "type": "integer", "minimum": 1, "maximum": super::UNDO_ATTEMPTS_MAX })
}
