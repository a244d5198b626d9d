//! Reads requests: ids in paths, queries, bodies. What is not exactly right is refused by name.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Query, RawPathParams};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts as Head;
use axum::http::{HeaderMap, Uri};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::json::{self, DEPTH_MAX, Limits};
use standfast_protocol::headers::JSON;
use standfast_protocol::limits::{PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, WAIT_MS_MAX};
use standfast_protocol::problem::{Fault, ProblemKind};

use crate::Api;
use crate::problems::{Fail, shown};

/// How long a body may take to arrive: a plan over a slow line, not a connection held open.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);
/// Levels that a request may wrap around a value of its own depth.
const ENVELOPE_DEPTH: usize = 4;

/// The decoded places of a path.
pub(crate) struct Place(Vec<(String, String)>);

impl FromRequestParts<Api> for Place {
    type Rejection = Fail;

    async fn from_request_parts(head: &mut Head, api: &Api) -> Result<Self, Fail> {
        let params = RawPathParams::from_request_parts(head, api)
            .await
            .map_err(|_| Fail::not_found("the path is not UTF-8 once decoded"))?;
        let pairs = params.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Self(pairs.collect()))
    }
}

impl Place {
    fn text(&self, names: &[&str]) -> &str {
        let found = self.0.iter().find(|(name, _)| names.contains(&name.as_str()));
        found.map_or("", |(_, value)| value)
    }

    /// Gives the task. What cannot be an id names no task.
    pub fn task(&self) -> Result<TaskId, Fail> {
        TaskId::parse(self.text(&["id", "task"]))
            .map_err(|fault| Fail::not_found(format!("failed to find the task: {fault}")))
    }

    /// Gives the step.
    pub fn step(&self) -> Result<StepId, Fail> {
        StepId::new(self.text(&["step"]))
            .map_err(|fault| Fail::not_found(format!("failed to find the step: {fault}")))
    }

    /// Gives the number of an attempt.
    pub fn attempt(&self) -> Result<u32, Fail> {
        let text = self.text(&["attempt"]);
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| Fail::not_found(format!("failed to find attempt `{text}`")))
    }

    /// Gives the name of an artifact, as it came.
    pub fn name(&self) -> &str {
        self.text(&["name"])
    }
}

/// Reads a query into a structure that refuses what it does not know.
pub(crate) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Fail> {
    match Query::<T>::try_from_uri(uri) {
        Ok(Query(value)) => Ok(value),
        Err(rejection) => Err(Fail::invalid(rejection.body_text())),
    }
}

/// Checks the size of a page.
pub(crate) fn page_limit(limit: Option<u32>) -> Result<usize, Fail> {
    let limit = limit.unwrap_or(PAGE_LIMIT_DEFAULT);
    if !(1..=PAGE_LIMIT_MAX).contains(&limit) {
        return Err(bad_parameter("?limit", format!("expected 1 to {PAGE_LIMIT_MAX}")));
    }
    Ok(limit as usize)
}

/// Checks the wait of a long poll.
pub(crate) fn wait(wait_ms: Option<u64>) -> Result<Duration, Fail> {
    let wait_ms = wait_ms.unwrap_or(0);
    if wait_ms > WAIT_MS_MAX {
        return Err(bad_parameter("?wait_ms", format!("expected at most {WAIT_MS_MAX}")));
    }
    Ok(Duration::from_millis(wait_ms))
}

/// Refuses one parameter or field.
pub(crate) fn bad_parameter(pointer: &str, message: impl Into<String>) -> Fail {
    let fault = Fault { pointer: pointer.to_owned(), message: message.into() };
    Fail::invalid(format!("{}: {}", fault.pointer, fault.message)).with_errors(vec![fault])
}

/// Demands a media type; parameters such as a character set may follow it.
pub(crate) fn demand_type(headers: &HeaderMap, wanted: &str) -> Result<(), Fail> {
    let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let (found, _) = found.split_once(';').unwrap_or((found, ""));
    let (name, _) = wanted.split_once(';').unwrap_or((wanted, ""));
    if found.trim().eq_ignore_ascii_case(name) {
        return Ok(());
    }
    let detail = format!("send the body as `Content-Type: {name}`");
    Err(Fail::new(ProblemKind::UnsupportedMediaType, detail))
}

fn too_large(bytes_max: usize) -> Fail {
    let detail = format!("the body may have at most {bytes_max} bytes");
    Fail::new(ProblemKind::TooLarge, detail)
}

/// Refuses a body that says beforehand that it is too large.
pub(crate) fn check_length(headers: &HeaderMap, bytes_max: usize) -> Result<(), Fail> {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|text| text.parse::<u64>().ok());
    match length {
        Some(length) if length > bytes_max as u64 => Err(too_large(bytes_max)),
        Some(_) | None => Ok(()),
    }
}

/// Gives the body piece by piece to `take`, within its limits of size and time.
pub(crate) async fn pieces(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
    mut take: impl FnMut(Bytes) -> Result<(), Fail>,
) -> Result<(), Fail> {
    check_length(headers, bytes_max)?;
    let all = async {
        let mut stream = body.into_data_stream();
        let mut length = 0;
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|_| Fail::invalid("the body broke off"))?;
            length += piece.len();
            if length > bytes_max {
                return Err(too_large(bytes_max));
            }
            take(piece)?;
        }
        Ok(())
    };
    match tokio::time::timeout(BODY_TIME_MAX, all).await {
        Ok(result) => result,
        Err(_) => {
            let seconds = BODY_TIME_MAX.as_secs();
            Err(Fail::invalid(format!("the body did not arrive within {seconds} s")))
        }
    }
}

/// Reads a body whole.
pub(crate) async fn bytes(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<Vec<u8>, Fail> {
    let mut all = Vec::new();
    pieces(headers, body, bytes_max, |piece| {
        all.extend_from_slice(&piece);
        Ok(())
    })
    .await?;
    Ok(all)
}

/// Reads a JSON body strictly: every fault of the text at once, then its shape.
pub(crate) async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<T, Fail> {
    demand_type(headers, JSON)?;
    let bytes = bytes(headers, body, bytes_max).await?;
    shape(strict(&bytes, bytes_max)?)
}

/// Reads JSON text strictly. Values within it are checked against their own depth by
/// [`check_depth`]; here their envelope may come on top.
pub(crate) fn strict(bytes: &[u8], bytes_max: usize) -> Result<Value, Fail> {
    let limits = Limits { bytes_max, depth_max: DEPTH_MAX + ENVELOPE_DEPTH };
    json::read(bytes, limits).map_err(|faults| {
        let count = faults.len();
        let detail = format!("the body has {count} fault{}", if count == 1 { "" } else { "s" });
        Fail::new(ProblemKind::InvalidJson, detail).with_errors(shown(&faults))
    })
}

/// Refuses a value within a body that is nested too deep.
pub(crate) fn check_depth(value: &Value, pointer: &str) -> Result<(), Fail> {
    let mut faults = json::check_value(value, DEPTH_MAX);
    if faults.is_empty() {
        return Ok(());
    }
    for fault in &mut faults {
        fault.pointer.insert_str(0, pointer);
    }
    Err(Fail::new(ProblemKind::InvalidJson, "the body is nested too deep")
        .with_errors(shown(&faults)))
}

/// Reads a value as a request; what does not fit is named by its place.
pub(crate) fn shape<T: DeserializeOwned>(value: Value) -> Result<T, Fail> {
    if !value.is_object() {
        let message = "expected an object".to_owned(); // a list would be read as its fields
        let fault = Fault { pointer: String::new(), message: message.clone() };
        return Err(Fail::invalid(message).with_errors(vec![fault]));
    }
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (pointer, message) = (pointer(error.path()), error.inner().to_string());
        Fail::invalid(message.clone()).with_errors(vec![Fault { pointer, message }])
    })
}

/// Writes a place as a JSON Pointer.
fn pointer(path: &serde_path_to_error::Path) -> String {
    let each = path.iter().map(|segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => String::new(),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use standfast_protocol::tasks::StopRequest;

    use super::*;

    #[test]
    fn only_json_is_json() {
        let mut headers = HeaderMap::new();
        assert!(demand_type(&headers, JSON).is_err());
        for (text, right) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("text/plain", false),
            ("application/json-seq", false),
            ("application/x-www-form-urlencoded", false),
        ] {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(text));
            assert_eq!(demand_type(&headers, JSON).is_ok(), right, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_place() {
        for (body, pointer) in [
            (serde_json::json!({ "mode": "now" }), "/mode"),
            (serde_json::json!({ "mode": "halt", "a/b": 1 }), "/a~1b"),
        ] {
            let error = serde_path_to_error::deserialize::<_, StopRequest>(&body).unwrap_err();
            assert_eq!(super::pointer(error.path()), pointer, "{body}: {error}");
        }
        for other in [serde_json::json!([]), serde_json::json!("x")] {
            assert!(
                shape::<StopRequest>(other).is_err_and(|fail| fail.detail().contains("object"))
            );
        }
    }

    #[test]
    fn limits_of_pages_are_kept() {
        assert_eq!(page_limit(None).unwrap(), PAGE_LIMIT_DEFAULT as usize);
        assert!(page_limit(Some(0)).is_err());
        assert!(page_limit(Some(201)).is_err());
        assert!(wait(Some(WAIT_MS_MAX + 1)).is_err());
    }
}
