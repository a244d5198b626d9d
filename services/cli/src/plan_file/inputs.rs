//! `--input NAME=VALUE`: sets what the plan's `input` declares.

use serde_json::{Map, Value};
use standfast_domain::json::{self, Limits};

use crate::failure::Failure;

/// Sets inputs in a plan. A name that the plan does not declare is refused: it would be kept
/// and read by nobody.
pub fn set(plan: &mut Value, inputs: &[String]) -> Result<(), Failure> {
    for input in inputs {
        let (name, value) = input.split_once('=').ok_or_else(|| {
            Failure::usage(format!("`--input {input}` is not of the form NAME=VALUE"))
        })?;
        let declared = plan.get_mut("input").and_then(Value::as_object_mut);
        match declared {
            Some(declared) if declared.contains_key(name) => {
                declared.insert(name.to_owned(), read(name, value)?);
            }
            declared => return Err(unknown(name, declared.map(|map| &*map))),
        }
    }
    Ok(())
}

/// Reads a value: JSON if it is, else the text itself. What starts like JSON's brackets and is
/// none is taken as text too, for shells and people write such texts.
fn read(name: &str, value: &str) -> Result<Value, Failure> {
    let faults = match json::read(value.as_bytes(), Limits::PLAN) {
        Ok(value) => return Ok(value),
        Err(faults) => faults,
    };
    // JSON by its form that cannot be kept, such as 1e999 or equal keys, is no text.
    if serde_json::from_str::<serde::de::IgnoredAny>(value).is_ok() || is_number(value) {
        let faults = faults.into_iter().map(|fault| (fault.pointer, fault.message));
        let message = format!("the value of input `{name}` cannot be kept; quote it to mean text");
        return Err(Failure::usage(message).with_faults(faults));
    }
    Ok(Value::String(value.to_owned()))
}

/// Says whether a text has the form of a JSON number, however large.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.starts_with(|first: char| first.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

fn unknown(name: &str, declared: Option<&Map<String, Value>>) -> Failure {
    let names: Vec<String> =
        declared.into_iter().flat_map(Map::keys).map(|name| format!("`{name}`")).collect();
    let advice = match names.is_empty() {
        true => "it declares none: add it under `input:` first".to_owned(),
        false => format!("it declares {}", names.join(", ")),
    };
    Failure::usage(format!("the plan has no input `{name}`")).and(advice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::exit::Exit;

    fn with(inputs: &[&str]) -> Result<Value, Failure> {
        let mut plan = json!({"input": {"count": 20, "name": "Ana"}});
        let inputs: Vec<String> = inputs.iter().map(|&input| input.to_owned()).collect();
        set(&mut plan, &inputs).map(|()| plan["input"].clone())
    }

    #[test]
    fn values_are_json_or_text() {
        let cases = [
            ("count=7", json!({"count": 7, "name": "Ana"})),
            ("name=Ben", json!({"count": 20, "name": "Ben"})),
            ("name=", json!({"count": 20, "name": ""})),
            ("name=\"7\"", json!({"count": 20, "name": "7"})),
            ("name={\"a\":[1]}", json!({"count": 20, "name": {"a": [1]}})),
            ("name=a=b", json!({"count": 20, "name": "a=b"})),
            ("name=[draft] notes", json!({"count": 20, "name": "[draft] notes"})),
            ("count=null", json!({"count": null, "name": "Ana"})),
        ];
        for (input, expected) in cases {
            assert_eq!(with(&[input]).unwrap(), expected, "{input}");
        }
        assert_eq!(with(&["count=1", "count=2"]).unwrap()["count"], 2);
    }

    #[test]
    fn a_value_that_cannot_be_kept_is_refused() {
        for value in ["1e999", "99999999999999999999", "{\"a\":1,\"a\":2}"] {
            let failure = with(&[&format!("count={value}")]).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{value}: {failure:?}");
        }
    }

    #[test]
    fn an_unknown_name_lists_those_that_exist() {
        let failure = with(&["cuont=1"]).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(failure.message, "the plan has no input `cuont`");
        assert_eq!(failure.lines, ["it declares `count`, `name`"]);
        let mut plan = json!({"kind": "k"});
        let failure = set(&mut plan, &["a=1".to_owned()]).unwrap_err();
        assert!(failure.lines[0].starts_with("it declares none"));
        assert_eq!(with(&["count"]).unwrap_err().exit, Exit::Usage);
    }
}
