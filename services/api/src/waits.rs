//! Waiting for a task to change: told by this process's engine at once, and looking again at
//! the store for what other processes do.

use std::time::Duration;

use standfast_domain::ids::TaskId;
use tokio::sync::{OwnedSemaphorePermit, broadcast};
use tokio::time::{Instant, sleep_until};

use crate::Api;
use crate::problems::Fail;

/// The first look after nothing was heard.
const LOOK_FIRST: Duration = Duration::from_millis(250);
/// The longest time between two looks.
const LOOK_LAST: Duration = Duration::from_secs(1);

/// How long a wait for any task gathers what changes: many workers may wait while much happens.
const GATHER: Duration = Duration::from_millis(50);

/// One request that waits. It listens from its making on, so that what happens between a look
/// and the wait after it is not missed.
pub(crate) struct Wait {
    changed: broadcast::Receiver<TaskId>,
    look: Duration,
    until: Option<Instant>,
    _permit: OwnedSemaphorePermit,
}

impl Wait {
    /// Starts to listen; `None` waits without end. Refused while too many wait already.
    pub fn begin(api: &Api, longest: Option<Duration>) -> Result<Self, Fail> {
        let permit = api.waits.clone().try_acquire_owned().map_err(|_| {
            Fail::too_many("too many requests wait already; close some or ask without waiting")
        })?;
        Ok(Self {
            changed: api.engine().listen(),
            look: LOOK_FIRST,
            until: longest.map(|longest| Instant::now() + longest),
            _permit: permit,
        })
    }

    /// Waits until it is worth looking again; false once the time is over or the process ends.
    pub async fn again(&mut self, api: &Api, task: Option<&TaskId>) -> bool {
        let now = Instant::now();
        if self.until.is_some_and(|until| until <= now) {
            return false;
        }
        let next = now + self.look;
        let next = self.until.map_or(next, |until| until.min(next));
        let (changed, look) = (&mut self.changed, &mut self.look);
        tokio::select! {
            () = api.shutdown.cancelled() => false,
            () = heard(changed, task) => {
                *look = LOOK_FIRST;
                if task.is_none() {
                    tokio::time::sleep(GATHER).await;
                }
                true
            }
            () = sleep_until(next) => {
                *look = (*look * 2).min(LOOK_LAST);
                true
            }
        }
    }
}

/// Ends when the task, or without one any task, has changed. Having missed some counts too.
async fn heard(changed: &mut broadcast::Receiver<TaskId>, task: Option<&TaskId>) {
    loop {
        match changed.recv().await {
            Ok(other) if task.is_none_or(|task| *task == other) => return,
            Ok(_) => {}
            Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}
