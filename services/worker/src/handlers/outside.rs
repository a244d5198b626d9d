//! The gate to the outside world: a handler asks it before it sends anything that its step
//! declares as an effect, and says afterwards what it knows of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_domain::record::EffectClass;

use super::{Failure, Report, Success};

/// Whether an effect may be sent.
#[derive(Debug)]
pub enum MaySend {
    /// Yes, if sending begins before this moment of [`Intents::monotonic`].
    Before(Duration),
    /// No: it has happened, and this is its receipt.
    Kept(Value),
    /// No: the attempt has ended this way.
    Ended(Failure),
}

/// Records what an attempt is about to send.
#[async_trait]
pub trait Intents: Send + Sync {
    /// Records that the step's declared effect is about to be sent by a request that takes at
    /// most `request_timeout`.
    async fn may_send(&self, request_timeout: Duration) -> MaySend;

    /// Gives the sender's own monotonic time.
    fn monotonic(&self) -> Duration;
}

/// The one effect that a step declares, as its handler sees it.
pub struct Effect {
    /// Its class.
    pub class: EffectClass,
    /// The key under which the outside world may know it, the same on every repeat.
    pub key: String,
    intents: Arc<dyn Intents>,
    asked: AtomicBool,
}

/// What is known of an effect when its attempt has failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Sent {
    /// Nothing: it may have happened.
    #[default]
    Unknown,
    /// It was not sent.
    Not,
    /// The other side refused it.
    Refused,
    /// It has happened all the same; this is the receipt.
    Landed(Value),
}

impl Effect {
    /// Makes the gate of one attempt.
    pub fn new(class: EffectClass, key: String, intents: Arc<dyn Intents>) -> Self {
        Self { class, key, intents, asked: AtomicBool::new(false) }
    }

    /// Asks whether it may be sent now.
    pub async fn may_send(&self, request_timeout: Duration) -> MaySend {
        let answer = self.intents.may_send(request_timeout).await;
        if matches!(answer, MaySend::Before(_)) {
            self.asked.store(true, Ordering::SeqCst);
        }
        answer
    }

    /// True while sending may still begin; asked right before it does.
    pub fn is_before(&self, moment: Duration) -> bool {
        self.intents.monotonic() < moment
    }

    /// True once it may have been sent.
    pub fn may_have_been_sent(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Asks the gate, where there is one, and gives the report of an attempt that ends here.
pub(super) async fn ask(effect: Option<&Effect>, request_timeout: Duration) -> Option<Report> {
    let effect = effect?;
    match effect.may_send(request_timeout).await {
        MaySend::Before(moment) if effect.is_before(moment) => None,
        MaySend::Before(_) => {
            let message = "recording the effect took so long that it may not be sent any more";
            let failure = Failure::new(super::Class::Retryable, message);
            Some(Failure { sent: Sent::Not, ..failure }.into())
        }
        MaySend::Kept(receipt) => {
            Some(Report::Succeeded(Success { output: receipt, kept: true, ..Success::default() }))
        }
        MaySend::Ended(failure) => Some(failure.into()),
    }
}
