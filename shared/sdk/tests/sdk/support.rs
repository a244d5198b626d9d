//! An api that answers as a test tells it to, on a thread of its own, so that a test may block
//! its own thread.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Response};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

/// Longest wait of a test for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A call that the api got.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// How many calls of this path came before.
    pub before: usize,
}

impl Call {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn is(&self, path_end: &str) -> bool {
        self.path.ends_with(path_end)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

pub struct Answer {
    pub status: u16,
    pub media_type: &'static str,
    pub body: Vec<u8>,
}

pub fn ok(body: Value) -> Answer {
    Answer { status: 200, media_type: "application/json", body: body.to_string().into_bytes() }
}

pub fn nothing() -> Answer {
    Answer { status: 204, ..ok(Value::Null) }
}

pub fn problem(status: u16, kind: &str) -> Answer {
    let body = json!({
        "type": format!("https://standfast.dev/problems/{kind}"),
        "title": kind, "status": status, "detail": format!("{kind} it is"), "errors": [],
        "retry_after_ms": 1,
    });
    Answer { status, media_type: "application/problem+json", ..ok(body) }
}

pub fn stream(text: &str) -> Answer {
    Answer { status: 200, media_type: "text/event-stream", body: text.as_bytes().to_vec() }
}

pub struct Api {
    pub url: String,
    calls: watch::Receiver<Vec<Call>>,
    _end: oneshot::Sender<()>,
}

impl Api {
    /// Starts an api that answers by a script.
    pub fn start<F, Fut>(script: F) -> Self
    where
        F: Fn(Call) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        let script = Arc::new(move |call| -> BoxFuture<'static, Answer> { Box::pin(script(call)) });
        let (record, calls) = watch::channel(Vec::<Call>::new());
        let record = Arc::new(Mutex::new(record));
        let app = Router::new().fallback(move |request: Request| {
            let (script, record) = (Arc::clone(&script), Arc::clone(&record));
            async move {
                let (parts, body) = request.into_parts();
                let body = to_bytes(body, 1 << 26).await.unwrap().to_vec();
                let mut call = Call {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or_default().to_owned(),
                    headers: parts.headers,
                    body,
                    before: 0,
                };
                record.lock().unwrap().send_modify(|calls| {
                    call.before = calls.iter().filter(|known| known.path == call.path).count();
                    calls.push(call.clone());
                });
                let answer = script(call).await;
                let response = Response::builder().status(answer.status);
                let response = response.header("content-type", answer.media_type);
                response.body(Body::from(answer.body)).unwrap()
            }
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (end, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    served = axum::serve(listener, app) => served.unwrap(),
                    _ = ended => {}
                }
            });
        });
        Self { url, calls, _end: end }
    }

    /// Gives the calls whose path ends so.
    pub fn calls(&self, path_end: &str) -> Vec<Call> {
        self.calls.borrow().iter().filter(|call| call.is(path_end)).cloned().collect()
    }

    /// Waits for a number of calls whose path ends so.
    pub async fn until(&self, path_end: &str, count: usize) -> Vec<Call> {
        let mut calls = self.calls.clone();
        let enough =
            calls.wait_for(|calls| calls.iter().filter(|call| call.is(path_end)).count() >= count);
        let waited = tokio::time::timeout(PATIENCE, enough).await;
        assert!(waited.is_ok(), "{count} calls of …{path_end} never came");
        drop(waited);
        self.calls(path_end)
    }
}

/// The answer to an announcement.
pub fn announced() -> Answer {
    ok(json!({"principal": "worker:test", "again_ms": 60_000}))
}

/// A claim of step `s` of task `t` for handler `h`.
pub fn claim(more: Value) -> Answer {
    let mut claim = json!({
        "task": "t", "step": "s", "attempt": 3, "epoch": 2, "round": 1, "handler": "h",
        "input": {"text": "hello"}, "heartbeat_ms": 20, "expires_ms": 60_000, "inputs": [],
    });
    let fields = claim.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    ok(claim)
}

/// Answers as an api with one claim and no surprises does; a test overrides what it is about.
/// Later claims find nothing, and wait until the worker leaves.
pub async fn usual(call: &Call, left: &mut watch::Receiver<bool>, first: Answer) -> Answer {
    if call.is("/workers") {
        return announced();
    }
    if call.is("/claims") {
        if call.before == 0 {
            return first;
        }
        let _ = left.wait_for(|left| *left).await;
        return nothing();
    }
    if call.is("/control") {
        let _ = left.wait_for(|left| *left).await;
        return ok(json!({"stop": false}));
    }
    if call.is("/heartbeat") {
        return ok(json!({"stop": false, "expires_ms": 60_000}));
    }
    if call.is("/log") {
        return ok(json!({"next_offset": 0}));
    }
    if call.is("/complete") {
        return ok(json!({"state": "succeeded"}));
    }
    if call.is("/hand-back") {
        return ok(json!({"state": "ready"}));
    }
    problem(404, "not_found")
}
