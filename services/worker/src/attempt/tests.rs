//! Attempts whose handlers, claims and stores behave in every way.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::record::EffectClass;

use super::*;
use crate::handlers::testing::{effect, job, now};
use crate::handlers::{Fault, Success};
use crate::pool::Pool;

const PATIENCE: Duration = Duration::from_secs(20);

/// Blocks its thread until it is let go.
struct Blocking(Mutex<Receiver<()>>);

#[async_trait]
impl Handler for Blocking {
    fn name(&self) -> &str {
        "blocking"
    }

    fn check(&self, _: &Value) -> Vec<Fault> {
        Vec::new()
    }

    fn effect(&self, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }

    async fn run(&self, _: Job) -> handlers::Report {
        let gate = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match gate.recv_timeout(PATIENCE) {
            Ok(()) => handlers::Report::Succeeded(Success::default()),
            Err(error) => panic!("nobody let it go: {error}"),
        }
    }
}

// The runtime has one thread: on it, the handler would block what lets it go.
#[tokio::test(flavor = "current_thread")]
async fn handlers_that_block_their_threads_hold_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let run = HandlersRun::OnThreads(Arc::new(Pool::new()));
    let mut running = Vec::new();
    let mut gates = Vec::new();
    for _ in 0..5 {
        let (gate, opened) = channel();
        gates.push(gate);
        let handler = Arc::new(Blocking(Mutex::new(opened)));
        let job = job(folder.path(), Value::Null);
        let run = run.clone();
        running.push(tokio::spawn(async move { run_handler(handler, job, PATIENCE, &run).await }));
    }
    tokio::task::yield_now().await; // all of them have begun
    for gate in gates {
        gate.send(()).unwrap();
    }
    for running in running {
        let report = running.await.unwrap();
        assert_eq!(report, handlers::Report::Succeeded(Success::default()));
    }
}

/// Asks its gate, is told to end, and needs a minute more.
struct Sending;

#[async_trait]
impl Handler for Sending {
    fn name(&self) -> &str {
        "sending"
    }

    fn check(&self, _: &Value) -> Vec<Fault> {
        Vec::new()
    }

    fn effect(&self, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::Irreversible)
    }

    async fn run(&self, job: Job) -> handlers::Report {
        if let Some(effect) = &job.effect {
            effect.may_send(PATIENCE).await;
        }
        job.cancel.cancelled().await;
        let minute = tokio::time::timeout(Duration::from_secs(60), std::future::pending::<()>());
        let _ = minute.await; // of virtual time
        handlers::Report::Succeeded(Success::default())
    }
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_sent_is_waited_for_after_being_told_to_end() {
    let folder = tempfile::tempdir().unwrap();
    for sends in [true, false] {
        let gate = effect(EffectClass::Irreversible, now).0;
        let job = Job { effect: sends.then_some(gate), ..job(folder.path(), Value::Null) };
        job.cancel.cancel();
        let bound = Duration::from_secs(600);
        let report = run_handler(Arc::new(Sending), job, bound, &HandlersRun::Here).await;
        let ended = matches!(report, handlers::Report::Succeeded(_));
        assert_eq!(ended, sends, "{report:?}");
    }
}

#[tokio::test]
async fn a_panic_and_an_overrun_are_failures_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (gate, opened) = channel();
    drop(gate);
    let handler = Arc::new(Blocking(Mutex::new(opened)));
    let run = HandlersRun::OnThreads(Arc::new(Pool::new()));
    let report = run_handler(handler, job(folder.path(), Value::Null), PATIENCE, &run).await;
    let handlers::Report::Failed(failure) = report else { panic!("{report:?}") };
    assert_eq!(failure.class, Class::Retryable);
    assert!(failure.message.contains("the handler panicked: nobody let it go"), "{failure:?}");

    let (_gate, opened) = channel();
    let handler = Arc::new(Blocking(Mutex::new(opened)));
    let bound = Duration::from_millis(20);
    let report = run_handler(handler, job(folder.path(), Value::Null), bound, &run).await;
    let handlers::Report::Failed(failure) = report else { panic!("{report:?}") };
    assert_eq!(failure.class, Class::Timeout);
}

/// Says that it never keeps its thread, and panics or waits without end.
struct Waiting {
    panics: bool,
}

#[async_trait]
impl Handler for Waiting {
    fn name(&self) -> &str {
        "waiting"
    }

    fn check(&self, _: &Value) -> Vec<Fault> {
        Vec::new()
    }

    fn effect(&self, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }

    fn may_block(&self) -> bool {
        false
    }

    async fn run(&self, _: Job) -> handlers::Report {
        assert!(!self.panics, "it was to panic");
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_within_its_attempt_has_panics_and_overruns_of_its_own_too() {
    let folder = tempfile::tempdir().unwrap();
    let run = HandlersRun::OnThreads(Arc::new(Pool::new()));
    for (panics, class) in [(true, Class::Retryable), (false, Class::Timeout)] {
        let (handler, job) = (Arc::new(Waiting { panics }), job(folder.path(), Value::Null));
        let report = run_handler(handler, job, PATIENCE, &run).await;
        let handlers::Report::Failed(failure) = report else { panic!("{report:?}") };
        assert_eq!(failure.class, class, "{failure:?}");
    }
}
