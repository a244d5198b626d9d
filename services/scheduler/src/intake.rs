//! Takes in what other services publish: `submit` messages become tasks, `stop` messages stop
//! them.
//!
//! A message is acknowledged once its task is stored, the reply promised with it in the outbox;
//! or once it stands in the queue of rejected messages with the problem beside it and its reply
//! is sent. So none is lost and none loops; one that comes again leads to the same task by its
//! key. The answer to such a repeat commits nothing and is sent before its message is
//! acknowledged.

mod rejection;
mod stop;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use standfast_domain::ceiling::Ceiling;
use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::json::{self, Limits};
use standfast_domain::outcome::truncate;
use standfast_domain::plan::Fault;
use standfast_domain::record::{Key, Record, TaskState as Stored};
use standfast_domain::refusal::Refusal;
use standfast_domain::rights::Right;
use standfast_domain::time::Span;
use standfast_engine::outbox::{OutgoingMessage, Recipient};
use standfast_engine::ports::{BrokerError, Delivery, Message, Source};
use standfast_engine::refusals::RefusedCommand;
use standfast_engine::registry::Registry;
use standfast_engine::seals::Sender;
use standfast_engine::submission::{Handlers, Submitted, Unfit, prepare_within};
use standfast_engine::tally::Tally;
use standfast_engine::tokens::{Identity, Known, Role, Tokens};
use standfast_engine::{Engine, EngineError};
use standfast_protocol::amqp::{
    SENDER_HEADER, STOP, SUBMIT, SubmitReply, TOKEN_HEADER, TRACEPARENT_HEADER,
};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::problem::{self, Problem, ProblemKind};
use standfast_protocol::tasks::{SubmitRequest, Submitted as Accepted, TaskState};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::rejection::{message_id, rejection, sealed};

/// Messages under way at a time.
const PREFETCH: u16 = 64;
/// How long a reply or a rejection may wait for the broker.
const BOUND: Duration = Duration::from_secs(10);
/// Bytes of a request's id in its reply's: a message id has at most 255.
const REPLY_ID_BYTES_MAX: usize = 249;
/// The wait before a message is tried again while store or broker do not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The intake of an installation.
pub struct Intake {
    /// Commits.
    pub engine: Engine,
    /// Knows publishers by their tokens.
    pub tokens: Arc<Tokens>,
    /// Knows announced handlers.
    pub registry: Arc<Registry>,
    /// Knows built-in handlers.
    pub handlers: Arc<dyn Handlers>,
    /// How long an ended task is kept if its plan does not say.
    pub retention: Span,
    /// What users of the broker publish within to whom nothing was granted; none: they may not.
    pub ungranted: Option<Arc<Ceiling>>,
    /// Counts.
    pub gauges: Arc<IntakeGauges>,
}

/// What an intake counts, for metrics.
#[derive(Debug, Default)]
pub struct IntakeGauges {
    /// Messages that were dealt with: `created`, `known`, `stopped`, or the kind of problem.
    pub messages: Tally,
    /// Messages that wait for store or broker now.
    pub held: AtomicU64,
}

/// What is still to be told, once it is decided what becomes of a message.
#[derive(Debug)]
enum Answer {
    /// The reply, if one is wanted, stands in the outbox.
    Promised {
        /// True if the task is new.
        created: bool,
    },
    /// This, if a reply is wanted; nothing was committed for it.
    Direct(Box<SubmitReply>),
}

/// Why a message was not accepted.
enum Refused {
    Problem(Box<Problem>),
    Later(EngineError),
}

impl Intake {
    /// Takes in messages until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let intake = Arc::new(self);
        loop {
            match intake.engine.broker().subscribe(Source::Intake, PREFETCH).await {
                Ok(mut subscription) => {
                    let taking = TaskTracker::new();
                    while let Some(delivery) = tokio::select! {
                        biased;
                        () = shutdown.cancelled() => None,
                        delivery = subscription.next() => delivery,
                    } {
                        let (intake, shutdown) = (intake.clone(), shutdown.clone());
                        taking.spawn(async move { intake.take(delivery, &shutdown).await });
                    }
                    taking.close();
                    taking.wait().await;
                    subscription.close().await;
                }
                Err(error) => tracing::warn!(%error, "intake waits"),
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    /// Handles one message to its end, or leaves it unacknowledged at the shutdown.
    async fn take(&self, delivery: Delivery, shutdown: &CancellationToken) {
        let mut held = None;
        let mut kept = false;
        loop {
            let (waits, outage) = match self.accept(&delivery).await {
                Ok(Answer::Promised { created }) => {
                    self.gauges.messages.add(if created { "created" } else { "known" });
                    delivery.acker.ack().await;
                    return;
                }
                Ok(Answer::Direct(reply)) => {
                    match self.finish(&delivery, &reply, &mut kept).await {
                        Ok(()) => {
                            self.gauges.messages.add(outcome(&reply));
                            delivery.acker.ack().await;
                            return;
                        }
                        Err(error) => (error.to_string(), false),
                    }
                }
                Err(error) => (error.to_string(), error.is_outage()), // said once for all
            };
            // An outage of the store is said once for all.
            let said = (!outage).then_some(waits);
            held.get_or_insert_with(|| Held::begin(&self.gauges, &delivery, said));
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    /// Accepts or refuses; an error means that it is not known yet.
    async fn accept(&self, delivery: &Delivery) -> Result<Answer, EngineError> {
        let done = match delivery.routing_key.as_str() {
            SUBMIT => self.submit(delivery).await,
            STOP => self.stop(delivery).await,
            other => {
                let detail = format!(
                    "routing key `{other}` is not available in this version; expected `{SUBMIT}` \
                     or `{STOP}`"
                );
                Err(refused(ProblemKind::InvalidRequest, detail))
            }
        };
        match done {
            Ok(answer) => Ok(answer),
            Err(Refused::Problem(problem)) => {
                Ok(Answer::Direct(Box::new(SubmitReply::Problem(*problem))))
            }
            Err(Refused::Later(error)) => Err(error),
        }
    }

    async fn submit(&self, delivery: &Delivery) -> Result<Answer, Refused> {
        let by = self.identify(delivery).await?;
        if !by.has(Right::Submit) {
            let detail = "this needs the right `submit`: a token of role `publisher` or `admin`";
            return Err(refused(ProblemKind::Forbidden, detail));
        }
        let body = body(delivery)?;
        let mut submission = self.prepare(delivery, body, &by).await?;
        let Some(key) = &submission.idempotency_key else {
            let detail = "a message needs a `message_id`, or its plan an `idempotency_key`: one \
                          of them makes its repeat the same task";
            return Err(refused(ProblemKind::InvalidRequest, detail));
        };
        let task = TaskId::keyed(&submission.submitted_by, key);
        let promised = accepted_reply(delivery, &task);
        submission.outgoing = promised.iter().map(OutgoingMessage::entry).collect();
        let (task, created) =
            self.engine.submit(submission).await.map_err(|error| match error {
                EngineError::Refused(refusal) => refusal_problem(&refusal),
                EngineError::Store(_) => Refused::Later(error),
            })?;
        self.answer(&task, created, promised).await.map_err(Refused::Later)
    }

    /// Says what is still to be told of an accepted task. A message that comes again finds the
    /// reply that was promised to it; another one under the same key, perhaps from a publisher
    /// with a new reply queue, is told where the task stands now.
    async fn answer(
        &self,
        task: &TaskId,
        created: bool,
        promised: Option<OutgoingMessage>,
    ) -> Result<Answer, EngineError> {
        let Some(reply) = promised else { return Ok(Answer::Promised { created }) };
        if created || self.engine.send_promised(task, &reply).await? {
            return Ok(Answer::Promised { created });
        }
        let accepted = accepted(task, false, self.state(task).await?);
        Ok(Answer::Direct(Box::new(SubmitReply::Submitted(accepted))))
    }

    /// Reads where a task stands: it may have been accepted long ago.
    async fn state(&self, task: &TaskId) -> Result<TaskState, EngineError> {
        let header = self.engine.read(task, &[Key::Header]).await?.remove(&Key::Header);
        Ok(match header {
            Some(Some(Record::Header(header))) => shown(header.state),
            _ => TaskState::Queued,
        })
    }

    async fn prepare(
        &self,
        delivery: &Delivery,
        body: Value,
        who: &Identity,
    ) -> Result<standfast_domain::decide::Submission, Refused> {
        let plan = plan(body)?;
        let own = plan.get("idempotency_key").is_some();
        let traceparent = header(delivery, TRACEPARENT_HEADER).map(str::to_owned);
        let submitted = Submitted {
            body: plan,
            plan_dir: None,
            by: who.principal.clone(),
            key: delivery.message_id.clone().filter(|_| !own),
            traceparent,
        };
        let (retention, handlers) = (self.retention, &*self.handlers);
        let check =
            |announced: &_| prepare_within(who, submitted.clone(), retention, handlers, announced);
        let checked = self.registry.check(check).await;
        checked.map_err(Refused::Later)?.map_err(|Unfit { faults, forbidden }| match forbidden {
            true => {
                let detail = "the plan goes beyond what its publisher may submit";
                listed(ProblemKind::Forbidden, detail, faults)
            }
            false => {
                let detail = format!("the plan has {} fault(s)", faults.len());
                listed(ProblemKind::InvalidPlan, detail, faults)
            }
        })
    }

    /// Finds out who publishes.
    async fn identify(&self, delivery: &Delivery) -> Result<Identity, Refused> {
        self.sender(delivery).await.map(|(_, identity)| identity)
    }

    /// Finds out who publishes, and by what that is known: the seal of a message that was
    /// rejected before and is sent again, else the token in the header, else the user that the
    /// broker has validated.
    async fn sender(&self, delivery: &Delivery) -> Result<(Sender, Identity), Refused> {
        let unknown = |detail: &str| refused(ProblemKind::Unauthorized, detail);
        if let Some(seal) = header(delivery, SENDER_HEADER) {
            let opened = self.tokens.open_seal(seal, &sealed(delivery)).await;
            let sender = opened.map_err(Refused::Later)?.ok_or_else(|| {
                unknown("the header `standfast-sender` is not of this message and installation")
            })?;
            let identity = self.of(&sender).await?;
            return Ok((sender, identity));
        }
        if let Some(token) = header(delivery, TOKEN_HEADER) {
            return match self.tokens.know(token).await.map_err(Refused::Later)? {
                Known::Valid(known) => Ok((Sender::Token(known.token), known.identity)),
                Known::Expired => Err(unknown("the token has expired")),
                Known::Unknown => Err(unknown("the token is not known")),
            };
        }
        let user = delivery.user_id.as_deref().ok_or_else(|| {
            unknown("the message names nobody: set `user_id` or the header `standfast-token`")
        })?;
        let sender = Sender::User(user.to_owned());
        let identity = self.of(&sender).await?;
        Ok((sender, identity))
    }

    /// Says who a sender is now, with the groups and the ceiling of now.
    async fn of(&self, sender: &Sender) -> Result<Identity, Refused> {
        let unknown = |detail: String| refused(ProblemKind::Unauthorized, detail);
        let known = match sender {
            Sender::Token(id) => self.tokens.know_id(id).await,
            Sender::User(user) => self.tokens.know_amqp(user).await,
        };
        match (known.map_err(Refused::Later)?, sender) {
            (Known::Valid(known), _) => Ok(known.identity),
            (Known::Expired | Known::Unknown, Sender::Token(id)) => {
                Err(unknown(format!("token {id}, by which it was sent, holds no more")))
            }
            (Known::Expired, Sender::User(user)) => {
                Err(unknown(format!("what was granted to the broker's user `{user}` has expired")))
            }
            (Known::Unknown, Sender::User(user)) => {
                let Some(ceiling) = self.ungranted.clone() else {
                    return Err(unknown(format!(
                        "nothing was granted to the broker's user `{user}`; an admin does it with \
                         `standfast token create --amqp-user {user}`"
                    )));
                };
                let principal = Principal::new(format!("user:{user}"));
                let principal = principal.map_err(|fault| unknown(fault.to_string()))?;
                Ok(Identity { ceiling, ..Identity::new(principal, Role::Publisher) })
            }
        }
    }

    /// Makes what a rejected message keeps: its sender sealed, if one is known. Want of a right
    /// is counted and logged here, once for each message.
    async fn rejected(
        &self,
        delivery: &Delivery,
        problem: &Problem,
    ) -> Result<Message, EngineError> {
        let sender = match self.sender(delivery).await {
            Ok((sender, identity)) => Some((sender, identity)),
            Err(Refused::Problem(_)) => None,
            Err(Refused::Later(error)) => return Err(error),
        };
        let seal = match &sender {
            Some((sender, _)) => Some(self.tokens.seal(sender, &sealed(delivery)).await?),
            None => None,
        };
        let principal = match &sender {
            Some((_, identity)) => identity.principal.to_string(),
            None => "nobody".to_owned(),
        };
        let right = match problem.known() {
            Some(ProblemKind::Unauthorized) => Some("token"),
            Some(ProblemKind::Forbidden) => Some(Right::Submit.as_str()),
            Some(_) | None => None,
        };
        let command = format!("{} {}", delivery.routing_key, message_id(delivery));
        match right {
            Some(right) => self.tokens.note_refused(&RefusedCommand {
                principal: &principal,
                right,
                task: None,
                command: &command,
            }),
            None => {
                let message_id = message_id(delivery);
                tracing::info!(principal, message_id, %problem, "message rejected");
            }
        }
        let now = self.engine.now().await?;
        Ok(rejection(delivery, problem, now, seal))
    }

    /// Sends the reply, and before it the message itself to the rejected ones if it was refused,
    /// unless it is `kept` there already.
    async fn finish(
        &self,
        delivery: &Delivery,
        reply: &SubmitReply,
        kept: &mut bool,
    ) -> Result<(), BrokerError> {
        if let SubmitReply::Problem(problem) = reply
            && !*kept
        {
            let rejection = self.rejected(delivery, problem).await;
            let rejection = rejection.map_err(|e| BrokerError::Unavailable(e.to_string()))?;
            for result in self.engine.broker().publish(vec![rejection], BOUND).await {
                result?;
            }
            *kept = true;
        }
        let Some(answer) = reply_to(delivery, reply) else { return Ok(()) };
        for result in self.engine.broker().publish(vec![answer.message()], BOUND).await {
            match result {
                Ok(()) => {}
                Err(BrokerError::Refused(reason)) => {
                    tracing::info!(reply_to = ?delivery.reply_to, reason,
                        "nobody waits for the reply");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Makes the reply to a message, if it wants one.
fn reply_to(delivery: &Delivery, reply: &SubmitReply) -> Option<OutgoingMessage> {
    Some(OutgoingMessage {
        to: Recipient::Reply(delivery.reply_to.clone()?),
        message_id: reply_id(delivery.message_id.as_deref().unwrap_or("none")),
        correlation_id: delivery.correlation_id.clone().or(delivery.message_id.clone()),
        body: serde_json::to_value(reply).expect("plain data"),
    })
}

/// Makes the reply that is promised with a task's birth: it is `queued` then.
fn accepted_reply(delivery: &Delivery, task: &TaskId) -> Option<OutgoingMessage> {
    let accepted = accepted(task, true, TaskState::Queued);
    reply_to(delivery, &SubmitReply::Submitted(accepted))
}

fn accepted(task: &TaskId, created: bool, state: TaskState) -> Accepted {
    let url = fill(paths::TASK, &[task.as_str()]);
    Accepted { url, id: task.to_string(), created, state }
}

/// A message that waits for store or broker; counted as long as it does. The first of them is
/// logged, and the end of the last.
struct Held<'g>(&'g IntakeGauges);

impl<'g> Held<'g> {
    fn begin(gauges: &'g IntakeGauges, delivery: &Delivery, error: Option<String>) -> Self {
        if gauges.held.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(error) = error
        {
            tracing::warn!(message_id = ?delivery.message_id, error, "messages held");
        }
        Self(gauges)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.held.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!("no message is held any more");
        }
    }
}

/// Gives the word that a message is counted under.
fn outcome(reply: &SubmitReply) -> &'static str {
    match reply {
        SubmitReply::Submitted(accepted) if accepted.created => "created",
        SubmitReply::Submitted(_) => "known",
        SubmitReply::Stopped(_) => "stopped",
        SubmitReply::Problem(problem) => problem.known().map_or("unknown", ProblemKind::slug),
    }
}

fn header<'d>(delivery: &'d Delivery, name: &str) -> Option<&'d str> {
    let found = delivery.headers.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str())
}

/// Names a reply after its request. A request's id may be as long as AMQP allows, so its end
/// is left out where both do not fit.
fn reply_id(request: &str) -> String {
    format!("reply/{}", truncate(request, REPLY_ID_BYTES_MAX))
}

/// Reads a message's body.
fn body(delivery: &Delivery) -> Result<Value, Refused> {
    json::read(&delivery.body, Limits::PLAN).map_err(|faults| {
        let detail = "the body is not acceptable JSON";
        listed(ProblemKind::InvalidJson, detail, faults)
    })
}

/// Takes the plan out of its envelope, if it has one.
fn plan(body: Value) -> Result<Value, Refused> {
    if body.get("plan").is_none() {
        return Ok(body);
    }
    let request: SubmitRequest = serde_json::from_value(body)
        .map_err(|error| refused(ProblemKind::InvalidRequest, error.to_string()))?;
    if request.plan_dir.is_none() {
        return Ok(request.plan);
    }
    let message = "no message may name a folder: workers may be on other machines".to_owned();
    let fault = Fault { pointer: "/plan_dir".to_owned(), message };
    Err(listed(ProblemKind::InvalidRequest, "the message names a folder", vec![fault]))
}

fn refused(kind: ProblemKind, detail: impl Into<String>) -> Refused {
    Refused::Problem(Box::new(Problem::new(kind, detail)))
}

fn listed(kind: ProblemKind, detail: impl Into<String>, faults: Vec<Fault>) -> Refused {
    let errors = faults
        .into_iter()
        .map(|fault| problem::Fault { pointer: fault.pointer, message: fault.message });
    Refused::Problem(Box::new(Problem::new(kind, detail).with_errors(errors.collect())))
}

fn refusal_problem(refusal: &Refusal) -> Refused {
    if let Refusal::InvalidPlan(faults) = refusal {
        return listed(ProblemKind::InvalidPlan, refusal.to_string(), faults.clone());
    }
    let kind = match refusal {
        Refusal::KeyReused(_) => ProblemKind::KeyReused,
        Refusal::InvalidPlan(_) => ProblemKind::InvalidPlan,
        Refusal::NoTask(_) | Refusal::NoStep(_) => ProblemKind::NotFound,
        Refusal::Forbidden(_) => ProblemKind::Forbidden,
        Refusal::Fenced { .. } => ProblemKind::Fenced,
        Refusal::NotClaimable { .. }
        | Refusal::NotStoppable { .. }
        | Refusal::NotApplicable { .. }
        | Refusal::Effect { .. }
        | Refusal::OwnerChanged(_)
        | Refusal::Ended(_)
        | Refusal::Ending(_)
        | Refusal::Stopped
        | Refusal::NotStopped
        | Refusal::EndDecided(_) => ProblemKind::NotApplicable,
        Refusal::PlanMoved => ProblemKind::PlanMoved,
    };
    refused(kind, refusal.to_string())
}

/// Gives the word that publishers know for a stored state.
fn shown(state: Stored) -> TaskState {
    match state {
        Stored::Queued => TaskState::Queued,
        Stored::Running => TaskState::Running,
        Stored::Waiting => TaskState::Waiting,
        Stored::Blocked => TaskState::Blocked,
        Stored::Cancelling => TaskState::Cancelling,
        Stored::Cancelled => TaskState::Cancelled,
        Stored::Completed => TaskState::Completed,
        Stored::Failed => TaskState::Failed,
    }
}

#[cfg(test)]
mod tests;
