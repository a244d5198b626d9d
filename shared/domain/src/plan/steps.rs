//! Reads one step.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::faults::{Faults, found, join};
use super::fields::Fields;
use super::grammar::{
    CHECK, EFFECT, NOT_OF_TIMERS, REDO, RETRY, RETRY_UNDO, STEP, Shape, TIMEOUT, UNDO, USES_LATER,
};
use super::values;
use super::{
    CheckPlan, EffectPlan, OnFailure, Retry, StepPlan, Timeouts, UNDO_ATTEMPTS_MAX, UndoPlan, Uses,
    timer,
};
use crate::ids::{HandlerName, Queue, StepId, check_name};
use crate::record::EffectClass;
use crate::time::Span;

/// The queue of steps that name none.
pub const QUEUE_DEFAULT: &str = "default";
/// Attempts of a step, and rounds of a redo: more is a loop, not a retry.
pub const ATTEMPTS_MAX: u32 = 1_000;

/// A step as far as it could be read, and what the checks between steps want to know of it.
pub(super) struct ReadStep {
    /// The step; a placeholder stands for each part that could not be read.
    pub(super) step: StepPlan,
    /// Where it stands.
    pub(super) at: String,
    /// Whether its id could be read.
    pub(super) named: bool,
    /// The place in the author's list of each of `step.needs`.
    pub(super) need_places: Vec<usize>,
    /// Whether the author gave an artifact, right or wrong.
    pub(super) has_artifact: bool,
}

/// Reads a list of steps; `before` others of the plan were read already.
pub(super) fn read_all(
    list: &[Value],
    at: &str,
    before: usize,
    faults: &mut Faults,
) -> Vec<ReadStep> {
    let place = |index: usize| join(at, &index.to_string());
    let steps = list.iter().enumerate();
    steps.map(|(index, value)| read(value, place(index), before + index, faults)).collect()
}

fn read(value: &Value, at: String, number: usize, faults: &mut Faults) -> ReadStep {
    let fields = Fields::open(value, at, &STEP, faults);
    let id = fields.read("id", faults, |value| values::name(value, StepId::chosen));
    let uses = fields.read("uses", faults, uses);
    let queue = fields.read("queue", faults, |value| values::name(value, Queue::new));
    let needs = needs(&fields, id.as_ref(), faults);
    let on_failure = on_failure(&fields, faults);
    let with = with(&fields, uses.as_ref(), faults);
    let named = id.is_some();
    let step = StepPlan {
        id: id.unwrap_or_else(|| unreadable_id(number)),
        uses: uses.unwrap_or(Uses::Timer),
        queue: queue.unwrap_or_else(default_queue),
        needs: needs.iter().map(|(_, need)| need.clone()).collect(),
        condition: fields.read("if", faults, values::expression),
        with,
        timeout: timeouts(&fields, faults),
        retry: retry(&fields, &RETRY, ATTEMPTS_MAX, faults),
        artifact: fields.read("artifact", faults, values::artifact),
        checkpoint: fields.read("checkpoint", faults, |value| {
            values::name(value, |text| check_name(&text).map(|()| text))
        }),
        on_failure,
        effect: effect(&fields, faults),
        undo: undo(&fields, faults),
    };
    let need_places = needs.into_iter().map(|(place, _)| place).collect();
    let has_artifact = fields.has("artifact");
    ReadStep { step, at: fields.here().to_owned(), named, need_places, has_artifact }
}

/// Stands for an id that could not be read; no author writes such a one.
fn unreadable_id(number: usize) -> StepId {
    StepId::new(format!("0.unreadable.{number}")).expect("digits, letters and dots make a name")
}

fn default_queue() -> Queue {
    Queue::new(QUEUE_DEFAULT).expect("letters make a name")
}

fn uses(value: &Value) -> Result<Uses, String> {
    match value.as_str() {
        Some("timer") => Ok(Uses::Timer),
        Some(later) if USES_LATER.contains(&later) => {
            Err(format!("`{later}` is not available in this version"))
        }
        Some(_) | None => values::name(value, HandlerName::new).map(Uses::Handler),
    }
}

/// Reads the needs; one that names the step itself or comes twice is a fault and left out.
fn needs(fields: &Fields<'_>, id: Option<&StepId>, faults: &mut Faults) -> Vec<(usize, StepId)> {
    let mut seen = BTreeSet::new();
    let mut needs =
        fields.list("needs", "step names", faults, |value| values::name(value, StepId::chosen));
    needs.retain(|(place, need)| {
        let message = if Some(need) == id {
            format!("step `{need}` needs itself")
        } else if !seen.insert(need.clone()) {
            format!("duplicate need `{need}`")
        } else {
            return true;
        };
        faults.push(join(&fields.at("needs"), &place.to_string()), message);
        false
    });
    needs
}

fn with(fields: &Fields<'_>, uses: Option<&Uses>, faults: &mut Faults) -> Value {
    let empty = Value::Object(Map::new());
    if uses == Some(&Uses::Timer) {
        for name in NOT_OF_TIMERS.iter().filter(|name| fields.has(name)) {
            faults.push(fields.at(name), format!("a timer has no `{name}`: no worker runs it"));
        }
        timer::check(fields.value("with").unwrap_or(&empty), fields.at("with"), faults);
    } else if let Some(value) = fields.value("with").filter(|value| !value.is_object()) {
        let message = format!("expected a handler's input, an object, found {}", found(value));
        faults.push(fields.at("with"), message);
    }
    fields.value("with").filter(|value| value.is_object()).cloned().unwrap_or(empty)
}

fn timeouts(step: &Fields<'_>, faults: &mut Faults) -> Timeouts {
    let Some(value) = step.value("timeout") else {
        return Timeouts::default();
    };
    let fields = Fields::open(value, step.at("timeout"), &TIMEOUT, faults);
    let attempt = fields.read("attempt", faults, values::positive_span);
    Timeouts {
        queue: fields.read("queue", faults, values::positive_span),
        attempt: attempt.unwrap_or(Timeouts::default().attempt),
        heartbeat: fields.read("heartbeat", faults, values::positive_span),
        total: fields.read("total", faults, values::positive_span),
    }
}

/// Reads the rules of retry. Of the two waits the one that is not given makes room for the
/// other, so that `backoff: 5m` alone is right.
fn retry(step: &Fields<'_>, shape: &Shape, most: u32, faults: &mut Faults) -> Retry {
    let usual = Retry::default();
    let Some(value) = step.value("retry") else {
        return usual;
    };
    let fields = Fields::open(value, step.at("retry"), shape, faults);
    let attempts = |value: &Value| values::whole(value, 1..=most);
    let max_attempts = fields.read("max_attempts", faults, attempts);
    let factor = fields.read("factor", faults, values::factor);
    let backoff = fields.read("backoff", faults, values::span);
    let longest = fields.read("max_backoff", faults, values::span);
    let (backoff, max_backoff) = match (backoff, longest) {
        (Some(first), Some(longest)) if longest < first => {
            faults.push(
                fields.at("max_backoff"),
                format!("expected a span no shorter than `backoff`, {}", lengths(first, longest)),
            );
            (first, first)
        }
        (Some(first), longest) => (first, longest.unwrap_or(usual.max_backoff).max(first)),
        (None, Some(longest)) => (usual.backoff.min(longest), longest),
        (None, None) => (usual.backoff, usual.max_backoff),
    };
    Retry {
        max_attempts: max_attempts.unwrap_or(usual.max_attempts),
        backoff,
        factor: factor.unwrap_or(usual.factor),
        max_backoff,
        max_elapsed: fields.read("max_elapsed", faults, values::span),
    }
}

fn lengths(expected: Span, found: Span) -> String {
    format!("`{}ms`, found `{}ms`", expected.0, found.0)
}

fn effect(step: &Fields<'_>, faults: &mut Faults) -> Option<EffectPlan> {
    let value = step.value("effect")?;
    let fields = Fields::open(value, step.at("effect"), &EFFECT, faults);
    let class = fields.read("class", faults, |value| {
        let class = value.as_str().and_then(EffectClass::parse);
        class.ok_or_else(|| {
            let words = "`none`, `idempotent`, `checkable` or `irreversible`";
            format!("expected {words}, found {}", found(value))
        })
    });
    let target = fields.read("target", faults, values::words);
    let says = fields.read("says", faults, values::words);
    let check = check(&fields, faults);
    if fields.has("check") && class.is_some_and(|class| class != EffectClass::Checkable) {
        let message = "only a `checkable` effect has a check".to_owned();
        faults.push(fields.at("check"), message);
    }
    class.map(|class| EffectPlan { class, target, says, check })
}

fn check(effect: &Fields<'_>, faults: &mut Faults) -> Option<CheckPlan> {
    let value = effect.value("check")?;
    let fields = Fields::open(value, effect.at("check"), &CHECK, faults);
    let uses = fields.read("uses", faults, |value| values::name(value, HandlerName::new));
    let with = input(&fields, faults);
    Some(CheckPlan { uses: uses?, with })
}

fn input(fields: &Fields<'_>, faults: &mut Faults) -> Value {
    let with = fields.read("with", faults, |value| match value.is_object() {
        true => Ok(value.clone()),
        false => Err(format!("expected a handler's input, an object, found {}", found(value))),
    });
    with.unwrap_or_else(|| Value::Object(Map::new()))
}

/// Reads what undoes the step's effects; a step without effects has nothing to undo.
fn undo(step: &Fields<'_>, faults: &mut Faults) -> Option<UndoPlan> {
    let value = step.value("undo")?;
    let fields = Fields::open(value, step.at("undo"), &UNDO, faults);
    let handler = fields.read("uses", faults, |value| match uses(value)? {
        Uses::Handler(handler) => Ok(handler),
        Uses::Timer => Err("expected a handler, found `timer`: waiting undoes nothing".to_owned()),
    });
    let class = step.value("effect").and_then(|effect| effect.get("class"));
    if class.and_then(Value::as_str) == Some(EffectClass::None.as_str()) {
        faults.push(fields.here(), "a step whose effect is `none` has nothing to undo".to_owned());
    }
    let plan = UndoPlan {
        uses: handler.clone().unwrap_or_else(unreadable_handler),
        queue: fields.read("queue", faults, |value| values::name(value, Queue::new)),
        with: input(&fields, faults),
        timeout: timeouts(&fields, faults),
        retry: retry(&fields, &RETRY_UNDO, UNDO_ATTEMPTS_MAX, faults),
        effect: effect(&fields, faults),
    };
    handler.map(|_| plan)
}

fn unreadable_handler() -> HandlerName {
    HandlerName::new("unreadable").expect("letters make a name")
}

fn on_failure(step: &Fields<'_>, faults: &mut Faults) -> Option<OnFailure> {
    let value = step.value("on_failure")?;
    if value.is_object() {
        let fields = Fields::open(value, step.at("on_failure"), &REDO, faults);
        let target = fields.read("redo", faults, |value| values::name(value, StepId::chosen));
        let max = fields.read("max", faults, |value| values::whole(value, 1..=ATTEMPTS_MAX));
        return target.map(|step| OnFailure::Redo { step, max: max.unwrap_or(1) });
    }
    step.read("on_failure", faults, |value| match value.as_str() {
        Some("fail") => Ok(OnFailure::Fail),
        Some("continue") => Ok(OnFailure::Continue),
        Some("pause") => Ok(OnFailure::Pause),
        Some(_) | None => Err(format!(
            "expected `fail`, `continue`, `pause` or an object `{{redo: STEP, max: N}}`, found {}",
            found(value)
        )),
    })
}
