//! Runs handlers without a server, for the tests of those who write them.
//!
//! ```
//! use standfast_sdk::{Context, HandlerError, testing};
//!
//! async fn double(context: Context, input: u32) -> Result<u32, HandlerError> {
//!     context.log("doubling");
//!     Ok(input * 2)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let ended = testing::run_handler(double, 21).await;
//! assert_eq!(ended.output(), Some(&42.into()));
//! assert_eq!(ended.log, "doubling\n");
//! # }
//! ```

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use standfast_protocol::claims::{Claim, Outcome};

use crate::handler::{HandlerError, erase};
use crate::worker::{Context, Place, flat, outcome};

/// What came of a handler that was run without a server.
#[derive(Clone, Debug)]
pub struct Ended {
    /// What a worker would have reported.
    pub outcome: Outcome,
    /// All that was logged.
    pub log: String,
    /// The artifacts left, by name.
    pub artifacts: BTreeMap<String, Bytes>,
    /// The details of the last heartbeat.
    pub details: Option<String>,
}

impl Ended {
    /// Gives the output, if the handler succeeded.
    pub fn output(&self) -> Option<&Value> {
        match &self.outcome {
            Outcome::Succeeded { output, .. } => Some(output),
            Outcome::Failed { .. } => None,
        }
    }
}

/// An attempt to run a handler in: task `test`, step `step`, attempt and round 1.
#[derive(Clone, Debug)]
pub struct Attempt {
    claim: Claim,
    bench: Bench,
    cancelled: bool,
}

impl Default for Attempt {
    fn default() -> Self {
        let claim = Claim {
            task: "test".to_owned(),
            step: "step".to_owned(),
            attempt: 1,
            epoch: 1,
            round: 1,
            handler: "test".to_owned(),
            input: Value::Null,
            failure: None,
            attempt_deadline_ms: None,
            heartbeat_ms: 10_000,
            heartbeat_timeout_ms: None,
            last_details: None,
            expires_ms: 30_000,
            inputs: Vec::new(),
            artifact: None,
            traceparent: None,
        };
        Self { claim, bench: Bench::default(), cancelled: false }
    }
}

impl Attempt {
    /// Adds an artifact of a step that this one needs.
    pub fn input_artifact(self, step: &str, name: &str, bytes: impl Into<Bytes>) -> Self {
        self.bench.lock().inputs.insert((step.to_owned(), name.to_owned()), bytes.into());
        self
    }

    /// Runs in a later round, which a failure led to.
    pub fn round(mut self, round: u32, failure: Value) -> Self {
        self.claim.round = round;
        self.claim.failure = Some(failure);
        self
    }

    /// Runs after an attempt that said this of its progress and did not succeed.
    pub fn last_details(mut self, details: impl Into<String>) -> Self {
        self.claim.last_details = Some(details.into());
        self
    }

    /// Tells the handler to end before it begins.
    pub fn cancelled(mut self) -> Self {
        self.cancelled = true;
        self
    }

    /// Runs a handler with an input, through JSON as a worker does. A panic is caught and
    /// becomes a failure.
    pub async fn run<I, O, F, Fut>(self, handler: F, input: impl Serialize) -> Ended
    where
        I: DeserializeOwned + Send + 'static,
        O: Serialize + Send + 'static,
        F: Fn(Context, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, HandlerError>> + Send + 'static,
    {
        let place = Place::Bench(self.bench.clone());
        let context = Context::new(self.claim, "test".to_owned(), place);
        if self.cancelled {
            context.cancellation().cancel();
        }
        let ended = match serde_json::to_value(input) {
            Ok(input) => flat(tokio::spawn(erase(handler)(context.clone(), input)).await),
            Err(error) => Err(HandlerError::permanent(format!("write the input: {error}"))),
        };
        Ended {
            outcome: outcome(&context, ended),
            log: context.log_buffer().text(),
            artifacts: self.bench.lock().artifacts.clone(),
            details: context.details(),
        }
    }
}

/// Runs a handler with an input in an attempt of its own.
pub async fn run_handler<I, O, F, Fut>(handler: F, input: impl Serialize) -> Ended
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
    F: Fn(Context, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, HandlerError>> + Send + 'static,
{
    Attempt::default().run(handler, input).await
}

/// Artifacts in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bench {
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug, Default)]
struct Shelf {
    inputs: BTreeMap<(String, String), Bytes>,
    artifacts: BTreeMap<String, Bytes>,
}

impl Bench {
    pub(crate) fn put(&self, name: &str, bytes: Bytes) {
        self.lock().artifacts.insert(name.to_owned(), bytes);
    }

    pub(crate) fn input(&self, step: &str, name: &str) -> Option<Bytes> {
        self.lock().inputs.get(&(step.to_owned(), name.to_owned())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
