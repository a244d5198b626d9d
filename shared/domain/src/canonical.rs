//! The canonical form of JSON (RFC 8785) and its digest: what an approval and an idempotency
//! key are bound to.
//!
//! Two differences to what a double could say: integers are written in full digits up to 64
//! bits, where RFC 8785 would round them; and a float that is whole is written without its
//! point, so that `1.0` and `1` are one value here, as they are in JavaScript. The form is for
//! digests and for showing: a float such as `1e20` reads back from it as an integer too large.

mod direct;

use std::cmp::Ordering;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// Room that most values fit into.
const USUAL_BYTES: usize = 256;

/// Writes the canonical form: keys sorted by UTF-16 code units, no white space, the fewest
/// escapes, floats in the shortest form of ECMAScript.
pub fn canonical(value: &Value) -> Vec<u8> {
    let mut out = String::with_capacity(USUAL_BYTES);
    let mut todo = vec![Part::Value(value)];
    while let Some(part) = todo.pop() {
        match part {
            Part::Mark(mark) => out.push(mark),
            Part::Key(key) => {
                write_string(&mut out, key);
                out.push(':');
            }
            Part::Value(value) => write_value(&mut out, value, &mut todo),
        }
    }
    out.into_bytes()
}

/// Gives the SHA-256 of the canonical form.
pub fn digest(value: &Value) -> [u8; 32] {
    Sha256::digest(canonical(value)).into()
}

/// Gives the SHA-256 of the canonical form in 64 lower-case hex digits.
pub fn digest_hex(value: &Value) -> String {
    hex(&digest(value))
}

/// Gives the SHA-256 of the canonical form of a value's JSON in 64 lower-case hex digits; that of
/// `null` if it has none.
pub(crate) fn digest_of(value: &impl Serialize) -> String {
    let mut out = String::with_capacity(USUAL_BYTES);
    match direct::write(&mut out, value) {
        Ok(()) => hex(&Sha256::digest(out)),
        Err(_) => digest_hex(&Value::Null),
    }
}

/// Writes bytes as lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Vec::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
    String::from_utf8(text).expect("hex digits")
}

/// Writes bytes in base64url without padding (RFC 4648, section 5).
pub fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |at: usize| usize::from(part.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for sixth in 0..=part.len() {
            text.push(char::from(ALPHABET[bits >> (18 - 6 * sixth) & 63]));
        }
    }
    text
}

/// What is still to be written; a stack of these instead of recursion, so that no depth of a
/// value can end the program.
enum Part<'a> {
    Mark(char),
    Key(&'a str),
    Value(&'a Value),
}

fn write_value<'a>(out: &mut String, value: &'a Value, todo: &mut Vec<Part<'a>>) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            todo.push(Part::Mark(']'));
            for (index, item) in items.iter().enumerate().rev() {
                todo.push(Part::Value(item));
                if index > 0 {
                    todo.push(Part::Mark(','));
                }
            }
        }
        Value::Object(map) => {
            out.push('{');
            todo.push(Part::Mark('}'));
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by(|(a, _), (b, _)| by_utf16(a, b));
            for (index, (key, item)) in entries.into_iter().enumerate().rev() {
                todo.push(Part::Value(item));
                todo.push(Part::Key(key));
                if index > 0 {
                    todo.push(Part::Mark(','));
                }
            }
        }
    }
}

/// Compares by UTF-16 code units, which is the order of the bytes where both are ASCII.
fn by_utf16(a: &str, b: &str) -> Ordering {
    match a.is_ascii() && b.is_ascii() {
        true => a.cmp(b),
        false => a.encode_utf16().cmp(b.encode_utf16()),
    }
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    if !text.bytes().any(|byte| matches!(byte, b'"' | b'\\' | ..b' ')) {
        out.push_str(text);
        out.push('"');
        return;
    }
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

fn write_number(out: &mut String, number: &Number) {
    if let Some(float) = number.as_f64().filter(|_| number.is_f64()) {
        write_float(out, float);
    } else {
        let _ = write!(out, "{number}");
    }
}

/// Writes a finite double as ECMAScript's `Number::toString` does: the shortest digits that
/// read back as the same double, with an exponent only beyond 21 digits or 6 leading zeros.
fn write_float(out: &mut String, float: f64) {
    if float == 0.0 {
        return out.push('0');
    }
    if float < 0.0 {
        out.push('-');
    }
    let scientific = format!("{:e}", float.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    match exponent {
        -6..=-1 => {
            let _ = write!(out, "0.{}{digits}", zeros(-exponent - 1));
        }
        0..=20 if count <= exponent + 1 => {
            let _ = write!(out, "{digits}{}", zeros(exponent + 1 - count));
        }
        0..=20 => {
            let (whole, fraction) = digits.split_at(usize::try_from(exponent).unwrap_or(0) + 1);
            let _ = write!(out, "{whole}.{fraction}");
        }
        _ => {
            let (head, tail) = digits.split_at(1);
            let point = if tail.is_empty() { "" } else { "." };
            let _ = write!(out, "{head}{point}{tail}e{exponent:+}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::json::{DEPTH_MAX, Limits, read};

    /// The canonical form, which is the same whether written from the tree or without one.
    fn text(value: &Value) -> String {
        let mut direct = String::new();
        direct::write(&mut direct, value).expect("it is JSON");
        assert_eq!(direct.as_bytes(), canonical(value));
        String::from_utf8(canonical(value)).expect("the canonical form is UTF-8")
    }

    #[test]
    fn keys_are_sorted_by_utf16_code_units() {
        let value = json!({"\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5,
            "\u{80}": 6, "\u{f6}": 7});
        let right = "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"ö\":7,\"€\":1,\"😀\":5,\"\u{fb33}\":3}";
        assert_eq!(text(&value), right);
    }

    #[test]
    fn strings_have_the_fewest_escapes() {
        let value = json!("\u{20ac}$\u{f}\nA'B\"\\\"/\u{7f}\u{2028}");
        assert_eq!(text(&value), "\"€$\\u000f\\nA'B\\\"\\\\\\\"/\u{7f}\u{2028}\"");
    }

    #[test]
    fn floats_are_written_as_ecmascript_does() {
        for (float, right) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (295_147_905_179_352_830_000.0, "295147905179352830000"),
            (1e21, "1e+21"),
            (1e20, "100000000000000000000"),
            (1e-6, "0.000001"),
            (1.2e-6, "0.0000012"),
            (1e-7, "1e-7"),
            (1.25e-9, "1.25e-9"),
            (333_333_333.333_333_3, "333333333.3333333"),
            (0.1, "0.1"),
            (1e23, "1e+23"),
            (-123.456, "-123.456"),
        ] {
            assert_eq!(text(&json!(float)), right);
        }
    }

    #[test]
    fn integers_keep_all_their_digits() {
        for (value, right) in [
            (json!(u64::MAX), "18446744073709551615"),
            (json!(i64::MIN), "-9223372036854775808"),
            (json!(9_007_199_254_740_993_u64), "9007199254740993"),
        ] {
            assert_eq!(text(&value), right);
        }
    }

    #[test]
    fn the_digest_is_that_of_the_canonical_form() {
        let hex = digest_hex(&json!({}));
        assert_eq!(hex, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        assert_eq!(digest(&json!({"a": 1.0, "b": 2})), digest(&json!({"b": 2, "a": 1})));
        assert_ne!(digest(&json!([1])), digest(&json!(["1"])));
    }

    #[derive(Serialize)]
    enum Kind {
        Unit,
        Newtype(u8),
        Tuple(u8, char),
        Struct { b: f32, a: Option<u8> },
    }

    #[derive(Serialize)]
    struct Inner {
        y: BTreeMap<u32, bool>,
        b: (),
    }

    #[derive(Serialize)]
    struct Outer {
        z: Vec<Kind>,
        #[serde(flatten)]
        inner: Inner,
        a: (i64, f64),
        #[serde(rename = "é")]
        bytes: &'static [u8],
    }

    #[test]
    fn what_has_no_tree_has_the_form_and_digest_of_its_tree() {
        let value = Outer {
            z: vec![
                Kind::Unit,
                Kind::Newtype(1),
                Kind::Tuple(2, '\n'),
                Kind::Struct { b: 0.5, a: None },
            ],
            inner: Inner { y: BTreeMap::from([(10, true), (9, false)]), b: () },
            a: (-1, f64::NAN),
            bytes: b"ab",
        };
        let tree = serde_json::to_value(&value).expect("it has one");
        assert_eq!(digest_of(&value), digest_hex(&tree));
        assert!(
            text(&tree).starts_with(r#"{"a":[-1,null],"b":null,"y":{"10":true,"9":false},"z":["#)
        );
        assert_eq!(digest_of(&BTreeMap::from([((1, 2), 3)])), digest_hex(&Value::Null));
    }

    #[test]
    fn no_depth_ends_the_program() {
        let mut value = Value::Null;
        for _ in 0..100_000 {
            value = Value::Array(vec![value]);
        }
        assert_eq!(canonical(&value).len(), 200_004);
        while let Value::Array(mut items) = value {
            value = items.pop().unwrap_or(Value::Null);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(|f| Number::from_f64(f).map_or(Value::Null, Value::Number)),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_canonical_form_reads_back_to_itself(value in any_json()) {
            let once = canonical(&value);
            // A whole float beyond 64 bits is written as an integer that strict JSON refuses.
            let limits = Limits { bytes_max: usize::MAX, depth_max: DEPTH_MAX };
            if let Ok(back) = read(&once, limits) {
                prop_assert_eq!(canonical(&back), once.clone());
            }
            let back: Value = serde_json::from_slice(&once).expect("it is JSON");
            prop_assert_eq!(canonical(&back), once);
            prop_assert_eq!(digest_of(&value), digest_hex(&value));
        }

        #[test]
        fn floats_read_back_exactly(float in any::<f64>()) {
            prop_assume!(float.is_finite());
            let back: f64 = text(&json!(float)).parse().expect("it is a number");
            prop_assert_eq!(back, float);
        }
    }

    #[test]
    fn base64url_is_that_of_the_standard() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")]
        {
            assert_eq!(base64url(bytes.as_bytes()), text);
        }
        assert_eq!(base64url(&[0xff; 32]).len(), 43);
        assert!(base64url(&[0xfb, 0xff]).contains('-') || base64url(&[0xfb, 0xff]).contains('_'));
    }
}
