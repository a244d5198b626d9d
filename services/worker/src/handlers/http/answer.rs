//! What an answer is to the step: output, failure, or a pause.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Response;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, RETRY_AFTER, SET_COOKIE};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::super::secrets::Masker;
use super::super::{
    Class, FAILURE_TEXT_BYTES_MAX, Failure, Pulse, Report, Sent, Success, shorten, strict_json,
};
use super::Input;

/// Bytes of all headers that are kept; they are for a look, not for data.
const HEADERS_BYTES_MAX: usize = 32 * 1024;
/// The longest pause that another side may ask for; beyond it the retry rules know better.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// An answer, read to its end.
pub(super) struct Answer {
    status: u16,
    place: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Reads an answer's body up to the limit.
pub(super) async fn read(
    mut response: Response,
    place: String,
    input: &Input,
    pulse: &Pulse,
) -> Result<Answer, Failure> {
    let limit = input.response_limit;
    let status = response.status().as_u16();
    let wanted = expected(input, status);
    let mut body = Vec::new();
    loop {
        let chunk = response.chunk().await.map_err(|error| {
            let error = error.without_url();
            Failure::new(Class::Retryable, format!("http: {place}: the answer broke off: {error}"))
        })?;
        let Some(chunk) = chunk else { break };
        pulse.beat();
        body.extend_from_slice(&chunk);
        if body.len() > limit && wanted {
            let message = format!(
                "http: {place}: the answer has more than {limit} bytes, the limit; \
                 raise `response_limit` if this is meant to be so"
            );
            return Err(Failure::new(Class::Permanent, message));
        }
        // Of an answer that is a failure anyway the beginning is enough.
        if body.len() > limit.min(2 * FAILURE_TEXT_BYTES_MAX) && !wanted {
            break;
        }
    }
    Ok(Answer { status, place, headers: response.headers().clone(), body })
}

fn expected(input: &Input, status: u16) -> bool {
    input.expect_status.iter().any(|expected| expected.holds(status))
}

/// Decides the report; no secret is in it.
pub(super) fn report(input: &Input, answer: &Answer, masker: &Masker) -> Report {
    let mut output = Map::new();
    output.insert("status".to_owned(), answer.status.into());
    output.insert("url".to_owned(), answer.place.clone().into());
    output.insert("headers".to_owned(), shown_headers(&answer.headers, masker));
    if expected(input, answer.status) {
        let (name, body) = body(input, answer);
        output.insert(name.to_owned(), body);
        let output = masker.value(Value::Object(output));
        return Report::Succeeded(Success { output, ..Success::default() });
    }
    let text = masker.text(&String::from_utf8_lossy(&answer.body));
    output.insert("body".to_owned(), shorten(&text, FAILURE_TEXT_BYTES_MAX).into());
    let output = masker.value(Value::Object(output));
    let Answer { status, place, .. } = answer;
    let message = masker.text(&format!("http: {place} answered {status}"));
    let (class, retry_after) = class(answer);
    let sent = sent(*status);
    Failure { retry_after, sent, ..Failure::new(class, message).with_output(output) }.into()
}

/// What a status that was not expected says of the request's effect: whether the other side
/// has refused it (RFC 9110, section 15) or may have carried it out.
fn sent(status: u16) -> Sent {
    match status {
        307 | 308 | 400..=499 | 501 | 505 => Sent::Refused,
        _ => Sent::Unknown,
    }
}

fn class(answer: &Answer) -> (Class, Option<Duration>) {
    let pause = retry_after(&answer.headers, SystemTime::now());
    match answer.status {
        429 => (Class::RateLimited, pause),
        503 if pause.is_some() => (Class::RateLimited, pause),
        408 | 500..=599 => (Class::Retryable, None),
        _ => (Class::Permanent, None),
    }
}

/// Reads `Retry-After` (RFC 9110, section 10.2.3): seconds, or a date, which is compared with
/// the other side's own clock where it tells the time.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let date = |text: &str| OffsetDateTime::parse(text, &Rfc2822).ok();
    let pause = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let their_now = headers.get(DATE).and_then(|value| date(value.to_str().ok()?));
            let now = their_now.unwrap_or_else(|| OffsetDateTime::from(now));
            Duration::try_from(date(text)? - now).unwrap_or_default()
        }
    };
    Some(pause.min(RETRY_AFTER_MAX))
}

fn shown_headers(headers: &HeaderMap, masker: &Masker) -> Value {
    let mut shown = Map::new();
    let mut left = HEADERS_BYTES_MAX;
    for name in headers.keys().filter(|name| **name != SET_COOKIE) {
        let values = headers.get_all(name).iter();
        let values: Vec<_> = values.map(|v| String::from_utf8_lossy(v.as_bytes())).collect();
        let value = masker.text(&values.join(", "));
        let Some(rest) = left.checked_sub(name.as_str().len() + value.len()) else { break };
        left = rest;
        shown.insert(name.as_str().to_owned(), value.into());
    }
    Value::Object(shown)
}

fn body(input: &Input, answer: &Answer) -> (&'static str, Value) {
    if input.method == "HEAD" {
        return ("body", Value::Null);
    }
    let parsed = is_json(&answer.headers).then(|| strict_json::parse(&answer.body).ok()).flatten();
    match (parsed, std::str::from_utf8(&answer.body)) {
        (Some(value), _) => ("body", value),
        (None, Ok(text)) => ("body", text.into()),
        (None, Err(_)) => ("body_base64", STANDARD.encode(&answer.body).into()),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(text)) = headers.get(CONTENT_TYPE).map(|value| value.to_str()) else {
        return false;
    };
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind == "text/json" || kind.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(list: &[(reqwest::header::HeaderName, &str)]) -> Option<Duration> {
        let own = |(name, value): &(reqwest::header::HeaderName, &str)| {
            (name.clone(), value.parse().unwrap())
        };
        retry_after(&list.iter().map(own).collect(), SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn a_pause_is_seconds_or_a_date() {
        let date = "Thu, 01 Jan 1970 00:01:30 GMT";
        assert_eq!(pause(&[(RETRY_AFTER, "120")]), Some(Duration::from_secs(120)));
        assert_eq!(pause(&[(RETRY_AFTER, date)]), Some(Duration::from_secs(90)));
        let theirs = [(RETRY_AFTER, date), (DATE, "Thu, 01 Jan 1970 00:01:00 GMT")];
        assert_eq!(pause(&theirs), Some(Duration::from_secs(30)));
        let past = [(RETRY_AFTER, date), (DATE, "Thu, 01 Jan 1970 00:02:00 GMT")];
        assert_eq!(pause(&past), Some(Duration::ZERO));
        assert_eq!(pause(&[(RETRY_AFTER, "99999999999")]), Some(RETRY_AFTER_MAX));
        assert_eq!(pause(&[(RETRY_AFTER, "soon")]), None);
        assert_eq!(pause(&[]), None);
    }
}
