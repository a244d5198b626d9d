//! Drives the router over the embedded store, request by request.

mod access;
mod attempts;
mod bounds;
mod bulk_stops;
mod counted;
mod effects;
mod history;
mod large;
mod listing;
mod rights;
mod steering;
mod stops;
mod strange;
mod submission;
mod task_effects;
mod waits;
mod work;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::ids::Principal;
use standfast_domain::record::EffectClass;
use standfast_engine::Engine;
use standfast_engine::blobs::Blobs;
use standfast_engine::claims::Claims;
use standfast_engine::registry::Registry;
use standfast_engine::submission::{Handlers, RETENTION_DEFAULT};
use standfast_engine::time::{SystemClock, SystemIds};
use standfast_engine::tokens::{Role, Tokens};
use standfast_stores::redb::RedbStore;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use self::counted::Counted;
use crate::admin::Admin;
use crate::auth::Access;
use crate::{Api, Crew, Parts, Settings};

/// Knows one handler, `echo`, that takes anything.
struct Echo;

impl Handlers for Echo {
    fn check(&self, handler: &str, _: &Value) -> Option<Vec<(String, String)>> {
        (handler == "echo").then(Vec::new)
    }

    fn effect_class(&self, _: &str, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }
}

/// One api over a store of its own.
pub(crate) struct World {
    pub api: Api,
    pub shutdown: CancellationToken,
    pub store: Arc<Counted<RedbStore>>,
    router: Router,
    _dir: TempDir,
}

/// An answer, read whole.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Gives the last part of a problem's type.
    pub fn problem(&self) -> String {
        let kind = self.json()["type"].as_str().unwrap_or_default().to_owned();
        kind.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

impl World {
    /// Starts an api that is open until a token is made.
    pub async fn open() -> Self {
        Self::with(Access::Tokens { open_if_none: true }, Vec::new(), Admin::default()).await
    }

    pub async fn with(access: Access, public_hosts: Vec<String>, admin: Admin) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Counted::new(RedbStore::open(dir.path()).unwrap()));
        let broker = Arc::new(InProcessBroker::default());
        let engine = Engine::start(
            store.clone(),
            broker,
            Arc::new(SystemClock::default()),
            Arc::new(SystemIds),
        );
        let url = dir.path().join("blobs").display().to_string();
        let blobs = Blobs::open(&url, "test").await.unwrap();
        let registry = Arc::new(Registry::new(engine.clone()));
        let handlers: Arc<dyn Handlers> = Arc::new(Echo);
        let claims = Claims::new(engine.clone(), blobs, handlers.clone(), registry.clone());
        let settings = Settings {
            crew: Crew::Processes,
            access,
            plan_dir_allowed: true,
            public_hosts,
            retention: RETENTION_DEFAULT,
            claim_length: standfast_engine::claims::CLAIM_LENGTH,
        };
        let parts = Parts {
            claims: Arc::new(claims),
            registry,
            tokens: Arc::new(Tokens::new(engine)),
            handlers,
            admin,
            settings,
        };
        let shutdown = CancellationToken::new();
        let api = Api::new(parts, shutdown.clone());
        Self { router: api.router(), api, shutdown, store, _dir: dir }
    }

    /// Makes a token; from then on every request needs one.
    pub async fn token(&self, role: Role, principal: &str) -> String {
        let principal = Principal::new(principal).unwrap();
        self.api.tokens().create(role, &principal, "test").await.unwrap().secret
    }

    /// Names who has announced workers, past what an api believes for seconds.
    pub async fn announced(&self) -> Vec<Principal> {
        let registry = Registry::new(self.api.engine().clone());
        let workers = registry.workers().await.unwrap();
        workers.into_iter().filter_map(|worker| worker.principal).collect()
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer { status: head.status, headers: head.headers, body }
    }

    /// Gives the response without reading its body: for streams.
    pub async fn stream(&self, request: Request<Body>) -> axum::response::Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(request("GET", path, &[], "")).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(request("POST", path, &[JSON], body.to_string())).await
    }

    /// Submits a plan and gives its task's id.
    pub async fn submit(&self, plan: &Value) -> String {
        let answer = self.post("/v1/tasks", plan).await;
        assert_eq!(answer.status, 201, "{}", answer.json());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Claims the next step of the default queue as worker `w`.
    pub async fn claim(&self) -> Value {
        let body = json!({"worker": "w", "queue": "default", "handlers": ["echo"]});
        let answer = self.post("/v1/claims", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json()
    }

    /// Ends a claimed attempt with an outcome.
    pub async fn complete(&self, claim: &Value, outcome: Value) -> Answer {
        let (task, step) = (claim["task"].as_str().unwrap(), claim["step"].as_str().unwrap());
        let body = json!({
            "worker": "w",
            "attempt": claim["attempt"],
            "epoch": claim["epoch"],
            "outcome": outcome,
        });
        self.post(&format!("/v1/claims/{task}/{step}/complete"), &body).await
    }
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// Makes a request to a loopback name.
pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "127.0.0.1:8080");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

/// Gives a plan of steps that follow one another.
pub(crate) fn chain(steps: &[&str]) -> Value {
    let each = steps.iter().enumerate().map(|(at, step)| {
        let needs: Vec<&str> = steps[..at].last().copied().into_iter().collect();
        json!({"id": step, "uses": "echo", "needs": needs, "retry": {"max_attempts": 1}})
    });
    json!({"kind": "test", "steps": each.collect::<Vec<_>>()})
}
