//! A handler's run: where it runs, how long, and in silence for how long.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use standfast_domain::time::Span;
use standfast_engine::crash;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::handlers::{Class, Failure, Handler, Job, Pulse, Report};
use crate::pool::Pool;

/// What a handler may overrun its own deadline, or the moment it was told to end, by before it
/// is dropped: it needs some time to end its processes.
pub(super) const OVERRUN: Duration = Duration::from_secs(15);

/// Where handlers run.
#[derive(Clone)]
pub(crate) enum HandlersRun {
    /// Those that may block, on threads of their own: one that does holds nobody up.
    OnThreads(Arc<Pool>),
    /// All within their attempts, on the worker's runtime: for runs that are the same under one
    /// seed.
    Here,
}

/// Watches over a handler's silence.
pub(super) struct Silence {
    most: Option<Duration>,
    over: CancellationToken,
    _watching: Option<AbortOnDropHandle<()>>,
}

impl Silence {
    /// Cancels the attempt once its handler has been silent for longer than `most`.
    pub(super) fn watch(pulse: Pulse, most: Option<Duration>, cancel: CancellationToken) -> Self {
        let over = CancellationToken::new();
        let silent = over.clone();
        let _watching = most.map(|most| {
            AbortOnDropHandle::new(tokio::spawn(async move {
                pulse.silent(most).await;
                silent.cancel();
                cancel.cancel();
            }))
        });
        Self { most, over, _watching }
    }

    /// Says of an attempt that was cancelled for its silence that it was.
    pub(super) fn judge(&self, report: Report) -> Report {
        match (report, self.most) {
            (Report::Failed(failure), Some(most))
                if failure.class == Class::Cancelled && self.over.is_cancelled() =>
            {
                let most = Span::from_millis(u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
                let message = format!("its handler gave no sign of life for {most}");
                Failure { class: Class::Timeout, message, ..failure }.into()
            }
            (report, _) => report,
        }
    }
}

/// Runs the handler so that a panic and an endless one are only its own. One that may block its
/// thread runs apart: heartbeats, and all else that the worker does, share the runtime's few
/// threads. Dropping the future ends the handler where it next waits.
pub(super) async fn run_handler(
    handler: Arc<dyn Handler>,
    job: Job,
    bound: Duration,
    run: &HandlersRun,
) -> Report {
    let (cancel, effect) = (job.cancel.clone(), job.effect.clone());
    crash::point("handler.before");
    let told = async {
        cancel.cancelled().await;
        tokio::time::sleep(OVERRUN).await;
        if effect.is_some_and(|effect| effect.may_have_been_sent()) {
            std::future::pending::<()>().await; // its answer is worth the attempt's whole time
        }
    };
    let ended = tokio::select! {
        biased;
        ended = ran(handler, job, run) => ended,
        () = tokio::time::sleep(bound) => {
            let text = "it overran its time and did not end when told to";
            return Failure::new(Class::Timeout, text).into();
        }
        () = told => {
            let text = "it did not end when told to";
            return Failure::new(Class::Cancelled, text).into();
        }
    };
    crash::point("handler.after");
    ended
}

/// Gives what the handler reports, or that it did not come to a report.
async fn ran(handler: Arc<dyn Handler>, job: Job, run: &HandlersRun) -> Report {
    let ran = match run {
        HandlersRun::OnThreads(pool) if handler.may_block() => {
            let dropped = CancellationToken::new();
            let _end = dropped.clone().drop_guard();
            let (sender, report) = tokio::sync::oneshot::channel();
            let running = async move {
                let running = AssertUnwindSafe(handler.run(job)).catch_unwind();
                if let Some(ran) = dropped.run_until_cancelled(running).await {
                    let _ = sender.send(ran); // nobody waits for one that overran its time
                }
            };
            if let Err(error) = pool.run(running) {
                let text = format!("failed to start a thread: {error}");
                return Failure::new(Class::Retryable, text).into();
            }
            let Ok(ran) = report.await else {
                let text = "the handler ended without a report";
                return Failure::new(Class::Retryable, text).into();
            };
            ran
        }
        HandlersRun::OnThreads(_) | HandlersRun::Here => {
            AssertUnwindSafe(handler.run(job)).catch_unwind().await
        }
    };
    ran.unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Failure::new(Class::Retryable, format!("the handler panicked: {text}")).into()
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
