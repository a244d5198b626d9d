//! Reads the fields of one object and notes every fault on the way.

use serde_json::{Map, Value};

use super::faults::{Faults, found, join, quoted};
use super::grammar::Shape;

/// An object that is being read; one without fields if there was none.
pub(super) struct Fields<'a> {
    map: Option<&'a Map<String, Value>>,
    at: String,
}

impl<'a> Fields<'a> {
    /// Opens an object and notes what is missing, what is unknown, and what comes later.
    pub(super) fn open(value: &'a Value, at: String, shape: &Shape, faults: &mut Faults) -> Self {
        let map = value.as_object();
        if map.is_none() {
            let message = format!("expected {}, an object, found {}", shape.what, found(value));
            faults.push(at.as_str(), message);
        }
        let fields = Self { map, at };
        for name in map.into_iter().flat_map(Map::keys) {
            if let Some(message) = strange(name, shape, faults) {
                faults.push(fields.at(name), message);
            }
        }
        for name in shape.required {
            if map.is_some_and(|map| !map.contains_key(*name)) {
                faults.push(fields.at(name), format!("missing field `{name}`"));
            }
        }
        fields
    }

    /// Tells whether there is an object at all.
    pub(super) fn is_object(&self) -> bool {
        self.map.is_some()
    }

    /// Gives the pointer of one of the object's fields.
    pub(super) fn at(&self, name: &str) -> String {
        join(&self.at, name)
    }

    /// Gives the pointer of the object itself.
    pub(super) fn here(&self) -> &str {
        &self.at
    }

    /// Gives a field's value.
    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        self.map?.get(name)
    }

    /// Tells whether a field is there, right or wrong.
    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Reads one field; what `read` refuses is a fault of that field.
    pub(super) fn read<T>(
        &self,
        name: &str,
        faults: &mut Faults,
        read: impl FnOnce(&'a Value) -> Result<T, String>,
    ) -> Option<T> {
        read(self.value(name)?).map_err(|message| faults.push(self.at(name), message)).ok()
    }

    /// Reads the items of a list, each with its place in the list; faulty ones are left out.
    pub(super) fn list<T>(
        &self,
        name: &str,
        items: &str,
        faults: &mut Faults,
        read: impl Fn(&Value) -> Result<T, String>,
    ) -> Vec<(usize, T)> {
        let Some(value) = self.value(name) else {
            return Vec::new();
        };
        let Value::Array(list) = value else {
            faults.push(
                self.at(name),
                format!("expected an array of {items}, found {}", found(value)),
            );
            return Vec::new();
        };
        let mut good = Vec::new();
        for (index, item) in list.iter().enumerate() {
            match read(item) {
                Ok(item) => good.push((index, item)),
                Err(message) => faults.push(join(&self.at(name), &index.to_string()), message),
            }
        }
        good
    }
}

/// Says why a name is not one of the shape's, if it is not.
fn strange(name: &str, shape: &Shape, faults: &mut Faults) -> Option<String> {
    let known = || shape.fields.iter().map(|field| field.name);
    if known().any(|field| field == name) {
        return None;
    }
    if shape.later.contains(&name) {
        return Some(format!("`{name}` is not available in this version"));
    }
    let list: Vec<String> = known().map(|field| format!("`{field}`")).collect();
    let meant = faults.suggest(name, known());
    Some(format!("unknown field {}; expected one of {}{meant}", quoted(name), list.join(", ")))
}
