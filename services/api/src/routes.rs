//! The table of routes.

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Router, middleware};
use standfast_protocol::paths;
use standfast_protocol::problem::ProblemKind;

use crate::auth::{By, needs};
use crate::guard::guard;
use crate::problems::Fail;
use crate::{
    Api, admin, answers, artifacts, attempts, bulk_stops, claims, control, effects, events,
    explain, hand_over, list, logs, openapi, puts, steps, stops, task_effects, tasks, workers,
};

/// Gives all routes, each behind the guard; no `GET` changes anything.
pub(crate) fn router(api: &Api) -> Router {
    Router::new()
        .route(paths::TASKS, get(list::list).post(tasks::submit))
        .route(paths::TASK, get(tasks::get))
        .route(paths::EXPLAIN, get(explain::explain))
        .route(paths::STEPS, get(steps::list))
        .route(paths::STEP, get(steps::get))
        .route(paths::STEP_LOG, get(logs::log))
        .route(paths::TASK_EFFECTS, get(task_effects::effects))
        .route(paths::ARTIFACTS, get(artifacts::list))
        .route(paths::ARTIFACT, get(artifacts::download))
        .route(paths::EVENTS, get(events::events))
        .route(paths::TASK_ANSWERS, post(answers::to_task))
        .route(paths::STEP_ANSWERS, post(answers::to_step))
        .route(paths::STOP, post(stops::stop))
        .route(paths::STOP_PLAN, get(stops::plan))
        .route(paths::SETTLEMENT, get(stops::settlement))
        .route(paths::ATTEMPT_STOP, post(attempts::stop))
        .route(paths::STOPS, post(bulk_stops::stop))
        .route(paths::STOPS_COUNT, post(bulk_stops::count))
        .route(paths::PAUSE, post(tasks::pause))
        .route(paths::RESUME, post(tasks::resume))
        .route(paths::HAND_OVER, post(hand_over::hand_over))
        .route(paths::VERIFY, get(tasks::verify))
        .route(paths::WORKERS, post(workers::announce))
        .route(paths::CLAIMS, post(claims::claim))
        .route(paths::HEARTBEAT, post(claims::heartbeat))
        .route(paths::CONTROL, get(control::control))
        .route(paths::COMPLETE, post(claims::complete))
        .route(paths::HAND_BACK, post(claims::hand_back))
        .route(paths::EFFECT, post(effects::intend))
        .route(paths::EFFECT_RECEIPT, post(effects::receipt))
        .route(paths::EFFECT_NOT_LANDED, post(effects::not_landed))
        .route(paths::CLAIM_LOG, post(puts::log))
        .route(paths::CLAIM_ARTIFACT, put(puts::artifact))
        .route(paths::PLAN_SCHEMA, get(openapi::schema))
        .route(paths::OPENAPI, get(openapi::openapi))
        .route(paths::HEALTH, get(admin::health))
        .route(admin::READY, get(ready))
        .route(admin::METRICS, get(metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(api.clone(), guard))
        .with_state(api.clone())
}

async fn ready(State(api): State<Api>) -> Response {
    admin::ready(api.admin()).await
}

async fn metrics(State(api): State<Api>, _: By<needs::Administer>) -> Response {
    admin::metrics(api.admin()).await
}

async fn not_found(uri: Uri) -> Fail {
    Fail::not_found(format!("there is no path {}; see {}", uri.path(), paths::OPENAPI))
}

async fn not_allowed() -> Fail {
    let detail = "the path exists, the method does not; see the `Allow` header";
    Fail::new(ProblemKind::MethodNotAllowed, detail)
}
