//! The history of a task, as pages and as a stream.
//!
//! With `Accept: text/event-stream` the events come as Server-Sent Events, without gaps:
//!
//! ```text
//! id: t07-4k9v2mq8r5x1c:12
//! event: step_succeeded
//! data: {"sequence":12,"at":"…","type":"step_succeeded",…}
//! ```
//!
//! `id` is the event's cursor, `event` its type and `data` an [`EventView`] on one line. To go
//! on after a break, send the last id as `Last-Event-ID`. After the last event of an ended task
//! comes one of type [`SSE_ENDED`] without an id, whose data is `{}`, and the stream closes: a
//! client that sees it does not come back. A comment line keeps a quiet stream open.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::is_false;

/// Type of the message after the last event of an ended task.
pub const SSE_ENDED: &str = "ended";
/// Longest silence on a stream in milliseconds; then a comment line is sent.
pub const SSE_SILENCE_MS_MAX: u64 = 15_000;

/// One event of a task's history; never changed once written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Its number within the task, from 1, without gaps.
    pub sequence: u64,
    /// When it was decided; never before the event before it.
    pub at: String,
    /// What happened, in the past tense, such as `step_succeeded`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The principal who acted; `service:standfast` for clocks and sweeps.
    pub actor: String,
    /// The step it is about; absent for events of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// What else is known; its fields depend on the type.
    #[serde(default)]
    pub data: Value,
}

/// Query of a task's events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Gives what came after this cursor (`next` of a page, `id` of the stream) or number; from
    /// the beginning when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Events a page, 1 to 200; 50 when not given. A stream has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// How long to wait for an event when there is none yet, in milliseconds; at most 30,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// A part of a task's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events, oldest first.
    pub events: Vec<EventView>,
    /// Cursor to ask with next: after the last of these events, or the one asked with.
    pub next: String,
    /// Whether the task has ended and no event will come after these.
    #[serde(default, skip_serializing_if = "is_false")]
    pub ended: bool,
}

/// Writes the cursor of an event. It names its task, so that it is never taken for another's.
pub fn cursor(task: &str, sequence: u64) -> String {
    format!("{task}:{sequence}")
}

/// Reads a cursor of this task, or a bare number as people type it. Gives the number of the
/// event to go on after, or nothing for what is damaged or belongs to another task.
pub fn read_cursor(task: &str, text: &str) -> Option<u64> {
    let number = match text.rsplit_once(':') {
        Some((of, number)) if of == task => number,
        Some(_) => return None,
        None => text,
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_belongs_to_its_task() {
        assert_eq!(read_cursor("t1", &cursor("t1", 12)), Some(12));
        assert_eq!(read_cursor("t2", &cursor("t1", 12)), None);
        assert_eq!(read_cursor("t1", "7"), Some(7));
        for text in ["", "x", "+1", "-1", "t1:", "t1:1x", "99999999999999999999"] {
            assert_eq!(read_cursor("t1", text), None, "{text}");
        }
    }
}
