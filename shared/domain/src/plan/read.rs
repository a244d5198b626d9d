//! Reads a plan, and says everything that is wrong with it at once.
//!
//! What can be read is read even from a faulty plan, so that later checks (expressions,
//! handlers) can add their faults to the same answer.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

pub use super::rules::REDO_STEPS_MAX;
pub use super::steps::{ATTEMPTS_MAX, QUEUE_DEFAULT};
pub use super::timer::timer_due;
pub use super::values::{
    ARTIFACT_BYTES_MAX, EXPRESSION_BYTES_MAX, GOAL_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX,
    LABEL_BYTES_MAX, WORDS_BYTES_MAX,
};

use super::faults::{Faults, found, join};
use super::fields::Fields;
use super::grammar::{DEADLINE, PLAN};
use super::steps::ReadStep;
use super::{Deadline, DeadlineThen, Fault, Plan, StepPlan, When, rules, steps, values};
use crate::ids::{Kind, Principal, check_name};

/// Steps of a task, those of `finally` included.
pub const STEPS_MAX: usize = 10_000;
/// `finally` steps of a task: one commit opens them all.
pub const FINALLY_MAX: usize = 100;
/// Principals of one list of a plan: each is an index entry, and more are a group.
pub const PEOPLE_MAX: usize = 32;
/// Labels of a task: each is an index entry.
pub const LABELS_MAX: usize = 32;

/// A plan as far as it could be read.
///
/// A fault keeps its part out: a faulty step keeps its place and all that could be read of it,
/// with an id of its own for one that could not be read, and `uses: timer` for a `uses` that
/// could not be read, so that no later check complains of the placeholder.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// What could be read.
    pub plan: Plan,
    /// All that is wrong, sorted by place.
    pub faults: Vec<Fault>,
}

impl Draft {
    /// Gives the plan if nothing is wrong with it.
    pub fn into_plan(self) -> Result<Plan, Vec<Fault>> {
        if self.faults.is_empty() { Ok(self.plan) } else { Err(self.faults) }
    }
}

/// Reads a plan.
pub fn read(value: &Value) -> Draft {
    let mut faults = Faults::new();
    let fields = Fields::open(value, String::new(), &PLAN, &mut faults);
    let plan = plan(&fields, &mut faults);
    Draft { plan, faults: faults.into_sorted() }
}

/// Reads the steps that an outcome adds (`then`); `pointer` is where they stand.
///
/// Names are checked among the new steps. Whether the others that they need are steps of the
/// task, and whether a redo's target among those is upstream, is for whoever knows the task.
pub fn read_added_steps(value: &Value, pointer: &str) -> (Vec<StepPlan>, Vec<Fault>) {
    let mut faults = Faults::new();
    let mut added = Vec::new();
    match value {
        Value::Array(list) if list.len() > STEPS_MAX => {
            faults
                .push(pointer, format!("expected at most {STEPS_MAX} steps, found {}", list.len()));
        }
        Value::Array(list) => {
            added = steps::read_all(list, pointer, 0, &mut faults);
            rules::check_added(&added, &mut faults);
        }
        other => {
            faults.push(pointer, format!("expected an array of steps, found {}", found(other)))
        }
    }
    (added.into_iter().map(|read| read.step).collect(), faults.into_sorted())
}

fn plan(fields: &Fields<'_>, faults: &mut Faults) -> Plan {
    let steps = section(fields, "steps", 0, faults);
    let finally = section(fields, "finally", steps.len(), faults);
    let count = steps.len() + finally.len();
    let artifacts = fields.list("artifacts", "`STEP/NAME`", faults, required_artifact);
    if fields.value("steps").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        faults.push(fields.at("steps"), "expected at least one step, found none");
    }
    if finally.len() > FINALLY_MAX {
        let found = finally.len();
        let message = format!("expected at most {FINALLY_MAX} `finally` steps, found {found}");
        faults.push(fields.at("finally"), message);
    }
    if count > STEPS_MAX {
        let message = format!("expected at most {STEPS_MAX} steps with `finally`, found {count}");
        faults.push(fields.at("steps"), message);
    } else {
        rules::check(&steps, &finally, faults);
        rules::check_artifacts(&artifacts, &steps, faults);
    }
    let bare = |steps: Vec<ReadStep>| steps.into_iter().map(|read| read.step).collect();
    let kind = fields.read("kind", faults, |value| values::name(value, Kind::new));
    let goal = fields.read("goal", faults, |value| values::text(value, "a goal", GOAL_BYTES_MAX));
    Plan {
        kind: kind.unwrap_or_else(unreadable_kind),
        goal: goal.unwrap_or_default(),
        input: fields.read("input", faults, input).unwrap_or_else(|| Value::Object(Map::new())),
        owner: fields.read("owner", faults, values::principal),
        viewers: principals(fields, "viewers", faults),
        operators: principals(fields, "operators", faults),
        approvers: principals(fields, "approvers", faults),
        labels: labels(fields, faults),
        idempotency_key: fields.read("idempotency_key", faults, values::idempotency_key),
        artifacts: artifacts.into_iter().map(|(_, entry)| entry).collect(),
        deadline: deadline(fields, faults),
        retention: fields.read("retention", faults, values::span),
        complete_when: fields.read("complete_when", faults, values::expression),
        steps: bare(steps),
        finally: bare(finally),
    }
}

fn unreadable_kind() -> Kind {
    Kind::new("unreadable").expect("letters make a name")
}

fn section(fields: &Fields<'_>, name: &str, before: usize, faults: &mut Faults) -> Vec<ReadStep> {
    match fields.value(name) {
        Some(Value::Array(list)) => steps::read_all(list, &fields.at(name), before, faults),
        Some(other) => {
            let message = format!("expected an array of steps, found {}", found(other));
            faults.push(fields.at(name), message);
            Vec::new()
        }
        None => Vec::new(),
    }
}

fn input(value: &Value) -> Result<Value, String> {
    if value.is_object() {
        return Ok(value.clone());
    }
    Err(format!("expected the task's input, an object, found {}", found(value)))
}

fn principals(fields: &Fields<'_>, name: &str, faults: &mut Faults) -> Vec<Principal> {
    let list = fields.list(name, "principals", faults, values::principal);
    if list.len() > PEOPLE_MAX {
        let message = format!("expected at most {PEOPLE_MAX} principals, found {}", list.len());
        faults.push(fields.at(name), message);
    }
    list.into_iter().map(|(_, principal)| principal).collect()
}

fn labels(fields: &Fields<'_>, faults: &mut Faults) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let Some(value) = fields.value("labels") else {
        return labels;
    };
    let Value::Object(map) = value else {
        let message = format!("expected an object of names and texts, found {}", found(value));
        faults.push(fields.at("labels"), message);
        return labels;
    };
    if map.len() > LABELS_MAX {
        let message = format!("expected at most {LABELS_MAX} labels, found {}", map.len());
        faults.push(fields.at("labels"), message);
    }
    for (key, value) in map {
        let name = check_name(key).map_err(|fault| fault.to_string());
        match name.and_then(|()| values::label(value)) {
            Ok(text) => {
                labels.insert(key.clone(), text);
            }
            Err(message) => faults.push(join(&fields.at("labels"), key), message),
        }
    }
    labels
}

fn required_artifact(value: &Value) -> Result<String, String> {
    match value.as_str().and_then(|text| text.split_once('/')) {
        Some((step, name)) if check_name(step).is_ok() && !name.is_empty() => {
            Ok(format!("{step}/{name}"))
        }
        Some(_) | None => Err(format!("expected `STEP/NAME`, found {}", found(value))),
    }
}

fn deadline(fields: &Fields<'_>, faults: &mut Faults) -> Option<Deadline> {
    let value = fields.value("deadline")?;
    let fields = Fields::open(value, fields.at("deadline"), &DEADLINE, faults);
    match (fields.has("in"), fields.has("at")) {
        (true, true) => faults.push(fields.here(), "expected one of `in` and `at`, found both"),
        (false, false) if fields.is_object() => {
            faults.push(fields.here(), "expected one of `in` and `at`, found neither");
        }
        (false, false) | (true, false) | (false, true) => {}
    }
    let span = fields.read("in", faults, values::span).map(When::In);
    let time = fields.read("at", faults, values::time).map(When::At);
    let then = fields.read("then", faults, |value| {
        values::word(
            value,
            &[
                ("pause", DeadlineThen::Pause),
                ("fail", DeadlineThen::Fail),
                ("stop", DeadlineThen::Stop),
            ],
        )
    });
    Some(Deadline { when: span.or(time)?, then: then? })
}

#[cfg(test)]
mod tests;
