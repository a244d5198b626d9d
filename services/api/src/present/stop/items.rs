//! The items of plans and settlements.

use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::record::MAIN_EFFECT;
use standfast_domain::stop_plan::{Became, Fate, Item, Settled, Subject};
use standfast_domain::time::Time;
use standfast_protocol::holds::AnswerView;
use standfast_protocol::stops::StopItem;

use super::super::hold;
use super::super::text::plain;
use crate::reads::Base;

/// Shows an item of a plan.
pub(super) fn item(base: &Base, item: &Item) -> StopItem {
    let mut shown = common(item);
    if item.fate == Fate::ToSettle
        && let Subject::Effect { step, name, .. } = &item.subject
    {
        shown.settled_by = hold::ends_by(base, HoldReason::UncertainEffect);
        shown.answers = settling(base, step, name).into();
    }
    shown
}

/// Shows an item of a settlement.
pub(super) fn settled(base: &Base, settled: &Settled) -> StopItem {
    let how = match settled.became {
        Became::NotLanded(how) => Some(how.as_str().to_owned()),
        Became::Failed(class) => class.map(|class| class.as_str().to_owned()),
        _ => None,
    };
    let (settled_by, answers) = to_settle(base, settled);
    StopItem {
        became: Some(settled.became.as_str().to_owned()),
        how,
        became_at: settled.at.map(Time::rfc3339),
        since_stop: settled.since_stop,
        told_late: settled.told_late,
        settled_by,
        answers,
        ..common(&settled.item)
    }
}

/// Says who must still settle an item, and with which answers.
pub(super) fn to_settle(base: &Base, settled: &Settled) -> (Vec<String>, Vec<AnswerView>) {
    if let Some((step, held)) = &settled.hold {
        return (hold::ends_by(base, held.reason), hold::answers(base, Some(step), held));
    }
    match (&settled.became, &settled.item.subject) {
        (Became::ToSettle, Subject::Effect { step, name, .. }) => {
            let by = hold::ends_by(base, HoldReason::UncertainEffect);
            // Nothing waits for it any more: one for which a step does is held.
            (by, settling(base, step, name).map(hold::for_the_record).into())
        }
        _ => (Vec::new(), Vec::new()),
    }
}

/// The answers that settle an uncertain effect. Its name is always right, and needed if its step
/// has several.
fn settling(base: &Base, step: &StepId, name: &str) -> [AnswerView; 2] {
    let effect = (name != MAIN_EFFECT).then_some(name);
    let about = hold::About { step: Some(step), effect };
    let reason = HoldReason::UncertainEffect;
    let answers = [Answer::Happened, Answer::NotHappened];
    answers.map(|answer| hold::answer_view(base, about, reason, answer))
}

fn common(item: &Item) -> StopItem {
    let (kind, id) = named(&item.subject);
    let attempt = match &item.subject {
        Subject::Attempt { attempt, .. } => Some(*attempt),
        Subject::Effect { .. }
        | Subject::Step { .. }
        | Subject::Hold { .. }
        | Subject::Deadline
        | Subject::Finally { .. } => item.attempt,
    };
    let reason = match &item.subject {
        Subject::Hold { reason, .. } => Some(*reason),
        Subject::Effect { .. }
        | Subject::Attempt { .. }
        | Subject::Step { .. }
        | Subject::Deadline
        | Subject::Finally { .. } => item.reason,
    };
    StopItem {
        kind: kind.to_owned(),
        id,
        step: item.step().map(StepId::to_string),
        now: item.now.as_str().to_owned(),
        fate: item.fate.as_str().to_owned(),
        position: match item.fate {
            Fate::Undone { position } => Some(position),
            _ => None,
        },
        class: item.class.map(|class| class.as_str().to_owned()),
        target: item.target.as_deref().map(plain),
        says: item.says.as_deref().map(plain),
        undo: item.undo.as_ref().map(ToString::to_string),
        since: item.since.map(Time::rfc3339),
        due: item.due.map(Time::rfc3339),
        worker: item.worker.as_ref().map(ToString::to_string),
        attempt,
        reason: reason.map(|reason| reason.as_str().to_owned()),
        request_sha256: item.request_sha256.clone(),
        receipt_sha256: item.receipt_sha256.clone(),
        ..StopItem::default()
    }
}

/// Gives the kind of an item and its identity within the task.
fn named(subject: &Subject) -> (&'static str, String) {
    match subject {
        Subject::Effect { step, name, generation } => {
            ("effect", format!("{step}/{name}/{generation}"))
        }
        Subject::Attempt { step, attempt } => ("attempt", format!("{step}#{attempt}")),
        Subject::Step { step } => ("step", step.to_string()),
        Subject::Hold { reason, by: Some(by) } => ("hold", format!("{reason}:{by}")),
        Subject::Hold { reason, by: None } => ("hold", reason.to_string()),
        Subject::Deadline => ("deadline", "deadline".to_owned()),
        Subject::Finally { step } => ("finally", step.to_string()),
    }
}

/// Names an item for people: an effect by its step, and by itself where a step may have several.
pub(crate) fn label(subject: &Subject) -> String {
    match subject {
        Subject::Effect { step, name, generation } => {
            let named = match name.as_str() {
                MAIN_EFFECT => step.to_string(),
                name => format!("{step}/{name}"),
            };
            match generation {
                1 => named,
                _ => format!("{named} (generation {generation})"),
            }
        }
        Subject::Attempt { step, .. } | Subject::Step { step } | Subject::Finally { step } => {
            step.to_string()
        }
        Subject::Hold { .. } | Subject::Deadline => named(subject).1,
    }
}
