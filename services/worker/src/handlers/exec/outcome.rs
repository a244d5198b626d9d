//! The outcome file: what a program says about its attempt beyond an exit code. The format is
//! shown at the handler.

use std::io::Read;
use std::path::{Component, Path};
use std::time::Duration;

use serde_json::{Map, Value};
use standfast_domain::ids::check_name;
use standfast_domain::outcome::ARTIFACTS_MAX;

use super::super::fields::{kind, shown};
use super::super::{Class, Failure, Masker, OUTPUT_BYTES_MAX, Sent, strict_json};
use super::progress;

/// Seconds of `retry_after`: ten years, as for all timers.
const RETRY_AFTER_SECONDS_MAX: f64 = 315_576_000.0;
/// Micro-dollars of one attempt's cost: a billion dollars is a mistake, not a price.
const COST_USD_MICROS_MAX: u128 = 1_000_000_000_000_000;

/// What an outcome file says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// The output, if the file gives one.
    pub output: Option<Value>,
    /// Further artifacts.
    pub artifacts: Vec<String>,
    /// The cost in micro-dollars.
    pub cost_usd_micros: u64,
    /// The checkpoint's name.
    pub checkpoint: Option<String>,
    /// Proposed steps.
    pub then: Vec<Value>,
    /// The failure, if the file reports one; excludes all but the cost.
    pub error: Option<Failure>,
}

/// Reads an outcome file; `None` if the program wrote none. Secrets are taken out before
/// anything is cut or quoted.
pub(super) fn read(path: &Path, masker: &Masker) -> Result<Option<Outcome>, String> {
    let opened = progress::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let Some(file) = opened else { return Ok(None) };
    let mut bytes = Vec::new();
    file.take(OUTPUT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() > OUTPUT_BYTES_MAX {
        return Err(format!("has more than {OUTPUT_BYTES_MAX} bytes"));
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    parse(&bytes, masker).map(Some)
}

fn parse(bytes: &[u8], masker: &Masker) -> Result<Outcome, String> {
    let value = masker.value(strict_json::parse(bytes)?);
    let object = object(&value, "the outcome")?;
    known(object, &["output", "artifacts", "cost", "checkpoint", "then", "error"], "")?;
    let mut outcome = Outcome::default();
    if let Some(cost) = object.get("cost") {
        outcome.cost_usd_micros = read_cost(cost)?;
    }
    if let Some(error) = object.get("error") {
        let others = ["output", "artifacts", "checkpoint", "then"];
        if let Some(other) = others.into_iter().find(|name| object.contains_key(*name)) {
            return Err(format!("`error` and `{other}` exclude each other"));
        }
        let failure = read_error(error)?;
        let cost_usd_micros = outcome.cost_usd_micros;
        outcome.error = Some(Failure { cost_usd_micros, ..failure });
        return Ok(outcome);
    }
    outcome.output = object.get("output").cloned();
    outcome.artifacts = object.get("artifacts").map_or(Ok(Vec::new()), read_artifacts)?;
    outcome.checkpoint = object.get("checkpoint").map(read_checkpoint).transpose()?;
    outcome.then = object.get("then").map_or(Ok(Vec::new()), read_then)?;
    Ok(outcome)
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{what} must be an object, found {}", kind(value)))
}

fn known(object: &Map<String, Value>, names: &[&str], within: &str) -> Result<(), String> {
    match object.keys().find(|key| !names.contains(&key.as_str())) {
        Some(key) => Err(format!("unknown field `{within}{key}`; known are {}", names.join(", "))),
        None => Ok(()),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("`{name}` must be a string, found {}", kind(value)))
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("`{name}` must be a list, found {}", kind(value)))
}

fn read_artifacts(value: &Value) -> Result<Vec<String>, String> {
    let items = list(value, "artifacts")?;
    if items.len() > ARTIFACTS_MAX {
        return Err(format!("`artifacts` names {}, the limit is {ARTIFACTS_MAX}", items.len()));
    }
    items.iter().map(read_artifact).collect()
}

fn read_artifact(value: &Value) -> Result<String, String> {
    let path = text(value, "artifacts")?;
    let inside = Path::new(path).components().all(|part| match part {
        Component::Normal(_) | Component::CurDir => true,
        Component::Prefix(_) | Component::RootDir | Component::ParentDir => false,
    });
    if path.is_empty() || path.contains('\0') || !inside {
        let shown = shown(value);
        return Err(format!("artifact {shown} must be a path within the attempt's directory"));
    }
    Ok(path.to_owned())
}

fn read_checkpoint(value: &Value) -> Result<String, String> {
    let name = text(value, "checkpoint")?;
    check_name(name).map_err(|fault| format!("`checkpoint`: {fault}"))?;
    Ok(name.to_owned())
}

fn read_then(value: &Value) -> Result<Vec<Value>, String> {
    let steps = list(value, "then")?;
    for (index, step) in steps.iter().enumerate() {
        object(step, &format!("`then/{index}`"))?;
    }
    Ok(steps.clone())
}

fn read_error(value: &Value) -> Result<Failure, String> {
    let error = object(value, "`error`")?;
    known(error, &["class", "message", "retry_after", "output", "effect"], "error/")?;
    let class = error.get("class").ok_or("`error/class` is missing")?;
    let class = match Class::parse(text(class, "error/class")?) {
        // A program cannot report that its worker went away.
        None | Some(Class::Lost) => {
            let names = "retryable, permanent, rate_limited, timeout or cancelled";
            return Err(format!("`error/class` must be {names}, found {}", shown(class)));
        }
        Some(class) => class,
    };
    let message = error.get("message").ok_or("`error/message` is missing")?;
    let mut failure = Failure::new(class, text(message, "error/message")?);
    failure.retry_after = error.get("retry_after").map(read_span).transpose()?;
    failure.output = error.get("output").cloned();
    failure.sent = error.get("effect").map_or(Ok(Sent::Unknown), read_sent)?;
    Ok(failure)
}

/// Reads what a failed program knows of its step's effect.
fn read_sent(value: &Value) -> Result<Sent, String> {
    match text(value, "error/effect")? {
        "not_happened" => Ok(Sent::Refused),
        "happened" => Ok(Sent::Landed(Value::Null)),
        "unknown" => Ok(Sent::Unknown),
        _ => {
            let names = "`happened`, `not_happened` or `unknown`";
            Err(format!("`error/effect` must be {names}, found {}", shown(value)))
        }
    }
}

/// Reads a span: seconds as a number, or a text such as `30s`, `5m`, `2h`, `250ms`, `1d`.
fn read_span(value: &Value) -> Result<Duration, String> {
    let fault = || {
        let shown = shown(value);
        format!("`error/retry_after` must be seconds or a span such as `30s`, found {shown}")
    };
    let seconds = match value {
        Value::Number(number) => number.as_f64().ok_or_else(fault)?,
        Value::String(text) => {
            let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(fault)?;
            let (number, unit) = text.split_at(unit_at);
            let factor = match unit {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _ => return Err(fault()),
            };
            f64::from(number.parse::<u32>().map_err(|_| fault())?) * factor
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return Err(fault()),
    };
    if !(0.0..=RETRY_AFTER_SECONDS_MAX).contains(&seconds) {
        return Err(fault());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Reads `{"usd": "0.12"}`. What is finer than a micro-dollar is rounded up, so that many
/// small costs never add up to nothing.
fn read_cost(value: &Value) -> Result<u64, String> {
    let cost = object(value, "`cost`")?;
    known(cost, &["usd"], "cost/")?;
    let usd = cost.get("usd").ok_or("`cost/usd` is missing")?;
    let text = match usd {
        Value::String(text) => text.clone(),
        // A float is written with as few digits as tell it apart, without an exponent.
        Value::Number(number) => match number.as_f64() {
            Some(float) if !number.is_i64() && !number.is_u64() => float.to_string(),
            Some(_) | None => number.to_string(),
        },
        other => return Err(format!("`cost/usd` must be an amount, found {}", kind(other))),
    };
    micros(&text).ok_or_else(|| {
        format!(
            "`cost/usd` must be an amount such as \"0.12\", not below zero, found {}",
            shown(usd)
        )
    })
}

fn micros(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let (kept, finer) = fraction.split_at(fraction.len().min(6));
    let micros = format!("{kept:0<6}").parse::<u128>().ok()?;
    let up = u128::from(finer.bytes().any(|digit| digit != b'0'));
    let total = whole.parse::<u128>().ok()?.checked_mul(1_000_000)?.checked_add(micros + up)?;
    (total <= COST_USD_MICROS_MAX).then_some(())?;
    u64::try_from(total).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome(value: &Value) -> Result<Outcome, String> {
        parse(value.to_string().as_bytes(), &Masker::default())
    }

    #[test]
    fn a_full_outcome_is_read() {
        let read = outcome(&json!({
            "output": [1], "artifacts": ["a/b.md", "./c"], "cost": { "usd": "0.12" },
            "checkpoint": "drafted", "then": [{ "id": "x" }],
        }))
        .unwrap();
        assert_eq!(read.output, Some(json!([1])));
        assert_eq!(read.artifacts, ["a/b.md", "./c"]);
        assert_eq!(read.cost_usd_micros, 120_000);
        assert_eq!(read.checkpoint.as_deref(), Some("drafted"));
        assert_eq!(read.then, [json!({ "id": "x" })]);
    }

    #[test]
    fn an_error_keeps_its_cost() {
        let read = outcome(&json!({
            "error": { "class": "rate_limited", "message": "slow", "retry_after": "5m",
                       "output": 7 },
            "cost": { "usd": 0.25 },
        }))
        .unwrap();
        let failure = read.error.unwrap();
        assert_eq!(failure.class, Class::RateLimited);
        assert_eq!(failure.retry_after, Some(Duration::from_secs(300)));
        assert_eq!((failure.output, failure.cost_usd_micros), (Some(json!(7)), 250_000));
    }

    #[test]
    fn costs_are_exact_and_rounded_up() {
        let cases = [
            (json!("0.12"), 120_000),
            (json!(0.1), 100_000),
            (json!(3), 3_000_000),
            (json!(1e-7), 1),
            (json!("0.0000010"), 1),
            (json!("0.0000011"), 2),
            (json!(0), 0),
        ];
        for (usd, micros) in cases {
            assert_eq!(read_cost(&json!({ "usd": usd })), Ok(micros), "{usd}");
        }
        for usd in ["-1", "", ".5", "5.", "1e3", "NaN", "1,5", "+1", "1000000001"] {
            assert!(read_cost(&json!({ "usd": usd })).is_err(), "{usd}");
        }
        assert!(read_cost(&json!({ "usd": -0.5 })).is_err());
    }

    #[test]
    fn spans_are_seconds_or_texts_with_a_unit() {
        assert_eq!(read_span(&json!(1.5)), Ok(Duration::from_millis(1500)));
        assert_eq!(read_span(&json!("250ms")), Ok(Duration::from_millis(250)));
        assert_eq!(read_span(&json!("1d")), Ok(Duration::from_secs(86_400)));
        for wrong in [json!(-1), json!("5"), json!("5 s"), json!("s"), json!(null), json!(1e300)] {
            assert!(read_span(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn faults_are_named() {
        let cases = [
            (json!([]), "must be an object"),
            (json!({ "outputs": 1 }), "unknown field `outputs`"),
            (json!({ "cost": { "eur": 1 } }), "unknown field `cost/eur`"),
            (json!({ "cost": {} }), "`cost/usd` is missing"),
            (json!({ "artifacts": "a" }), "`artifacts` must be a list"),
            (json!({ "artifacts": ["/etc/passwd"] }), "within the attempt's directory"),
            (json!({ "artifacts": ["a/../../b"] }), "within the attempt's directory"),
            (json!({ "checkpoint": "a b" }), "`checkpoint`"),
            (json!({ "then": [1] }), "`then/0` must be an object"),
            (json!({ "error": { "class": "lost", "message": "" } }), "`error/class` must be"),
            (json!({ "error": { "class": "retryable" } }), "`error/message` is missing"),
            (json!({ "error": { "class": "permanent", "message": "m", "x": 1 } }), "`error/x`"),
            (json!({ "error": {}, "output": 1 }), "`error` and `output` exclude each other"),
        ];
        for (value, fault) in cases {
            let found = outcome(&value).unwrap_err();
            assert!(found.contains(fault), "{value}: {found}");
        }
    }

    #[test]
    fn only_a_regular_file_of_some_bytes_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outcome");
        assert_eq!(read(&path, &Masker::default()), Ok(None));
        std::fs::write(&path, "").unwrap();
        assert_eq!(read(&path, &Masker::default()), Ok(None));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/status", &path).unwrap();
        assert!(read(&path, &Masker::default()).unwrap_err().contains("cannot be read"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(
            read(&path, &Masker::default()),
            Err("cannot be read: is not a regular file".to_owned())
        );
    }
}
