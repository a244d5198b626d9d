//! Reads from the context and from values, and says in words what is not there.

use crate::item::{Item, List, Object, Text};
use crate::node::{Node, Place};
use crate::{Context, Fault, StepView};

/// Keys listed in the fault over a missing field: enough to see a typing error. Longer maps are
/// not listed, so that a fault costs the same however large the map.
const KEYS_SHOWN_MAX: usize = 12;

/// Characters of a key or field shown in a fault: as many as a user-chosen id may have.
const TEXT_CHARS_SHOWN_MAX: usize = 64;

pub(crate) fn read<'a>(context: &'a Context, place: &Place) -> Result<Item<'a>, Fault> {
    let borrowed = |text: &'a str| Item::Text(Text::Borrowed(text));
    match place {
        Place::Input => Ok(Item::from_json(&context.input)),
        Place::Failure => Ok(context.failure.as_ref().map_or(Item::Null, Item::from_json)),
        Place::Effect => context.effect.as_ref().map(Item::from_json).ok_or_else(|| {
            Fault::new("effect is not known here: only an `undo` has one, what it undoes")
        }),
        Place::PlanDir => context.plan_dir.as_deref().map(borrowed).ok_or_else(|| {
            Fault::new(
                "plan.dir is not known here: it is for `run`, and for `submit` to an api on this \
                 machine",
            )
        }),
        Place::StepStatus(id) => Ok(borrowed(&step(context, id)?.status)),
        Place::StepOutput(id) => output(id, step(context, id)?),
        Place::ArtifactBytes(key) => {
            let bytes = artifact(context, key)?.bytes;
            Ok(i64::try_from(bytes).map_or(Item::UInt(bytes), Item::Int))
        }
        Place::ArtifactSha256(key) => Ok(borrowed(&artifact(context, key)?.sha256)),
    }
}

pub(crate) fn has_place<'a>(context: &'a Context, place: &Place) -> Result<Item<'a>, Fault> {
    Ok(Item::Bool(match place {
        Place::Input => true,
        Place::Failure => context.failure.is_some(),
        Place::Effect => context.effect.is_some(),
        Place::PlanDir => context.plan_dir.is_some(),
        Place::StepStatus(id) => step(context, id).map(|_| true)?,
        Place::StepOutput(id) => {
            let step = step(context, id)?;
            step.output_is_reference || step.output.is_some()
        }
        Place::ArtifactBytes(key) | Place::ArtifactSha256(key) => {
            context.artifacts.contains_key(key)
        }
    }))
}

fn step<'a>(context: &'a Context, id: &str) -> Result<&'a StepView, Fault> {
    context.steps.get(id).ok_or_else(|| Fault::new(format!("step {id} is not known here")))
}

fn output<'a>(id: &str, step: &'a StepView) -> Result<Item<'a>, Fault> {
    if step.output_is_reference {
        return Err(Fault::new(format!(
            "output of step {id} is kept by reference and cannot be templated"
        )));
    }
    step.output.as_ref().map(Item::from_json).ok_or_else(|| {
        Fault::new(format!("step {id} has no output, its status is {}", step.status))
    })
}

fn artifact<'a>(context: &'a Context, key: &str) -> Result<&'a crate::ArtifactView, Fault> {
    context.artifacts.get(key).ok_or_else(|| {
        Fault::new(format!("artifact {key} does not exist (has() asks whether it does)"))
    })
}

pub(crate) fn element<'a>(list: &List<'a>, position: &Item<'_>) -> Option<Item<'a>> {
    match position {
        Item::Int(position) => list.get(usize::try_from(*position).ok()?),
        Item::UInt(position) => list.get(usize::try_from(*position).ok()?),
        _ => None,
    }
}

pub(crate) fn no_element(operand: &Node, list: &List<'_>, position: &Item<'_>) -> Fault {
    let path = operand.path();
    let length = list.len();
    match position {
        Item::Int(position) => {
            Fault::new(format!("{path} has no element {position}, it has {length} counted from 0"))
        }
        Item::UInt(position) => {
            Fault::new(format!("{path} has no element {position}, it has {length} counted from 0"))
        }
        other => Fault::new(format!(
            "{path} is a list and is indexed by int, found {}",
            other.type_name()
        )),
    }
}

pub(crate) fn not_a_map(operand: &Node, value: &Item<'_>, field: &str) -> Fault {
    let path = operand.path();
    Fault::new(format!("{path} is {} and has no field `{}`", with_article(value), shown(field)))
}

fn with_article(value: &Item<'_>) -> String {
    match value {
        Item::Null => "null".into(),
        Item::Int(_) => "an int".into(),
        other => format!("a {}", other.type_name()),
    }
}

pub(crate) fn missing_field(operand: &Node, object: &Object<'_>, field: &str) -> Fault {
    let path = operand.path();
    let field = shown(field);
    let others = match object.len() {
        0 => "it is empty".to_owned(),
        count if count > KEYS_SHOWN_MAX => format!("none of its {count} fields has that name"),
        _ => {
            let keys: Vec<String> = object.keys().iter().map(|key| shown(key)).collect();
            format!("it has {}", keys.join(", "))
        }
    };
    Fault::new(format!("{path} has no field `{field}`, {others}"))
}

/// The start of a text that may be long, for a fault.
pub(crate) fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(TEXT_CHARS_SHOWN_MAX).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    start
}
