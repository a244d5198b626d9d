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

use std::sync::Once;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use serde::Deserialize;
use standfast_domain::ids::{StepId, TaskId, WorkerId};
use standfast_domain::refusal::Refusal;
use standfast_domain::view::Attempt;
use standfast_engine::Engine;
use standfast_engine::ports::{Source, Subscription};
use standfast_protocol::claims::{ControlAnswer, ControlQuery};
use standfast_protocol::paths;
use tokio::sync::{Semaphore, broadcast};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

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
/// Messages that wait for a request that is slow; one that has missed some looks.
const WORDS_MAX: usize = 1_024;
/// Messages that the broker may send ahead.
const PREFETCH: u16 = 500;
/// The pause before a broker that has refused is asked again.
const AGAIN: Duration = Duration::from_secs(30);

/// What a message says: all attempts of a task, or one.
#[derive(Clone, Debug, Deserialize)]
struct Word {
    task: TaskId,
    step: Option<StepId>,
    attempt: Option<u32>,
}

impl Word {
    fn means(&self, task: &TaskId, at: &Attempt) -> bool {
        self.task == *task
            && self.step.as_ref().is_none_or(|step| *step == at.step)
            && self.attempt.is_none_or(|attempt| attempt == at.attempt)
    }
}

/// What this process hears of attempts that are to end. It listens from the first request on.
pub(crate) struct Control {
    /// Words; none stands for "look, whoever you are".
    heard: broadcast::Sender<Option<Word>>,
    waiting: Semaphore,
    following: Once,
}

impl Default for Control {
    fn default() -> Self {
        let heard = broadcast::Sender::new(WORDS_MAX);
        Self { heard, waiting: Semaphore::new(WAITING_MAX), following: Once::new() }
    }
}

impl Control {
    /// How many more requests may wait.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.waiting.available_permits()
    }

    fn listen(
        &self,
        engine: &Engine,
        shutdown: &CancellationToken,
    ) -> broadcast::Receiver<Option<Word>> {
        self.following.call_once(|| {
            let following = follow(engine.clone(), self.heard.clone());
            tokio::spawn(shutdown.clone().run_until_cancelled_owned(following));
        });
        self.heard.subscribe()
    }
}

/// Passes on what the broker says. One that refuses is asked again: looks do meanwhile.
async fn follow(engine: Engine, heard: broadcast::Sender<Option<Word>>) {
    let listener = format!("api-{}", uuid::Uuid::new_v4().simple());
    let mut refused = false;
    loop {
        let source = Source::Control { listener: listener.clone() };
        match engine.broker().subscribe(source, PREFETCH).await {
            Ok(subscription) => {
                refused = false;
                let _ = heard.send(None); // what was said before; nobody may be waiting
                pass_on(subscription, &heard).await;
            }
            Err(fault) if !refused => {
                tracing::warn!(%fault, "workers outside hear later of stops; retrying");
                refused = true;
            }
            Err(_) => {}
        }
        sleep(AGAIN).await;
    }
}

async fn pass_on(mut subscription: Box<dyn Subscription>, heard: &broadcast::Sender<Option<Word>>) {
    while let Some(delivery) = subscription.next().await {
        match (delivery.body.is_empty(), serde_json::from_slice::<Word>(&delivery.body)) {
            (true, _) => drop(heard.send(None)),
            (false, Ok(word)) => drop(heard.send(Some(word))),
            (false, Err(_)) => tracing::debug!("a control message cannot be read"),
        }
        delivery.acker.ack().await;
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
    let mut words = api.control().listen(api.engine(), api.shutdown());
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
            () = heard(&mut words, &task, &at) => {}
            () = sleep_until(until.min(Instant::now() + LOOK)) => {}
        }
        caller.still(&api).await?;
    }
}

/// Ends when something was said that an attempt may be meant by. Having missed some counts too.
async fn heard(words: &mut broadcast::Receiver<Option<Word>>, task: &TaskId, at: &Attempt) {
    loop {
        match words.recv().await {
            Ok(Some(word)) if !word.means(task, at) => {}
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_a_whole_task_or_one_attempt() {
        let task = |byte| TaskId::random([byte; 16]);
        let at = Attempt {
            step: StepId::new("a").unwrap(),
            attempt: 2,
            epoch: 1,
            worker: WorkerId::new("w").unwrap(),
        };
        for (of, more, means) in [
            (1, "", true),
            (2, "", false),
            (1, r#", "step": "a", "attempt": 2, "epoch": 1"#, true),
            (1, r#", "step": "a", "attempt": 1, "epoch": 1"#, false),
            (1, r#", "step": "b", "attempt": 2, "epoch": 1"#, false),
        ] {
            let text = format!(r#"{{"what": "x", "task": "{}"{more}}}"#, task(of));
            let word: Word = serde_json::from_str(&text).unwrap();
            assert_eq!(word.means(&task(1), &at), means, "{text}");
        }
    }
}
