//! How a worker ends.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Crew;
use crate::error::Error;

/// The two stages of an end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shutdown {
    /// Take nothing new.
    pub(crate) drain: CancellationToken,
    /// Hand back what still runs.
    pub(crate) now: CancellationToken,
}

/// The signals that ask a process to end.
pub(crate) struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    /// Begins to listen; from here on the signals no longer kill the process.
    pub(crate) fn listen() -> Result<Self, Error> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let terminate = signal(SignalKind::terminate())
                .map_err(|error| Error::Setup(format!("listen for SIGTERM: {error}")))?;
            Ok(Self { terminate })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Takes the first signal as "end", the second as "now".
    pub(crate) async fn drive(mut self, shutdown: Shutdown) {
        self.next().await;
        tracing::info!("ending: nothing new is taken; once more to hand back what runs");
        shutdown.drain.cancel();
        self.next().await;
        shutdown.now.cancel();
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        #[cfg(not(unix))]
        drop(tokio::signal::ctrl_c().await);
    }
}

/// Lets attempts end within the grace period, then has them handed back. Receivers are waited
/// for first: a claim that is under way would otherwise be lost, and charged.
pub(crate) async fn drain(crew: &Crew, receivers: &mut JoinSet<()>, grace: Duration) {
    let all_ended = async {
        while receivers.join_next().await.is_some() {}
        crew.attempts.close();
        crew.attempts.wait().await;
    };
    tokio::pin!(all_ended);
    tokio::select! {
        () = &mut all_ended => return,
        () = tokio::time::sleep(grace) => crew.shutdown.now.cancel(),
        () = crew.shutdown.now.cancelled() => {}
    }
    all_ended.await;
}
