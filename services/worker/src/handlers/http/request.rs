//! One attempt of `http`: hop by hop to an answer.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{
    ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use reqwest::{Client, Method, Response, Url};
use serde_json::Value;
use standfast_engine::crash;

use super::super::secrets::{Masker, Resolver};
use super::super::{Class, Effect, Failure, Job, Report, SecretFault, Sent};
use super::addresses::{Guard, Refused, judge};
use super::answer::{self, Answer};
use super::{Input, parse_url};

/// How long one connection may take to be made: an address that swallows packets should not
/// use up the attempt's time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The header that carries an effect's key (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Headers that never leave their origin.
const CREDENTIALS: [&str; 2] = ["authorization", "cookie"];

/// Makes the client: no proxy, no redirects of its own, guarded addresses.
pub(super) fn client(allow_private: bool) -> Result<Client, reqwest::Error> {
    Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(CONNECT_TIMEOUT)
        .dns_resolver(Arc::new(Guard { allow_private }))
        .build()
}

/// What is sent, with its secrets in place.
struct Request {
    url: Url,
    headers: HeaderMap,
    /// Names of headers that are for the first origin only.
    bound: Vec<HeaderName>,
    body: Option<String>,
}

/// Runs one attempt whose input is right. Time and cancellation are the caller's.
pub(super) async fn run(client: &Client, allow_private: bool, job: &Job, input: &Input) -> Report {
    let mut resolver = Resolver::new(&*job.secrets);
    let prepared = prepare(&mut resolver, input, job.effect.as_deref());
    let masker = resolver.masker();
    job.log.hide(masker.clone());
    let result = match prepared {
        Ok(request) => follow(client, allow_private, job, input, request).await,
        Err(fault) => Err(unsent(fault)),
    };
    match result {
        Ok(answer) => answer::report(input, &answer, &masker),
        Err(failure) => mask(failure, &masker).into(),
    }
}

fn mask(failure: Failure, masker: &Masker) -> Failure {
    Failure {
        message: masker.text(&failure.message),
        output: failure.output.map(|output| masker.value(output)),
        ..failure
    }
}

/// Makes a failure that comes before anything was sent.
fn unsent(message: impl std::fmt::Display) -> Failure {
    Failure { sent: Sent::Not, ..permanent(message) }
}

fn permanent(message: impl std::fmt::Display) -> Failure {
    Failure::new(Class::Permanent, format!("http: {message}"))
}

fn prepare(
    resolver: &mut Resolver<'_>,
    input: &Input,
    effect: Option<&Effect>,
) -> Result<Request, String> {
    let body = body(resolver, input).map_err(|fault| fault.to_string())?;
    let mut text = |text: &str| resolver.text(text).map_err(|fault| fault.to_string());
    let mut url = parse_url(&text(&input.url)?.0)?;
    if !input.query.is_empty() {
        for (name, value) in &input.query {
            let value = text(value)?.0;
            url.query_pairs_mut().append_pair(name, &value);
        }
    }
    url.set_fragment(None);
    let mut headers = HeaderMap::new();
    headers.insert(
        USER_AGENT,
        HeaderValue::from_static(concat!("standfast/", env!("CARGO_PKG_VERSION"))),
    );
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    if let Some(effect) = effect {
        let key = HeaderValue::from_str(&effect.key).map_err(|fault| fault.to_string())?;
        headers.insert(IDEMPOTENCY_KEY, key);
    }
    if body.is_some() && !matches!(input.body, Some(Value::String(_))) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let mut bound = Vec::new();
    for (name, value) in &input.headers {
        let (value, secret) = text(value)?;
        let named = HeaderName::from_bytes(name.as_bytes()).map_err(|fault| fault.to_string())?;
        let value = HeaderValue::from_str(&value)
            .map_err(|_| format!("header `{name}` has a value that is not one visible line"))?;
        if secret || CREDENTIALS.contains(&named.as_str()) {
            bound.push(named.clone());
        }
        headers.insert(named, value);
    }
    Ok(Request { url, headers, bound, body })
}

fn body(resolver: &mut Resolver<'_>, input: &Input) -> Result<Option<String>, SecretFault> {
    Ok(match &input.body {
        None => None,
        Some(Value::String(text)) => Some(resolver.text(text)?.0),
        Some(other) => Some(resolver.value(other)?.to_string()),
    })
}

/// Goes from hop to hop; each is judged like the first.
async fn follow(
    client: &Client,
    allow_private: bool,
    job: &Job,
    input: &Input,
    request: Request,
) -> Result<Answer, Failure> {
    let Request { mut url, mut headers, bound, body } = request;
    let method = Method::from_bytes(input.method.as_bytes()).map_err(unsent)?;
    let mut seen = BTreeSet::new();
    loop {
        if !allow_private {
            judge_literal(&url).map_err(unsent)?;
        }
        seen.insert(url.clone());
        let mut sent = client.request(method.clone(), url.clone()).headers(headers.clone());
        if let Some(body) = &body {
            sent = sent.body(body.clone());
        }
        crash::point("send.before");
        let response = sent.send().await.map_err(|error| send_failure(&url, error))?;
        crash::point("send.sent"); // the other side has it, and its answer is not read
        job.pulse.beat();
        let status = response.status().as_u16();
        job.log.note(&format!("{method} {} answered {status}", place(&url)));
        let Some(next) = redirect(&url, &response, input).map_err(permanent)? else {
            let answer = answer::read(response, place(&url), input, &job.pulse).await;
            crash::point("send.answered");
            return answer;
        };
        if seen.len() > input.follow_redirects {
            let limit = input.follow_redirects;
            return Err(permanent(format!("more than {limit} redirects, the limit")));
        }
        if seen.contains(&next) {
            let place = place(&next);
            return Err(permanent(format!("redirects lead in a circle, back to {place}")));
        }
        if next.origin() != url.origin() {
            for name in &bound {
                headers.remove(name);
            }
        }
        url = next;
    }
}

/// Gives where an answer sends to; `None` if it is the answer itself.
fn redirect(url: &Url, response: &Response, input: &Input) -> Result<Option<Url>, String> {
    let status = response.status().as_u16();
    let wanted = input.expect_status.iter().any(|expected| expected.holds(status));
    if wanted || input.follow_redirects == 0 || !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else { return Ok(None) };
    let fault = |why: &dyn std::fmt::Display| format!("{} redirects wrongly: {why}", place(url));
    let location = location.to_str().map_err(|why| fault(&why))?;
    let next = url.join(location).map_err(|why| fault(&why))?;
    let mut next = parse_url(next.as_str()).map_err(|why| fault(&why))?;
    next.set_fragment(None);
    Ok(Some(next))
}

/// Judges a host that is an address itself; connections do not resolve those. The URL parser
/// has brought every way to write one (decimal, octal, hexadecimal, shortened) to one form.
pub(super) fn judge_literal(url: &Url) -> Result<(), Refused> {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => judge(host, address),
        Err(_) => Ok(()),
    }
}

/// Names a URL within messages: without its query, which may hold what is private.
fn place(url: &Url) -> String {
    let mut place = url.clone();
    place.set_query(None);
    super::super::shorten(place.as_str(), 512)
}

fn send_failure(url: &Url, error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let mut causes = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(one) = cause {
        if let Some(refused) = one.downcast_ref::<Refused>() {
            return unsent(refused);
        }
        causes.push(one.to_string());
        cause = one.source();
    }
    causes.dedup();
    let class = if error.is_builder() { Class::Permanent } else { Class::Retryable };
    let before = error.is_builder() || error.is_connect();
    let sent = if before { Sent::Not } else { Sent::Unknown };
    let message = format!("http: {}: {}", place(url), causes.join(": "));
    Failure { sent, ..Failure::new(class, message) }
}
