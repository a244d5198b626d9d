//! Reading the fields of an input, so that every fault is found at once and named by pointer.

use serde_json::{Map, Value};

use super::Fault;

/// Walks the fields of one input and gathers what is wrong with them.
pub(super) struct Fields<'a> {
    object: Option<&'a Map<String, Value>>,
    faults: Vec<Fault>,
}

impl<'a> Fields<'a> {
    /// Starts with an input; anything but an object and every field not in `known` is a fault.
    pub(super) fn new(input: &'a Value, known: &[&str]) -> Self {
        let mut fields = Self { object: input.as_object(), faults: Vec::new() };
        let Some(object) = fields.object else {
            fields.fault("", format!("expected an object, found {}", kind(input)));
            return fields;
        };
        for name in object.keys().filter(|name| !known.contains(&name.as_str())) {
            let message = format!("unknown field `{name}`; known are {}", known.join(", "));
            fields.fault(&format!("/{}", escape(name)), message);
        }
        fields
    }

    /// Gives a field's value unless it is absent.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.and_then(|object| object.get(name))
    }

    /// Gives a field's value, and notes its absence.
    pub(super) fn required(&mut self, name: &str) -> Option<&'a Value> {
        let value = self.get(name);
        if value.is_none() && self.object.is_some() {
            self.fault("", format!("field `{name}` is missing"));
        }
        value
    }

    /// Reads a field of named texts, such as an environment.
    pub(super) fn texts(&mut self, name: &str) -> Vec<(String, String)> {
        let Some(value) = self.get(name).filter(|value| !templated(value)) else {
            return Vec::new();
        };
        let Some(object) = value.as_object() else {
            let message = format!("expected an object of strings, found {}", kind(value));
            self.fault(&format!("/{name}"), message);
            return Vec::new();
        };
        let mut texts = Vec::with_capacity(object.len());
        for (key, value) in object {
            match value {
                Value::String(text) => texts.push((key.clone(), text.clone())),
                other => {
                    let message = format!("expected a string, found {}", kind(other));
                    self.fault(&format!("/{name}/{}", escape(key)), message);
                }
            }
        }
        texts
    }

    /// Reads a field that is a whole number of a range; a template passes.
    pub(super) fn number(&mut self, name: &str, from: u64, to: u64) -> Option<u64> {
        let value = self.get(name).filter(|value| !templated(value))?;
        let number = value.as_u64().filter(|number| (from..=to).contains(number));
        if number.is_none() {
            let message =
                format!("expected a whole number from {from} to {to}, found {}", shown(value));
            self.fault(&format!("/{name}"), message);
        }
        number
    }

    /// Notes a fault.
    pub(super) fn fault(&mut self, pointer: &str, message: impl Into<String>) {
        self.faults.push(Fault { pointer: pointer.to_owned(), message: message.into() });
    }

    /// Gives all that was found.
    pub(super) fn finish(self) -> Vec<Fault> {
        self.faults
    }
}

/// Says whether a value is a text that a template may still replace, whatever its type.
pub(super) fn templated(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.contains("${{"))
}

/// Names the type of a value, as messages use it.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Shows a value within a message, shortened.
pub(super) fn shown(value: &Value) -> String {
    format!("`{}`", super::shorten(&value.to_string(), 80))
}

/// Escapes a key for a JSON Pointer (RFC 6901, section 3).
pub(super) fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
