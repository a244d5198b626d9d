//! What the code of a handler does about effects: the one that its step declares, through the
//! gate of the shipped worker; others, of names of its own, as a worker outside does, by intent
//! and receipt. Each goes to the outside only after the product has let it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use standfast_domain::decide::Speaker;
use standfast_domain::ids::{Principal, StepId, TaskId, WorkerId};
use standfast_domain::record::{EffectClass, Key, MAIN_EFFECT, NotLanded, Record};
use standfast_domain::time::Span;
use standfast_domain::view::Attempt;
use standfast_engine::EngineError;
use standfast_engine::claims::{Claims, News, Renewed};
use standfast_engine::effects::{EffectAsk, Intended, SEND_WINDOW};
use standfast_worker::handlers::{Class, Effect, Failure, Job, MaySend, Report, Sent, Success};

use crate::ledger::{self, Reply, Request};
use crate::process::{Process, Trouble};
use crate::trace::pause;

/// The wait between two tries while the store does not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// How an effect ended well.
pub struct Landed {
    /// The request's number, if this attempt has sent it.
    pub number: Option<usize>,
    pub receipt: Value,
}

/// Sends the one effect that a step declares, if the gate lets it.
pub async fn declared(
    process: &Arc<Process>,
    job: &Job,
    effect: &Effect,
) -> Result<Landed, Report> {
    let drawn = process.world.span(2_000, 20_000);
    let timeout = drawn.min(job.deadline).max(Duration::from_millis(10));
    let stood = process.stood_still();
    process.pass_at("before intent").await;
    match effect.may_send(timeout).await {
        MaySend::Before(until) => {
            if !effect.is_before(until) {
                process.world.trace.count("window missed");
                let failure = Failure::new(Class::Retryable, "it may not be sent any more");
                return Err(Failure { sent: Sent::Not, ..failure }.into());
            }
        }
        MaySend::Kept(receipt) => {
            process.world.trace.count("receipt kept");
            let success = Success { output: receipt, kept: true, ..Success::default() };
            return Err(Report::Succeeded(success));
        }
        MaySend::Ended(failure) => return Err(failure.into()),
    }
    let looked = process.world.trace.elapsed();
    process.pass_at("after intent").await;
    if unreachable(process, &effect.key) {
        let failure = Failure::new(Class::Retryable, "the outside was not reached");
        return Err(Failure { sent: Sent::Not, ..failure }.into());
    }
    let late = process.stood_still() > stood || process.world.trace.elapsed() > looked;
    let behind = is_behind(process);
    let request = Request {
        task: job.task.clone(),
        step: job.step.clone(),
        name: MAIN_EFFECT.to_owned(),
        key: effect.key.clone(),
        class: effect.class,
        body: job.input.clone(),
        about: job.input["seen"].clone(),
        attempt: job.attempt,
        timeout,
        // The claim is the intent of an idempotent one, and only a clock says that it is over.
        unaware: late || (behind && effect.class == EffectClass::Idempotent),
        behind,
    };
    let (number, reply) = ledger::send(process, request).await;
    match reply {
        Reply::Receipt(receipt) => {
            Ok(Landed { number: Some(number), receipt: ledger::receipt(receipt) })
        }
        Reply::Refused => {
            let failure = Failure::new(Class::Retryable, "the outside refused");
            Err(Failure { sent: Sent::Refused, ..failure }.into())
        }
        Reply::Silence => Err(Failure::new(Class::Retryable, "no answer came").into()),
    }
}

/// The connection could not be made: nothing was sent, for sure.
fn unreachable(process: &Process, key: &str) -> bool {
    let world = &process.world;
    let away = world.chance(200) && world.ledger.fails(world, key);
    if away {
        world.trace.count("outside not reached");
        world.trace.say(&process.name, format_args!("does not reach the outside"));
    }
    away
}

/// True if the process stood still within the time for which a claim may seem to hold.
fn is_behind(process: &Process) -> bool {
    let now = process.world.trace.elapsed();
    let claim = Duration::from_millis(process.world.claim_length.0);
    process.trouble_between(now.saturating_sub(claim), now) == Some(Trouble::Frozen)
}

/// Answers the question of a step's check.
pub async fn answer_check(process: &Arc<Process>, job: &Job) -> Report {
    let place = (job.task.as_str(), job.step.as_str(), MAIN_EFFECT);
    match ledger::check(process, place, &job.input["seen"]).await {
        Some(Some(receipt)) => Report::Succeeded(Success { output: receipt, ..Success::default() }),
        Some(None) => {
            let failure = Failure::new(Class::Permanent, "it has not happened");
            failure.with_output(json!({ "happened": false })).into()
        }
        None => Failure::new(Class::Retryable, "no answer").into(),
    }
}

/// True if a failed check says that the effect has not happened.
pub fn says_no(failure: &Failure) -> bool {
    failure.output.as_ref().is_some_and(|output| output["happened"] == false)
}

/// An effect under a name of its own, as a worker outside has it.
pub struct Named<'a> {
    pub process: &'a Arc<Process>,
    pub claims: &'a Arc<Claims>,
    pub job: &'a Job,
    pub name: String,
    pub class: EffectClass,
}

impl Named<'_> {
    /// Sends it, unless it has happened; a failure if it does not land.
    pub async fn run(&self) -> Result<Landed, Failure> {
        let at = self.attempt().await?;
        let timeout = self.process.world.span(2_000, 15_000);
        let mut first = None; // an intent whose answer was lost may be as old as its first call
        loop {
            let stood = self.process.stood_still();
            let held = self.hold_fast(&at).await?;
            let clock = self.claims.engine().clock();
            let (monotonic, stood) = *first.get_or_insert((clock.monotonic(), stood));
            self.process.pass_at("before intent").await;
            let asked =
                self.claims.intend(&self.task(), at.clone(), self.ask(timeout), self.actor()).await;
            match asked {
                Ok(Intended::Send { key }) => {
                    let until = held.min(monotonic + SEND_WINDOW.to_std());
                    if clock.monotonic() < until {
                        return self.send(&at, key, timeout, stood).await;
                    }
                    self.process.world.trace.count("window missed");
                    self.tell(&at, Err(NotLanded::NotSent)).await;
                    first = None;
                }
                Ok(Intended::Kept { receipt }) => {
                    self.process.world.trace.count("receipt kept");
                    return Ok(Landed { number: None, receipt });
                }
                Ok(Intended::Check { .. }) => {
                    if let Some(receipt) = self.find_out(&at).await? {
                        return Ok(Landed { number: None, receipt });
                    }
                    first = None;
                }
                Ok(Intended::Ended) => return Err(failed(Class::Cancelled, "it is over")),
                Err(EngineError::Refused(refusal)) => {
                    return Err(failed(Class::Permanent, &refusal.to_string()));
                }
                Err(EngineError::Store(_)) => self.again().await?,
            }
        }
    }

    /// Renews the claim; gives until when it holds by this process's clock.
    async fn hold_fast(&self, at: &Attempt) -> Result<Duration, Failure> {
        let engine = self.claims.engine();
        loop {
            let asked = engine.clock().monotonic();
            let news = News::default();
            match self.claims.renew(&self.task(), at.clone(), news, self.actor()).await {
                Ok(Renewed { stop: true, .. }) => {
                    return Err(failed(Class::Cancelled, "told to end"));
                }
                Ok(Renewed { expires_at, stop: false }) => {
                    let now = engine.now().await.expect("the store has just told its time");
                    let left = expires_at.since(now).to_std();
                    let length = Duration::from_millis(self.process.world.claim_length.0);
                    return Ok((asked + length).min(engine.clock().monotonic() + left));
                }
                Err(EngineError::Refused(_)) => {
                    return Err(failed(Class::Cancelled, "its claim is another's"));
                }
                Err(EngineError::Store(_)) => self.again().await?,
            }
        }
    }

    /// Names the attempt, whose epoch only its claim knows.
    async fn attempt(&self) -> Result<Attempt, Failure> {
        let step = StepId::new(self.job.step.clone()).unwrap();
        let key = Key::Claim(step.clone());
        loop {
            let read = self.claims.engine().read(&self.task(), std::slice::from_ref(&key)).await;
            let found = match read {
                Ok(mut records) => records.remove(&key).flatten(),
                Err(_) => {
                    self.again().await?;
                    continue;
                }
            };
            let worker = WorkerId::new(self.process.name.clone()).unwrap();
            return match found {
                Some(Record::Claim(claim)) if claim.attempt == self.job.attempt => {
                    Ok(Attempt { step, attempt: claim.attempt, epoch: claim.epoch, worker })
                }
                _ => Err(failed(Class::Cancelled, "its claim is gone")),
            };
        }
    }

    async fn send(
        &self,
        at: &Attempt,
        key: String,
        timeout: Duration,
        stood: Duration,
    ) -> Result<Landed, Failure> {
        let looked = self.process.world.trace.elapsed();
        self.process.pass_at("after intent").await;
        if unreachable(self.process, &key) {
            self.tell(at, Err(NotLanded::NotSent)).await;
            return Err(failed(Class::Retryable, "the outside was not reached"));
        }
        let late =
            self.process.stood_still() > stood || self.process.world.trace.elapsed() > looked;
        let request = Request {
            task: self.job.task.clone(),
            step: self.job.step.clone(),
            name: self.name.clone(),
            key,
            class: self.class,
            body: self.body(),
            about: self.job.input["seen"].clone(),
            attempt: self.job.attempt,
            timeout,
            unaware: late,
            behind: is_behind(self.process),
        };
        let (number, reply) = ledger::send(self.process, request).await;
        self.process.pass_at("after receipt").await;
        match reply {
            Reply::Receipt(receipt) => {
                let receipt = ledger::receipt(receipt);
                self.process.world.ledger.told(number);
                if !self.tell(at, Ok(receipt.clone())).await {
                    self.process.world.ledger.not_taken(number);
                }
                Ok(Landed { number: Some(number), receipt })
            }
            Reply::Refused => {
                self.tell(at, Err(NotLanded::Refused)).await;
                Err(failed(Class::Retryable, "the outside refused"))
            }
            Reply::Silence => Err(failed(Class::Retryable, "no answer came")),
        }
    }

    /// Asks the outside what an earlier attempt has left; `None`: it may be recorded anew.
    async fn find_out(&self, at: &Attempt) -> Result<Option<Value>, Failure> {
        let place = (self.job.task.as_str(), self.job.step.as_str(), self.name.as_str());
        match ledger::check(self.process, place, &self.job.input["seen"]).await {
            Some(Some(receipt)) => {
                self.tell(at, Ok(receipt.clone())).await;
                Ok(Some(receipt))
            }
            Some(None) => {
                self.tell(at, Err(NotLanded::Checked)).await;
                Ok(None)
            }
            None => Err(failed(Class::Retryable, "its check gave no answer")),
        }
    }

    /// Tells what became of it until that is stored or refused, also when nobody waits for this
    /// handler any more; false: it was refused.
    async fn tell(&self, at: &Attempt, what: Result<Value, NotLanded>) -> bool {
        let Attempt { step, attempt, epoch, worker } = at.clone();
        let by = Speaker { step, name: self.name.clone(), attempt, epoch, worker };
        let (claims, task, actor) = (self.claims.clone(), self.task(), self.actor());
        let telling = tokio::spawn(async move {
            loop {
                let (by, actor) = (by.clone(), actor.clone());
                let told = match what.clone() {
                    Ok(receipt) => claims.confirm_effect(&task, by, receipt, actor).await,
                    Err(how) => claims.retract_effect(&task, by, how, actor).await,
                };
                match told {
                    Err(EngineError::Store(_)) => pause(AGAIN).await,
                    Ok(()) => return true,
                    Err(EngineError::Refused(_)) => return false,
                }
            }
        });
        telling.await.expect("telling does not panic")
    }

    async fn again(&self) -> Result<(), Failure> {
        tokio::select! {
            biased;
            () = self.job.cancel.cancelled() => Err(failed(Class::Cancelled, "told to end")),
            () = pause(AGAIN) => Ok(()),
        }
    }

    fn ask(&self, timeout: Duration) -> EffectAsk {
        EffectAsk {
            name: self.name.clone(),
            class: self.class,
            request: Some(self.body()),
            window: SEND_WINDOW,
            request_timeout: Span(u64::try_from(timeout.as_millis()).unwrap()),
            target: None,
            says: None,
        }
    }

    fn body(&self) -> Value {
        json!({ "to": self.name, "seen": self.job.input["seen"] })
    }

    fn task(&self) -> TaskId {
        TaskId::parse(&self.job.task).unwrap()
    }

    fn actor(&self) -> Principal {
        Principal::new(format!("worker:{}", self.process.name)).unwrap()
    }
}

fn failed(class: Class, why: &str) -> Failure {
    Failure { sent: Sent::Not, ..Failure::new(class, why) }
}
