//! Takes in what other services publish: `submit` messages become tasks.
//!
//! A message is acknowledged once its task is stored and its reply is sent, or once it stands
//! in the queue of rejected messages with the problem beside it. So none is lost and none
//! loops; one that comes again leads to the same task by its key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::json::{self, Limits};
use standfast_domain::outcome::truncate;
use standfast_domain::plan::Fault;
use standfast_domain::record::{Key, Record, TaskState as Stored};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;
use standfast_engine::ports::{BrokerError, Delivery, Destination, Message, Source};
use standfast_engine::registry::Registry;
use standfast_engine::submission::{Handlers, Submitted, prepare};
use standfast_engine::tokens::{Identity, Role, Tokens};
use standfast_engine::{Engine, EngineError};
use standfast_protocol::amqp::{
    PROBLEM_HEADER, ROUTING_KEY_HEADER, SUBMIT, SubmitReply, TOKEN_HEADER, TRACEPARENT_HEADER,
};
use standfast_protocol::paths::{self, fill};
use standfast_protocol::problem::{self, Problem, ProblemKind};
use standfast_protocol::tasks::{Submitted as Accepted, TaskState};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Messages under way at a time.
const PREFETCH: u16 = 64;
/// How long a reply or a rejection may wait for the broker.
const BOUND: Duration = Duration::from_secs(10);
/// Bytes of a request's id in its reply's: a message id has at most 255.
const REPLY_ID_BYTES_MAX: usize = 249;
/// Bytes of the problem beside a rejected message: all headers go into one frame, which RabbitMQ
/// limits to 128 KiB, and those that the message came with are kept too.
const PROBLEM_BYTES_MAX: usize = 32 * 1024;
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
        let mut failing = false;
        loop {
            let waits: Box<dyn std::fmt::Display + Send> = match self.accept(&delivery).await {
                Ok(reply) => match self.finish(&delivery, reply).await {
                    Ok(()) => {
                        delivery.acker.ack().await;
                        return;
                    }
                    Err(error) => Box::new(error),
                },
                Err(error) => Box::new(error),
            };
            if !failing {
                tracing::warn!(message_id = ?delivery.message_id, error = %waits, "message held");
                failing = true;
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    /// Accepts or refuses; an error means that it is not known yet.
    async fn accept(&self, delivery: &Delivery) -> Result<SubmitReply, EngineError> {
        match self.submit(delivery).await {
            Ok(submitted) => Ok(SubmitReply::Submitted(submitted)),
            Err(Refused::Problem(problem)) => Ok(SubmitReply::Problem(*problem)),
            Err(Refused::Later(error)) => Err(error),
        }
    }

    async fn submit(&self, delivery: &Delivery) -> Result<Accepted, Refused> {
        if delivery.routing_key != SUBMIT {
            let detail = format!(
                "routing key `{}` is not available in this version; expected `{SUBMIT}`",
                delivery.routing_key
            );
            return Err(refused(ProblemKind::InvalidRequest, detail));
        }
        let by = self.identify(delivery).await?;
        let body = json::read(&delivery.body, Limits::PLAN).map_err(|faults| {
            let detail = "the body is not acceptable JSON";
            listed(ProblemKind::InvalidJson, detail, faults)
        })?;
        let submission = self.prepare(delivery, body, by.principal.clone()).await?;
        if let Some(owner) = &submission.plan.owner
            && !by.may_name_owner(Some(owner))
        {
            let detail = format!("this needs to be done by an admin, or without `owner: {owner}`");
            return Err(refused(ProblemKind::Forbidden, detail));
        }
        if submission.idempotency_key.is_none() {
            let detail = "a message needs a `message_id`, or its plan an `idempotency_key`: one \
                          of them makes its repeat the same task";
            return Err(refused(ProblemKind::InvalidRequest, detail));
        }
        let (task, created) =
            self.engine.submit(submission).await.map_err(|error| match error {
                EngineError::Refused(refusal) => refusal_problem(&refusal),
                EngineError::Store(_) => Refused::Later(error),
            })?;
        let state = self.state(&task).await.map_err(Refused::Later)?;
        let url = fill(paths::TASK, &[task.as_str()]);
        Ok(Accepted { url, id: task.to_string(), created, state })
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
        by: Principal,
    ) -> Result<standfast_domain::decide::Submission, Refused> {
        let plan = match body {
            Value::Object(mut fields) if fields.contains_key("plan") && fields.len() == 1 => {
                fields.remove("plan").unwrap_or_default()
            }
            other => other,
        };
        let own = plan.get("idempotency_key").is_some();
        let traceparent = header(delivery, TRACEPARENT_HEADER).map(str::to_owned);
        let submitted = Submitted {
            body: plan,
            plan_dir: None,
            by,
            key: delivery.message_id.clone().filter(|_| !own),
            traceparent,
        };
        let (retention, handlers) = (self.retention, &*self.handlers);
        let checked = self
            .registry
            .check(|announced| prepare(submitted.clone(), retention, handlers, announced))
            .await;
        checked.map_err(Refused::Later)?.map_err(|faults| {
            let detail = format!("the plan has {} fault(s)", faults.len());
            listed(ProblemKind::InvalidPlan, detail, faults)
        })
    }

    /// Finds out who publishes: the token in the header, else the user that the broker has
    /// validated.
    async fn identify(&self, delivery: &Delivery) -> Result<Identity, Refused> {
        let unknown = |detail: &str| refused(ProblemKind::Unauthorized, detail);
        if let Some(token) = header(delivery, TOKEN_HEADER) {
            let identity = self.tokens.authenticate(token).await.map_err(Refused::Later)?;
            let identity = identity.ok_or_else(|| unknown("the token is not known"))?;
            return match identity.role {
                Role::Admin | Role::Publisher => Ok(identity),
                Role::Worker => {
                    let detail = "a worker's token does not submit; use a publisher's";
                    Err(refused(ProblemKind::Forbidden, detail))
                }
            };
        }
        let user = delivery.user_id.as_deref().ok_or_else(|| {
            unknown("the message names nobody: set `user_id` or the header `standfast-token`")
        })?;
        let principal = Principal::new(format!("user:{user}"));
        let principal = principal.map_err(|fault| unknown(&fault.to_string()))?;
        Ok(Identity { principal, role: Role::Publisher })
    }

    /// Sends the reply, and the message itself to the rejected ones if it was refused.
    async fn finish(&self, delivery: &Delivery, reply: SubmitReply) -> Result<(), BrokerError> {
        let mut messages = Vec::new();
        if let SubmitReply::Problem(problem) = &reply {
            tracing::info!(message_id = ?delivery.message_id, %problem, "message rejected");
            messages.push(rejection(delivery, problem));
        }
        for result in self.engine.broker().publish(messages, BOUND).await {
            result?;
        }
        let Some(to) = &delivery.reply_to else { return Ok(()) };
        let correlation_id = delivery.correlation_id.clone().or(delivery.message_id.clone());
        let answer = Message {
            destination: Destination::Reply(to.clone()),
            message_id: reply_id(delivery.message_id.as_deref().unwrap_or("none")),
            correlation_id,
            headers: Vec::new(),
            body: Bytes::from(serde_json::to_vec(&reply).expect("plain data")),
        };
        for result in self.engine.broker().publish(vec![answer], BOUND).await {
            match result {
                Ok(()) => {}
                Err(BrokerError::Refused(reason)) => {
                    tracing::info!(reply_to = %to, reason, "nobody waits for the reply");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn header<'d>(delivery: &'d Delivery, name: &str) -> Option<&'d str> {
    let found = delivery.headers.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str())
}

/// Makes the rejected copy; tokens are left out.
fn rejection(delivery: &Delivery, problem: &Problem) -> Message {
    let mut headers: Vec<(String, String)> = delivery
        .headers
        .iter()
        .filter(|(name, _)| name != TOKEN_HEADER && name != PROBLEM_HEADER)
        .cloned()
        .collect();
    headers.push((PROBLEM_HEADER.to_owned(), problem_header(problem)));
    headers.push((ROUTING_KEY_HEADER.to_owned(), delivery.routing_key.clone()));
    Message {
        destination: Destination::Rejected,
        message_id: delivery.message_id.clone().unwrap_or_else(|| "none".to_owned()),
        correlation_id: delivery.correlation_id.clone(),
        headers,
        body: delivery.body.clone(),
    }
}

/// Names a reply after its request. A request's id may be as long as AMQP allows, so its end
/// is left out where both do not fit.
fn reply_id(request: &str) -> String {
    format!("reply/{}", truncate(request, REPLY_ID_BYTES_MAX))
}

/// Writes a problem so that it fits a header: with as many of its faults as there is room for.
fn problem_header(problem: &Problem) -> String {
    let mut shown = problem.clone();
    loop {
        let text = serde_json::to_string(&shown).expect("plain data");
        if text.len() <= PROBLEM_BYTES_MAX || shown.errors.is_empty() {
            return text;
        }
        shown.errors.truncate(shown.errors.len() / 2);
    }
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
    let kind = match refusal {
        Refusal::KeyReused(_) => ProblemKind::KeyReused,
        Refusal::InvalidPlan(_) => ProblemKind::InvalidPlan,
        Refusal::NoTask(_) | Refusal::NoStep(_) => ProblemKind::NotFound,
        Refusal::Forbidden(_) => ProblemKind::Forbidden,
        Refusal::Fenced { .. } => ProblemKind::Fenced,
        Refusal::NotClaimable { .. }
        | Refusal::NotApplicable { .. }
        | Refusal::Effect { .. }
        | Refusal::Ended(_) => ProblemKind::NotApplicable,
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
