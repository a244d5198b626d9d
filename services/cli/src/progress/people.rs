//! Whether only a person or a signal can move a task.

use standfast_protocol::holds::{HoldClass, HoldView};
use standfast_protocol::tasks::{TaskState, TaskView};

/// Says whether nothing but a person or a signal can move the task. While anything runs, waits
/// for its next attempt or for a clock, the task moves by itself.
pub fn needs_person(task: &TaskView) -> bool {
    match task.state {
        TaskState::Waiting | TaskState::Blocked => {
            let whole = task.holds.iter().any(|hold| hold.step.is_none() && !moves_by_itself(hold));
            let steps = &task.steps;
            let at_work = steps.running > 0 || (!whole && steps.ready + steps.retrying > 0);
            !at_work && !task.holds.is_empty() && (whole || !task.holds.iter().any(moves_by_itself))
        }
        // What is undone goes one after the other: one that failed keeps the rest. Other holds are
        // those of the plan, and end with it.
        TaskState::Cancelling => {
            let steps = &task.steps;
            let at_work = steps.running + steps.ready + steps.retrying > 0;
            !at_work && task.holds.iter().any(|hold| hold.reason == "undo_failed")
        }
        TaskState::Queued
        | TaskState::Running
        | TaskState::Cancelled
        | TaskState::Completed
        | TaskState::Failed => false,
    }
}

/// Says whether a hold ends without anyone's doing: a timer fires, a child settles.
fn moves_by_itself(hold: &HoldView) -> bool {
    match hold.class {
        HoldClass::Waiting => matches!(hold.reason.as_str(), "timer" | "task"),
        HoldClass::Blocked => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::samples;

    fn task(state: TaskState, reasons: &[&str]) -> TaskView {
        let mut task = samples::task("t07-4k9v2mq8r5x1c", state);
        let waiting = ["timer", "task", "approval", "input", "signal"];
        for reason in reasons {
            let mut hold = samples::hold("s", reason);
            if waiting.contains(reason) {
                hold.class = HoldClass::Waiting;
            }
            task.holds.push(hold);
        }
        task
    }

    #[test]
    fn what_a_person_must_answer_needs_a_person() {
        for reason in ["failures", "uncertain_effect", "verification", "worker_died"] {
            assert!(needs_person(&task(TaskState::Blocked, &[reason])), "{reason}");
        }
        for reason in ["approval", "input", "signal"] {
            assert!(needs_person(&task(TaskState::Waiting, &[reason])), "{reason}");
        }
    }

    #[test]
    fn timers_keep_waiting() {
        assert!(!needs_person(&task(TaskState::Waiting, &["timer"])));
        assert!(!needs_person(&task(TaskState::Blocked, &["failures", "timer"])));
    }

    #[test]
    fn work_under_way_keeps_waiting() {
        let mut retrying = task(TaskState::Blocked, &["failures"]);
        retrying.steps.retrying = 1;
        assert!(!needs_person(&retrying));
        for state in [TaskState::Running, TaskState::Queued, TaskState::Cancelling] {
            assert!(!needs_person(&task(state, &["failures"])), "{state}");
        }
    }

    #[test]
    fn a_stop_needs_a_person_once_an_undo_has_failed_and_nothing_runs() {
        let mut undoing = task(TaskState::Cancelling, &["failures", "undo_failed"]);
        assert!(needs_person(&undoing));
        undoing.steps.running = 1;
        assert!(!needs_person(&undoing));
    }

    #[test]
    fn a_held_task_needs_a_person_once_nothing_runs() {
        let mut paused = task(TaskState::Blocked, &["paused", "timer"]);
        paused.holds[0].step = None;
        paused.steps.ready = 2;
        assert!(needs_person(&paused));
        paused.steps.running = 1;
        assert!(!needs_person(&paused));
    }
}
