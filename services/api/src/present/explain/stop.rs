//! 6: what a stop would do now.

use standfast_domain::ids::StepId;
use standfast_domain::record::Phase;
use standfast_protocol::explain::StopNow;
use standfast_protocol::tasks::TaskView;

use super::super::text::names;
use super::{Facts, SHOWN_MAX};

/// Says what `stop` with mode `halt` would do.
pub(super) fn stop_now(facts: &Facts<'_>, view: &TaskView) -> StopNow {
    let base = &facts.survey.base;
    let nothing = |text: String| StopNow {
        told_to_end: Vec::new(),
        will_not_happen: Vec::new(),
        stays: Vec::new(),
        to_settle: Vec::new(),
        finally: Vec::new(),
        command: None,
        text: vec![text],
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
    if !finally.is_empty() {
        text.push(format!("then finally: {}", names(&finally)));
    }
    text.push(command.clone());
    let (stays, to_settle) = (Vec::new(), Vec::new());
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
