//! The handler that does nothing. Only the benchmark's own worker has it.

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::record::EffectClass;
use standfast_worker::handlers::{Fault, Handler, Job, Report, Success};

/// Succeeds at once.
#[derive(Clone, Copy, Debug)]
pub struct Noop;

/// The name that plans use.
pub(crate) const NAME: &str = "noop";

#[async_trait]
impl Handler for Noop {
    fn name(&self) -> &str {
        NAME
    }

    fn check(&self, _: &Value) -> Vec<Fault> {
        Vec::new()
    }

    fn effect(&self, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }

    fn uses_directory(&self) -> bool {
        false
    }

    fn may_block(&self) -> bool {
        false
    }

    async fn run(&self, _: Job) -> Report {
        Report::Succeeded(Success::default())
    }
}
