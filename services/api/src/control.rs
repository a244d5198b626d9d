//! Word for workers outside that an attempt is to end, as soon as it is known.
//!
//! ```text
//! whoever commits a stop ── control message ──▶ this process ──▶ requests that wait for it
//!                                                                  │ look at the store
//!                                                                  ▼
//!                                        worker: a heartbeat now, and its answer counts
//! ```
//!
//! A message is never believed: it makes a request look. What is lost is found by a look every
//! few seconds, and by the heartbeats at the latest.

use std::sync::{Arc, Once};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use standfast_domain::ids::{TaskId, WorkerId};
use standfast_domain::refusal::Refusal;
use standfast_domain::view::Attempt;
use standfast_engine::recalls::{Listener, Recalls};
use standfast_protocol::claims::{ControlAnswer, ControlQuery};
use standfast_protocol::paths;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use crate::Api;
use crate::auth::{By, needs};
use crate::claims::known;
use crate::extract::{self, Place};
use crate::problems::Fail;

/// Requests that may wait for word at once. Each costs a look at the store every few seconds, so
/// that this many cost less than their attempts' heartbeats. Those beyond are told to come back.
const WAITING_MAX: usize = 2_000;
/// The time between two looks while nothing is heard: for messages that were lost.
const LOOK: Duration = Duration::from_secs(5);

/// What this process hears of attempts that are to end. It listens from the first request on.
pub(crate) struct Control {
    recalls: Arc<Recalls>,
    waiting: Semaphore,
    following: Once,
}

impl Default for Control {
    fn default() -> Self {
        let waiting = Semaphore::new(WAITING_MAX);
        Self { recalls: Arc::default(), waiting, following: Once::new() }
    }
}

impl Control {
    /// How many more requests may wait.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.waiting.available_permits()
    }

    fn listen(&self, api: &Api, task: &TaskId, at: &Attempt) -> Listener<'_> {
        self.following.call_once(|| {
            let name = format!("api-{}", uuid::Uuid::new_v4().simple());
            let following = self.recalls.clone().follow(api.engine().clone(), name);
            tokio::spawn(api.shutdown().clone().run_until_cancelled_owned(following));
        });
        self.recalls.listen(task, &at.step, at.attempt)
    }
}

/// Waits until an attempt is to end: told by its answer, or by a refusal if the claim is lost.
#[utoipa::path(get, path = paths::CONTROL, tag = "claims",
    params(
        ("task" = String, Path, description = "the task"),
        ("step" = String, Path, description = "the step"),
        ControlQuery,
    ),
    responses((status = 200, body = ControlAnswer)))]
pub(crate) async fn control(
    State(api): State<Api>,
    mut caller: By<needs::Work>,
    place: Place,
    uri: Uri,
) -> Result<Json<ControlAnswer>, Fail> {
    let query: ControlQuery = extract::query(&uri)?;
    let longest = extract::wait(query.wait_ms)?;
    let (task, step) = (place.task()?, place.step()?);
    let (attempt, epoch) = (query.attempt, query.epoch);
    let worker = WorkerId::new(query.worker)
        .map_err(|_| Fail::from(Refusal::Fenced { step: step.clone(), attempt }))?;
    let at = Attempt { step, attempt, epoch, worker };
    // It listens before it looks, so that nothing falls in between.
    let listener = api.control().listen(&api, &task, &at);
    let _permit = match longest.is_zero() {
        true => None,
        false => Some(api.control().waiting.try_acquire().map_err(|_| {
            Fail::too_many("too many requests wait for word already; heartbeats tell the same")
        })?),
    };
    let until = Instant::now() + longest;
    loop {
        let principal = (!caller.is_admin()).then(|| caller.principal().clone());
        let looked = api.claims().look(&task, &at, principal.as_ref()).await;
        let stop = known(&place, looked)?;
        if stop || Instant::now() >= until {
            return Ok(Json(ControlAnswer { stop }));
        }
        tokio::select! {
            () = api.shutdown().cancelled() => return Ok(Json(ControlAnswer { stop })),
            () = listener.beat.notified() => {}
            () = sleep_until(until.min(Instant::now() + LOOK)) => {}
        }
        caller.still(&api).await?;
    }
}
