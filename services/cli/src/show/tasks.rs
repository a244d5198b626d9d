//! Tasks as a table.

use standfast_protocol::tasks::{TaskState, TaskView};

use super::quantities::{when, when_both};
use super::table::Table;
use crate::look::Look;

/// Columns from which reasons, and both the distance in time and the time itself, have room.
const WIDE_MIN: usize = 120;

/// Lists tasks, one a line.
pub fn table(tasks: &[TaskView], look: &Look) -> Vec<String> {
    let wide = look.width >= WIDE_MIN;
    let columns = [("TASK", 17), ("STATE", 26), ("STEPS", 11), ("CHANGED", 34)];
    let mut table = Table::new(&[&columns[..], &[("WHAT", usize::MAX)]].concat());
    for task in tasks {
        let (state, changed) = match wide {
            true => (state_and_reason(task), when_both(&task.changed_at, look)),
            false => (state(task), when(&task.changed_at, look)),
        };
        let done = task.steps.succeeded + task.steps.skipped;
        table.row(vec![
            task.id.clone(),
            state,
            format!("{done}/{}", task.steps.total),
            changed,
            format!("{}: {}", task.kind, task.goal),
        ]);
    }
    table.lines(look)
}

/// Lists the open holds of tasks, one a line: since when, and who or what can end each.
pub fn waiting(tasks: &[TaskView], look: &Look) -> Vec<String> {
    let columns = [("TASK", 33), ("WAITS FOR", 16), ("SINCE", 34), ("ENDED BY", 30)];
    let mut table = Table::new(&[&columns[..], &[("WHAT", usize::MAX)]].concat());
    for task in tasks {
        for hold in &task.holds {
            let name = match &hold.step {
                Some(step) => format!("{}/{step}", task.id),
                None => task.id.clone(),
            };
            let (since, by) = (when(&hold.since, look), hold.ends_by.join(", "));
            table.row(vec![name, hold.reason.clone(), since, by, hold.message.clone()]);
        }
    }
    table.lines(look)
}

/// Writes the state; beside it, that a heartbeat is overdue, or why no step starts.
fn state(task: &TaskView) -> String {
    match (task.stalled, task.waiting_for) {
        (true, _) => format!("{}, stalled", task.state),
        (false, Some(reason)) => format!("{}, {}", task.state, reason.as_str()),
        (false, None) => task.state.to_string(),
    }
}

/// Writes the state with its reason, such as `blocked: failures`.
fn state_and_reason(task: &TaskView) -> String {
    let held = matches!(task.state, TaskState::Waiting | TaskState::Blocked);
    match task.holds.first().filter(|_| held) {
        Some(hold) => format!("{}: {}", task.state, hold.reason),
        None => state(task),
    }
}

#[cfg(test)]
mod tests {
    use standfast_protocol::steps::WaitingFor;

    use super::*;
    use crate::look::samples::{pipe, terminal};
    use crate::show::samples;
    use crate::text;

    fn tasks() -> Vec<TaskView> {
        let mut stalled = samples::task("t07-4k9v2mq8r5x1c", TaskState::Running);
        stalled.stalled = true;
        stalled.goal = "日本語の目標 with an \u{1b}[31mescape and many words that go on".to_owned();
        let mut blocked = samples::task("t2c-81hx0q0000000", TaskState::Blocked);
        blocked.holds = vec![samples::hold("pay", "uncertain_effect")];
        let mut lonely = samples::task("t11-5x0c7wn2k9d4e", TaskState::Queued);
        lonely.waiting_for = Some(WaitingFor::NoWorker);
        vec![stalled, lonely, blocked, samples::task("t00-0000000000000", TaskState::Completed)]
    }

    #[test]
    fn a_list_fits_eighty_columns() {
        let lines = table(&tasks(), &terminal(80));
        assert!(lines.iter().all(|line| text::width(line) <= 80));
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn what_waits_says_for_whom_and_since_when() {
        let lines = waiting(&tasks(), &pipe());
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[1].starts_with("t2c-81hx0q0000000/pay"), "{lines:#?}");
        assert!(lines[1].contains("uncertain_effect") && lines[1].contains("user:ana"));
    }

    #[test]
    fn a_list_grows_with_the_terminal() {
        insta::assert_snapshot!(table(&tasks(), &terminal(140)).join("\n"));
    }

    #[test]
    fn a_list_in_a_pipe_is_whole_and_exact() {
        insta::assert_snapshot!(table(&tasks(), &pipe()).join("\n"));
    }
}
