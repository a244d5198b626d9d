//! Evaluates what a step's definition leaves open, once, when the step becomes ready; and the
//! checks of completion. Reads only the view, so it asks for records like a decision does.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use standfast_domain::decide::{Resolution, to_resolve};
use standfast_domain::ids::StepId;
use standfast_domain::plan::Uses;
use standfast_domain::plan::read::timer_due;
use standfast_domain::record::{Definition, Key, Payload, Record, Status, UndoOf, effect_key};
use standfast_domain::refusal::Halt;
use standfast_domain::time::Time;
use standfast_domain::view::View;
use standfast_expressions::{
    ArtifactView, Context, Expression, References, StepView, find_faults_and_references, resolve,
};

/// Where the input of an effect's check stands within its step.
const CHECK_WITH: &str = "effect/check/with";

/// Evaluates a step that is about to be released. A step that will not be is not evaluated.
pub fn resolution(view: &View, step: &StepId, now: Time) -> Result<Resolution, Halt> {
    let Some(definition) = to_resolve(view, step)? else {
        return Ok(Resolution::Run { with: None, check: None });
    };
    if !definition.templated {
        return Ok(match definition.plan.uses {
            Uses::Handler(_) => Resolution::Run { with: None, check: None },
            Uses::Timer => timer(&definition.plan.with, now),
        });
    }
    evaluate(view, definition, now)
}

fn timer(with: &Value, now: Time) -> Resolution {
    match timer_due(with, now) {
        Ok(due) => Resolution::Timer { due },
        Err(fault) => {
            Resolution::Fault { message: format!("with{}: {}", fault.pointer, fault.message) }
        }
    }
}

fn evaluate(view: &View, definition: &Definition, now: Time) -> Result<Resolution, Halt> {
    let plan = &definition.plan;
    let condition = match plan.condition.as_deref().map(Expression::parse) {
        Some(Ok(expression)) => Some(expression),
        Some(Err(fault)) => {
            return Ok(Resolution::Fault { message: format!("if: {}", fault.message) });
        }
        None => None,
    };
    let check = plan.effect.as_ref().and_then(|effect| effect.check.as_ref());
    let mut references = References::default();
    let inputs = [Some((&plan.with, "with")), check.map(|check| (&check.with, CHECK_WITH))];
    for (input, place) in inputs.iter().flatten() {
        let (found, faults) = find_faults_and_references(input, place);
        if let Some((pointer, fault)) = faults.first() {
            return Ok(Resolution::Fault { message: format!("{pointer}: {}", fault.message) });
        }
        references.merge(&found);
    }
    if let Some(expression) = &condition {
        references.merge(expression.references());
    }
    let round = view.step(&plan.id)?.round;
    let mut context = context(view, &references, round)?;
    context.effect = match &definition.undo_of {
        Some(of) => match undone(view, of)? {
            Ok(effect) => Some(effect),
            Err(message) => return Ok(Resolution::Fault { message }),
        },
        None => None,
    };
    if let Some(expression) = &condition {
        match expression.evaluate_bool(&context) {
            Ok(true) => {}
            Ok(false) => return Ok(Resolution::Skip),
            Err(fault) => {
                return Ok(Resolution::Fault { message: format!("if: {}", fault.message) });
            }
        }
    }
    let check = match check.map(|check| resolved(&check.with, CHECK_WITH, &context)).transpose() {
        Ok(check) => check.flatten(),
        Err(message) => return Ok(Resolution::Fault { message }),
    };
    Ok(match (resolved(&plan.with, "with", &context), &plan.uses) {
        (Ok(with), Uses::Handler(_)) => Resolution::Run { with, check },
        (Ok(with), Uses::Timer) => timer(with.as_ref().unwrap_or(&plan.with), now),
        (Err(message), _) => Resolution::Fault { message },
    })
}

/// Gives what the input of an undo may read of the effect that it undoes.
fn undone(view: &View, of: &UndoOf) -> Result<Result<Value, String>, Halt> {
    let (step, name) = (of.step.clone(), of.name.clone());
    let key = match of.output_round {
        Some(round) => Key::Output(step.clone(), round),
        None => Key::Receipt(step.clone(), name.clone(), of.generation),
    };
    let receipt = match view.get(&key)? {
        Some(Record::Payload(Payload::Inline(receipt))) => receipt.clone(),
        Some(Record::Payload(Payload::Blob { bytes, .. })) => {
            return Ok(Err(format!(
                "the receipt of effect `{name}` of step `{step}` is kept by reference ({bytes} \
                 bytes) and cannot be templated"
            )));
        }
        _ => Value::Null,
    };
    Ok(Ok(json!({
        "name": name,
        "generation": of.generation,
        "key": effect_key(view.task(), &step, &of.name, of.generation),
        "receipt": receipt,
    })))
}

/// Resolves an input; `None` if it holds no template.
fn resolved(input: &Value, place: &str, context: &Context) -> Result<Option<Value>, String> {
    if !standfast_expressions::has_templates(input) {
        return Ok(None);
    }
    let resolved = resolve(input, context, place).map(Some);
    resolved.map_err(|(pointer, fault)| format!("{pointer}: {}", fault.message))
}

/// Checks completion: required artifacts, then `complete_when`. Gives the check that fails.
pub fn completion_fault(view: &View) -> Result<Option<String>, Halt> {
    let meta = view.meta()?;
    let named = || meta.artifacts.iter().filter_map(|name| name.split_once('/'));
    let steps = || named().filter_map(|(step, name)| Some((StepId::new(step).ok()?, name)));
    view.need(steps().map(|(step, _)| Key::Artifacts(step)))?;
    for (step, name) in steps() {
        if !view.artifacts(&step)?.iter().any(|artifact| artifact.name == name) {
            return Ok(Some(format!("the required artifact `{step}/{name}` does not exist")));
        }
    }
    let Some(text) = &meta.complete_when else { return Ok(None) };
    let expression = match Expression::parse(text) {
        Ok(expression) => expression,
        Err(fault) => return Ok(Some(format!("`complete_when`: {}", fault.message))),
    };
    let round = view.header()?.round;
    let context = context(view, expression.references(), round)?;
    Ok(match expression.evaluate_bool(&context) {
        Ok(true) => None,
        Ok(false) => Some(format!("`complete_when` is false: {text}")),
        Err(fault) => Some(format!("`complete_when`: {}", fault.message)),
    })
}

fn context(view: &View, references: &References, round: u32) -> Result<Context, Halt> {
    let steps: Vec<StepId> =
        references.steps.iter().filter_map(|name| StepId::new(name.as_str()).ok()).collect();
    let files: Vec<(StepId, &str)> = references
        .artifacts
        .iter()
        .filter_map(|name| name.split_once('/'))
        .filter_map(|(step, name)| Some((StepId::new(step).ok()?, name)))
        .collect();
    let first = steps
        .iter()
        .flat_map(|step| [Key::Step(step.clone()), Key::Definition(step.clone())])
        .chain(files.iter().map(|(step, _)| Key::Artifacts(step.clone())))
        .chain((round > 1 && references.failure).then_some(Key::Failure(round)))
        .chain([Key::Meta]);
    view.need(first)?;
    let mut outputs = Vec::new();
    for step in &steps {
        if references.outputs.contains(step.as_str()) {
            outputs.push(Key::Output(step.clone(), view.step(step)?.seen().1));
        }
    }
    view.need(outputs)?;
    let meta = view.meta()?;
    Ok(Context {
        input: meta.input.clone(),
        steps: step_views(view, &steps, references)?,
        artifacts: artifact_views(view, &files)?,
        plan_dir: meta.plan_dir.clone(),
        failure: match view.knows(&Key::Failure(round)) && round > 1 {
            true => failure(view, round)?,
            false => None,
        },
        effect: None,
    })
}

/// Shows steps as they last settled: one that a new round runs again still speaks for the round
/// before, of which the step that reads it was told.
fn step_views(
    view: &View,
    steps: &[StepId],
    references: &References,
) -> Result<BTreeMap<String, StepView>, Halt> {
    let mut views = BTreeMap::new();
    for step in steps {
        let state = view.step(step)?;
        let (status, round) = state.seen();
        let payload = match references.outputs.contains(step.as_str()) {
            true => view.output(step, round)?.cloned(),
            false => None,
        };
        let (output, output_is_reference) = match payload {
            Some(Payload::Inline(value)) => (Some(value), false),
            Some(Payload::Blob { .. }) => (None, true),
            None => (None, false),
        };
        let status = status_word(status).to_owned();
        views.insert(step.to_string(), StepView { status, output, output_is_reference });
    }
    Ok(views)
}

fn artifact_views(
    view: &View,
    files: &[(StepId, &str)],
) -> Result<BTreeMap<String, ArtifactView>, Halt> {
    let mut views = BTreeMap::new();
    for (step, name) in files {
        let found = view.artifacts(step)?.iter().find(|artifact| artifact.name == *name);
        if let Some(artifact) = found {
            let seen = ArtifactView { bytes: artifact.bytes, sha256: artifact.sha256.clone() };
            views.insert(format!("{step}/{name}"), seen);
        }
    }
    Ok(views)
}

/// Gives the value of `failure` in a redone round.
pub fn failure(view: &View, round: u32) -> Result<Option<Value>, Halt> {
    Ok(match view.get(&Key::Failure(round))? {
        Some(Record::Failure(failure)) => Some(json!({
            "step": failure.step,
            "class": failure.class,
            "message": failure.message,
            "output": failure.output,
            "round": failure.round,
        })),
        _ => None,
    })
}

/// Gives the word for a step's status, as expressions and the API use it.
pub fn status_word(status: &Status) -> &'static str {
    match status {
        Status::Pending => "pending",
        Status::Ready { .. } => "ready",
        Status::Retrying { .. } => "retrying",
        Status::Held { .. } => "held",
        Status::Succeeded { .. } => "succeeded",
        Status::Failed { .. } => "failed",
        Status::Skipped { .. } => "skipped",
    }
}
