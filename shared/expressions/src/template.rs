//! One string with `${{ }}` in it.

use serde_json::Value;

use crate::evaluate::Meter;
use crate::expression::Expression;
use crate::functions::to_text;
use crate::item::{Item, too_large};
use crate::limits::{RESULT_BYTES_MAX, SECRET_NAME_CHARS_MAX};
use crate::scan::literal_end;
use crate::{Context, Fault, References};

/// What opens a template.
pub(crate) const OPENING: &str = "${{";

/// A parsed string of a plan that holds at least one `${{ }}`.
#[derive(Clone, Debug)]
pub struct Template {
    parts: Vec<Part>,
    references: References,
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Expression(Expression),
    /// The name of a secret, which stays a reference.
    Secret(String),
}

impl Template {
    /// Parses one JSON string; `None` if there is no `${{` in it.
    ///
    /// # Errors
    ///
    /// Faults over a `${{` that does not end, and over whatever
    /// [`Expression::parse`] refuses between the braces.
    pub fn parse(text: &str) -> Result<Option<Self>, Fault> {
        if !text.contains(OPENING) {
            return Ok(None);
        }
        let mut parts = Vec::new();
        let mut references = References::default();
        let mut rest = text;
        while let Some(start) = rest.find(OPENING) {
            let inner = &rest[start + OPENING.len()..];
            let length = inner_length(inner)?;
            if start > 0 {
                parts.push(Part::Text(rest[..start].to_owned()));
            }
            parts.push(part(&inner[..length], &mut references)?);
            rest = &inner[length + "}}".len()..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Some(Self { parts, references }))
    }

    /// Returns what all its expressions refer to.
    pub fn references(&self) -> &References {
        &self.references
    }

    /// Evaluates the template: to a value of any type if it is exactly one `${{ }}`, else to a
    /// string. Secrets stay as `${{ secrets.NAME }}`.
    ///
    /// # Errors
    ///
    /// As [`Expression::evaluate`]; also over `null` inside a text, and over a value that would
    /// bring the text of a secret's reference with it.
    pub fn evaluate(&self, context: &Context) -> Result<Value, Fault> {
        self.evaluate_within(context, &mut Meter::full())
    }

    pub(crate) fn evaluate_within(
        &self,
        context: &Context,
        meter: &mut Meter,
    ) -> Result<Value, Fault> {
        if let [Part::Expression(expression)] = self.parts.as_slice() {
            let value = expression.item(context, meter)?.into_json()?;
            refuse_secrets(&value)?;
            return Ok(value);
        }
        let mut text = String::new();
        let mut secrets = 0;
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Expression(expression) => append(&mut text, expression, context, meter)?,
                Part::Secret(name) => {
                    text.push_str(&format!("${{{{ secrets.{name} }}}}"));
                    secrets += 1;
                }
            }
            if text.len() > RESULT_BYTES_MAX {
                return Err(too_large());
            }
        }
        if secret_marks(&text) != secrets {
            return Err(smuggled_secret());
        }
        Ok(Value::String(text))
    }
}

fn part(inner: &str, references: &mut References) -> Result<Part, Fault> {
    let trimmed = inner.trim();
    if let Some(name) = trimmed.strip_prefix("secrets.") {
        if is_secret_name(name) {
            references.secrets.insert(name.to_owned());
            return Ok(Part::Secret(name.to_owned()));
        }
        if name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_') {
            return Err(Fault::new(format!(
                "secret name `{name}` does not fit [A-Za-z_][A-Za-z0-9_]{{0,63}}"
            )));
        }
    }
    let expression = Expression::parse(trimmed)?;
    references.merge(expression.references());
    Ok(Part::Expression(expression))
}

fn is_secret_name(name: &str) -> bool {
    name.len() <= SECRET_NAME_CHARS_MAX
        && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Length of the expression up to its `}}`, which is not in a string literal and closes no map.
fn inner_length(inner: &str) -> Result<usize, Fault> {
    let bytes = inner.as_bytes();
    let mut braces = 0_usize;
    let mut at = 0;
    while at < bytes.len() {
        if let Some(end) = literal_end(bytes, at)? {
            at = end;
            continue;
        }
        match bytes[at] {
            b'{' => braces += 1,
            b'}' if braces > 0 => braces -= 1,
            b'}' if bytes.get(at + 1) == Some(&b'}') => return Ok(at),
            _ => {}
        }
        at += 1;
    }
    Err(Fault::new("`${{` has no closing `}}`"))
}

fn append(
    text: &mut String,
    expression: &Expression,
    context: &Context,
    meter: &mut Meter,
) -> Result<(), Fault> {
    match expression.item(context, meter)? {
        Item::Null => Err(Fault::new(
            "null cannot be part of a text, expected a value there (x == null ? \"\" : x gives \
             an empty one)",
        )),
        item @ (Item::List(_) | Item::Map(_)) => {
            let json = item.into_json()?.to_string();
            meter.charge_bytes(json.len())?;
            text.push_str(&json);
            Ok(())
        }
        scalar => {
            if let Item::Text(part) = to_text(scalar, meter)? {
                meter.charge_bytes(part.len())?;
                text.push_str(&part);
            }
            Ok(())
        }
    }
}

/// How often a text holds what a worker could take for a reference to a secret.
fn secret_marks(text: &str) -> usize {
    let after = text.match_indices(OPENING).map(|(at, _)| &text[at + OPENING.len()..]);
    after.filter(|after| after.trim_start().starts_with("secrets")).count()
}

fn refuse_secrets(value: &Value) -> Result<(), Fault> {
    let clean = match value {
        Value::String(text) => secret_marks(text) == 0,
        Value::Array(elements) => return elements.iter().try_for_each(refuse_secrets),
        Value::Object(fields) => {
            fields.values().try_for_each(refuse_secrets)?;
            fields.keys().all(|key| secret_marks(key) == 0)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    };
    if clean { Ok(()) } else { Err(smuggled_secret()) }
}

fn smuggled_secret() -> Fault {
    Fault::new(
        "a value holds the text of a reference to a secret, which only the plan itself may name",
    )
}
