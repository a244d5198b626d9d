//! Errors as RFC 9457 problems, with a stable list of types.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::stops::StopPlan;

/// What every URI of a problem type begins with.
pub const TYPE_PREFIX: &str = "https://standfast.dev/problems/";

/// One error, as a body of media type `application/problem+json`, as the text of an AMQP
/// header, or as part of an AMQP reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// URI of the kind of error; stable, so programs may test it. See [`ProblemKind`].
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in a few words; the same for every error of the kind.
    pub title: String,
    /// HTTP status; over AMQP, the status that HTTP would have given.
    pub status: u16,
    /// What is wrong this time and, where there is something to do, what to do next.
    pub detail: String,
    /// Every fault found in the request, not the first alone; empty when there is no place to
    /// point at.
    #[serde(default)]
    pub errors: Vec<Fault>,
    /// How long to wait before the same request may succeed, in milliseconds; absent when
    /// waiting will not help. Over HTTP `Retry-After` says the same in whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// With `plan_moved`: what a stop would do now; absent if it cannot be stopped any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_plan: Option<Box<StopPlan>>,
}

/// One fault of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    /// JSON Pointer (RFC 6901) into the plan or body, such as `/steps/2/needs/0`; empty for
    /// the whole. For a query parameter, `?name`.
    pub pointer: String,
    /// What is wrong there.
    pub message: String,
}

impl Problem {
    /// Makes a problem of a known kind without faults.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        Self {
            kind: kind.uri(),
            title: kind.title().to_owned(),
            status: kind.status(),
            detail: detail.into(),
            errors: Vec::new(),
            retry_after_ms: None,
            stop_plan: None,
        }
    }

    /// Adds the faults to point at.
    pub fn with_errors(mut self, errors: Vec<Fault>) -> Self {
        self.errors = errors;
        self
    }

    /// Says when to come back.
    pub fn with_retry_after_ms(mut self, retry_after_ms: u64) -> Self {
        self.retry_after_ms = Some(retry_after_ms);
        self
    }

    /// Adds what a stop would do now.
    pub fn with_stop_plan(mut self, plan: StopPlan) -> Self {
        self.stop_plan = Some(Box::new(plan));
        self
    }

    /// Gives the kind, or nothing for a type that this version does not know.
    pub fn known(&self) -> Option<ProblemKind> {
        ProblemKind::of(&self.kind)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.detail.is_empty() { &self.title } else { &self.detail })?;
        for fault in &self.errors {
            let place = if fault.pointer.is_empty() { "/" } else { &fault.pointer };
            write!(f, "; at {place}: {}", fault.message)?;
        }
        Ok(())
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident, $constant:ident, $slug:literal, $status:literal,
       $title:literal;)*) => {
        /// The kinds of errors; the list only grows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ProblemKind {
            $($(#[$doc])* $variant,)*
        }

        $($(#[$doc])* pub const $constant: &str =
            concat!("https://standfast.dev/problems/", $slug);)*

        impl ProblemKind {
            /// Every kind, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Gives the last part of the URI, such as `invalid_plan`.
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$variant => $slug,)* }
            }

            /// Gives the HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// Gives the kind in a few words.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// Gives the URI.
            pub fn uri(self) -> String {
                match self { $(Self::$variant => $constant.to_owned(),)* }
            }

            /// Reads a URI.
            pub fn of(uri: &str) -> Option<Self> {
                match uri { $($constant => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

kinds! {
    /// 422: the plan is JSON but not a plan; `errors` lists every fault.
    InvalidPlan, INVALID_PLAN, "invalid_plan", 422, "the plan is not valid";
    /// 400: the body is not JSON, repeats a key, or holds a value that cannot be kept.
    InvalidJson, INVALID_JSON, "invalid_json", 400, "the body is not acceptable JSON";
    /// 422: the body is JSON but not this request, or a query parameter is wrong.
    InvalidRequest, INVALID_REQUEST, "invalid_request", 422, "the request is not valid";
    /// 400: a cursor is damaged, or belongs to another list or task.
    BadCursor, BAD_CURSOR, "bad_cursor", 400, "the cursor is not of this list";
    /// 401: there is no token, or it is unknown or has expired.
    Unauthorized, UNAUTHORIZED, "unauthorized", 401, "a valid token is needed";
    /// 403: the principal may see the task but lacks the right that the detail names.
    Forbidden, FORBIDDEN, "forbidden", 403, "the right is missing";
    /// 404: there is none, or the principal may not see it.
    NotFound, NOT_FOUND, "not_found", 404, "not found";
    /// 405: the path exists, the method does not.
    MethodNotAllowed, METHOD_NOT_ALLOWED, "method_not_allowed", 405, "the method is not allowed";
    /// 409: the idempotency key was used with another body, or header and body disagree.
    KeyReused, KEY_REUSED, "key_reused", 409, "the idempotency key names another request";
    /// 409: the claim is no longer held: it expired, was taken over, or its epoch is over.
    Fenced, FENCED, "fenced", 409, "the claim is no longer held";
    /// 409: the state does not allow it; the detail says what it does allow.
    NotApplicable, NOT_APPLICABLE, "not_applicable", 409, "the state does not allow this";
    /// 409: a stop demanded a plan that is not the task's any more; `stop_plan` is the one of now.
    PlanMoved, PLAN_MOVED, "plan_moved", 409, "the stop plan is another by now";
    /// 413: the body passes a limit, which the detail names.
    TooLarge, TOO_LARGE, "too_large", 413, "the body is too large";
    /// 415: the media type of the body is another one than the detail names.
    UnsupportedMediaType, UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", 415,
        "the media type is not supported";
    /// 421: the host name is not one that this api answers to (a guard of loopback apis).
    BadHost, BAD_HOST, "bad_host", 421, "the host name is not served here";
    /// 429: a limit of the installation is reached; see `retry_after_ms`.
    TooMany, TOO_MANY, "too_many", 429, "a limit is reached";
    /// 500: an error of ours; the detail holds the id to search the logs for.
    Internal, INTERNAL, "internal", 500, "an internal error";
    /// 503: the store or broker does not answer, or the outbox is full; see `retry_after_ms`.
    Unavailable, UNAVAILABLE, "unavailable", 503, "not available now";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_uri_and_has_an_error_status() {
        for kind in ProblemKind::ALL {
            assert_eq!(ProblemKind::of(&kind.uri()), Some(*kind));
            assert_eq!(kind.uri(), format!("{TYPE_PREFIX}{}", kind.slug()));
            assert!((400..600).contains(&kind.status()));
        }
        assert_eq!(ProblemKind::of("about:blank"), None);
    }

    #[test]
    fn a_problem_writes_its_type_and_tolerates_more_fields() {
        let problem = Problem::new(ProblemKind::InvalidPlan, "2 faults")
            .with_errors(vec![Fault { pointer: "/steps/0/id".into(), message: "missing".into() }]);
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["type"], INVALID_PLAN);
        assert_eq!(problem.to_string(), "2 faults; at /steps/0/id: missing");
        let text = r#"{"type":"x","title":"t","status":418,"detail":"","instance":"/y"}"#;
        let other: Problem = serde_json::from_str(text).unwrap();
        assert_eq!((other.known(), other.to_string()), (None, "t".to_owned()));
    }
}
