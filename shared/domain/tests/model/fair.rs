//! From every state a task can still come to its end, or to somebody who is named.
//!
//! A patient world has no more faults: what is left to do is done, messages arrive, workers
//! succeed, timers fire, claims of workers that are gone expire. It takes one deed after the
//! other until none is left; then the task has ended or is blocked for a person.

use standfast_domain::ids::StepId;
use standfast_domain::index::{TimerEntry, WORK};
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::{Phase, Status, TaskState};

use super::deeds::{Deed, timers, unsent};
use super::effects::Stage;
use super::setting::Setting;
use super::state::{Run, Said, State};

/// Deeds after which a patient world must have come to rest.
const DEEDS_MAX: usize = 300;

impl Setting {
    /// True if a patient world brings the task to its end, or to a person.
    pub fn comes_to_rest(&self, state: &State) -> bool {
        let mut trail = Vec::new();
        let mut now = state.clone();
        while trail.len() < DEEDS_MAX {
            let print = now.fingerprint();
            if now.broken.is_some() {
                return false;
            }
            if self.restful.lock().expect("no check panics").contains(&print) {
                break;
            }
            trail.push(print);
            let Some(deed) = patient(self, &now) else {
                if !is_at_rest(&now) {
                    return false;
                }
                break;
            };
            now = self.after(&now, &deed);
        }
        let rests = trail.len() < DEEDS_MAX;
        if rests {
            self.restful.lock().expect("no check panics").extend(trail);
        }
        rests
    }
}

/// Chooses what a patient world does next: first what is under way, then what is due, then what
/// may start, and only then does time pass.
fn patient(setting: &Setting, state: &State) -> Option<Deed> {
    for (worker, run) in state.workers.iter().enumerate() {
        if let Some(run) = run {
            let effect = setting.patient_effect(state, worker, run);
            let effect = effect.filter(|_| run.told.is_none());
            let said = run.told.unwrap_or_else(|| patient_end(run));
            return effect.or(Some(Deed::Tell { worker, said, heard: true }));
        }
    }
    if let Some(message) = state.messages.first() {
        return Some(Deed::Deliver { worker: 0, message: message.clone(), twice: false });
    }
    if let Some((step, _)) = state.claims().next() {
        return Some(Deed::Expire(step.clone()));
    }
    if let Some(member) = state.members(WORK).next() {
        return Some(Deed::Sweep { process: 1, member: member.clone() });
    }
    let timer = timers(state).min_by_key(|timer| timer.due);
    let fire = |timer: TimerEntry| Deed::Fire { step: timer.step, kind: timer.kind };
    if let Some(due) = timer.clone().filter(|timer| timer.due <= state.now) {
        return Some(fire(due));
    }
    let starts = |step: &StepId| match state.header().phase {
        Phase::Main => state.gate().holds.is_empty() && !setting.is_of_the_end(step),
        Phase::Undoing { .. } => step.undone().is_some(),
        Phase::Finally { .. } => setting.is_finally(step),
        Phase::Closing { .. } | Phase::Ended { .. } => false,
    };
    let unsent = unsent(state).into_iter().find(starts);
    unsent.map(Deed::Publish).or_else(|| timer.map(fire))
}

/// Says how an attempt ends that has nothing more to do.
fn patient_end(run: &Run) -> Said {
    match run.stage {
        Stage::Begun | Stage::Answered => Said::Success,
        Stage::Intended | Stage::Asking => Said::Failure(FailureClass::Retryable),
        Stage::Unanswered => Said::Failure(FailureClass::Timeout),
    }
}

/// True if a task has ended, by its stop if there was one, or a person is to act.
fn is_at_rest(state: &State) -> bool {
    let shown = state.header().state;
    match state.gate().stop {
        Some(_) => shown == TaskState::Cancelled || is_undo_held(state),
        None => shown.is_final() || shown == TaskState::Blocked,
    }
}

/// True if a person is to say what becomes of what could not be undone.
fn is_undo_held(state: &State) -> bool {
    let mut statuses = state.statuses();
    let undoing = matches!(state.header().phase, Phase::Undoing { .. });
    undoing
        && statuses.any(|(step, status)| match status {
            Status::Held { hold } => step.undone().is_some() && !hold.reason.answers().is_empty(),
            _ => false,
        })
}
