//! Templates throughout a JSON value, such as a step's `with`.

use serde_json::{Map, Value};

use crate::evaluate::Meter;
use crate::limits::{JSON_DEPTH_MAX, RESOLVED_BYTES_MAX};
use crate::template::{OPENING, Template};
use crate::{Context, Fault, References};

/// Returns what all templates of a value refer to, and every fault with its JSON Pointer, which
/// starts with the prefix given.
pub fn find_faults_and_references(
    value: &Value,
    pointer_prefix: &str,
) -> (References, Vec<(String, Fault)>) {
    let mut search = Search { pointer: pointer_prefix.to_owned(), ..Search::default() };
    search.value(value, 0);
    (search.references, search.faults)
}

/// Replaces all templates of a value by what they evaluate to. Everything else, and every
/// `${{ secrets.NAME }}`, stays as it is. The result is final: it must not be resolved again.
///
/// # Errors
///
/// The first fault, with the JSON Pointer of the string it is in.
pub fn resolve(
    value: &Value,
    context: &Context,
    pointer_prefix: &str,
) -> Result<Value, (String, Fault)> {
    let mut resolution = Resolution {
        context,
        meter: Meter::full(),
        bytes_left: RESOLVED_BYTES_MAX,
        pointer: pointer_prefix.to_owned(),
    };
    match resolution.value(value, 0) {
        Ok(resolved) => Ok(resolved),
        Err(fault) => Err((resolution.pointer, fault)),
    }
}

/// Returns whether any string or key of a value holds a `${{`.
pub fn has_templates(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(OPENING),
        Value::Array(elements) => elements.iter().any(has_templates),
        Value::Object(fields) => {
            fields.iter().any(|(key, value)| key.contains(OPENING) || has_templates(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[derive(Default)]
struct Search {
    pointer: String,
    references: References,
    faults: Vec<(String, Fault)>,
}

impl Search {
    fn value(&mut self, value: &Value, depth: usize) {
        if let Err(fault) = check_depth(depth) {
            return self.fault(fault);
        }
        match value {
            Value::String(text) => match Template::parse(text) {
                Ok(Some(template)) => self.references.merge(template.references()),
                Ok(None) => {}
                Err(fault) => self.fault(fault),
            },
            Value::Array(elements) => {
                for (position, element) in elements.iter().enumerate() {
                    let length = descend(&mut self.pointer, &position.to_string());
                    self.value(element, depth + 1);
                    self.pointer.truncate(length);
                }
            }
            Value::Object(fields) => {
                for (key, field) in fields {
                    let length = descend(&mut self.pointer, key);
                    if let Err(fault) = check_key(key) {
                        self.fault(fault);
                    }
                    self.value(field, depth + 1);
                    self.pointer.truncate(length);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.faults.push((self.pointer.clone(), fault));
    }
}

struct Resolution<'a> {
    context: &'a Context,
    meter: Meter,
    bytes_left: usize,
    /// Where the walk is; after a fault, where the fault is.
    pointer: String,
}

impl Resolution<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<Value, Fault> {
        check_depth(depth)?;
        match value {
            Value::String(text) => self.text(text),
            Value::Array(elements) => {
                let mut resolved = Vec::with_capacity(elements.len());
                for (position, element) in elements.iter().enumerate() {
                    let length = descend(&mut self.pointer, &position.to_string());
                    resolved.push(self.value(element, depth + 1)?);
                    self.pointer.truncate(length);
                }
                Ok(Value::Array(resolved))
            }
            Value::Object(fields) => {
                let mut resolved = Map::new();
                for (key, field) in fields {
                    let length = descend(&mut self.pointer, key);
                    check_key(key)?;
                    resolved.insert(key.clone(), self.value(field, depth + 1)?);
                    self.pointer.truncate(length);
                }
                Ok(Value::Object(resolved))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }

    fn text(&mut self, text: &str) -> Result<Value, Fault> {
        let Some(template) = Template::parse(text)? else {
            return Ok(Value::String(text.to_owned()));
        };
        let value = template.evaluate_within(self.context, &mut self.meter)?;
        match self.bytes_left.checked_sub(bytes(&value)) {
            Some(left) => self.bytes_left = left,
            None => {
                return Err(Fault::new(format!(
                    "templates of one value give more than {RESOLVED_BYTES_MAX} bytes together"
                )));
            }
        }
        Ok(value)
    }
}

/// Roughly the bytes of a value; it is bounded, as are the results of templates.
fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(elements) => elements.iter().map(bytes).sum::<usize>() + 2,
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| key.len() + 3 + bytes(value)).sum::<usize>() + 2
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// Appends one token to a JSON Pointer (RFC 6901) and returns the length to cut it back to.
fn descend(pointer: &mut String, token: &str) -> usize {
    let length = pointer.len();
    pointer.push('/');
    for character in token.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
    length
}

fn check_key(key: &str) -> Result<(), Fault> {
    if key.contains(OPENING) {
        return Err(Fault::new("keys are not templated, expected a key without `${{`"));
    }
    Ok(())
}

fn check_depth(depth: usize) -> Result<(), Fault> {
    if depth > JSON_DEPTH_MAX {
        return Err(Fault::new(format!("value nests deeper than {JSON_DEPTH_MAX} levels")));
    }
    Ok(())
}
