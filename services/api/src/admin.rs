//! What operators ask any process: whether it lives, whether it can work, what it counts.
//!
//! `/healthz` answers as long as the process does, so that an outage of the store does not make
//! a supervisor restart everything; `/readyz` looks at what the process needs and names what is
//! missing; `/metrics` is in the OpenMetrics text format.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge as Metric;
use prometheus_client::registry::Registry;
use serde::Serialize;
use standfast_engine::Engine;
use standfast_protocol::health::Durability;
use standfast_protocol::paths;
use utoipa::ToSchema;

use crate::problems::Fail;

/// Path of the check whether a process can work.
pub const READY: &str = "/readyz";
/// Path of the metrics.
pub const METRICS: &str = "/metrics";
/// Media type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a check may take before it counts as failed: shorter than probes wait.
const CHECK_TIME_MAX: Duration = Duration::from_secs(2);

/// One thing a process needs to work.
#[async_trait]
pub trait Check: Send + Sync {
    /// Names it, such as `store`.
    fn name(&self) -> &str;
    /// Looks at it; the error says what is wrong.
    async fn check(&self) -> Result<(), String>;
}

/// One value that is looked up when metrics are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gauge {
    /// The metric's name, such as `standfast_queue_ready`.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Labels that tell its values apart, such as `queue`.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: i64,
}

/// Looks up values that nobody counts as they change, such as the depth of queues.
#[async_trait]
pub trait Gauges: Send + Sync {
    /// Gives the values now; what cannot be read is left out.
    async fn read(&self) -> Vec<Gauge>;
}

/// What the admin endpoints show. Cheap to clone.
#[derive(Clone, Default)]
pub struct Admin {
    checks: Arc<Vec<Arc<dyn Check>>>,
    metrics: Arc<Registry>,
    gauges: Option<Arc<dyn Gauges>>,
    engine: Option<Engine>,
}

impl Admin {
    /// Takes what is to be checked, counted and looked up.
    pub fn new(
        checks: Vec<Arc<dyn Check>>,
        metrics: Arc<Registry>,
        gauges: Option<Arc<dyn Gauges>>,
    ) -> Self {
        Self { checks: Arc::new(checks), metrics, gauges, engine: None }
    }

    /// Says with its checks what the store of an engine survives.
    pub fn with_durability(self, engine: &Engine) -> Self {
        Self { engine: Some(engine.clone()), ..self }
    }

    async fn durability(&self) -> Option<Durability> {
        let durable = tokio::time::timeout(CHECK_TIME_MAX, self.engine.as_ref()?.is_durable());
        match durable.await.ok()?.ok()? {
            true => Some(Durability::Full),
            false => Some(Durability::Relaxed),
        }
    }
}

/// Gives the admin endpoints alone, for processes that serve nothing else.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route(paths::HEALTH, get(health))
        .route(READY, get(|State(admin): State<Admin>| async move { ready(&admin).await }))
        .route(METRICS, get(|State(admin): State<Admin>| async move { metrics(&admin).await }))
        .with_state(admin)
}

/// Serves the admin endpoints alone until `shutdown`.
pub async fn serve(
    listener: tokio::net::TcpListener,
    admin: Admin,
    shutdown: tokio_util::sync::CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener, router(admin)).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

/// Says that the process answers.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Alive {
    /// Always true.
    ok: bool,
    /// Version of the server.
    version: &'static str,
}

/// Says that the process can work.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Ready {
    /// Always true; otherwise the answer is a problem.
    ok: bool,
    /// What was looked at.
    checks: Vec<String>,
    /// What a write that the store has answered survives; `relaxed` is no fault, but effects
    /// that need an intent are refused unless the operator has accepted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    durability: Option<Durability>,
}

/// Says whether the process lives.
#[utoipa::path(get, path = paths::HEALTH, tag = "admin", responses((status = 200, body = Alive)))]
pub(crate) async fn health() -> Json<Alive> {
    Json(Alive { ok: true, version: env!("CARGO_PKG_VERSION") })
}

/// Looks at everything the process needs.
pub(crate) async fn ready(admin: &Admin) -> Response {
    let checks = admin.checks.iter().map(|check| async {
        let result = tokio::time::timeout(CHECK_TIME_MAX, check.check()).await;
        let late = || Err(format!("no answer within {} s", CHECK_TIME_MAX.as_secs()));
        (check.name().to_owned(), result.unwrap_or_else(|_| late()))
    });
    let results = futures::future::join_all(checks).await;
    let faults: Vec<String> = results
        .iter()
        .filter_map(|(name, result)| Some(format!("{name}: {}", result.as_ref().err()?)))
        .collect();
    if !faults.is_empty() {
        return Fail::unavailable(faults.join("; ")).into_response();
    }
    let checks = results.into_iter().map(|(name, _)| name).collect();
    let durability = admin.durability().await;
    Json(Ready { ok: true, checks, durability }).into_response()
}

/// Gives what was counted and what is looked up now.
pub(crate) async fn metrics(admin: &Admin) -> Response {
    let mut looked_up = Registry::default();
    if let Some(gauges) = &admin.gauges {
        register(&mut looked_up, gauges.read().await);
    }
    let mut text = String::new();
    let encoded = encode_registry(&mut text, &admin.metrics)
        .and_then(|()| encode_registry(&mut text, &looked_up))
        .and_then(|()| encode_eof(&mut text));
    match encoded {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => Fail::internal(&error).into_response(),
    }
}

fn register(registry: &mut Registry, gauges: Vec<Gauge>) {
    type Values = Family<Vec<(&'static str, String)>, Metric>;
    let mut families: BTreeMap<&'static str, (&'static str, Values)> = BTreeMap::new();
    for Gauge { name, help, labels, value } in gauges {
        let (_, family) = families.entry(name).or_insert_with(|| (help, Values::default()));
        family.get_or_create(&labels).set(value);
    }
    for (name, (help, family)) in families {
        registry.register(name, help, family);
    }
}
