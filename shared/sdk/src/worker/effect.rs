//! Changes to the outside world: intended, sent at most once by one attempt, and told.
//!
//! ```text
//!   intend ──▶ send ──▶ the closure, with the key ──▶ receipt      it has happened
//!      │                                         └──▶ not landed   it is known not to have
//!      ├─────▶ kept ──▶ its receipt, nothing is sent
//!      ├─────▶ check ─▶ the check, then told, and asked again if it has not happened
//!      └─────▶ ended ─▶ an error that ends the handler; nothing is reported
//! ```
//!
//! What is told has a task of its own, which a handler that is dropped does not take along.
//!
//! Not excluded: a process that is frozen between the look at the window and the write to its
//! socket, and sends when it is thawed. That is why nothing is repeated before the window and
//! the request's time are over, and why the key travels along.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use standfast_protocol::claims::{FailureClass, Settled};
use standfast_protocol::effects::{
    DeclaredEffect, EffectClass, EffectEnd, IntentAnswer, IntentRequest, NotLanded,
    NotLandedRequest, ReceiptRequest,
};
use standfast_protocol::limits::{SEND_TIMEOUT_MS_DEFAULT, SEND_WINDOW_MS_DEFAULT};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::problem::ProblemKind;

use super::attempt::is_refusal;
use super::context::{Context, Place};
use crate::error::Error;
use crate::handler::HandlerError;
use crate::http::{Call, Http, Repeat};

/// The name of the one effect that a step declares in its plan.
const MAIN: &str = "main";
/// Intents of one effect that one attempt asks for: one is usual, a check takes a second, and an
/// api whose answers come too late again and again is in trouble that the next attempt may miss.
const ASKS_MAX: usize = 4;
/// How long what became of an effect is told to a silent api: a restart with its recovery, since
/// what is not heard has to be found out by a person.
const TELL_PATIENCE: Duration = Duration::from_secs(600);

/// Why an effect was not carried out, and what is known of it.
///
/// Every error of the standard library's trait becomes [`SendError::unknown`], so `?` never
/// claims more than is known. Only what is proven may be said to be not sent or refused: then
/// the effect may be sent again.
#[derive(Clone, Debug, PartialEq)]
pub struct SendError {
    known: Option<NotLanded>,
    error: HandlerError,
}

impl SendError {
    /// Makes an error that came before anything was sent: a name that does not resolve, a
    /// refused connection, a check of one's own.
    pub fn not_sent(error: impl Into<HandlerError>) -> Self {
        Self { known: Some(NotLanded::NotSent), error: error.into() }
    }

    /// Makes an error for when the other side has said no and changed nothing.
    pub fn refused(error: impl Into<HandlerError>) -> Self {
        Self { known: Some(NotLanded::Refused), error: error.into() }
    }

    /// Makes an error after which nobody knows whether it has happened: a time-out, a broken
    /// connection.
    pub fn unknown(error: impl Into<HandlerError>) -> Self {
        Self { known: None, error: error.into() }
    }
}

impl<E: std::error::Error + 'static> From<E> for SendError {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}

impl From<HandlerError> for SendError {
    fn from(error: HandlerError) -> Self {
        Self::unknown(error)
    }
}

/// Finds out whether an effect has happened.
type Check<'a, R> =
    Box<dyn FnOnce(String) -> BoxFuture<'a, Result<Option<R>, HandlerError>> + Send + 'a>;

/// What an effect's intent says.
#[derive(Clone, Debug)]
struct Ask {
    name: String,
    class: EffectClass,
    window: Duration,
    request_timeout: Duration,
    target: Option<String>,
    says: Option<String>,
}

/// A change to the outside world that is about to be made; awaiting it makes it. See
/// [`Context::effect`].
#[must_use = "nothing is sent before it is awaited"]
pub struct Effect<'a, Q, R, S> {
    context: &'a Context,
    ask: Ask,
    request: Q,
    check: Option<Check<'a, R>>,
    send: S,
}

impl<Q, R, S> fmt::Debug for Effect<'_, Q, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Effect").field("ask", &self.ask).finish_non_exhaustive()
    }
}

impl Context {
    /// Changes the outside world once, however often this handler is started.
    ///
    /// The intent is stored first: the name within the step, the class, and the exact request.
    /// Only then, and only if the answer came within the window, `send` is called with the
    /// request and a key that is the same on every repeat; pass that key on as the other side's
    /// idempotency key. What `send` gives is the receipt: it is stored, and a later attempt or
    /// round gets it without sending.
    ///
    /// The class says what a later attempt may do if this one dies in between:
    /// [`EffectClass::Idempotent`]: send again; [`EffectClass::Irreversible`]: nothing, a person
    /// is asked. For [`EffectClass::Checkable`] use [`Context::checkable`].
    ///
    /// The error ends the handler; return it with `?`. When the attempt is over, as after a
    /// stop, the worker reports nothing of it, whatever the handler returns.
    ///
    /// ```
    /// # use standfast_sdk::{Context, EffectClass, HandlerError, SendError, testing};
    /// # async fn post(_: u32, _: String) -> Result<String, std::io::Error> { Ok("p-7".into()) }
    /// async fn pay(context: Context, amount: u32) -> Result<String, HandlerError> {
    ///     let class = EffectClass::Irreversible;
    ///     let paid = context.effect("pay", class, amount, |amount, key| async move {
    ///         match post(amount, key).await {
    ///             Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
    ///                 Err(SendError::not_sent(error))
    ///             }
    ///             other => Ok(other?),
    ///         }
    ///     });
    ///     paid.target("the bank").says(format!("Pays {amount} €")).await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let ended = testing::run_handler(pay, 10).await;
    /// assert_eq!(ended.effects["pay"].receipt, Some("p-7".into()));
    /// # }
    /// ```
    pub fn effect<'a, Q, R, S, Fut>(
        &'a self,
        name: impl Into<String>,
        class: EffectClass,
        request: Q,
        send: S,
    ) -> Effect<'a, Q, R, S>
    where
        Q: Serialize + Send + 'a,
        R: Serialize + DeserializeOwned + Send + 'a,
        S: FnOnce(Q, String) -> Fut + Send + 'a,
        Fut: Future<Output = Result<R, SendError>> + Send + 'a,
    {
        let ask = Ask {
            name: name.into(),
            class,
            window: Duration::from_millis(SEND_WINDOW_MS_DEFAULT),
            request_timeout: Duration::from_millis(SEND_TIMEOUT_MS_DEFAULT),
            target: None,
            says: None,
        };
        Effect { context: self, ask, request, check: None, send }
    }

    /// Changes the outside world once, as [`Context::effect`] does, where the other side can be
    /// asked. If an earlier attempt may have sent the request, `check` is called with it and
    /// its key: it gives the receipt if that has happened, and nothing if it has not, in which
    /// case `send` sends it.
    pub fn checkable<'a, Q, R, C, S, Found, Fut>(
        &'a self,
        name: impl Into<String>,
        request: Q,
        check: C,
        send: S,
    ) -> Effect<'a, Q, R, S>
    where
        Q: Serialize + Clone + Send + 'a,
        R: Serialize + DeserializeOwned + Send + 'a,
        C: FnOnce(Q, String) -> Found + Send + 'a,
        Found: Future<Output = Result<Option<R>, HandlerError>> + Send + 'a,
        S: FnOnce(Q, String) -> Fut + Send + 'a,
        Fut: Future<Output = Result<R, SendError>> + Send + 'a,
    {
        let asked = request.clone();
        let check: Check<'a, R> = Box::new(move |key| Box::pin(check(asked, key)));
        let effect = self.effect(name, EffectClass::Checkable, request, send);
        Effect { check: Some(check), ..effect }
    }

    /// Gives the effect that the step declares in its plan. If it is idempotent the claim was
    /// its intent, and an output is its receipt.
    pub fn declared_effect(&self) -> Option<&DeclaredEffect> {
        self.claim().effect.as_ref()
    }
}

impl<'a, Q, R, S> Effect<'a, Q, R, S> {
    /// Says whom or what it touches, for people; at most 256 bytes.
    pub fn target(mut self, target: impl Into<String>) -> Self {
        self.ask.target = Some(target.into());
        self
    }

    /// Says what it does, for people; at most 256 bytes.
    pub fn says(mut self, says: impl Into<String>) -> Self {
        self.ask.says = Some(says.into());
        self
    }

    /// Sets how long after its intent it may be sent; 10 seconds by default.
    pub fn window(mut self, window: Duration) -> Self {
        self.ask.window = window;
        self
    }

    /// Sets how long the request may take; 60 seconds by default. Then it is dropped, and
    /// nobody knows what became of it. A worker that is told to end an attempt waits for it so
    /// long, since a receipt that is not heard has to be found out by a person.
    pub fn request_timeout(mut self, request_timeout: Duration) -> Self {
        self.ask.request_timeout = request_timeout;
        self
    }

    async fn carry_out<Fut>(self) -> Result<R, HandlerError>
    where
        Q: Serialize + Send + 'a,
        R: Serialize + DeserializeOwned + Send + 'a,
        S: FnOnce(Q, String) -> Fut + Send + 'a,
        Fut: Future<Output = Result<R, SendError>> + Send + 'a,
    {
        let Self { context, ask, request, mut check, send } = self;
        if ask.class == EffectClass::Checkable && check.is_none() {
            let why = format!("effect `{}` is checkable: use `Context::checkable`", ask.name);
            return Err(HandlerError::permanent(why));
        }
        let exact = serde_json::to_value(&request).map_err(|error| {
            HandlerError::permanent(format!("the request cannot be written as JSON: {error}"))
        })?;
        for _ in 0..ASKS_MAX {
            if context.is_cancelled() {
                return Err(HandlerError::cancelled());
            }
            let asked = Instant::now();
            match intend(context, &ask, &exact).await? {
                IntentAnswer::Kept { receipt } => return read(&ask.name, receipt),
                IntentAnswer::Ended => return Err(context.end()),
                IntentAnswer::Check { key } => {
                    let Some(check) = check.take() else { break };
                    if let Some(found) = check(key).await? {
                        landed(context, &ask.name, receipt(&ask.name, &found)).await?;
                        return Ok(found);
                    }
                    not_landed(context, &ask.name, NotLanded::Checked).await?;
                }
                IntentAnswer::Send { .. }
                    if asked.elapsed() >= ask.window || context.is_cancelled() =>
                {
                    not_landed(context, &ask.name, NotLanded::NotSent).await?;
                }
                IntentAnswer::Send { key } => {
                    let _under_way = context.under_way();
                    return sent(context, &ask, send(request, key)).await;
                }
            }
        }
        let why = format!("effect `{}` was not sent: {ASKS_MAX} answers came too late", ask.name);
        Err(HandlerError::retryable(why))
    }
}

impl<'a, Q, R, S, Fut> IntoFuture for Effect<'a, Q, R, S>
where
    Q: Serialize + Send + 'a,
    R: Serialize + DeserializeOwned + Send + 'a,
    S: FnOnce(Q, String) -> Fut + Send + 'a,
    Fut: Future<Output = Result<R, SendError>> + Send + 'a,
{
    type Output = Result<R, HandlerError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.carry_out())
    }
}

/// Waits for what is sent, and tells what came of it.
async fn sent<R: Serialize>(
    context: &Context,
    ask: &Ask,
    sending: impl Future<Output = Result<R, SendError>>,
) -> Result<R, HandlerError> {
    let late = || {
        let seconds = ask.request_timeout.as_secs_f64();
        let why = format!("effect `{}` had no answer within {seconds} s", ask.name);
        Err(SendError::unknown(HandlerError::new(FailureClass::Timeout, why)))
    };
    let ended = tokio::time::timeout(ask.request_timeout, sending).await;
    match ended.unwrap_or_else(|_| late()) {
        Ok(answer) => {
            landed(context, &ask.name, receipt(&ask.name, &answer)).await?;
            Ok(answer)
        }
        Err(SendError { known: None, error }) => Err(error),
        Err(SendError { known: Some(how), error }) => {
            match not_landed(context, &ask.name, how).await {
                Ok(()) => Err(error),
                Err(untold) => Err(error.with_effect_of(untold)),
            }
        }
    }
}

/// Makes the kept receipt what `send` would have given.
fn read<R: DeserializeOwned>(name: &str, receipt: Value) -> Result<R, HandlerError> {
    serde_json::from_value(receipt).map_err(|error| {
        let why = format!("effect `{name}` has happened, and its receipt does not fit: {error}");
        HandlerError::permanent(why)
    })
}

/// Records an intent. Without an answer nobody knows whether it was recorded, only that nothing
/// was sent: that is told.
async fn intend(
    context: &Context,
    ask: &Ask,
    request: &Value,
) -> Result<IntentAnswer, HandlerError> {
    let millis = |span: Duration| Some(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let holder = context.holder();
    let body = IntentRequest {
        worker: holder.worker.clone(),
        attempt: holder.attempt,
        epoch: holder.epoch,
        class: ask.class,
        request: (!request.is_null()).then(|| request.clone()),
        window_ms: millis(ask.window),
        request_timeout_ms: millis(ask.request_timeout),
        target: ask.target.clone(),
        says: ask.says.clone(),
    };
    let http = match context.place() {
        Place::Bench(bench) => return Ok(bench.intend(context, &ask.name, body)),
        Place::Api(http) => http,
    };
    let path = fill(paths::EFFECT, &[context.task(), context.step(), &ask.name]);
    let call = http.call(Method::POST, &path).json(&body)?.repeat(Repeat::Freely);
    let answer = tokio::select! {
        answer = http.fetch(call) => answer,
        () = context.cancellation().cancelled() => {
            not_landed(context, &ask.name, NotLanded::NotSent).await?;
            return Err(HandlerError::cancelled());
        }
    };
    match answer {
        Ok(answer) => Ok(answer),
        Err(error) if error.problem() == Some(ProblemKind::Fenced) => Err(context.end()),
        Err(error) if is_refusal(&error) => {
            let why = format!("the intent of effect `{}` was refused: {error}", ask.name);
            Err(HandlerError::permanent(why))
        }
        Err(error) => {
            let error = HandlerError::from(error);
            match not_landed(context, &ask.name, NotLanded::NotSent).await {
                Ok(()) => Err(error),
                Err(untold) => Err(error.with_effect_of(untold)),
            }
        }
    }
}

/// Writes what the outside world answered; null if it cannot be written.
fn receipt(name: &str, answer: &impl Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_else(|error| {
        tracing::error!(%error, effect = name, "a receipt cannot be written as JSON");
        Value::Null
    })
}

/// Tells that an effect has happened. A receipt that cannot be kept is kept as null: that it
/// has happened must be known all the same.
async fn landed(context: &Context, name: &str, receipt: Value) -> Result<(), HandlerError> {
    let mut told = tell(context, name, EffectEnd::Landed(receipt.clone())).await;
    if let Err(error) = &told
        && matches!(error, Error::Problem(problem) if matches!(problem.status, 400 | 413 | 422))
    {
        tracing::error!(%error, effect = name, "a receipt was refused, and is kept as null");
        told = tell(context, name, EffectEnd::Landed(Value::Null)).await;
    }
    told.map_err(|error| {
        let why = format!("effect `{name}` has happened, and its receipt is not kept: {error}");
        untold(name, why, EffectEnd::Landed(receipt))
    })
}

/// Tells that an effect has not happened.
async fn not_landed(context: &Context, name: &str, how: NotLanded) -> Result<(), HandlerError> {
    tell(context, name, EffectEnd::NotLanded(how)).await.map_err(|error| {
        let why = format!("effect `{name}` has not happened, which could not be told: {error}");
        untold(name, why, EffectEnd::NotLanded(how))
    })
}

/// Makes an error that tells what the api did not hear, as far as a failure can: of the effect
/// that the step declares.
fn untold(name: &str, why: String, end: EffectEnd) -> HandlerError {
    let error = HandlerError::retryable(why);
    if name == MAIN { error.with_effect(end) } else { error }
}

/// Tells what became of an effect until it is heard, whether or not the attempt goes on.
async fn tell(context: &Context, name: &str, end: EffectEnd) -> Result<(), Error> {
    let http = match context.place() {
        Place::Bench(bench) => {
            bench.tell(name, end);
            return Ok(());
        }
        Place::Api(http) => http,
    };
    let under_way = context.under_way();
    let (http, call) = called(http, context, name, end)?;
    let telling = tokio::spawn(async move {
        let told = http.fetch::<Settled>(call).await.map(drop);
        drop(under_way);
        told
    });
    telling.await.unwrap_or_else(|_| Err(Error::Setup("tell it: the runtime ended".to_owned())))
}

fn called(
    http: &Http,
    context: &Context,
    name: &str,
    end: EffectEnd,
) -> Result<(Http, Call), Error> {
    let mut http = http.clone();
    http.set_patience(TELL_PATIENCE.max(http.patience()));
    let holder = context.holder();
    let (worker, attempt, epoch) = (holder.worker.clone(), holder.attempt, holder.epoch);
    let place = [context.task(), context.step(), name];
    let call = match end {
        EffectEnd::Landed(receipt) => http
            .call(Method::POST, &fill(paths::EFFECT_RECEIPT, &place))
            .json(&ReceiptRequest { worker, attempt, epoch, receipt })?,
        EffectEnd::NotLanded(how) => http
            .call(Method::POST, &fill(paths::EFFECT_NOT_LANDED, &place))
            .json(&NotLandedRequest { worker, attempt, epoch, how })?,
    };
    Ok((http, call.repeat(Repeat::Freely)))
}
