//! Reads single values: each function gives the value, or "expected …, found …".

use std::ops::RangeInclusive;

use serde_json::Value;

use super::faults::{found, quoted};
use crate::ids::{NameFault, Principal};
use crate::time::{SPAN_MAX, Span, Time};

/// Bytes of an expression: what fits a screen is what a person can check.
pub const EXPRESSION_BYTES_MAX: usize = 1024;
/// Bytes of what an effect's author says of it: a line or two.
pub const WORDS_BYTES_MAX: usize = 256;
/// Bytes of a goal: a page of text.
pub const GOAL_BYTES_MAX: usize = 4 * 1024;
/// Bytes of a label's value: what a list can show in one column.
pub const LABEL_BYTES_MAX: usize = 128;
/// Bytes of an idempotency key: what an AMQP message id can carry.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Bytes of an artifact's path: the longest file name of the usual file systems.
pub const ARTIFACT_BYTES_MAX: usize = 255;

/// Reads a text of at most `bytes_max` bytes.
pub(super) fn text(value: &Value, what: &str, bytes_max: usize) -> Result<String, String> {
    let Value::String(text) = value else {
        return Err(format!("expected {what}, a text, found {}", found(value)));
    };
    if text.len() > bytes_max {
        return Err(format!("expected {what} of at most {bytes_max} bytes, found {}", text.len()));
    }
    Ok(text.clone())
}

/// Reads a few plain words on an effect.
pub(super) fn words(value: &Value) -> Result<String, String> {
    text(value, "a few words", WORDS_BYTES_MAX)
}

/// Reads an expression's text; what it says is for the engine to check.
pub(super) fn expression(value: &Value) -> Result<String, String> {
    let text = text(value, "an expression", EXPRESSION_BYTES_MAX)?;
    if text.trim().is_empty() {
        return Err("expected an expression, found an empty text".to_owned());
    }
    Ok(text)
}

/// Reads a name by the constructor of its type.
pub(super) fn name<T>(
    value: &Value,
    new: impl FnOnce(String) -> Result<T, NameFault>,
) -> Result<T, String> {
    let Value::String(text) = value else {
        return Err(format!("expected a name, a text, found {}", found(value)));
    };
    new(text.clone()).map_err(|fault| fault.to_string())
}

/// Reads a principal.
pub(super) fn principal(value: &Value) -> Result<Principal, String> {
    name(value, Principal::new)
}

/// Reads a span.
pub(super) fn span(value: &Value) -> Result<Span, String> {
    value.as_str().and_then(Span::parse).ok_or_else(|| {
        let days = SPAN_MAX.0 / 86_400_000;
        format!(
            "expected a span in whole units, such as `250ms`, `30s`, `1h30m` or `7d`, of at most \
             `{days}d`, found {}",
            found(value)
        )
    })
}

/// Reads a span that is longer than nothing.
pub(super) fn positive_span(value: &Value) -> Result<Span, String> {
    let span = span(value)?;
    if span == Span::from_millis(0) {
        return Err(format!("expected a span longer than 0, found {}", found(value)));
    }
    Ok(span)
}

/// Reads a point in time; between date and time stands `T` or a space, nothing else.
pub(super) fn time(value: &Value) -> Result<Time, String> {
    let parted = |text: &&str| matches!(text.as_bytes().get(10), Some(b'T' | b't' | b' '));
    value.as_str().filter(parted).and_then(Time::parse_rfc3339).ok_or_else(|| {
        let example = "2026-11-29T16:20:00+01:00";
        format!("expected a time by RFC 3339, such as `{example}`, found {}", found(value))
    })
}

/// Reads a whole number within a range.
pub(super) fn whole(value: &Value, range: RangeInclusive<u32>) -> Result<u32, String> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        format!("expected a whole number from {least} to {most}, found {}", found(value))
    })
}

/// Reads the factor of a backoff.
pub(super) fn factor(value: &Value) -> Result<f64, String> {
    value
        .as_f64()
        .filter(|factor| (1.0..=100.0).contains(factor))
        .ok_or_else(|| format!("expected a number from 1 to 100, found {}", found(value)))
}

/// Reads the value of a label.
pub(super) fn label(value: &Value) -> Result<String, String> {
    let text = text(value, "a label's value", LABEL_BYTES_MAX)?;
    if text.chars().any(char::is_control) {
        return Err(format!("expected no control characters, found {}", quoted(&text)));
    }
    Ok(text)
}

/// Reads an idempotency key: it must also fit an HTTP header, which loses outer spaces.
pub(super) fn idempotency_key(value: &Value) -> Result<String, String> {
    let text = text(value, "a key", IDEMPOTENCY_KEY_BYTES_MAX)?;
    let printable = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if text.is_empty() || !printable || text.trim() != text {
        return Err(format!(
            "expected 1 to {IDEMPOTENCY_KEY_BYTES_MAX} printable ASCII characters without spaces \
             at the ends, found {}",
            quoted(&text)
        ));
    }
    Ok(text)
}

/// Reads the path of an artifact: one that cannot leave the attempt's directory.
pub(super) fn artifact(value: &Value) -> Result<String, String> {
    let text = text(value, "a path", ARTIFACT_BYTES_MAX)?;
    let inside = text.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if !inside || text.chars().any(char::is_control) {
        return Err(format!(
            "expected a path within the attempt's directory, such as `out/notes.md`, without \
             `.`, `..` and control characters, found {}",
            quoted(&text)
        ));
    }
    Ok(text)
}

/// Reads one word of a few.
pub(super) fn word<T: Copy>(value: &Value, words: &[(&str, T)]) -> Result<T, String> {
    let known = |text: &str| words.iter().find(|(word, _)| *word == text);
    value.as_str().and_then(known).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let list: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        format!("expected one of {}, found {}", list.join(", "), found(value))
    })
}
