//! Typed handlers, and the errors they end with.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use standfast_protocol::claims::{FailureClass, Outcome};
use standfast_protocol::effects::EffectEnd;

use crate::worker::Context;

/// Why a handler did not do what it should, and whether to try again.
///
/// Every error of the standard library's trait converts into a retryable one, so `?` works in
/// a handler. For the same reason this type is not itself such an error.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerError {
    class: FailureClass,
    message: String,
    retry_after: Option<Duration>,
    // Apart, since an error is passed on by value.
    output: Box<Value>,
    effect: Option<Box<EffectEnd>>,
}

impl HandlerError {
    /// Makes an error after which another attempt may go better.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Retryable, message)
    }

    /// Makes an error that another attempt will not mend: the step fails for good.
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::new(FailureClass::Permanent, message)
    }

    /// Makes an error for when somebody asked for fewer requests, and says when to come back.
    pub fn rate_limited(message: impl Into<String>, retry_after: Duration) -> Self {
        Self { retry_after: Some(retry_after), ..Self::new(FailureClass::RateLimited, message) }
    }

    /// Makes an error for an attempt that ended because it was told to.
    pub fn cancelled() -> Self {
        Self::new(FailureClass::Cancelled, "the attempt was told to end")
    }

    /// Makes an error of any class.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let (retry_after, output, effect) = (None, Box::default(), None);
        Self { class, message: message.into(), retry_after, output, effect }
    }

    /// Adds what is known nevertheless, for the round that a `redo` opens.
    pub fn with_output(mut self, output: Value) -> Self {
        *self.output = output;
        self
    }

    /// Tells what became of the effect that the step declares in its plan, where its claim was
    /// the intent. Otherwise nobody knows, and its class says what happens then.
    pub fn with_effect(mut self, end: EffectEnd) -> Self {
        self.effect = Some(Box::new(end));
        self
    }

    /// Takes over what another error tells of the declared effect.
    pub(crate) fn with_effect_of(self, other: Self) -> Self {
        Self { effect: other.effect, ..self }
    }

    /// Gives the class.
    pub fn class(&self) -> FailureClass {
        self.class
    }

    /// Gives the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn into_outcome(self, cost_usd_micros: u64) -> Outcome {
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Outcome::Failed {
            class: self.class,
            message: self.message,
            retry_after_ms: self.retry_after.map(millis),
            output: *self.output,
            cost_usd_micros,
            effect: self.effect.map(|end| *end),
        }
    }
}

impl std::fmt::Display for HandlerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.ends_with(&text) {
                message = format!("{message}: {text}");
            }
            source = cause.source();
        }
        Self::retryable(message)
    }
}

/// A handler without its types: JSON in, JSON out.
pub(crate) type Run =
    Arc<dyn Fn(Context, Value) -> BoxFuture<'static, Result<Value, HandlerError>> + Send + Sync>;

/// Takes the types off a handler. An input that does not fit is a permanent error: the same
/// input will not fit next time either.
pub(crate) fn erase<I, O, F, Fut>(handler: F) -> Run
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
    F: Fn(Context, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, HandlerError>> + Send + 'static,
{
    let handler = Arc::new(handler);
    Arc::new(move |context, input| {
        let handler = Arc::clone(&handler);
        Box::pin(async move {
            let input = serde_json::from_value(input).map_err(|error| {
                HandlerError::permanent(format!("the step's `with` does not fit: {error}"))
            })?;
            let output = handler(context, input).await?;
            serde_json::to_value(output).map_err(|error| {
                HandlerError::permanent(format!("the output cannot be written as JSON: {error}"))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_becomes_retryable_with_its_causes() {
        let inner = std::io::Error::other("disk on fire");
        let error = crate::Error::File { path: "a.txt".to_owned(), source: inner };
        let error = HandlerError::from(error);
        assert_eq!(error.class(), FailureClass::Retryable);
        assert_eq!(error.message(), "read a.txt: disk on fire");
    }
}
