//! The handler `http`: sends one request and reads its answer.
//!
//! # Input
//!
//! - `url`: where; `http` or `https`, without user and password
//! - `method`: `GET` (the default), `HEAD`, `POST`, `PUT`, `PATCH` or `DELETE`
//! - `body`: what is sent with `POST`, `PUT`, `PATCH` and `DELETE`: a text as it is, any other
//!   JSON in its compact form, as `application/json` unless a header says otherwise
//! - `headers`: further headers; `host`, `connection` and those of the body's framing are refused
//! - `query`: names and texts to add to the URL
//! - `expect_status`: the statuses of success, as numbers or classes such as `"2xx"`; `["2xx"]`
//!   if absent
//! - `response_limit`: bytes of the body that are accepted, 1 MiB if absent, up to 64 MiB
//! - `follow_redirects`: how many redirects are followed, from 0 to 5; 5 if absent; a request
//!   that writes follows none
//!
//! `${{ secrets.NAME }}` in a text of `url`, `headers` or `query` is replaced when the request
//! is sent. On a redirect to another origin `authorization`, `cookie` and every header that
//! held a secret stay behind. The attempt's time is the request's; there is no other time-out
//! but that of connecting.
//!
//! # Output
//!
//! `{ "status": 200, "url": …, "headers": {…}, "body": … }`: `url` is where the answer came
//! from, without its query; header names are in lower case, values of the same name are
//! joined, `set-cookie` is left out because it is a credential. `body` is the JSON value if
//! the content type says JSON and the body is faultless, else the text; a body that is not
//! UTF-8 is in `body_base64` instead. `HEAD` has none.
//!
//! # Failure
//!
//! Unknown host, no connection, a broken answer, 408 and 5xx: `retryable`; 429, and 503 with
//! `Retry-After`: `rate_limited`; any other status that is not expected, a refused address,
//! too large an answer, too many redirects: `permanent`. The output has status, headers and
//! the beginning of the body if there was an answer.
//!
//! # Effects
//!
//! Unless the step declares otherwise, GET and HEAD change nothing, PUT and DELETE are
//! `idempotent`, POST and PATCH `irreversible`. A request with an effect carries its key as
//! `Idempotency-Key`, the same on every repeat, unless the plan sets that header. It is not
//! given up once it is under way, not even for a stop: its answer is waited for until the
//! attempt's time is over, so that nothing becomes uncertain that need not be. An expected
//! status is the receipt. It has not happened if no connection was made, and where the other
//! side refused: 307, 308, 4xx, 501 and 505. Any other status, and no answer, says nothing.
//! As the `check` of an effect, an expected status says that it has happened, 404 and 410 that
//! it has not.
//!
//! # Addresses
//!
//! Unless the worker's operator allows it, a request reaches public addresses only: literal
//! ones are judged before each hop, names by the addresses that the connection will be made
//! to. No proxy is used, whatever the environment says.

mod addresses;
mod answer;
mod request;

use async_trait::async_trait;
use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::Value;
use standfast_domain::record::EffectClass;

use super::fields::{Fields, escape, kind, shown, templated};
use super::{
    Class, Failure, Fault, Handler, Job, OUTPUT_BYTES_MAX, Report, Sent, faults_failure, outside,
};

/// Bytes of a body if the plan names no limit.
const RESPONSE_BYTES_DEFAULT: u64 = 1024 * 1024;
/// Redirects that are followed at most: an honest chain is shorter.
const REDIRECTS_MAX: u64 = 5;
/// The fields of an input.
const FIELDS: [&str; 8] = [
    "url",
    "method",
    "headers",
    "query",
    "body",
    "expect_status",
    "response_limit",
    "follow_redirects",
];
/// The methods, and what each changes unless the plan says otherwise (RFC 9110, section 9.2).
const METHODS: [(&str, EffectClass); 6] = [
    ("GET", EffectClass::None),
    ("HEAD", EffectClass::None),
    ("PUT", EffectClass::Idempotent),
    ("DELETE", EffectClass::Idempotent),
    ("POST", EffectClass::Irreversible),
    ("PATCH", EffectClass::Irreversible),
];
/// Headers that belong to the connection, not to the plan.
const RESERVED_HEADERS: [&str; 9] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "proxy-authorization",
];

/// The handler `http`.
pub struct Http {
    client: reqwest::Client,
    allow_private: bool,
}

impl Http {
    /// Makes the handler. `allow_private_addresses` is the operator's decision that plans may
    /// reach what this machine reaches.
    pub fn new(allow_private_addresses: bool) -> Result<Self, reqwest::Error> {
        let client = request::client(allow_private_addresses)?;
        Ok(Self { client, allow_private: allow_private_addresses })
    }
}

#[async_trait]
impl Handler for Http {
    fn name(&self) -> &str {
        "http"
    }

    fn check(&self, input: &Value) -> Vec<Fault> {
        read_input(input).1
    }

    fn effect(&self, input: &Value) -> Result<EffectClass, String> {
        match input.get("method") {
            None => Ok(EffectClass::None),
            Some(method) if templated(method) => Err("declare the effect's class: which method \
                is used is known only when the step runs"
                .to_owned()),
            Some(method) => {
                let known = METHODS.iter().find(|(name, _)| method == name);
                Ok(known.map_or(EffectClass::None, |(_, class)| *class))
            }
        }
    }

    fn check_receipt(&self, receipt: &Value) -> Result<(), String> {
        let status = receipt.get("status").and_then(Value::as_u64);
        match status.is_some_and(|status| (100..600).contains(&status)) {
            true => Ok(()),
            false => Err("expected the answer as `http` gives it, with its status: \
                {\"status\": 201, \"body\": {\"id\": \"p-7\"}}"
                .to_owned()),
        }
    }

    fn uses_directory(&self) -> bool {
        false
    }

    fn may_block(&self) -> bool {
        false
    }

    /// The statuses 404 and 410 say so.
    fn says_no(&self, failure: &Failure) -> bool {
        let status = failure.output.as_ref().map(|output| &output["status"]);
        status.is_some_and(|status| *status == 404 || *status == 410)
    }

    async fn run(&self, job: Job) -> Report {
        let input = match read_input(&job.input) {
            (Some(input), faults) if faults.is_empty() => input,
            (_, faults) => return faults_failure("http", &faults).into(),
        };
        let Some(effect) = job.effect.clone() else {
            return tokio::select! {
                biased;
                () = job.cancel.cancelled() => cancelled().into(),
                report = self.in_time(&job, &input) => report,
            };
        };
        let asked = tokio::select! {
            biased;
            () = job.cancel.cancelled() => Some(cancelled().into()),
            asked = outside::ask(Some(&effect), job.deadline) => asked,
        };
        match asked {
            Some(report) => report,
            None => self.in_time(&job, &input).await,
        }
    }
}

impl Http {
    async fn in_time(&self, job: &Job, input: &Input) -> Report {
        let running = request::run(&self.client, self.allow_private, job, input);
        tokio::time::timeout(job.deadline, running).await.unwrap_or_else(|_| {
            let time = job.deadline;
            let message = format!("http: no answer after its time of {time:?}");
            Failure::new(Class::Timeout, message).into()
        })
    }
}

fn cancelled() -> Failure {
    Failure { sent: Sent::Not, ..Failure::new(Class::Cancelled, "http: cancelled") }
}

/// A status or a class of statuses that counts as success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    One(u16),
    Hundred(u16),
}

impl Expected {
    fn holds(self, status: u16) -> bool {
        match self {
            Self::One(one) => one == status,
            Self::Hundred(hundred) => hundred == status / 100,
        }
    }
}

/// An input whose shape is right; its texts may still name secrets.
#[derive(Clone, Debug, PartialEq)]
struct Input {
    url: String,
    method: &'static str,
    body: Option<Value>,
    headers: Vec<(String, String)>,
    query: Vec<(String, String)>,
    expect_status: Vec<Expected>,
    response_limit: usize,
    follow_redirects: usize,
}

fn read_input(input: &Value) -> (Option<Input>, Vec<Fault>) {
    let mut fields = Fields::new(input, &FIELDS);
    let url = read_url(&mut fields);
    let method = read_method(&mut fields);
    let body = read_body(&mut fields, method);
    let headers = read_headers(&mut fields);
    let query = fields.texts("query");
    let expect_status = read_expect_status(&mut fields);
    let limit = fields.number("response_limit", 1, OUTPUT_BYTES_MAX as u64);
    let limit = limit.unwrap_or(RESPONSE_BYTES_DEFAULT);
    let most = if writes(method) { 0 } else { REDIRECTS_MAX };
    let follow = fields.number("follow_redirects", 0, most).unwrap_or(most);
    let read = url.map(|url| Input {
        url,
        method,
        body,
        headers,
        query,
        expect_status,
        response_limit: usize::try_from(limit).unwrap_or(OUTPUT_BYTES_MAX),
        follow_redirects: usize::try_from(follow).unwrap_or_default(),
    });
    (read, fields.finish())
}

fn read_url(fields: &mut Fields<'_>) -> Option<String> {
    let value = fields.required("url")?;
    let Some(text) = value.as_str() else {
        fields.fault("/url", format!("expected a string, found {}", kind(value)));
        return None;
    };
    if !templated(value)
        && let Err(fault) = parse_url(text)
    {
        fields.fault("/url", fault);
    }
    Some(text.to_owned())
}

/// Reads a URL that this handler may ask; the same for every hop.
fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|fault| format!("not a URL: {fault}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("scheme `{}` is not known; use http or https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("user and password do not belong in a URL; use a header".to_owned());
    }
    Ok(url)
}

/// True for methods that send something to be taken in.
fn writes(method: &str) -> bool {
    !matches!(method, "GET" | "HEAD")
}

fn read_method(fields: &mut Fields<'_>) -> &'static str {
    let Some(value) = fields.get("method").filter(|value| !templated(value)) else {
        return "GET";
    };
    match METHODS.iter().find(|(name, _)| value == name) {
        Some((name, _)) => name,
        None => {
            let names: Vec<String> = METHODS.iter().map(|(name, _)| format!("`{name}`")).collect();
            let message = format!("expected one of {}, found {}", names.join(", "), shown(value));
            fields.fault("/method", message);
            "GET"
        }
    }
}

fn read_body(fields: &mut Fields<'_>, method: &str) -> Option<Value> {
    let templated_method = fields.get("method").is_some_and(templated);
    let body = fields.get("body").cloned();
    if body.is_some() && !writes(method) && !templated_method {
        fields.fault("/body", format!("{method} has no body"));
    }
    body
}

fn read_headers(fields: &mut Fields<'_>) -> Vec<(String, String)> {
    let headers = fields.texts("headers");
    for (name, value) in &headers {
        let pointer = format!("/headers/{}", escape(name));
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            fields.fault(&pointer, "not a header name");
        }
        if RESERVED_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            fields.fault(&pointer, format!("header `{name}` cannot be set by a plan"));
        }
        if HeaderValue::from_str(value).is_err() {
            fields.fault(&pointer, "a header's value is one line of visible characters");
        }
    }
    headers
}

fn read_expect_status(fields: &mut Fields<'_>) -> Vec<Expected> {
    let success = vec![Expected::Hundred(2)];
    let Some(value) = fields.get("expect_status").filter(|value| !templated(value)) else {
        return success;
    };
    let one = |item: &Value| match item {
        Value::Number(number) => {
            let status = number.as_u64().filter(|status| (200..=599).contains(status))?;
            u16::try_from(status).ok().map(Expected::One)
        }
        Value::String(text) => {
            let hundred = text.strip_suffix("xx")?.parse().ok()?;
            (2..=5).contains(&hundred).then_some(Expected::Hundred(hundred))
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let items = value.as_array().filter(|items| !items.is_empty());
    let read: Option<Vec<Expected>> =
        items.and_then(|items| items.iter().filter(|item| !templated(item)).map(one).collect());
    read.unwrap_or_else(|| {
        let message = format!(
            "expected a list of statuses from 200 to 599 or classes such as `2xx`, found {}",
            shown(value)
        );
        fields.fault("/expect_status", message);
        success
    })
}

#[cfg(test)]
mod tests;
