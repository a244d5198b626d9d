//! Being told to end: Ctrl-C, or SIGTERM from a supervisor.

use tokio::sync::mpsc;

use crate::failure::Failure;

/// Signals that are remembered: after the second, nothing is left to ask for.
const REMEMBERED: usize = 2;

/// Counts how often this process was told to end, from the moment of listening.
pub struct Interrupts {
    arriving: mpsc::Receiver<()>,
}

impl Interrupts {
    /// Takes over the signals; from here on they no longer end the process by themselves.
    pub fn listen() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("failed to listen: {error}"));
        let (sender, arriving) = mpsc::channel(REMEMBERED);
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
                let mut signals = signal(kind).map_err(failed)?;
                let sender = sender.clone();
                tokio::spawn(async move {
                    while signals.recv().await.is_some() {
                        // A full channel holds what counts already.
                        let _ = sender.try_send(());
                    }
                });
            }
        }
        #[cfg(not(unix))]
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                let _ = sender.try_send(());
            }
        });
        Ok(Self { arriving })
    }

    /// Waits for the next one. Cancel safe.
    pub async fn next(&mut self) {
        if self.arriving.recv().await.is_none() {
            // Nobody can tell any more: the caller's other branch decides.
            std::future::pending::<()>().await;
        }
    }
}
