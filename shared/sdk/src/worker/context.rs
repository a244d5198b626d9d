//! What a handler knows of its attempt, and what it can leave there.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use serde_json::Value;
use standfast_protocol::artifacts::ArtifactView;
use standfast_protocol::claims::{Claim, Holder, Outcome};
use standfast_protocol::headers::OCTETS;
use standfast_protocol::paths::{self, fill};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::log_buffer::LogBuffer;
use crate::checked_bytes::{checked, sha256};
use crate::client::query_pairs;
use crate::error::Error;
use crate::http::{Http, Repeat};
use crate::testing::Bench;

/// Longest time for one artifact to be sent: the largest, over a slow line.
const ARTIFACT_TIMEOUT: Duration = Duration::from_secs(300);

/// An attempt as its handler sees it. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    claim: Claim,
    holder: Holder,
    place: Place,
    cancel: CancellationToken,
    log: LogBuffer,
    cost_usd_micros: AtomicU64,
    notes: Mutex<Notes>,
}

/// Where artifacts come from and go to.
pub(crate) enum Place {
    /// The api that gave the claim.
    Api(Http),
    /// A test without a server.
    Bench(Bench),
}

struct Notes {
    details: Option<String>,
    /// How often the handler has given a sign of life, and how many of those were told.
    beats: u64,
    told: u64,
    beaten_at: Instant,
    checkpoint: Option<String>,
    artifacts: Vec<String>,
    then: Vec<Value>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("task", &self.inner.claim.task)
            .field("step", &self.inner.claim.step)
            .field("attempt", &self.inner.claim.attempt)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn new(claim: Claim, worker: String, place: Place) -> Self {
        let holder = Holder { worker, attempt: claim.attempt, epoch: claim.epoch };
        let inner = Inner {
            claim,
            holder,
            place,
            cancel: CancellationToken::new(),
            log: LogBuffer::default(),
            cost_usd_micros: AtomicU64::new(0),
            notes: Mutex::new(Notes {
                details: None,
                beats: 0,
                told: 0,
                beaten_at: Instant::now(),
                checkpoint: None,
                artifacts: Vec::new(),
                then: Vec::new(),
            }),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Gives the task's id.
    pub fn task(&self) -> &str {
        &self.inner.claim.task
    }

    /// Gives the step's name.
    pub fn step(&self) -> &str {
        &self.inner.claim.step
    }

    /// Gives the attempt's number.
    pub fn attempt(&self) -> u32 {
        self.inner.claim.attempt
    }

    /// Gives the step's round, from 1.
    pub fn round(&self) -> u32 {
        self.inner.claim.round
    }

    /// Gives the failure that led to this round; nothing in round one.
    pub fn failure(&self) -> Option<&Value> {
        self.inner.claim.failure.as_ref()
    }

    /// Gives the trace context to continue.
    pub fn traceparent(&self) -> Option<&str> {
        self.inner.claim.traceparent.as_deref()
    }

    /// Gives a key that is the same for all attempts of this step in this round, to send along
    /// with a request that the other side should carry out once.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}/{}", self.task(), self.step(), self.round())
    }

    /// Gives the token that is cancelled when the attempt should end: the task is stopped, the
    /// attempt's time is over, its claim is lost, or the worker shuts down.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.inner.cancel
    }

    /// Says whether the attempt should end.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancel.is_cancelled()
    }

    /// Writes a line to the attempt's log. It is sent soon; a log that cannot be sent does not
    /// fail the attempt.
    pub fn log(&self, line: impl AsRef<str>) {
        self.inner.log.push_line(line.as_ref());
    }

    /// Says how far the attempt is, in a line that is shown beside the step, and gives a sign of
    /// life: under a `timeout.heartbeat` of its step, a handler must do so within that time
    /// again and again. If the attempt does not succeed, the next one finds the last details in
    /// [`Context::last_details`]; so they may be what it needs to go on from there, at most 4
    /// KiB. Costs nothing: details travel with the worker's own heartbeats.
    pub fn heartbeat(&self, details: impl Into<String>) {
        let mut notes = self.notes();
        notes.details = Some(details.into());
        notes.beats += 1;
        notes.beaten_at = Instant::now();
    }

    /// Gives what the attempt before this one last said of its progress, in the same round;
    /// nothing in a first attempt.
    pub fn last_details(&self) -> Option<&str> {
        self.inner.claim.last_details.as_deref()
    }

    /// Adds to what the attempt costs, in micro-dollars.
    pub fn add_cost(&self, usd_micros: u64) {
        self.inner.cost_usd_micros.fetch_add(usd_micros, Ordering::Relaxed);
    }

    /// Names the point that is reached when the attempt succeeds.
    pub fn checkpoint(&self, name: impl Into<String>) {
        self.notes().checkpoint = Some(name.into());
    }

    /// Adds a step, in the form of a plan's steps, when the attempt succeeds. The server refuses
    /// what the task's lease does not allow.
    pub fn add_step(&self, step: Value) {
        self.notes().then.push(step);
    }

    /// Leaves an artifact: bytes under a name. The same name again replaces it.
    pub async fn artifact(
        &self,
        name: &str,
        bytes: impl Into<Bytes>,
    ) -> Result<ArtifactView, Error> {
        let bytes = bytes.into();
        let view = match &self.inner.place {
            Place::Api(http) => {
                let claim = &self.inner.claim;
                let path = fill(paths::CLAIM_ARTIFACT, &[&claim.task, &claim.step, name]);
                let call = http.call(Method::PUT, &path).body(OCTETS, bytes);
                let call = call.query(query_pairs(self.holder())?).repeat(Repeat::Freely);
                let call = call.timeout(Some(ARTIFACT_TIMEOUT));
                http.fetch(call).await?
            }
            Place::Bench(bench) => {
                let view = ArtifactView {
                    step: self.step().to_owned(),
                    name: name.to_owned(),
                    bytes: bytes.len() as u64,
                    sha256: sha256(&bytes),
                    url: String::new(),
                };
                bench.put(name, bytes);
                view
            }
        };
        let mut notes = self.notes();
        if !notes.artifacts.iter().any(|known| known == name) {
            notes.artifacts.push(name.to_owned());
        }
        Ok(view)
    }

    /// Leaves an artifact that is a file.
    pub async fn artifact_file(
        &self,
        name: &str,
        path: impl AsRef<Path>,
    ) -> Result<ArtifactView, Error> {
        let path = path.as_ref();
        let bytes = tokio::fs::read(path)
            .await
            .map_err(|source| Error::File { path: path.display().to_string(), source })?;
        self.artifact(name, bytes).await
    }

    /// Reads an artifact of a step that this one needs, and checks it against its digest.
    pub async fn input_artifact(&self, step: &str, name: &str) -> Result<Bytes, Error> {
        let mut inputs = self.inner.claim.inputs.iter();
        let input = inputs.find(|input| input.step == step && input.name == name);
        let missing = || Error::Setup(format!("read artifact {step}/{name}: not an input"));
        match &self.inner.place {
            Place::Api(http) => {
                let input = input.ok_or_else(missing)?;
                checked(http, &input.url, &input.sha256).await
            }
            Place::Bench(bench) => bench.input(step, name).ok_or_else(missing),
        }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.inner.claim
    }

    pub(crate) fn holder(&self) -> &Holder {
        &self.inner.holder
    }

    pub(crate) fn log_buffer(&self) -> &LogBuffer {
        &self.inner.log
    }

    /// Gives the last details, told or not.
    pub(crate) fn details(&self) -> Option<String> {
        self.notes().details.clone()
    }

    /// Gives the details that were not told yet, with what to note once they were.
    pub(crate) fn untold(&self) -> (Option<String>, u64) {
        let notes = self.notes();
        (notes.details.clone().filter(|_| notes.beats > notes.told), notes.beats)
    }

    /// Notes that details were told.
    pub(crate) fn told(&self, beats: u64) {
        self.notes().told = beats;
    }

    /// Waits until the handler has been silent for longer than its step allows.
    pub(crate) async fn silent(&self) {
        let Some(most) = self.inner.claim.heartbeat_timeout_ms.map(Duration::from_millis) else {
            return std::future::pending().await;
        };
        loop {
            let silent_at = self.notes().beaten_at + most;
            if silent_at <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(silent_at).await;
        }
    }

    pub(crate) fn cost_usd_micros(&self) -> u64 {
        self.inner.cost_usd_micros.load(Ordering::Relaxed)
    }

    /// Makes the outcome of a handler that gave an output.
    pub(crate) fn succeeded(&self, output: Value) -> Outcome {
        let notes = self.notes();
        Outcome::Succeeded {
            output,
            artifacts: notes.artifacts.clone(),
            cost_usd_micros: self.cost_usd_micros(),
            checkpoint: notes.checkpoint.clone(),
            then: notes.then.clone(),
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.inner.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
