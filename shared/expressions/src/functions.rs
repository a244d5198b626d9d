//! The functions that expressions may call. The number of arguments has been checked when the
//! expression was parsed.

use crate::Fault;
use crate::evaluate::Meter;
use crate::item::{Item, List, Text};
use crate::node::Function;
use crate::operators::finite;

pub(crate) fn call<'a>(
    function: Function,
    arguments: Vec<Item<'a>>,
    meter: &mut Meter,
) -> Result<Item<'a>, Fault> {
    let mut arguments = arguments.into_iter();
    let first = arguments.next().unwrap_or(Item::Null);
    let second = arguments.next();
    match function {
        Function::Size => size(&first, meter),
        Function::String => to_text(first, meter),
        Function::Int => to_int(&first),
        Function::UInt => to_uint(&first),
        Function::Double => to_double(&first),
        Function::Contains => search(first, second, meter, |text, part| text.contains(part)),
        Function::StartsWith => search(first, second, meter, |text, part| text.starts_with(part)),
        Function::EndsWith => search(first, second, meter, |text, part| text.ends_with(part)),
        Function::Trim => trim(first, meter),
        Function::Split => split(first, second, meter),
        Function::Join => join(&first, second, meter),
    }
}

/// The text of a scalar: what `string()` gives, and what a template puts into a text.
pub(crate) fn to_text<'a>(item: Item<'a>, meter: &mut Meter) -> Result<Item<'a>, Fault> {
    let text = match item {
        Item::Text(_) => return Ok(item),
        Item::Bool(value) => value.to_string(),
        Item::Int(value) => value.to_string(),
        Item::UInt(value) => value.to_string(),
        Item::Double(value) => value.to_string(),
        Item::Null | Item::List(_) | Item::Map(_) => {
            return Err(unexpected("string()", "a string, number or bool", &item));
        }
    };
    meter.charge_bytes(text.len())?;
    Ok(Item::text(text))
}

fn size<'a>(item: &Item<'_>, meter: &mut Meter) -> Result<Item<'a>, Fault> {
    let size = match item {
        Item::Text(text) => {
            meter.charge_bytes(text.len())?;
            text.chars().count()
        }
        Item::List(list) => list.len(),
        Item::Map(object) => object.len(),
        other => return Err(unexpected("size()", "a string, list or map", other)),
    };
    Ok(Item::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn to_int<'a>(item: &Item<'_>) -> Result<Item<'a>, Fault> {
    let value = match item {
        Item::Int(value) => Some(*value),
        Item::UInt(value) => i64::try_from(*value).ok(),
        // Both ends are excluded, as in CEL; within them the cast only cuts the fraction.
        Item::Double(value) if value.abs() < -(i64::MIN as f64) => Some(*value as i64),
        Item::Double(_) => None,
        Item::Text(text) => text.parse().ok(),
        other => return Err(unexpected("int()", "a number or string", other)),
    };
    value.map(Item::Int).ok_or_else(|| not_converted("int", item))
}

fn to_uint<'a>(item: &Item<'_>) -> Result<Item<'a>, Fault> {
    let value = match item {
        Item::Int(value) => u64::try_from(*value).ok(),
        Item::UInt(value) => Some(*value),
        Item::Double(value) if *value >= 0.0 && *value < u64::MAX as f64 => Some(*value as u64),
        Item::Double(_) => None,
        Item::Text(text) => text.parse().ok(),
        other => return Err(unexpected("uint()", "a number or string", other)),
    };
    value.map(Item::UInt).ok_or_else(|| not_converted("uint", item))
}

fn to_double<'a>(item: &Item<'_>) -> Result<Item<'a>, Fault> {
    match item {
        Item::Int(value) => Ok(Item::Double(*value as f64)),
        Item::UInt(value) => Ok(Item::Double(*value as f64)),
        Item::Double(value) => Ok(Item::Double(*value)),
        Item::Text(text) => match text.parse() {
            Ok(value) => finite(value, "double()"),
            Err(_) => Err(not_converted("double", item)),
        },
        other => Err(unexpected("double()", "a number or string", other)),
    }
}

fn search<'a>(
    text: Item<'_>,
    part: Option<Item<'_>>,
    meter: &mut Meter,
    found: fn(&str, &str) -> bool,
) -> Result<Item<'a>, Fault> {
    let (text, part) = two_texts("a search", text, part)?;
    meter.charge_bytes(text.len() + part.len())?;
    Ok(Item::Bool(found(&text, &part)))
}

fn trim<'a>(text: Item<'a>, meter: &mut Meter) -> Result<Item<'a>, Fault> {
    let Item::Text(text) = text else {
        return Err(unexpected("trim()", "a string", &text));
    };
    meter.charge_bytes(text.len())?;
    match text {
        Text::Borrowed(text) => Ok(Item::Text(Text::Borrowed(text.trim()))),
        Text::Shared(text) => Ok(Item::text(text.trim())),
    }
}

fn split<'a>(
    text: Item<'_>,
    separator: Option<Item<'_>>,
    meter: &mut Meter,
) -> Result<Item<'a>, Fault> {
    let (text, separator) = two_texts("split()", text, separator)?;
    if separator.is_empty() {
        return Err(Fault::new("split() expects a separator that is not empty"));
    }
    meter.charge_bytes(text.len())?;
    let mut parts = Vec::new();
    for part in text.split(&*separator) {
        meter.charge_bytes(part.len())?;
        parts.push(Item::text(part));
    }
    Ok(Item::list(parts))
}

fn join<'a>(
    list: &Item<'_>,
    separator: Option<Item<'_>>,
    meter: &mut Meter,
) -> Result<Item<'a>, Fault> {
    let Item::List(list) = list else {
        return Err(unexpected("join()", "a list of strings", list));
    };
    let separator = match separator {
        None => Text::Borrowed(""),
        Some(Item::Text(separator)) => separator,
        Some(other) => return Err(unexpected("join()", "a string as separator", &other)),
    };
    joined(list, &separator, meter)
}

fn joined<'a>(list: &List<'_>, separator: &str, meter: &mut Meter) -> Result<Item<'a>, Fault> {
    let mut text = String::new();
    for (position, element) in list.iter().enumerate() {
        let Item::Text(part) = element else {
            return Err(unexpected("join()", "a list of strings", &element));
        };
        meter.charge_bytes(part.len() + separator.len())?;
        if position > 0 {
            text.push_str(separator);
        }
        text.push_str(&part);
    }
    Ok(Item::text(text))
}

fn two_texts<'a>(
    of: &str,
    text: Item<'a>,
    part: Option<Item<'a>>,
) -> Result<(Text<'a>, Text<'a>), Fault> {
    match (text, part) {
        (Item::Text(text), Some(Item::Text(part))) => Ok((text, part)),
        (Item::Text(_), other) => Err(unexpected(of, "a string", &other.unwrap_or(Item::Null))),
        (other, _) => Err(unexpected(of, "a string", &other)),
    }
}

fn unexpected(of: &str, expected: &str, found: &Item<'_>) -> Fault {
    Fault::new(format!("{of} expects {expected}, found {}", found.type_name()))
}

fn not_converted(to: &str, item: &Item<'_>) -> Fault {
    match item {
        // The text is a value of the task's and may be long or private, so it is not repeated.
        Item::Text(_) => {
            Fault::new(format!("{to}() expects digits within its range in the string"))
        }
        _ => Fault::new(format!("{to}() expects a number within its range")),
    }
}
