//! What has happened: the facts a task's log is made of, and two that are not logged.

use std::io::Write;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::canonical::base64url;
use crate::commit::CommitId;
use crate::hold::{Answer, Hold, HoldReason};
use crate::ids::{Kind, Principal, Queue, StepId, WorkerId};
use crate::outcome::FailureClass;
use crate::record::{
    Claim, DecodeError, EffectClass, Ending, FORMAT, NotLanded, SkipReason, StopMode,
};
use crate::time::{Span, Time};

/// One thing that happened to a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Change {
    /// The task was accepted.
    TaskSubmitted {
        /// What it is for.
        kind: Kind,
        /// Who owns it.
        owner: Principal,
        /// Its steps, `finally` steps not counted.
        steps: u32,
        /// Digest of the submitted body, which is not kept.
        plan_sha256: String,
        /// Digest of what is kept of it: what was submitted, and all definitions.
        #[serde(default)]
        records_sha256: String,
    },
    /// The first attempt of the task started.
    TaskStarted {
        /// Of which step.
        step: StepId,
        /// On which worker.
        worker: WorkerId,
    },
    /// The next chunk of steps without needs was opened.
    RootsOpened {
        /// The chunk.
        chunk: u32,
    },
    /// A worker may claim the step.
    StepReady {
        /// The step.
        step: StepId,
        /// The number its next start has.
        attempt: u32,
        /// The round.
        round: u32,
        /// Where it waits.
        queue: Queue,
        /// Digest of its resolved input, if templates were resolved.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        with_sha256: Option<String>,
        /// When all attempts must have ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        give_up_at: Option<Time>,
        /// When a worker must have started it (`timeout.queue`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        start_by: Option<Time>,
        /// How long its task had been paused when its time began, in milliseconds.
        #[serde(default, skip_serializing_if = "is_zero")]
        paused_ms: u64,
        /// True if a person's answer made it ready: its count of attempts starts again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        afresh: bool,
    },
    /// A worker has longer to start the step: its task was held meanwhile.
    StartPostponed {
        /// The step.
        step: StepId,
        /// When a worker must have started it.
        start_by: Time,
    },
    /// A clock of the step struck while the task was paused, or less late than the pause was
    /// long: it is looked at again.
    ClockPostponed {
        /// The step.
        step: StepId,
        /// When.
        look_at: Time,
    },
    /// A held step is resolved and released once more.
    StepReopened {
        /// The step.
        step: StepId,
    },
    /// The step does not move.
    StepHeld {
        /// The step.
        step: StepId,
        /// Why.
        hold: Hold,
    },
    /// The step will not run.
    StepSkipped {
        /// The step.
        step: StepId,
        /// Why.
        reason: SkipReason,
    },
    /// A timer step's time has come.
    TimerFired {
        /// The step.
        step: StepId,
    },
    /// An attempt worked, and with it the step.
    StepSucceeded {
        /// The step.
        step: StepId,
        /// The attempt.
        attempt: u32,
        /// The round.
        round: u32,
        /// Who ran it.
        worker: WorkerId,
        /// When it started.
        started_at: Time,
        /// Digest of its output.
        output_sha256: String,
        /// Digest, name and size of what it left.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        artifacts: Vec<ArtifactFact>,
        /// What the attempt cost.
        #[serde(default, skip_serializing_if = "is_zero")]
        cost_usd_micros: u64,
        /// The checkpoint it makes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkpoint: Option<String>,
    },
    /// A step's outcome added steps to the plan.
    StepsAdded {
        /// The step whose outcome it was.
        by: StepId,
        /// The new steps and how many of their needs are not settled.
        steps: Vec<(StepId, u32)>,
        /// Digest of their definitions as they are kept.
        definitions_sha256: String,
    },
    /// A step's outcome named steps that it had added in an earlier round: they run anew.
    StepsRepeated {
        /// The step whose outcome it was.
        by: StepId,
        /// The number of their round.
        round: u32,
        /// The steps and how many of their needs are among them.
        steps: Vec<(StepId, u32)>,
    },
    /// An attempt did not work.
    AttemptFailed {
        /// The step.
        step: StepId,
        /// The attempt.
        attempt: u32,
        /// Who ran it.
        worker: WorkerId,
        /// When it started.
        started_at: Time,
        /// How it failed.
        class: FailureClass,
        /// What it said.
        message: String,
        /// What it cost.
        #[serde(default, skip_serializing_if = "is_zero")]
        cost_usd_micros: u64,
        /// False if the attempt does not count against the step's limit.
        charged: bool,
        /// What its handler last said of its progress, for the next attempt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<String>,
        /// True if it was taken from its worker, which may not know: it fell silent, a person
        /// stopped the attempt, or a new round began.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        taken: bool,
        /// As whom it was claimed, if it was taken: who may still tell what it cost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        claimed_by: Option<Principal>,
    },
    /// A worker said how an attempt ended after that had been taken from it: its outcome is
    /// not used, its cost is.
    LateResultRefused {
        /// The step.
        step: StepId,
        /// The attempt.
        attempt: u32,
        /// Who ran it.
        worker: WorkerId,
        /// How it would have failed; none: it would have succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        class: Option<FailureClass>,
        /// What it cost.
        #[serde(default, skip_serializing_if = "is_zero")]
        cost_usd_micros: u64,
    },
    /// An attempt is about to change something outside.
    EffectIntended {
        /// The step.
        step: StepId,
        /// The effect's name.
        name: String,
        /// Its generation.
        generation: u32,
        /// Who intends what.
        intent: IntentFact,
        /// How long after now it may be sent.
        window: Span,
        /// How long the request may take once it is sent.
        request_timeout: Span,
    },
    /// An attempt has ended whose claim was the intent of the step's one effect, and it is not
    /// known what became of it.
    EffectDoubted {
        /// The step.
        step: StepId,
        /// Its generation.
        generation: u32,
        /// Who intended what.
        intent: IntentFact,
    },
    /// It is known that an effect has happened.
    EffectLanded {
        /// The step.
        step: StepId,
        /// The effect's name.
        name: String,
        /// Its generation.
        generation: u32,
        /// Digest of the receipt.
        receipt_sha256: String,
        /// The round whose output is the receipt; none: it is a record of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_round: Option<u32>,
        /// Who intended what, if the claim was the intent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        intent: Option<IntentFact>,
    },
    /// It is known that an effect has not happened.
    EffectNotLanded {
        /// The step.
        step: StepId,
        /// The effect's name.
        name: String,
        /// Its generation.
        generation: u32,
        /// How that is known.
        how: NotLanded,
    },
    /// A person took an effect's receipt for another request too.
    EffectKept {
        /// The step.
        step: StepId,
        /// The effect's name.
        name: String,
        /// Digest of that request.
        request_sha256: String,
    },
    /// A person let an effect that has happened be sent additionally.
    EffectReopened {
        /// The step.
        step: StepId,
        /// The effect's name.
        name: String,
        /// Its new generation.
        generation: u32,
    },
    /// The step is tried again later.
    RetryScheduled {
        /// The step.
        step: StepId,
        /// When.
        due: Time,
    },
    /// The step failed for good.
    StepFailed {
        /// The step.
        step: StepId,
        /// How.
        class: FailureClass,
        /// Why.
        message: String,
        /// True if no attempt has told this failure: a template gave none, or time was over.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unattempted: bool,
    },
    /// A step's failure opened a new round of an earlier step and all between.
    RoundOpened {
        /// The step that failed.
        by: StepId,
        /// Where the round begins.
        from: StepId,
        /// The round's number.
        round: u32,
        /// Its steps and how many of their needs lie within.
        steps: Vec<(StepId, u32)>,
    },
    /// A chunk of a settled step's dependents was told.
    DependentsTold {
        /// The settled step.
        step: StepId,
        /// The chunk.
        chunk: u32,
    },
    /// Nothing new starts in the whole task.
    TaskHeld {
        /// Why.
        hold: Hold,
    },
    /// A hold of the task ended.
    TaskReleased {
        /// Which.
        reason: HoldReason,
        /// The step that made it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<StepId>,
    },
    /// A person answered a hold; what follows from it comes next.
    HoldAnswered {
        /// The step, or the task itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        step: Option<StepId>,
        /// The hold.
        reason: HoldReason,
        /// What was said.
        answer: Answer,
        /// In the person's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// The task has another owner.
    HandedOver {
        /// Who owned it.
        from: Principal,
        /// Who owns it now.
        to: Principal,
        /// In the words of who handed it over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The deadline has passed.
    DeadlinePassed,
    /// A stop was asked for.
    StopRequested {
        /// In the asker's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// What it does to attempts that run and to what has landed.
        #[serde(default)]
        mode: StopMode,
        /// Digest of the stop plan that it was asked for by.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan_sha256: Option<String>,
    },
    /// A stronger stop was asked for while attempts still ran.
    StopStrengthened {
        /// In the asker's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The mode from now on.
        mode: StopMode,
        /// Digest of the stop plan that it was asked for by.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan_sha256: Option<String>,
    },
    /// The task is failing: nothing more of its plan starts.
    TaskFailing {
        /// Why.
        reason: String,
    },
    /// No attempt of the old epoch can start, commit or send any more.
    EpochRaised {
        /// The new epoch.
        epoch: u32,
    },
    /// What has landed may be undone until then: the allowance begins, or a person's answer
    /// begins it anew.
    UndoAllowed {
        /// When it is spent.
        until: Time,
    },
    /// The undo of the last landing whose undo had not begun was added to the task.
    UndoAdded {
        /// The run: a step of its own.
        step: StepId,
        /// The landing's number.
        landing: u32,
        /// Digest of its definition as it is kept.
        definitions_sha256: String,
    },
    /// The `finally` steps begin.
    FinallyStarted {
        /// How the task will end.
        ending: Ending,
    },
    /// The task has ended.
    TaskEnded {
        /// How.
        ending: Ending,
        /// When everything about it is removed.
        remove_at: Time,
    },
    /// Index entries of steps that never settled are gone.
    EntriesCleared,
    /// Not logged: a worker holds the step.
    StepClaimed {
        /// The step.
        step: StepId,
        /// The claim.
        claim: Claim,
    },
    /// Not logged: a worker still holds the step.
    ClaimRenewed {
        /// The step.
        step: StepId,
        /// Until when.
        expires_at: Time,
        /// What the handler says of its progress.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<String>,
        /// When the handler last gave a sign of life.
        heard_at: Time,
    },
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Who intended an effect, and what exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntentFact {
    /// Its class.
    pub class: EffectClass,
    /// Digest of the exact request.
    pub request_sha256: String,
    /// True if the request is a record of its own; else it is the step's resolved input.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stored: bool,
    /// The attempt.
    pub attempt: u32,
    /// Who runs it.
    pub worker: WorkerId,
    /// As whom it claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Principal>,
    /// Whom or what it touches, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it does, in the author's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub says: Option<String>,
}

/// An artifact as the log names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactFact {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content.
    pub sha256: String,
}

impl Change {
    /// True if the change goes into the log and so moves the header.
    pub fn is_logged(&self) -> bool {
        !matches!(self, Self::StepClaimed { .. } | Self::ClaimRenewed { .. })
    }

    /// Gives the event's type, as the log and the API name it.
    pub fn type_name(&self) -> String {
        let value = serde_json::to_value(self).expect("events are plain data");
        value["type"].as_str().unwrap_or_default().to_owned()
    }
}

/// One entry of a task's log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its number; the first is 0. It is not stored with it: its place in the log is its number.
    #[serde(skip)]
    pub sequence: u64,
    /// When, by the store's clock; never before the event before it.
    pub at: Time,
    /// Who caused it.
    pub actor: Principal,
    /// What happened.
    #[serde(flatten)]
    pub change: Change,
}

/// An event as it is stored: commit id, hash, format and JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEvent {
    /// The commit that wrote it.
    pub commit: CommitId,
    /// SHA-256 over the hash before it, its commit's id and its own JSON, in base64url.
    pub hash: String,
    /// The event.
    pub event: Event,
}

/// The hash that the first event's hash is chained to.
pub const FIRST_HASH: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
/// Room that most encoded events fit into.
const ENCODED_BYTES: usize = 448;
/// Characters of a hash in base64url: a third less than in hex, in every event and header.
const HASH_CHARS: usize = FIRST_HASH.len();

/// Chains one event's commit id and JSON to the hash before it, and so the event to its place.
fn chain(before: &str, commit: CommitId, json: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(before.as_bytes());
    hash.update(commit.text());
    hash.update(json);
    base64url(&hash.finalize())
}

/// Encodes an event behind the one with hash `before`; gives the bytes and its own hash.
pub fn encode_event(event: &Event, commit: CommitId, before: &str) -> (Vec<u8>, String) {
    let mut bytes = Vec::with_capacity(ENCODED_BYTES);
    bytes.extend_from_slice(&commit.text());
    bytes.extend_from_slice(FIRST_HASH.as_bytes()); // its place
    write!(bytes, "{FORMAT} ").expect("memory takes all");
    let json = bytes.len();
    serde_json::to_writer(&mut bytes, event).expect("events are plain data");
    let hash = chain(before, commit, &bytes[json..]);
    bytes[CommitId::CHARS..][..HASH_CHARS].copy_from_slice(hash.as_bytes());
    (bytes, hash)
}

/// Decodes the stored event with this number, without checking its hash.
pub fn decode_event(number: u64, bytes: &[u8]) -> Result<StoredEvent, DecodeError> {
    let (commit, hash, json) = split_event(number, bytes)?;
    let event: Event = serde_json::from_slice(json).map_err(|error| malformed(number, &error))?;
    let event = Event { sequence: number, ..event };
    Ok(StoredEvent { commit, hash: hash.to_owned(), event })
}

/// Checks that the stored event with this number follows the one with hash `before`; gives its
/// hash.
pub fn verify_event(number: u64, bytes: &[u8], before: &str) -> Result<String, DecodeError> {
    let (commit, hash, json) = split_event(number, bytes)?;
    if chain(before, commit, json) != hash {
        return Err(malformed(number, &"its content does not match its hash"));
    }
    Ok(hash.to_owned())
}

fn malformed(number: u64, reason: &dyn std::fmt::Display) -> DecodeError {
    DecodeError::Malformed { field: format!("event {number}"), reason: reason.to_string() }
}

fn split_event(number: u64, bytes: &[u8]) -> Result<(CommitId, &str, &[u8]), DecodeError> {
    let fault = || malformed(number, &"it does not start with a commit id, a hash and a format");
    let (commit, rest) = CommitId::parse_prefix(bytes).ok_or_else(fault)?;
    let (hash, rest) = rest.split_at_checked(HASH_CHARS).ok_or_else(fault)?;
    let hash = std::str::from_utf8(hash).map_err(|_| fault())?;
    let space = rest.iter().position(|byte| *byte == b' ').ok_or_else(fault)?;
    let found: u32 = std::str::from_utf8(&rest[..space])
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(fault)?;
    if found > FORMAT {
        return Err(DecodeError::Newer { field: format!("event {number}"), found });
    }
    Ok((commit, hash, &rest[space + 1..]))
}

#[cfg(test)]
mod tests;
