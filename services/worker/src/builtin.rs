//! The built-in handlers as the engine sees them when it checks a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use standfast_domain::record::EffectClass;
use standfast_engine::submission::Handlers;

use crate::handlers::Handler;

/// Checks steps of built-in handlers before anything is accepted.
#[derive(Clone)]
pub struct BuiltinHandlers {
    handlers: Arc<BTreeMap<String, Arc<dyn Handler>>>,
}

impl BuiltinHandlers {
    /// Takes the handlers by their names.
    pub fn new(handlers: impl IntoIterator<Item = Arc<dyn Handler>>) -> Self {
        let named = handlers.into_iter().map(|handler| (handler.name().to_owned(), handler));
        Self { handlers: Arc::new(named.collect()) }
    }

    /// Gives one handler.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Handler>> {
        self.handlers.get(name).cloned()
    }

    /// Lists their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.handlers.keys().map(String::as_str)
    }
}

impl Handlers for BuiltinHandlers {
    fn check(&self, handler: &str, with: &Value) -> Option<Vec<(String, String)>> {
        let faults = self.handlers.get(handler)?.check(with);
        Some(faults.into_iter().map(|fault| (fault.pointer, fault.message)).collect())
    }

    fn effect_class(&self, handler: &str, with: &Value) -> Result<EffectClass, String> {
        self.handlers.get(handler).map_or(Ok(EffectClass::None), |handler| handler.effect(with))
    }

    fn check_receipt(&self, handler: &str, receipt: &Value) -> Result<(), String> {
        self.handlers.get(handler).map_or(Ok(()), |handler| handler.check_receipt(receipt))
    }
}
