//! Values during evaluation: JSON borrowed from the context or the program, or made on the way
//! and shared, so that handing a value on never copies it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use serde_json::{Map, Number, Value};

use crate::Fault;
use crate::limits::{JSON_DEPTH_MAX, RESULT_BYTES_MAX};
use crate::node::Literal;

#[derive(Clone, Debug)]
pub(crate) enum Item<'a> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Double(f64),
    Text(Text<'a>),
    List(List<'a>),
    Map(Object<'a>),
}

#[derive(Clone, Debug)]
pub(crate) enum Text<'a> {
    Borrowed(&'a str),
    Shared(Rc<str>),
}

#[derive(Clone, Debug)]
pub(crate) enum List<'a> {
    Borrowed(&'a [Value]),
    Shared(Rc<Vec<Item<'a>>>),
}

#[derive(Clone, Debug)]
pub(crate) enum Object<'a> {
    Borrowed(&'a Map<String, Value>),
    Shared(Rc<BTreeMap<Rc<str>, Item<'a>>>),
}

impl<'a> Item<'a> {
    pub(crate) fn from_json(value: &'a Value) -> Self {
        match value {
            Value::Null => Item::Null,
            Value::Bool(value) => Item::Bool(*value),
            Value::Number(number) => Self::from_number(number),
            Value::String(text) => Item::Text(Text::Borrowed(text)),
            Value::Array(elements) => Item::List(List::Borrowed(elements)),
            Value::Object(fields) => Item::Map(Object::Borrowed(fields)),
        }
    }

    fn from_number(number: &Number) -> Self {
        if let Some(int) = number.as_i64() {
            return Item::Int(int);
        }
        if let Some(uint) = number.as_u64() {
            return Item::UInt(uint);
        }
        // Only a build of serde_json with arbitrary precision has numbers that are none of the
        // three; as a result, a double that is not finite is refused.
        Item::Double(number.as_f64().unwrap_or(f64::NAN))
    }

    pub(crate) fn from_literal(literal: &'a Literal) -> Self {
        match literal {
            Literal::Null => Item::Null,
            Literal::Bool(value) => Item::Bool(*value),
            Literal::Int(value) => Item::Int(*value),
            Literal::UInt(value) => Item::UInt(*value),
            Literal::Double(value) => Item::Double(*value),
            Literal::Text(text) => Item::Text(Text::Borrowed(text)),
        }
    }

    pub(crate) fn text(text: impl Into<Rc<str>>) -> Self {
        Item::Text(Text::Shared(text.into()))
    }

    pub(crate) fn list(elements: Vec<Item<'a>>) -> Self {
        Item::List(List::Shared(Rc::new(elements)))
    }

    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Item::Null => "null",
            Item::Bool(_) => "bool",
            Item::Int(_) => "int",
            Item::UInt(_) => "uint",
            Item::Double(_) => "double",
            Item::Text(_) => "string",
            Item::List(_) => "list",
            Item::Map(_) => "map",
        }
    }

    /// The value as JSON, its maps in key order, or a fault if it is too large, too deep or not
    /// finite.
    pub(crate) fn into_json(self) -> Result<Value, Fault> {
        let mut writer = Writer { bytes_left: RESULT_BYTES_MAX, depth: 0 };
        writer.write(self)
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl<'a> List<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            List::Borrowed(elements) => elements.len(),
            List::Shared(elements) => elements.len(),
        }
    }

    pub(crate) fn get(&self, position: usize) -> Option<Item<'a>> {
        match self {
            List::Borrowed(elements) => elements.get(position).map(Item::from_json),
            List::Shared(elements) => elements.get(position).cloned(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Item<'a>> + '_ {
        (0..self.len()).filter_map(|position| self.get(position))
    }
}

impl<'a> Object<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Object::Borrowed(fields) => fields.len(),
            Object::Shared(fields) => fields.len(),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Item<'a>> {
        match self {
            Object::Borrowed(fields) => fields.get(key).map(Item::from_json),
            Object::Shared(fields) => fields.get(key).cloned(),
        }
    }

    /// The keys in order. JSON objects are sorted here too, as another crate of the build may
    /// have serde_json keep the order of insertion.
    pub(crate) fn keys(&self) -> Vec<Text<'a>> {
        match self {
            Object::Borrowed(fields) => {
                let mut keys: Vec<&'a str> = fields.keys().map(String::as_str).collect();
                keys.sort_unstable();
                keys.into_iter().map(Text::Borrowed).collect()
            }
            Object::Shared(fields) => fields.keys().cloned().map(Text::Shared).collect(),
        }
    }
}

/// Builds JSON while it counts, so that nothing larger than allowed is ever built.
struct Writer {
    bytes_left: usize,
    depth: usize,
}

impl Writer {
    fn write(&mut self, item: Item<'_>) -> Result<Value, Fault> {
        match item {
            Item::Null => self.scalar(Value::Null),
            Item::Bool(value) => self.scalar(Value::Bool(value)),
            Item::Int(value) => self.scalar(value.into()),
            Item::UInt(value) => self.scalar(value.into()),
            Item::Double(value) => self.scalar(finite(value)?),
            Item::Text(text) => {
                self.take(text.len() + 2)?;
                Ok(Value::String(text.to_string()))
            }
            Item::List(list) => {
                self.enter()?;
                let elements: Result<_, _> = list.iter().map(|item| self.write(item)).collect();
                self.depth -= 1;
                Ok(Value::Array(elements?))
            }
            Item::Map(object) => {
                self.enter()?;
                let mut fields = Map::new();
                for key in object.keys() {
                    self.take(key.len() + 3)?;
                    let value = object.get(&key).unwrap_or(Item::Null);
                    fields.insert(key.to_string(), self.write(value)?);
                }
                self.depth -= 1;
                Ok(Value::Object(fields))
            }
        }
    }

    /// Scalars other than strings are counted as eight bytes, about what they take.
    fn scalar(&mut self, value: Value) -> Result<Value, Fault> {
        self.take(8)?;
        Ok(value)
    }

    fn enter(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > JSON_DEPTH_MAX {
            return Err(Fault::new(format!("result nests deeper than {JSON_DEPTH_MAX} levels")));
        }
        self.take(2)
    }

    fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => self.bytes_left = left,
            None => return Err(too_large()),
        }
        Ok(())
    }
}

pub(crate) fn too_large() -> Fault {
    Fault::new(format!("result is larger than {RESULT_BYTES_MAX} bytes"))
}

fn finite(value: f64) -> Result<Value, Fault> {
    match Number::from_f64(value) {
        Some(number) => Ok(Value::Number(number)),
        None => Err(Fault::new("result is not a finite number")),
    }
}
