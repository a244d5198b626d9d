//! 6: what a stop would do now.

use standfast_domain::ids::StepId;
use standfast_domain::record::Phase;
use standfast_protocol::explain::StopNow;
use standfast_protocol::tasks::TaskView;

use super::super::text::names;
use super::{Facts, SHOWN_MAX, effects};

/// Says what `stop` with mode `halt` would do.
pub(super) fn stop_now(facts: &Facts<'_>, view: &TaskView) -> StopNow {
    let base = &facts.survey.base;
    let stays = effects::labels(facts.outside.landed.iter());
    let to_settle = effects::labels(effects::to_settle(facts));
    let outside = outside_line(&stays, &to_settle);
    let nothing = |text: String| StopNow {
        told_to_end: Vec::new(),
        will_not_happen: Vec::new(),
        stays: stays.clone(),
        to_settle: to_settle.clone(),
        finally: Vec::new(),
        command: None,
        text: std::iter::once(text).chain(outside.clone()).collect(),
    };
    if view.state.is_ended() {
        return nothing("nothing: it has ended".to_owned());
    }
    if !matches!(base.header.phase, Phase::Main) {
        return nothing("nothing more: it is ending already".to_owned());
    }
    let told_to_end = facts.running();
    let will_not_happen: Vec<String> = facts
        .pending
        .iter()
        .map(StepId::to_string)
        .filter(|step| !told_to_end.contains(step))
        .take(SHOWN_MAX)
        .collect();
    let counts = &view.steps;
    let finally: Vec<String> = base.meta.finally.iter().map(StepId::to_string).collect();
    let left = (counts.total - finally.len() as u64)
        .saturating_sub(counts.succeeded + counts.failed + counts.skipped + counts.running);
    let more = left.saturating_sub(will_not_happen.len() as u64);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let command = format!("standfast stop {} --mode halt", base.task);
    let mut text = vec![format!(
        "halt: nothing more starts; told to end: {} · will not happen: {}{rest}",
        names(&told_to_end),
        names(&will_not_happen),
    )];
    text.push("what succeeded stays, with its artifacts".to_owned());
    text.extend(outside);
    if !finally.is_empty() {
        text.push(format!("then finally: {}", names(&finally)));
    }
    text.push(command.clone());
    StopNow {
        told_to_end,
        will_not_happen,
        stays,
        to_settle,
        finally,
        command: Some(command),
        text,
    }
}

/// Says what a stop leaves outside: what landed stays, what is uncertain is still to be settled.
fn outside_line(stays: &[String], to_settle: &[String]) -> Option<String> {
    let landed = format!("landed effects stay: {}", names(stays));
    let left = format!("uncertain ones stay to be settled by a person: {}", names(to_settle));
    match (stays.is_empty(), to_settle.is_empty()) {
        (true, true) => None,
        (false, true) => Some(landed),
        (true, false) => Some(left),
        (false, false) => Some(format!("{landed} · {left}")),
    }
}
