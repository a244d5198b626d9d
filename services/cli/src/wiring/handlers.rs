//! The built-in handlers.

use std::sync::Arc;

use serde_json::Value;
use standfast_domain::record::EffectClass;
use standfast_engine::submission::Handlers;
use standfast_worker::BuiltinHandlers;
use standfast_worker::handlers::Handler;
use standfast_worker::handlers::exec::{Exec, ExecSettings};
use standfast_worker::handlers::http::Http;

use crate::failure::Failure;

/// Makes the built-in handlers. `home_id` names the installation or folder, so that what a
/// crashed worker of it left behind can be told from others' processes.
pub fn built_in(home_id: &str, allow_private_addresses: bool) -> Result<BuiltinHandlers, Failure> {
    let exec: Arc<dyn Handler> = Arc::new(Exec::new(ExecSettings::new(home_id)));
    let http = Http::new(allow_private_addresses)
        .map_err(|error| Failure::new(format!("failed to make an HTTP client: {error}")))?;
    Ok(BuiltinHandlers::new([exec, Arc::new(http)]))
}

/// Checks the `with` of a step of a built-in handler, without a server; none for a handler that
/// is not built in.
pub fn check(handler: &str, with: &Value) -> Option<Vec<(String, String)>> {
    match built_in("", false) {
        Ok(handlers) => handlers.check(handler, with),
        // Without an HTTP client nothing can be said about `with`; the server will.
        Err(_) => Some(Vec::new()),
    }
}

/// Gives the class of what a step of a built-in handler changes outside unless its plan says
/// otherwise.
pub fn effect_class(handler: &str, with: &Value) -> Result<EffectClass, String> {
    match built_in("", false) {
        Ok(handlers) => handlers.effect_class(handler, with),
        Err(_) => Ok(EffectClass::None),
    }
}
