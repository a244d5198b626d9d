//! When a timer is due.

use serde_json::Value;

use super::Fault;
use super::faults::Faults;
use super::fields::Fields;
use super::grammar::TIMER;
use super::values;
use crate::time::{SPAN_MAX, Span, Time};

/// What begins a template; the engine resolves it before the timer starts.
const TEMPLATE: &str = "${{";
const NEITHER: &str = "expected one of `for` and `until`, found neither";

/// A timer's `with`, resolved.
enum Wait {
    For(Span),
    Until(Time),
}

/// Computes when a timer is due that becomes ready at `now`; `with` has its templates resolved.
///
/// A past `until` is due at once. More than ten years ahead is a fault, as is anything but a
/// span or a time. The pointer of a fault is within `with`.
pub fn timer_due(with: &Value, now: Time) -> Result<Time, Fault> {
    let mut faults = Faults::new();
    let fields = Fields::open(with, String::new(), &TIMER, &mut faults);
    let wait = wait(&fields, &mut faults, |_| true);
    if let Some(first) = faults.into_sorted().into_iter().next() {
        return Err(first);
    }
    match wait {
        Some(Wait::For(span)) => Ok(now.after(span)),
        Some(Wait::Until(time)) if time.since(now) <= SPAN_MAX => Ok(time.max(now)),
        Some(Wait::Until(time)) => {
            let (earliest, found) = (now.rfc3339(), time.rfc3339());
            let message = format!(
                "expected a time at most ten years (3660 days) after {earliest}, found {found}"
            );
            Err(Fault { pointer: "/until".to_owned(), message })
        }
        None => Err(Fault { pointer: String::new(), message: NEITHER.to_owned() }),
    }
}

/// Checks a timer's `with` as its author wrote it; values with templates are left for
/// [`timer_due`].
pub(super) fn check(with: &Value, at: String, faults: &mut Faults) {
    let fields = Fields::open(with, at, &TIMER, faults);
    wait(&fields, faults, |value| !value.as_str().is_some_and(|text| text.contains(TEMPLATE)));
}

/// Reads what the timer waits for; a value that is not `literal` is not looked at.
fn wait(
    fields: &Fields<'_>,
    faults: &mut Faults,
    literal: impl Fn(&Value) -> bool,
) -> Option<Wait> {
    match (fields.has("for"), fields.has("until")) {
        (true, true) => {
            faults.push(fields.here(), "expected one of `for` and `until`, found both");
        }
        (false, false) if fields.is_object() => faults.push(fields.here(), NEITHER),
        (false, false) | (true, false) | (false, true) => {}
    }
    let span =
        fields.read("for", faults, |value| literal(value).then(|| values::span(value)).transpose());
    let time = fields
        .read("until", faults, |value| literal(value).then(|| values::time(value)).transpose());
    span.flatten().map(Wait::For).or(time.flatten().map(Wait::Until))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-11-29T12:00:00Z";

    fn now() -> Time {
        Time::parse_rfc3339(NOW).expect("the test's time is right")
    }

    fn due(with: &Value) -> String {
        timer_due(with, now()).expect("a right timer").rfc3339()
    }

    fn fault(with: &Value) -> String {
        let fault = timer_due(with, now()).expect_err("a wrong timer");
        format!("{}: {}", fault.pointer, fault.message)
    }

    #[test]
    fn spans_of_any_size_are_due_when_they_say() {
        for (span, right) in [
            ("0ms", "2026-11-29T12:00:00.000Z"),
            ("1ms", "2026-11-29T12:00:00.001Z"),
            ("2147483647ms", "2026-12-24T08:31:23.647Z"),
            ("2147483648ms", "2026-12-24T08:31:23.648Z"),
            ("4294967296ms", "2027-01-18T05:02:47.296Z"),
            ("3650d", "2036-11-26T12:00:00.000Z"),
        ] {
            assert_eq!(due(&json!({"for": span})), right, "{span}");
        }
    }

    #[test]
    fn times_are_due_when_they_say_and_past_ones_at_once() {
        for (time, right) in [
            ("1970-01-01T00:00:00Z", "2026-11-29T12:00:00.000Z"),
            ("2016-12-31T23:59:60Z", "2026-11-29T12:00:00.000Z"),
            ("2026-11-30T12:00:00+14:00", "2026-11-29T22:00:00.000Z"),
            ("2036-12-06T12:00:00Z", "2036-12-06T12:00:00.000Z"),
        ] {
            assert_eq!(due(&json!({"until": time})), right, "{time}");
        }
    }

    #[test]
    fn wrong_spans_are_refused_and_say_what_was_expected() {
        let wrong = [
            json!("9223372036854775807ms"),
            json!("18446744073709551615ms"),
            json!("3661d"),
            json!("-1ms"),
            json!("-1s"),
            json!("NaN"),
            json!("1.5s"),
            json!("10"),
            json!(""),
            json!("${{ input.wait }}"),
            json!(-1),
            json!(1.5),
            json!(10),
            json!(u64::MAX),
            json!(null),
            json!(true),
            json!([]),
        ];
        for value in wrong {
            let text = fault(&json!({"for": value}));
            assert!(text.contains("expected") && text.contains("found"), "{value}: {text}");
        }
        assert_eq!(
            fault(&json!({"for": 1.5})),
            "/for: expected a span in whole units, such as `250ms`, `30s`, `1h30m` or `7d`, of at \
             most `3660d`, found the number 1.5"
        );
    }

    #[test]
    fn wrong_times_are_refused_and_say_what_was_expected() {
        for time in [
            "9999-12-31T23:59:59Z",
            "10000-01-01T00:00:00Z",
            "2026-11-29",
            "2026-11-29x12:00:00Z",
            "2026-13-01T00:00:00Z",
        ] {
            let text = fault(&json!({"until": time}));
            assert!(text.starts_with("/until: expected a time"), "{text}");
        }
        let text = fault(&json!({"until": "2036-12-06T12:00:00.001Z"}));
        assert!(
            text.contains("at most ten years (3660 days) after 2026-11-29T12:00:00.000Z"),
            "{text}"
        );
    }

    #[test]
    fn exactly_one_of_the_two_is_given() {
        let both = json!({"for": "1s", "until": "2026-11-29T12:00:00Z"});
        assert_eq!(fault(&both), ": expected one of `for` and `until`, found both");
        assert_eq!(fault(&json!({})), ": expected one of `for` and `until`, found neither");
        assert!(fault(&json!({"fro": "1s"})).contains("neither"));
        assert_eq!(fault(&json!([])), ": expected a timer's `with`, an object, found an array");
    }
}
