//! What every request passes: its host, its origin, its token; and what every response gets.
//!
//! There is no cookie and no CORS header, so a web page can neither use somebody's rights nor
//! read an answer. Where requests need no token (a fresh installation on a loopback address),
//! two checks take its place: the `Host` must be a loopback name, against pages whose own name
//! resolves to this machine; and the `Origin` of a change must be the api itself.

use std::panic::AssertUnwindSafe;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts as Head;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use standfast_domain::ids::{Principal, TaskId};
use standfast_engine::refusals::RefusedCommand;
use standfast_engine::tokens::{Identity, Known, sha256_hex};
use standfast_protocol::headers::AS;
use standfast_protocol::paths;
use standfast_protocol::problem::ProblemKind;
use subtle::ConstantTimeEq;

use crate::Api;
use crate::admin::READY;
use crate::auth::{Access, Caller};
use crate::extract::bad_parameter;
use crate::problems::{Fail, Refused};

/// Paths that give away nothing and need no token.
const OPEN_PATHS: [&str; 3] = [paths::HEALTH, READY, paths::OPENAPI];
/// Where a browser says where a request comes from.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Lets a request through or refuses it; logs a refused change once.
pub(crate) async fn guard(State(api): State<Api>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    let (method, path) = (head.method.clone(), head.uri.path().to_owned());
    let mut actor = String::from("nobody");
    let admitted = match OPEN_PATHS.contains(&path.as_str()) {
        true => Ok(None),
        false => admit(&api, &head).await.map(Some),
    };
    let mut response = match admitted {
        Ok(caller) => {
            if let Some(caller) = caller {
                actor = caller.principal().to_string();
                head.extensions.insert(caller);
            }
            run(next, Request::from_parts(head, body)).await
        }
        Err(fail) => fail.into_response(),
    };
    if let Some(refused) = response.extensions().get::<Refused>() {
        note(&api, &actor, (&method, &path), response.status(), refused);
    }
    harden(response.headers_mut());
    response
}

/// Logs what was refused: want of a right at warn, whatever was asked; else changes alone.
fn note(
    api: &Api,
    actor: &str,
    (method, path): (&Method, &str),
    status: StatusCode,
    refused: &Refused,
) {
    let Refused { kind, detail, right, task } = refused;
    let right = match right {
        Some(right) => Some(right.as_str()),
        None => (status == StatusCode::UNAUTHORIZED).then_some("token"),
    };
    if let Some(right) = right {
        let task = task.as_ref().map(TaskId::as_str);
        let command = format!("{method} {path}");
        let refused = RefusedCommand { principal: actor, right, task, command: &command };
        api.tokens().note_refused(&refused);
    } else if !is_safe(method) {
        let status = status.as_u16();
        tracing::info!(actor, %method, path, status, kind, detail, "refused");
    }
}

/// Runs the handler; a panic in it becomes an answer.
async fn run(next: Next, request: Request) -> Response {
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let cause = format!("a panic: {}", text.unwrap_or_default());
            Fail::internal(&cause).into_response()
        }
    }
}

/// Keeps browsers from guessing, keeping and running what is answered.
fn harden(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'; sandbox");
    headers.insert(CONTENT_SECURITY_POLICY, policy);
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

async fn admit(api: &Api, head: &Head) -> Result<Caller, Fail> {
    let host = host(head)?;
    let own = &api.settings().public_hosts;
    if !own.is_empty() && !is_loopback(host) && !own.iter().any(|name| is_named(host, name)) {
        return Err(bad_host());
    }
    if !is_safe(&head.method) {
        check_origin(&head.headers, host)?;
    }
    let secret = bearer(&head.headers)?;
    let another = another(&head.headers)?;
    let caller = match (&api.settings().access, secret) {
        (Access::Fixed { token_sha256, identity }, Some(secret)) => {
            let same = sha256_hex(secret).as_bytes().ct_eq(token_sha256.as_bytes());
            let principal = another.unwrap_or_else(|| identity.principal.clone());
            let identity = Identity { principal, ..identity.clone() };
            return match bool::from(same) {
                true => Ok(Caller { identity, credential: None }),
                false => Err(unauthorized()),
            };
        }
        (Access::Fixed { .. }, None) => None,
        (Access::Tokens { .. }, Some(secret)) => match api.tokens().know(secret).await? {
            Known::Valid(credential) => {
                let identity = credential.identity.clone();
                Some(Caller { identity, credential: Some(credential) })
            }
            Known::Expired => {
                let detail = "the token has expired; ask an admin for another";
                return Err(Fail::new(ProblemKind::Unauthorized, detail));
            }
            Known::Unknown => None,
        },
        (Access::Tokens { open_if_none }, None) => {
            let open = *open_if_none && !api.tokens().any().await?;
            if open && !is_loopback(host) {
                return Err(bad_host());
            }
            open.then(|| Caller { identity: Identity::local(), credential: None })
        }
    };
    let caller = caller.ok_or_else(unauthorized)?;
    if another.is_some() {
        let detail = "acting for another is for the person of the embedded mode; use a token of \
                      that principal";
        return Err(Fail::new(ProblemKind::Forbidden, detail));
    }
    Ok(caller)
}

fn unauthorized() -> Fail {
    let detail = "send `Authorization: Bearer TOKEN`; an admin makes one with \
                  `standfast token create`";
    Fail::new(ProblemKind::Unauthorized, detail)
}

/// Reads for whom the caller wants to act, if not for itself.
fn another(headers: &HeaderMap) -> Result<Option<Principal>, Fail> {
    let Some(value) = headers.get(AS) else { return Ok(None) };
    let principal = Principal::new(value.to_str().unwrap_or(""))
        .map_err(|fault| bad_parameter(AS, fault.to_string()))?;
    if principal.is_group() || principal == Principal::system() {
        let message = format!("`{principal}` never acts by itself");
        return Err(bad_parameter(AS, message));
    }
    Ok(Some(principal))
}

/// Reads the token; another scheme is not one.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Fail> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().unwrap_or("");
    match text.split_once(' ') {
        Some((scheme, secret)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(secret.trim())),
        Some(_) | None => {
            let detail = "send the token as `Authorization: Bearer TOKEN`";
            Err(Fail::new(ProblemKind::Unauthorized, detail))
        }
    }
}

fn bad_host() -> Fail {
    let detail = "this api answers to loopback names (`127.0.0.1`, `localhost`, `[::1]`) and to \
                  those it was started with";
    Fail::new(ProblemKind::BadHost, detail)
}

/// Gives host and port as the request names them.
fn host(head: &Head) -> Result<&str, Fail> {
    let header = head.headers.get(HOST).and_then(|value| value.to_str().ok());
    let named = header.or_else(|| head.uri.authority().map(|authority| authority.as_str()));
    named.ok_or_else(bad_host)
}

/// Cuts the port off.
fn name(host: &str) -> &str {
    let end = match host.rfind(']') {
        Some(bracket) => bracket + 1,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, port) = host.split_at(end);
    let digits = port.strip_prefix(':').unwrap_or(port);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { name } else { "" }
}

fn is_loopback(host: &str) -> bool {
    matches!(name(host), "127.0.0.1" | "[::1]") || name(host).eq_ignore_ascii_case("localhost")
}

fn is_named(host: &str, own: &str) -> bool {
    name(host).eq_ignore_ascii_case(own)
}

/// Refuses changes that a page of another origin asks for.
fn check_origin(headers: &HeaderMap, host: &str) -> Result<(), Fail> {
    let foreign = || {
        let detail = "changes are not taken from pages of another origin";
        Fail::new(ProblemKind::Forbidden, detail)
    };
    if let Some(origin) = headers.get(ORIGIN) {
        let origin = origin.to_str().unwrap_or("");
        let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !of.is_some_and(|of| of.eq_ignore_ascii_case(host)) {
            return Err(foreign());
        }
    }
    match headers.get(SEC_FETCH_SITE).map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => Err(foreign()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_loopback() {
        for host in ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]", "[::1]:9"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:80@evil",
            "evil.example:127",
            "[::1].evil",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn an_origin_must_be_the_host() {
        let mut headers = HeaderMap::new();
        assert!(check_origin(&headers, "localhost:1").is_ok());
        for (origin, right) in [
            ("http://localhost:1", true),
            ("http://localhost:2", false),
            ("https://evil.example", false),
            ("null", false),
        ] {
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
            assert_eq!(check_origin(&headers, "localhost:1").is_ok(), right, "{origin}");
        }
        headers.remove(ORIGIN);
        headers.insert(SEC_FETCH_SITE, HeaderValue::from_static("cross-site"));
        assert!(check_origin(&headers, "localhost:1").is_err());
    }
}
