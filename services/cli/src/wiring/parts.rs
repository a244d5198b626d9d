//! What api, scheduler and worker share within one process.

use std::sync::Arc;

use standfast_api::admin::Admin;
use standfast_api::auth::Access;
use standfast_api::{Api, Crew, Settings};
use standfast_domain::time::Span;
use standfast_engine::Engine;
use standfast_engine::blobs::{BlobError, Blobs};
use standfast_engine::claims::{CLAIM_LENGTH, Claims};
use standfast_engine::installation::Installation;
use standfast_engine::ports::{Broker, Store};
use standfast_engine::registry::Registry;
use standfast_engine::submission::RETENTION_DEFAULT;
use standfast_engine::time::{SystemClock, SystemIds};
use standfast_engine::tokens::Tokens;
use standfast_worker::BuiltinHandlers;
use tokio_util::sync::CancellationToken;

use super::{handlers, stores};
use crate::failure::Failure;

/// An engine with what stands around it.
pub struct Parts {
    /// Decides and commits.
    pub engine: Engine,
    /// Large outputs, artifacts and logs.
    pub blobs: Blobs,
    /// The workers' side.
    pub claims: Arc<Claims>,
    /// Workers and handlers that were announced.
    pub registry: Arc<Registry>,
    /// Who may ask.
    pub tokens: Arc<Tokens>,
    /// The built-in handlers.
    pub handlers: BuiltinHandlers,
    /// Names the installation.
    pub installation: Installation,
    /// How long the api's claims last unless renewed.
    pub claim_length: Span,
    /// How long an ended task is kept unless its plan says otherwise.
    pub retention: Span,
    /// Host names that requests to the api may name besides loopback ones; empty: any.
    pub public_hosts: Vec<String>,
    /// Who does the work.
    pub crew: Crew,
}

impl Parts {
    /// Starts an engine over a store and a broker; the store must answer.
    pub async fn start(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        blobs: &str,
        allow_private_addresses: bool,
    ) -> Result<Self, Failure> {
        let clock = Arc::new(SystemClock::default());
        let engine = Engine::start(store, broker, clock, Arc::new(SystemIds));
        let installation = Installation::open(&engine).await.map_err(stores::failure)?;
        let blobs = Blobs::open(blobs, &installation.id).await.map_err(no_blobs)?;
        let handlers = handlers::built_in(&installation.id, allow_private_addresses)?;
        let registry = Arc::new(Registry::new(engine.clone()));
        let tokens = Arc::new(Tokens::new(engine.clone()));
        let known = Arc::new(handlers.clone());
        let claims = Arc::new(Claims::new(engine.clone(), blobs.clone(), known, registry.clone()));
        Ok(Self {
            engine,
            blobs,
            claims,
            registry,
            tokens,
            handlers,
            installation,
            claim_length: CLAIM_LENGTH,
            retention: RETENTION_DEFAULT,
            public_hosts: Vec::new(),
            crew: Crew::Processes,
        })
    }

    /// Makes an api that serves these parts until `shutdown`.
    pub fn api(
        &self,
        access: Access,
        plan_dir_allowed: bool,
        admin: Admin,
        shutdown: CancellationToken,
    ) -> Api {
        let settings = Settings {
            access,
            plan_dir_allowed,
            public_hosts: self.public_hosts.clone(),
            retention: self.retention,
            claim_length: self.claim_length,
            crew: self.crew,
        };
        let parts = standfast_api::Parts {
            claims: self.claims.clone(),
            registry: self.registry.clone(),
            tokens: self.tokens.clone(),
            handlers: Arc::new(self.handlers.clone()),
            admin,
            settings,
        };
        Api::new(parts, shutdown)
    }
}

/// Says why the blobs could not be used, and what to do.
pub fn no_blobs(error: BlobError) -> Failure {
    let failure = Failure::new(format!("failed to {error}"));
    match error {
        BlobError::Url { .. } | BlobError::Missing(_) | BlobError::Foreign { .. } => failure,
        BlobError::Unavailable(_) => failure.and("look at the folder's owner and free space"),
    }
}
