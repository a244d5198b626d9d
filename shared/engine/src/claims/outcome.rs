//! Takes what an attempt has come to, once it is checked.

use bytes::Bytes;
use serde_json::Value;
use standfast_domain::ceiling::Ceiling;
use standfast_domain::decide::{Addition, Command};
use standfast_domain::ids::{Principal, StepId, TaskId, check_name};
use standfast_domain::json::{DEPTH_MAX, OUTPUT_INLINE_BYTES_MAX, check_value};
use standfast_domain::outcome::{ARTIFACTS_MAX, Artifact, Failure, FailureClass, Outcome, Success};
use standfast_domain::plan::StepPlan;
use standfast_domain::record::{Key, LastAttempt, Payload, Record};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::{SPAN_MAX, Span};
use standfast_domain::view::Attempt;

use super::{ClaimAsk, Claimed, Claims};
use crate::EngineError;
use crate::batch::Stay;
use crate::effects::{Told, relaxed};
use crate::ports::StoreError;
use crate::submission::{Grown, prepare_added};

/// Bytes of an output that is kept as a blob.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a handler reports, before the engine has checked it.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// It worked.
    Succeeded {
        /// What it gave.
        output: Value,
        /// What it left, already in the blobs.
        artifacts: Vec<Artifact>,
        /// What it cost.
        cost_usd_micros: u64,
        /// A checkpoint's name.
        checkpoint: Option<String>,
        /// Steps to add, as an array; null for none.
        then: Value,
    },
    /// It did not.
    Failed {
        /// How.
        class: FailureClass,
        /// Why.
        message: String,
        /// Not again before this span has passed.
        retry_after: Option<Span>,
        /// What it gave all the same.
        output: Value,
        /// What it cost.
        cost_usd_micros: u64,
        /// What is known of the effect that the step declares.
        effect: Told,
    },
}

impl Report {
    /// Makes a failure with nothing but a class and a text.
    pub fn failed(class: FailureClass, message: impl Into<String>) -> Self {
        Self::Failed {
            class,
            message: message.into(),
            retry_after: None,
            output: Value::Null,
            cost_usd_micros: 0,
            effect: Told::Unknown,
        }
    }
}

impl Claims {
    /// Takes an attempt's outcome. Telling it again after a lost answer is accepted; from
    /// anyone but the holder of the attempt it is refused as fenced; that the last holder told
    /// it too late is recorded, and what it cost counts.
    pub async fn complete(
        &self,
        task: &TaskId,
        at: Attempt,
        report: Report,
        actor: Principal,
    ) -> Result<(), EngineError> {
        self.complete_and_stay(task, at, report, actor, None).await.map(|_| ())
    }

    /// Takes an attempt's outcome as [`Claims::complete`] does, and gives its worker a step of
    /// the same queue that this has released, claimed in the same commit. An answer that was
    /// lost leaves that claim to expire, as with [`Claims::claim`].
    pub async fn complete_and_stay(
        &self,
        task: &TaskId,
        at: Attempt,
        report: Report,
        actor: Principal,
        stay: Option<Stay>,
    ) -> Result<Option<Claimed>, EngineError> {
        let (outcome, added, cost_usd_micros) = self.checked(task, &at.step, report).await?;
        let outcome = Box::new(outcome);
        let (step, attempt, worker) = (at.step.clone(), at.attempt, at.worker.clone());
        let command = Command::CompleteAttempt { at, outcome, added, cost_usd_micros };
        let wants = vec![Key::Step(step.clone())];
        let ask = stay.clone().map(|stay| (stay, task.clone()));
        let mut done = self.engine.execute_staying(task, command, actor, wants, stay).await?;
        let last = match done.records.get(&Key::Step(step.clone())) {
            Ok(Some(Record::Step(state))) => state.last.clone(),
            _ => None,
        };
        let late =
            |last: LastAttempt| last.late && last.attempt == attempt && last.worker == worker;
        if last.is_some_and(late) {
            return Err(Refusal::Fenced { step, attempt }.into());
        }
        let (Some((stay, task)), Some(step)) = (ask, done.stayed.take()) else { return Ok(None) };
        let Stay { worker, principal, length, handlers, .. } = stay;
        let handlers = Some(handlers);
        let ask = ClaimAsk { task, step, attempt: None, worker, principal, length, handlers };
        match Box::pin(self.given(&ask, done.records)).await {
            Ok(claimed) => Ok(Some(claimed)),
            Err(error) => {
                // The outcome is stored; what cannot be read of the next step must not hide that.
                tracing::warn!(task = %ask.task, step = %ask.step, %error, "step left to expire");
                Ok(None)
            }
        }
    }

    /// Checks a report; what breaks a limit becomes a permanent failure that names it.
    async fn checked(
        &self,
        task: &TaskId,
        step: &StepId,
        report: Report,
    ) -> Result<(Outcome, Vec<Addition>, u64), EngineError> {
        let refuse = |message: String, cost| {
            let failure = Failure::new(FailureClass::Permanent, message);
            Ok((Outcome::Failed(failure), Vec::new(), cost))
        };
        match report {
            Report::Failed { class, message, retry_after, output, cost_usd_micros, effect } => {
                let effect = Box::pin(self.effect_end(task, effect)).await?;
                let small = serde_json::to_vec(&output).map_or(0, |bytes| bytes.len());
                let output = if small <= OUTPUT_INLINE_BYTES_MAX { output } else { Value::Null };
                // A wait beyond what timers may take has no date that can be shown.
                let retry_after = retry_after.map(|wait| wait.min(SPAN_MAX));
                let failure = Failure { class, message, retry_after, output, effect };
                Ok((Outcome::Failed(failure), Vec::new(), cost_usd_micros))
            }
            Report::Succeeded { output, artifacts, cost_usd_micros, checkpoint, then } => {
                if let Some(fault) = report_fault(&output, &artifacts, checkpoint.as_deref()) {
                    return refuse(fault, cost_usd_micros);
                }
                let adds = !then.is_null() && then.as_array().is_none_or(|steps| !steps.is_empty());
                let (then, added) = match adds {
                    true => match Box::pin(self.added(&then, task, step)).await? {
                        Ok(added) => added,
                        Err(fault) => return refuse(fault, cost_usd_micros),
                    },
                    false => (Vec::new(), Vec::new()),
                };
                let bytes = serde_json::to_vec(&output).expect("values are JSON");
                if bytes.len() > OUTPUT_BYTES_MAX {
                    let fault = format!(
                        "its output has {} bytes; at most {OUTPUT_BYTES_MAX} are kept",
                        bytes.len()
                    );
                    return refuse(fault, cost_usd_micros);
                }
                let output = self.payload(task, output, bytes).await?;
                let success = Success { output, artifacts, checkpoint, then };
                Ok((Outcome::Succeeded(success), added, cost_usd_micros))
            }
        }
    }

    async fn added(
        &self,
        then: &Value,
        task: &TaskId,
        step: &StepId,
    ) -> Result<Result<(Vec<StepPlan>, Vec<Addition>), String>, EngineError> {
        let handlers = &*self.handlers;
        let meta = self.engine.read(task, &[Key::Meta]).await?.remove(&Key::Meta).flatten();
        let (plan_dir, ceiling) = match meta {
            Some(Record::Meta(meta)) => (meta.plan_dir.is_some(), meta.ceiling),
            _ => (false, Ceiling::default()),
        };
        let of = Grown { by: step.clone(), plan_dir, ceiling };
        let check = |announced: &_| prepare_added(then, &of, handlers, announced);
        let mut prepared = self.registry.check(check).await?;
        if let Ok((steps, _)) = &prepared {
            let faults = relaxed(steps, "/then");
            if !faults.is_empty() && !self.engine.may_record_intents().await? {
                prepared = Err(faults);
            }
        }
        if let Ok((steps, _)) = &prepared {
            self.engine.know_queues(steps.iter().map(|step| &step.queue)).await?;
        }
        Ok(prepared.map_err(|faults| {
            let first = faults
                .first()
                .map_or_else(String::new, |fault| format!("{}: {}", fault.pointer, fault.message));
            format!("`then` has {} fault(s); {first}", faults.len())
        }))
    }

    pub(crate) async fn payload(
        &self,
        task: &TaskId,
        output: Value,
        bytes: Vec<u8>,
    ) -> Result<Payload, EngineError> {
        if bytes.len() <= OUTPUT_INLINE_BYTES_MAX {
            return Ok(Payload::Inline(output));
        }
        let kept = Box::pin(self.blobs.put(task, Bytes::from(bytes)))
            .await
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Payload::Blob { name: kept.name, bytes: kept.bytes, sha256: kept.sha256 })
    }
}

fn report_fault(
    output: &Value,
    artifacts: &[Artifact],
    checkpoint: Option<&str>,
) -> Option<String> {
    if let Some(fault) = check_value(output, DEPTH_MAX).first() {
        return Some(format!("its output is not accepted: {}: {}", fault.pointer, fault.message));
    }
    if artifacts.len() > ARTIFACTS_MAX {
        return Some(format!(
            "it left {} artifacts; at most {ARTIFACTS_MAX} are kept",
            artifacts.len()
        ));
    }
    let fault = check_name(checkpoint?).err()?;
    Some(format!("its checkpoint's name is not accepted: {fault}"))
}
