//! Giving a task to another owner.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use standfast_domain::decide::Command;
use standfast_domain::ids::Principal;
use standfast_domain::record::Key;
use standfast_domain::rights::Right;
use standfast_protocol::limits::REQUEST_BYTES_MAX;
use standfast_protocol::paths;
use standfast_protocol::tasks::{HandOverRequest, HandedOver};

use crate::auth::{On, needs};
use crate::extract::{self, bad_parameter};
use crate::problems::Fail;
use crate::tasks::check_note;
use crate::{Api, present};

/// Gives a task to another owner. Doing so twice is doing it once.
#[utoipa::path(post, path = paths::HAND_OVER, tag = "tasks", request_body = HandOverRequest,
    params(("id" = String, Path, description = "the task")),
    responses((status = 200, body = HandedOver)))]
pub(crate) async fn hand_over(
    State(api): State<Api>,
    On { base, caller, .. }: On<needs::HandOver>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<HandedOver>, Fail> {
    let request: HandOverRequest = extract::json(&headers, body, REQUEST_BYTES_MAX).await?;
    check_note(request.reason.as_deref(), "/reason")?;
    let to = Principal::new(request.to).map_err(|fault| bad_parameter("/to", fault.to_string()))?;
    if to == Principal::system() {
        return Err(bad_parameter("/to", format!("`{to}` is Standfast itself and owns nothing")));
    }
    if !caller.identity.may_hand_to(&to) {
        let detail = format!("your token does not allow `{to}` as owner");
        return Err(Fail::forbidden(Right::HandOver, detail).about(&base.task));
    }
    let (from, reason) = (base.meta.owner.clone(), request.reason);
    let command = Command::HandOver { from, to, reason };
    let wants = vec![Key::Header, Key::Owner];
    let actor = caller.principal().clone();
    let done = api.engine().execute(&base.task, command, actor, wants).await?;
    let (header, owner) = (done.records.header(), done.records.owner());
    let (Ok(header), Ok(owner)) = (header, owner) else {
        return Err(Fail::internal(&"a hand-over gave no records"));
    };
    Ok(Json(HandedOver {
        id: base.task.to_string(),
        owner: owner.owner.to_string(),
        state: present::task::state(header.state),
    }))
}
