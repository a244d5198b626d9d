//! The one connection that all hot calls share. `MultiplexedConnection` carries any number of
//! calls at once but never reconnects, so a call that finds it dead says so here, and the next
//! call connects anew.
//!
//! ```text
//! call ──▶ live? ──yes──▶ send ──ok──▶ answer
//!            │no            └──dead──▶ forget it (if it is still the one that was used)
//!            ▼
//!          gate: one caller connects, after a pause that grows with each failure;
//!                those who waited meanwhile share its result
//! ```
//!
//! A call waits here for at most one pause and one connection attempt of its own or, having
//! queued behind another caller's, for that one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, RedisResult};
use standfast_engine::ports::StoreError;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::answers::judge;

/// The pause after the first failed attempt to connect.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// The longest pause between attempts: how late a Redis that came back may be noticed.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A connection, and which one it is.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    number: u64,
    since: Instant,
}

impl Live {
    /// True if the connection was only just made, so that another would find the same.
    pub(super) fn is_fresh(&self) -> bool {
        self.since.elapsed() < PAUSE_MAX
    }
}

/// Attempts so far, guarded by the gate.
struct Attempts {
    /// Connections made; the number of the newest.
    made: u64,
    /// How the last attempt failed; `None` if it did not.
    failure: Option<(Instant, Duration, StoreError)>,
}

/// Hands out the shared connection.
pub(super) struct Shared {
    client: Client,
    config: AsyncConnectionConfig,
    live: RwLock<Option<Live>>,
    gate: Mutex<Attempts>,
    /// Attempts that ended, readable without the gate.
    ended: AtomicU64,
}

impl Shared {
    /// Connects nothing yet.
    pub(super) fn new(client: Client, config: AsyncConnectionConfig) -> Self {
        Self {
            client,
            config,
            live: RwLock::new(None),
            gate: Mutex::new(Attempts { made: 0, failure: None }),
            ended: 0.into(),
        }
    }

    /// Gives the connection, making one if there is none. Cancel safe.
    pub(super) async fn get(&self) -> Result<Live, StoreError> {
        match self.current() {
            Some(live) => Ok(live),
            None => self.connect().await,
        }
    }

    /// Makes a connection that is not kept.
    pub(super) async fn connect_apart(&self) -> RedisResult<MultiplexedConnection> {
        self.client.get_multiplexed_async_connection_with_config(&self.config).await
    }

    /// Forgets a connection that proved dead, unless another has taken its place.
    pub(super) fn forget(&self, dead: &Live) {
        let mut slot = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_some_and(|live| live.number == dead.number) {
            *slot = None;
        }
    }

    fn current(&self) -> Option<Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    async fn connect(&self) -> Result<Live, StoreError> {
        let before = self.ended();
        let mut attempts = self.gate.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        if let Some((at, pause, error)) = &attempts.failure {
            if self.ended() != before {
                return Err(error.clone());
            }
            tokio::time::sleep_until(*at + *pause).await;
        }
        let made = self.client.get_multiplexed_async_connection_with_config(&self.config).await;
        self.ended.fetch_add(1, Ordering::AcqRel);
        match made {
            Ok(connection) => {
                attempts.made += 1;
                attempts.failure = None;
                let live = Live { connection, number: attempts.made, since: Instant::now() };
                *self.live.write().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
                Ok(live)
            }
            Err(error) => {
                let error = judge(&error).error;
                let pause = attempts.failure.as_ref().map_or(PAUSE_MIN, |(_, last, _)| *last * 2);
                attempts.failure = Some((Instant::now(), pause.min(PAUSE_MAX), error.clone()));
                Err(error)
            }
        }
    }
}
