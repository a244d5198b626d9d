//! The HTTP api: reads requests strictly, checks who asks, gives commands to the engine and
//! shows records as the protocol's types.
//!
//! No rule about tasks lives here: what may change is decided by the engine's domain, and what
//! is shown follows from stored records alone (`present`, which is pure). Nothing is kept
//! between requests but caches of seconds, so any number of processes serve side by side.

pub mod admin;
pub mod auth;

mod answers;
mod artifacts;
mod attempts;
mod bulk_stops;
mod claims;
mod control;
mod cursor;
mod effects;
mod events;
mod explain;
mod extract;
mod guard;
mod hand_over;
mod list;
mod logs;
mod openapi;
mod present;
mod problems;
mod puts;
mod reads;
mod routes;
mod steps;
mod stops;
mod task_effects;
mod tasks;
mod waiting;
mod waits;
mod workers;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use standfast_domain::ids::Queue;
use standfast_domain::time::Span;
use standfast_engine::blobs::Blobs;
use standfast_engine::claims::Claims;
use standfast_engine::registry::{Registry, WorkerInfo};
use standfast_engine::submission::Handlers;
use standfast_engine::tokens::Tokens;
use standfast_engine::{Engine, EngineError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::admin::Admin;
use crate::auth::Access;
use crate::control::Control;

pub use crate::openapi::document;

/// Requests that may wait at once (streams and long polls): each costs a look at the store a
/// second, so that this many cost about what a busy worker does.
const WAITS_MAX: usize = 1_000;
/// How long requests may go on after the process was told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// How an api serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who may ask for what.
    pub access: Access,
    /// Whether a submission may name its plan's folder: only where client and workers share
    /// the machine, so on loopback addresses alone.
    pub plan_dir_allowed: bool,
    /// Host names that requests may name besides loopback ones, without port; empty: any, as
    /// long as they carry a token.
    pub public_hosts: Vec<String>,
    /// How long an ended task is kept unless its plan says otherwise.
    pub retention: Span,
    /// How long a claim lasts unless renewed.
    pub claim_length: Span,
    /// Who does the work.
    pub crew: Crew,
}

/// Who does an installation's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crew {
    /// Workers and schedulers of their own, as they announce themselves.
    Processes,
    /// The process that holds the folder, if it works: one that only looks does not.
    Folder {
        /// Whether it works.
        works: bool,
    },
}

/// What an api works with.
pub struct Parts {
    /// The engine, its blobs, and the workers' side of both.
    pub claims: Arc<Claims>,
    /// Workers and handlers that were announced.
    pub registry: Arc<Registry>,
    /// Who may ask.
    pub tokens: Arc<Tokens>,
    /// Built-in handlers, for checking plans.
    pub handlers: Arc<dyn Handlers>,
    /// Health and metrics.
    pub admin: Admin,
    /// How to serve.
    pub settings: Settings,
}

/// One api. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    parts: Arc<Parts>,
    shutdown: CancellationToken,
    waits: Arc<Semaphore>,
    control: Arc<Control>,
    /// How far looks for a fitting step have come in queues full of others.
    places: Arc<Mutex<BTreeMap<Queue, String>>>,
}

impl Api {
    /// Makes an api; its streams and long polls end when `shutdown` is cancelled.
    pub fn new(parts: Parts, shutdown: CancellationToken) -> Self {
        let waits = Arc::new(Semaphore::new(WAITS_MAX));
        let (control, places) = (Arc::default(), Arc::default());
        Self { parts: Arc::new(parts), shutdown, waits, control, places }
    }

    fn place_in(&self, queue: &Queue) -> Option<String> {
        self.places.lock().expect("no panic while held").get(queue).cloned()
    }

    fn keep_place(&self, queue: &Queue, place: Option<String>) {
        let mut places = self.places.lock().expect("no panic while held");
        match place {
            Some(place) => places.insert(queue.clone(), place),
            None => places.remove(queue),
        };
    }

    /// Gives all routes, guarded.
    pub fn router(&self) -> Router {
        routes::router(self)
    }

    pub(crate) fn engine(&self) -> &Engine {
        self.parts.claims.engine()
    }

    pub(crate) fn blobs(&self) -> &Blobs {
        self.parts.claims.blobs()
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.parts.claims
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.parts.registry
    }

    pub(crate) fn crew(&self) -> Crew {
        self.parts.settings.crew
    }

    /// Gives the workers that live. Of a folder on which nobody works it is none, whatever the
    /// last process has left behind.
    pub(crate) async fn workers(&self) -> Result<Vec<WorkerInfo>, EngineError> {
        match self.crew() {
            Crew::Folder { works: false } => Ok(Vec::new()),
            Crew::Folder { works: true } | Crew::Processes => self.registry().workers().await,
        }
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.parts.tokens
    }

    pub(crate) fn handlers(&self) -> &dyn Handlers {
        &*self.parts.handlers
    }

    pub(crate) fn admin(&self) -> &Admin {
        &self.parts.admin
    }

    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    pub(crate) fn shutdown(&self) -> &CancellationToken {
        &self.shutdown
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.parts.settings
    }
}

/// Serves until the api's `shutdown` is cancelled, then ends streams and long polls, lets other
/// requests finish for ten seconds, and returns.
pub async fn serve(listener: TcpListener, api: Api) -> io::Result<()> {
    let shutdown = api.shutdown.clone();
    let serving = axum::serve(listener, api.router())
        .with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let overdue = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        result = serving.into_future() => result,
        () = overdue => Ok(()),
    }
}
