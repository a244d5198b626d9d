//! The OpenAPI document and the JSON Schema of a plan, as they are served.

use axum::Json;
use serde_json::Value;
use standfast_domain::plan::schema::plan_schema;
use standfast_protocol::headers::PROBLEM_JSON;
use standfast_protocol::paths;
use standfast_protocol::problem::Problem;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use crate::workers;
use crate::{
    admin, answers, artifacts, attempts, bulk_stops, claims, control, effects, events, explain,
    hand_over, list, logs, puts, steps, stops, task_effects, tasks,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Standfast",
        description = "Durable tasks: submit, follow, explain, answer, stop.",
        license(name = "MIT OR Apache-2.0")
    ),
    paths(
        tasks::submit, list::list, tasks::get, explain::explain,
        tasks::pause, tasks::resume, hand_over::hand_over, tasks::verify,
        stops::plan, stops::stop, stops::settlement,
        steps::list, steps::get, task_effects::effects, logs::log,
        artifacts::list, artifacts::download,
        attempts::stop, bulk_stops::stop, bulk_stops::count,
        events::events, answers::to_task, answers::to_step,
        workers::announce, claims::claim, claims::heartbeat, control::control, claims::complete,
        claims::hand_back, effects::intend, effects::receipt, effects::not_landed,
        puts::log, puts::artifact,
        schema, openapi, admin::health, ready, metrics,
    ),
    components(schemas(Problem)),
    modifiers(&Common),
)]
struct Description;

/// Adds what all operations share: the token, and problems as errors.
struct Common;

impl Modify for Common {
    fn modify(&self, document: &mut Document) {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("token", bearer);
        document.security = Some(vec![SecurityRequirement::new::<_, _, &str>("token", [])]);
        for item in document.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.post, &mut item.put];
            for operation in operations.into_iter().flatten() {
                let responses = &mut operation.responses.responses;
                responses.insert("default".to_owned(), RefOr::T(problem()));
                // Handlers of several areas are named alike; clients need names of their own.
                if let (Some(id), Some(tags)) = (&mut operation.operation_id, &operation.tags) {
                    *id = format!("{}_{id}", tags.join("_"));
                }
            }
        }
        for path in [paths::HEALTH, admin::READY, paths::OPENAPI] {
            let item = document.paths.paths.get_mut(path);
            if let Some(operation) = item.and_then(|item| item.get.as_mut()) {
                operation.security = Some(vec![SecurityRequirement::default()]);
            }
        }
    }
}

fn problem() -> Response {
    let schema = Ref::from_schema_name("Problem");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new()
        .description("a problem (RFC 9457)")
        .content(PROBLEM_JSON, content)
        .build()
}

/// Gives the OpenAPI 3.1 document.
pub fn document() -> Value {
    serde_json::to_value(Description::openapi()).expect("the document is plain data")
}

/// Gives the JSON Schema of a plan.
#[utoipa::path(get, path = paths::PLAN_SCHEMA, tag = "tasks",
    responses((status = 200, body = Value)))]
pub(crate) async fn schema() -> Json<Value> {
    Json(plan_schema())
}

/// Gives this document.
#[utoipa::path(get, path = paths::OPENAPI, tag = "admin",
    responses((status = 200, body = Value)))]
pub(crate) async fn openapi() -> Json<Value> {
    Json(document())
}

/// Says whether the process can work; 503 names what is missing.
#[utoipa::path(get, path = admin::READY, tag = "admin",
    responses((status = 200, body = admin::Ready)))]
#[allow(dead_code, reason = "describes a route that is served in `admin`")]
fn ready() {}

/// Gives metrics in the OpenMetrics text format, to admins.
#[utoipa::path(get, path = admin::METRICS, tag = "admin",
    responses((status = 200, body = String, content_type = "application/openmetrics-text")))]
#[allow(dead_code, reason = "describes a route that is served in `admin`")]
fn metrics() {}
