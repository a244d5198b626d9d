//! A step as readers see it.

use standfast_domain::hold::Hold;
use standfast_domain::ids::StepId;
use standfast_domain::outcome::Artifact;
use standfast_domain::plan::Uses;
use standfast_domain::record::{
    Claim, Definition, LastFailure, Part, Phase, Status, StepState as Record,
};
use standfast_domain::time::{Span, Time};
use standfast_protocol::artifacts::ArtifactView;
use standfast_protocol::paths::{self, fill};
use standfast_protocol::steps::{StepState, StepView, WaitingFor};
use standfast_protocol::tasks::FailureView;

use super::hold;
use super::text::plain;
use crate::reads::Base;

/// Everything about one step that its view shows.
pub(crate) struct Parts<'a> {
    pub base: &'a Base,
    pub now: Time,
    pub definition: &'a Definition,
    pub state: Record,
    pub claim: Option<Claim>,
    pub needs: Vec<String>,
    pub artifacts: &'a [Artifact],
    pub waiting_for: Option<WaitingFor>,
}

/// Says whether a step is at work or held, by its own record.
pub(crate) fn is_live(state: &Record) -> bool {
    match state.status {
        Status::Ready { .. } | Status::Retrying { .. } | Status::Held { .. } => true,
        Status::Pending
        | Status::Succeeded { .. }
        | Status::Failed { .. }
        | Status::Skipped { .. } => false,
    }
}

/// Gives the word for where a step stands: ready with a claim is running; what never settled
/// in a task that is ending or has ended is cancelled, unless an attempt still runs.
pub(crate) fn state(phase: &Phase, part: Part, state: &Record, claimed: bool) -> StepState {
    let past = phase.is_past(part);
    match &state.status {
        Status::Succeeded { .. } => StepState::Succeeded,
        Status::Failed { .. } => StepState::Failed,
        Status::Skipped { .. } => StepState::Skipped,
        Status::Ready { .. } if claimed => StepState::Running,
        Status::Pending | Status::Ready { .. } | Status::Retrying { .. } | Status::Held { .. }
            if past =>
        {
            StepState::Cancelled
        }
        Status::Pending => StepState::Pending,
        Status::Ready { .. } => StepState::Ready,
        Status::Retrying { .. } => StepState::Retrying,
        Status::Held { .. } => StepState::Held,
    }
}

/// Gives a step's hold while it still holds anything.
pub(crate) fn open_hold<'a>(phase: &Phase, part: Part, state: &'a Record) -> Option<&'a Hold> {
    match &state.status {
        Status::Held { hold } if !phase.is_past(part) => Some(hold),
        Status::Held { .. }
        | Status::Pending
        | Status::Ready { .. }
        | Status::Retrying { .. }
        | Status::Succeeded { .. }
        | Status::Failed { .. }
        | Status::Skipped { .. } => None,
    }
}

/// Says whether a heartbeat is overdue, the worker's own or a sign of life of its handler.
pub(crate) fn is_stalled(claim: &Claim, now: Time) -> bool {
    now >= worker_overdue_at(claim) || handler_overdue_at(claim).is_some_and(|at| at <= now)
}

/// Gives when the worker's heartbeat is overdue: an interval and a half after the last one.
fn worker_overdue_at(claim: &Claim) -> Time {
    if claim.is_cut() {
        return claim.expires_at; // its length says nothing about the last beat
    }
    let beat_at = Time(claim.expires_at.0.saturating_sub_unsigned(claim.length.0));
    beat_at.after(Span(claim.interval().0 * 3 / 2))
}

/// Gives when a sign of life of the handler is overdue: its time, and what a heartbeat that
/// tells of it may take.
pub(crate) fn handler_overdue_at(claim: &Claim) -> Option<Time> {
    claim.silent_at().map(|silent_at| silent_at.after(claim.interval()))
}

/// Gives the number of the last attempt that started; 0 before the first.
pub(crate) fn last_attempt(definition: &Definition, state: &Record, claimed: bool) -> u32 {
    let ran = match (&definition.plan.uses, &state.status) {
        (Uses::Timer, _) => return 0,
        (Uses::Handler(_), Status::Succeeded { .. }) => true,
        (Uses::Handler(_), _) => claimed,
    };
    if ran { state.attempt } else { state.attempt.saturating_sub(1) }
}

/// Gives since when a step stands where it stands.
pub(crate) fn since(base: &Base, word: StepState, state: &Record, claim: Option<&Claim>) -> Time {
    if word == StepState::Cancelled {
        let stopped = base.gate.stop.as_ref().map(|stop| stop.at);
        return stopped.unwrap_or(base.header.changed_at);
    }
    if let Some(claim) = claim {
        return claim.started_at;
    }
    match &state.status {
        Status::Pending => base.header.created_at,
        Status::Ready { since, .. } => *since,
        Status::Retrying { at } => state.failure.as_ref().map_or(*at, |failure| failure.at),
        Status::Held { hold } => hold.since,
        Status::Succeeded { at } | Status::Failed { at, .. } | Status::Skipped { at, .. } => *at,
    }
}

/// Shows a step.
pub(crate) fn view(parts: Parts<'_>) -> StepView {
    let Parts { base, now, definition, state: record, claim, needs, artifacts, waiting_for } =
        parts;
    let plan = &definition.plan;
    let phase = &base.header.phase;
    let word = state(phase, definition.part(), &record, claim.is_some());
    let since = since(base, word, &record, claim.as_ref());
    let uses = match &plan.uses {
        Uses::Handler(handler) => handler.to_string(),
        Uses::Timer => "timer".to_owned(),
    };
    StepView {
        id: plan.id.to_string(),
        attempts_max: matches!(plan.uses, Uses::Handler(_)).then_some(plan.retry.max_attempts),
        uses,
        queue: plan.queue.to_string(),
        state: word,
        round: record.round,
        attempt: last_attempt(definition, &record, claim.is_some()),
        charged: record.charged,
        needs,
        since: since.rfc3339(),
        started_at: claim
            .as_ref()
            .map(|claim| claim.started_at)
            .or(record.last.as_ref().map(|last| last.started_at))
            .map(Time::rfc3339),
        ended_at: record.is_settled().then(|| since.rfc3339()),
        attempt_ended_at: record
            .last
            .as_ref()
            .filter(|_| claim.is_none())
            .map(|last| last.ended_at.rfc3339()),
        retry_at: match (&record.status, word) {
            (Status::Retrying { at }, StepState::Retrying) => Some(at.rfc3339()),
            _ => None,
        },
        worker: claim
            .as_ref()
            .map(|claim| &claim.worker)
            .or(record.last.as_ref().map(|last| &last.worker))
            .map(ToString::to_string),
        waiting_for: waiting_for.filter(|_| word == StepState::Ready),
        stalled: claim.as_ref().is_some_and(|claim| is_stalled(claim, now)),
        summary: match &claim {
            Some(claim) => claim.details.as_deref().map(plain),
            None => record.details.as_deref().map(plain),
        },
        failure: record.failure.as_deref().map(failure),
        hold: open_hold(phase, definition.part(), &record)
            .map(|open| hold::view(base, now, Some(&plan.id), open)),
        artifacts: artifacts.iter().map(|found| artifact(base, &plan.id, found)).collect(),
        cost_usd_micros: record.cost_usd_micros,
        output: None,
        finally: definition.finally,
    }
}

fn failure(failure: &LastFailure) -> FailureView {
    FailureView {
        step: None,
        class: failure.class.as_str().to_owned(),
        message: plain(&failure.message),
        at: failure.at.rfc3339(),
    }
}

/// Shows an artifact.
pub(crate) fn artifact(base: &Base, step: &StepId, artifact: &Artifact) -> ArtifactView {
    let url = fill(paths::ARTIFACT, &[base.task.as_str(), step.as_str(), &artifact.name]);
    ArtifactView {
        step: step.to_string(),
        name: artifact.name.clone(),
        bytes: artifact.bytes,
        sha256: artifact.sha256.clone(),
        url,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use standfast_domain::hold::HoldReason;
    use standfast_domain::ids::{Principal, Queue, WorkerId};
    use standfast_domain::record::Ending;

    use super::*;

    /// A claim of half a minute, from the beginning of time.
    pub(crate) fn claim() -> Claim {
        Claim {
            worker: WorkerId::new("w").unwrap(),
            principal: Principal::local(),
            attempt: 1,
            epoch: 1,
            started_at: Time(0),
            expires_at: Time(30_000),
            ends_at: Time(1_000_000),
            length: Span::from_secs(30),
            details: None,
            heard_at: None,
            heartbeat: None,
        }
    }

    fn record(status: Status) -> Record {
        Record { status, ..Record::pending(0) }
    }

    fn ready() -> Record {
        record(Status::Ready { since: Time(0), queue: Queue::new("q").unwrap() })
    }

    fn held() -> Record {
        let hold = Hold::new(HoldReason::Failures, "", Time(0));
        record(Status::Held { hold: Box::new(hold) })
    }

    #[test]
    fn the_word_for_a_step_follows_from_phase_record_and_claim() {
        let ending = Ending::Cancelled;
        let (main, closing) = (Phase::Main, Phase::Closing { ending });
        let (last, ended) = (Phase::Finally { ending }, Phase::Ended { ending, at: Time(0) });
        let undoing = Phase::Undoing { until: Time(0) };
        let done = record(Status::Succeeded { at: Time(0) });
        for (phase, part, record, claimed, word) in [
            (main, Part::Main, ready(), false, StepState::Ready),
            (main, Part::Main, ready(), true, StepState::Running),
            (main, Part::Main, Record::pending(1), false, StepState::Pending),
            (main, Part::Main, held(), false, StepState::Held),
            (closing, Part::Main, ready(), true, StepState::Running),
            (closing, Part::Main, ready(), false, StepState::Cancelled),
            (closing, Part::Finally, Record::pending(0), false, StepState::Pending),
            (last, Part::Main, held(), false, StepState::Cancelled),
            (undoing, Part::Main, held(), false, StepState::Cancelled),
            (undoing, Part::Undo, held(), false, StepState::Held),
            (last, Part::Finally, ready(), false, StepState::Ready),
            (ended, Part::Finally, Record::pending(0), false, StepState::Cancelled),
            (ended, Part::Main, done, false, StepState::Succeeded),
        ] {
            assert_eq!(state(&phase, part, &record, claimed), word, "{phase:?} {record:?}");
        }
        assert!(open_hold(&main, Part::Main, &held()).is_some());
        assert!(open_hold(&closing, Part::Main, &held()).is_none());
    }

    #[test]
    fn a_heartbeat_is_overdue_after_an_interval_and_a_half() {
        let claim = claim();
        assert!(!is_stalled(&claim, Time(14_999)));
        assert!(is_stalled(&claim, Time(15_000)));
        let watched = Claim {
            expires_at: Time(60_000),
            heard_at: Some(Time(10_000)),
            heartbeat: Some(Span::from_secs(18)),
            ..claim.clone()
        };
        assert!(!is_stalled(&watched, Time(36_999)), "its worker was heard at 30 s");
        assert!(is_stalled(&watched, Time(37_000)), "its handler was not");
        let cut = Claim { ends_at: Time(0), ..claim };
        assert!(!is_stalled(&cut, Time(29_999)));
        assert!(is_stalled(&cut, Time(30_000)));
    }
}
