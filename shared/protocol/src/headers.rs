//! HTTP header names and media types that are ours or that we give a meaning.

/// Names the caller's key for a submission: 1 to [`crate::limits::KEY_BYTES_MAX`] visible
/// ASCII characters. The same key and body lead to the same task, for ever.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Carries the cursor to resume a stream of events from; wins over `after` in the query.
pub const LAST_EVENT_ID: &str = "last-event-id";
/// Carries the W3C trace context of the caller; it is kept with the task.
pub const TRACEPARENT: &str = "traceparent";

/// Names the principal for whom the person of the embedded mode acts; elsewhere refused.
pub const AS: &str = "standfast-as";

/// Media type of requests and responses.
pub const JSON: &str = "application/json";
/// Media type of a [`crate::problem::Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";
/// Media type of a stream of events; ask for it with `Accept`.
pub const EVENT_STREAM: &str = "text/event-stream";
/// Media type of appended log text.
pub const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
/// Media type of artifacts, whatever they hold: a browser must never run one.
pub const OCTETS: &str = "application/octet-stream";
