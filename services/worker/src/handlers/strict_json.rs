//! JSON from programs, read strictly: what could be understood in two ways is refused with
//! the name of the fault. Twice the same key, `NaN`, integers beyond 64 bits and values nested
//! too deeply are faults; lone surrogates and broken syntax are found by the parser itself.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Levels of nesting; the limit of every JSON value in Standfast.
pub(super) const DEPTH_MAX: usize = 64;

/// Reads one JSON value and nothing after it.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|fault| format!("not UTF-8: {fault}"))?;
    scan(text)?;
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Strict::deserialize(&mut parser).map_err(|fault| named(&fault))?;
    parser.end().map_err(|fault| named(&fault))?;
    Ok(value.0)
}

/// Adds the name of a fault that the parser only describes.
fn named(fault: &serde_json::Error) -> String {
    let text = fault.to_string();
    if text.contains("hex escape") { format!("lone surrogate: {text}") } else { text }
}

/// Looks at depth and bare words before parsing: the parser would recurse for the one and
/// has no name for the others.
fn scan(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at),
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(format!("nested deeper than {DEPTH_MAX} levels at byte {at}"));
                }
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            byte if is_word(byte) => {
                let length = bytes[at..].iter().take_while(|byte| is_word(**byte)).count();
                check_word(&text[at..at + length])?;
                at += length;
            }
            _ => at += 1,
        }
    }
    Ok(())
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

fn check_word(word: &str) -> Result<(), String> {
    let bare = word.trim_start_matches(['-', '+']);
    if matches!(bare.to_ascii_lowercase().as_str(), "nan" | "inf" | "infinity") {
        return Err(format!("`{word}` is not a JSON number"));
    }
    let integer = !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_digit());
    if integer && word.parse::<i64>().is_err() && word.parse::<u64>().is_err() {
        return Err(format!("an integer of {} digits does not fit into 64 bits", bare.len()));
    }
    Ok(())
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> DeserializeSeed<'de> for StrictVisitor {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("key `{key}` occurs twice")));
            }
            let value = fields.next_value_seed(Self)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_json_is_read_as_it_is() {
        let text = br#" {"a": [1, -2, 1.5, 1e3, true, null, "\u00fc NaN 99999999999999999999"]} "#;
        let expected = json!({ "a": [1, -2, 1.5, 1e3, true, null, "ü NaN 99999999999999999999"] });
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse(b"18446744073709551615"), Ok(json!(u64::MAX)));
        assert_eq!(parse(b"-9223372036854775808"), Ok(json!(i64::MIN)));
    }

    #[test]
    fn doubtful_json_is_refused_by_name() {
        let deep = "[".repeat(65) + &"]".repeat(65);
        let cases: [(&[u8], &str); 13] = [
            (b"", "EOF"),
            (b"{} {}", "trailing"),
            (br#"{"a":1,"b":{"x":1,"x":2}}"#, "key `x` occurs twice"),
            (br#"{"a":NaN}"#, "`NaN` is not a JSON number"),
            (b"[-Infinity]", "`-Infinity` is not a JSON number"),
            (b"18446744073709551616", "does not fit into 64 bits"),
            (b"-9223372036854775809", "does not fit into 64 bits"),
            (b"1e999", "out of range"),
            (br#""\ud800""#, "lone surrogate"),
            (b"\"\xff\"", "not UTF-8"),
            (b"{'a':1}", "key must be a string"),
            (br#"["a\"#, "EOF"),
            (deep.as_bytes(), "deeper than 64 levels"),
        ];
        for (text, fault) in cases {
            let found = parse(text).unwrap_err();
            assert!(found.contains(fault), "{}: {found}", String::from_utf8_lossy(text));
        }
        assert!(parse(("[".repeat(64) + &"]".repeat(64)).as_bytes()).is_ok());
    }
}
