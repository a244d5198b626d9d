//! The HTTP client: submit, read, answer, stop.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use serde::Serialize;
use standfast_protocol::artifacts::{ArtifactPage, ArtifactView};
use standfast_protocol::bulk_stops::{
    AttemptStopped, CountStopsRequest, StopAttemptRequest, StopManyRequest, StopsCounted, StopsDone,
};
use standfast_protocol::events::{EventPage, EventQuery};
use standfast_protocol::explain::Explain;
use standfast_protocol::headers::IDEMPOTENCY_KEY;
use standfast_protocol::holds::{AnswerRequest, Answered};
use standfast_protocol::logs::{LogPage, LogQuery};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::steps::{StepPage, StepQuery, StepView};
use standfast_protocol::stops::{Settlement, StopPlan, StopPlanQuery};
use standfast_protocol::task_effects::{EffectPage, EffectQuery};
use standfast_protocol::tasks::{HandOverRequest, HandedOver};
use standfast_protocol::tasks::{PauseRequest, Paused, StopRequest, Stopped};
use standfast_protocol::tasks::{SubmitRequest, Submitted};
use standfast_protocol::tasks::{TaskPage, TaskQuery, TaskView};
use standfast_protocol::verify::VerifyReport;

use crate::checked_bytes::checked;
use crate::error::Error;
use crate::events::EventStream;
use crate::http::{ANSWER_TIMEOUT, Http, Repeat};

/// A client of one api. Cheap to clone; clones share their connections.
///
/// Calls that may be repeated are repeated while the api does not answer or says "not now", for
/// as long as [`Client::patience`] allows. A submission carries a key, so it is one of them.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) http: Http,
}

impl Client {
    /// Makes a client; nothing is sent yet.
    pub fn new(url: &str, token: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self { http: Http::new(url, token.as_ref())? })
    }

    /// Sets how long a call is repeated, and a broken stream resumed; two minutes by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.http.set_patience(patience);
        self
    }

    /// Acts for another principal with every call. For the person of the embedded mode alone:
    /// other apis refuse it.
    pub fn acting_as(mut self, principal: &str) -> Result<Self, Error> {
        self.http.act_as(principal)?;
        Ok(self)
    }

    /// Submits a plan under a key made here: repeated calls make several tasks, the repetitions
    /// within one call do not.
    pub async fn submit(&self, plan: serde_json::Value) -> Result<Submitted, Error> {
        self.submit_keyed(&SubmitRequest { plan, plan_dir: None }, &new_key()).await
    }

    /// Submits a plan under the caller's key: the same key and plan lead to the same task.
    pub async fn submit_keyed(
        &self,
        request: &SubmitRequest,
        key: &str,
    ) -> Result<Submitted, Error> {
        let call = self.http.call(Method::POST, paths::TASKS).json(request)?;
        self.http.fetch(call.header(IDEMPOTENCY_KEY, key)?.repeat(Repeat::Freely)).await
    }

    /// Lists tasks.
    pub async fn list(&self, query: &TaskQuery) -> Result<TaskPage, Error> {
        self.http.fetch(self.http.call(Method::GET, paths::TASKS).query(query.to_pairs())).await
    }

    /// Reads a task.
    pub async fn get(&self, task: &str) -> Result<TaskView, Error> {
        self.read(&fill(paths::TASK, &[task])).await
    }

    /// Waits until a task has ended, however long that is, and reads it.
    pub async fn wait(&self, task: &str) -> Result<TaskView, Error> {
        let view = self.get(task).await?;
        if view.state.is_ended() {
            return Ok(view);
        }
        let mut events = self.events(task, None);
        while events.next().await?.is_some() {}
        self.get(task).await
    }

    /// Answers the six questions about a task.
    pub async fn explain(&self, task: &str) -> Result<Explain, Error> {
        self.read(&fill(paths::EXPLAIN, &[task])).await
    }

    /// Lists a task's steps.
    pub async fn steps(&self, task: &str, query: &StepQuery) -> Result<StepPage, Error> {
        let call = self.http.call(Method::GET, &fill(paths::STEPS, &[task]));
        self.http.fetch(call.query(query_pairs(query)?)).await
    }

    /// Reads a step, its output included.
    pub async fn step(&self, task: &str, step: &str) -> Result<StepView, Error> {
        self.read(&fill(paths::STEP, &[task, step])).await
    }

    /// Lists what a task has changed outside, or may have.
    pub async fn effects(&self, task: &str, query: &EffectQuery) -> Result<EffectPage, Error> {
        let call = self.http.call(Method::GET, &fill(paths::TASK_EFFECTS, &[task]));
        self.http.fetch(call.query(query_pairs(query)?)).await
    }

    /// Reads a part of the log of a step's attempt.
    pub async fn log(&self, task: &str, step: &str, query: &LogQuery) -> Result<LogPage, Error> {
        let call = self.http.call(Method::GET, &fill(paths::STEP_LOG, &[task, step]));
        let call = call.timeout(Some(waiting(query.wait_ms)));
        self.http.fetch(call.query(query_pairs(query)?)).await
    }

    /// Reads a page of a task's events.
    pub async fn event_page(&self, task: &str, query: &EventQuery) -> Result<EventPage, Error> {
        let call = self.http.call(Method::GET, &fill(paths::EVENTS, &[task]));
        let call = call.timeout(Some(waiting(query.wait_ms)));
        self.http.fetch(call.query(query_pairs(query)?)).await
    }

    /// Follows a task's events until it has ended, from the beginning or after a cursor. A
    /// broken stream is resumed where it broke.
    pub fn events(&self, task: &str, after: Option<String>) -> EventStream {
        EventStream::new(self.http.clone(), task.to_owned(), after)
    }

    /// Answers the hold of a step, or without a step the task's own.
    pub async fn answer(
        &self,
        task: &str,
        step: Option<&str>,
        answer: &AnswerRequest,
    ) -> Result<Answered, Error> {
        let path = match step {
            Some(step) => fill(paths::STEP_ANSWERS, &[task, step]),
            None => fill(paths::TASK_ANSWERS, &[task]),
        };
        let call = self.http.call(Method::POST, &path).json(answer)?;
        self.http.fetch(call.repeat(Repeat::IfNotTaken)).await
    }

    /// Stops a task. Twice is once.
    pub async fn stop(&self, task: &str, request: &StopRequest) -> Result<Stopped, Error> {
        let call = self.http.call(Method::POST, &fill(paths::STOP, &[task])).json(request)?;
        self.http.fetch(call.repeat(Repeat::Freely)).await
    }

    /// Says what a stop would do now.
    pub async fn stop_plan(&self, task: &str, query: &StopPlanQuery) -> Result<StopPlan, Error> {
        let call = self.http.call(Method::GET, &fill(paths::STOP_PLAN, &[task]));
        self.http.fetch(call.query(query_pairs(query)?)).await
    }

    /// Says what a stop came to, or has come to so far.
    pub async fn settlement(&self, task: &str) -> Result<Settlement, Error> {
        self.read(&fill(paths::SETTLEMENT, &[task])).await
    }

    /// Counts a page of the tasks that a stop by a filter would stop.
    pub async fn count_stops(&self, request: &CountStopsRequest) -> Result<StopsCounted, Error> {
        let call = self.http.call(Method::POST, paths::STOPS_COUNT).json(request)?;
        self.http.fetch(call.repeat(Repeat::Freely)).await
    }

    /// Stops a page of the tasks that match a filter; call it again with `next_cursor` until
    /// there is none.
    pub async fn stop_many(&self, request: &StopManyRequest) -> Result<StopsDone, Error> {
        let call = self.http.call(Method::POST, paths::STOPS).json(request)?;
        self.http.fetch(call.repeat(Repeat::Freely)).await
    }

    /// Stops one attempt of a step, so that another one starts, at no charge. Twice is once.
    pub async fn stop_attempt(
        &self,
        task: &str,
        step: &str,
        attempt: u32,
        request: &StopAttemptRequest,
    ) -> Result<AttemptStopped, Error> {
        let path = fill(paths::ATTEMPT_STOP, &[task, step, &attempt.to_string()]);
        let call = self.http.call(Method::POST, &path).json(request)?;
        self.http.fetch(call.repeat(Repeat::Freely)).await
    }

    /// Pauses a task. Twice is once.
    pub async fn pause(&self, task: &str, request: &PauseRequest) -> Result<Paused, Error> {
        let call = self.http.call(Method::POST, &fill(paths::PAUSE, &[task])).json(request)?;
        self.http.fetch(call.repeat(Repeat::Freely)).await
    }

    /// Ends every pause of a task. Twice is once.
    pub async fn resume(&self, task: &str, request: &PauseRequest) -> Result<Paused, Error> {
        let call = self.http.call(Method::POST, &fill(paths::RESUME, &[task])).json(request)?;
        self.http.fetch(call.repeat(Repeat::Freely)).await
    }

    /// Gives a task to another owner. Twice is once.
    pub async fn hand_over(
        &self,
        task: &str,
        request: &HandOverRequest,
    ) -> Result<HandedOver, Error> {
        let call = self.http.call(Method::POST, &fill(paths::HAND_OVER, &[task])).json(request)?;
        self.http.fetch(call.repeat(Repeat::Freely)).await
    }

    /// Lists a task's artifacts.
    pub async fn artifacts(&self, task: &str) -> Result<ArtifactPage, Error> {
        self.read(&fill(paths::ARTIFACTS, &[task])).await
    }

    /// Reads the bytes of an artifact and checks them against its digest.
    pub async fn artifact(&self, task: &str, artifact: &ArtifactView) -> Result<Bytes, Error> {
        let path = fill(paths::ARTIFACT, &[task, &artifact.step, &artifact.name]);
        checked(&self.http, &path, &artifact.sha256).await
    }

    /// Checks a task's history against its records.
    pub async fn verify(&self, task: &str) -> Result<VerifyReport, Error> {
        self.read(&fill(paths::VERIFY, &[task])).await
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.http.fetch(self.http.call(Method::GET, path)).await
    }
}

/// Makes a key that nobody else has.
pub(crate) fn new_key() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Gives the time to allow a call that asks the server to wait.
pub(crate) fn waiting(wait_ms: Option<u64>) -> Duration {
    ANSWER_TIMEOUT + Duration::from_millis(wait_ms.unwrap_or(0))
}

/// Writes a flat structure as query parameters; what is absent is left out.
pub(crate) fn query_pairs(query: &impl Serialize) -> Result<Vec<(String, String)>, Error> {
    let fields: std::collections::BTreeMap<String, serde_json::Value> =
        serde_json::from_value(serde_json::to_value(query)?)?;
    let text = |value| match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(fields.into_iter().map(|(name, value)| (name, text(value))).collect())
}
