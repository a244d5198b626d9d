//! The settings that are checked: small plans, each with enough trouble for one question.

use standfast_domain::decide::Submission;
use standfast_domain::outcome::FailureClass;
use standfast_domain::plan::{Deadline, DeadlineThen, OnFailure, StepPlan, Uses, When};
use standfast_domain::record::{EffectClass, StopMode};
use standfast_domain::time::Span;

use super::plans::{effect, id, plan, redo, step, submission, undo};
use super::setting::Setting;
use super::state::Bounds;

/// Handlers fail for good.
const BROKEN: &[FailureClass] = &[FailureClass::Permanent];

fn of(steps: Vec<StepPlan>) -> Submission {
    submission(plan(steps, Vec::new()))
}

fn bounds(faults: u8, failures: u8, answers: u8, stops: u8) -> Bounds {
    Bounds { faults, failures, answers, stops, attempt_stops: 0, pauses: 0 }
}

fn with(on_failure: OnFailure, plan: StepPlan) -> StepPlan {
    StepPlan { on_failure: Some(on_failure), ..plan }
}

/// One step, and more trouble than anywhere else.
pub fn one_step() -> Setting {
    Setting {
        bounds: bounds(2, 1, 0, 1),
        fails: BROKEN,
        renews: true,
        sights: &[
            "queued",
            "running",
            "blocked",
            "cancelling",
            "cancelled",
            "completed",
            "a ready step",
            "a claimed step",
            "a held step",
            "a step that succeeded",
            "held: failures",
            "held: worker_died",
            "a second epoch",
            "a stale commit is refused",
            "a late outcome is refused",
            "a repeated outcome is taken once",
            "an attempt is taken over",
        ],
        ..Setting::new("one step", of(vec![step("a", &[])]))
    }
}

/// Two steps, one after the other; what follows a success is in its commit.
pub fn chain() -> Setting {
    Setting {
        bounds: bounds(1, 0, 0, 1),
        sights: &[
            "completed",
            "cancelled",
            "a stale commit is refused",
            "an attempt is taken over",
        ],
        ..Setting::new("chain of two", of(vec![step("a", &[]), step("b", &["a"])]))
    }
}

/// The same, with a commit for each thing that follows.
pub fn chain_without_room() -> Setting {
    Setting {
        room: 0,
        sights: &["a pending step", "completed", "cancelled", "a late outcome is refused"],
        ..Setting { name: "chain of two, one thing a commit", ..chain() }
    }
}

/// Two steps at a time, and one that needs both.
pub fn join() -> Setting {
    let steps = vec![step("a", &[]), step("b", &[]), step("c", &["a", "b"])];
    Setting {
        bounds: bounds(2, 0, 0, 0),
        sights: &["a pending step", "completed", "a late outcome is refused"],
        ..Setting::new("two and a join", of(steps))
    }
}

/// Two steps at a time under a stop.
pub fn parallel_stopped() -> Setting {
    Setting {
        bounds: bounds(0, 0, 0, 1),
        sights: &["cancelling", "cancelled", "a second epoch"],
        ..Setting::new("two at a time, stopped", of(vec![step("a", &[]), step("b", &[])]))
    }
}

/// A step with two attempts and a wait between.
pub fn retry() -> Setting {
    let mut again = step("a", &[]);
    again.retry.max_attempts = 2;
    again.retry.backoff = Span::from_secs(1);
    Setting {
        bounds: bounds(1, 2, 1, 1),
        fails: &[FailureClass::Retryable],
        sights: &[
            "a retrying step",
            "held: failures",
            "held: worker_died",
            "completed",
            "cancelled",
        ],
        ..Setting::new("retry", of(vec![again]))
    }
}

/// A step whose attempts have a total time.
pub fn total_time() -> Setting {
    let mut timed = step("a", &[]);
    timed.retry.max_attempts = 2;
    timed.retry.backoff = Span::from_secs(1);
    timed.timeout.total = Some(Span::from_secs(20));
    Setting {
        bounds: bounds(1, 1, 1, 0),
        fails: &[FailureClass::Retryable],
        sights: &["a retrying step", "held: failures", "held: worker_died"],
        ..Setting::new("total time", of(vec![timed]))
    }
}

/// A failure that fails the task while another step may run.
pub fn fail() -> Setting {
    let steps = vec![with(OnFailure::Fail, step("a", &[])), step("b", &[])];
    Setting {
        bounds: bounds(0, 1, 0, 1),
        fails: BROKEN,
        sights: &["a step that failed", "failed", "cancelled", "a second epoch"],
        ..Setting::new("on_failure: fail", of(steps))
    }
}

/// A failure that counts as settled.
pub fn go_on() -> Setting {
    let steps = vec![with(OnFailure::Continue, step("a", &[])), step("b", &["a"])];
    Setting {
        bounds: bounds(2, 1, 0, 0),
        fails: BROKEN,
        sights: &["a step that failed", "completed"],
        ..Setting::new("on_failure: continue", of(steps))
    }
}

/// A failure that pauses the task while another step may run.
pub fn pause() -> Setting {
    let steps = vec![with(OnFailure::Pause, step("a", &[])), step("b", &[])];
    Setting {
        bounds: bounds(0, 1, 1, 1),
        fails: BROKEN,
        sights: &["held: paused", "held: failures", "a skipped step", "completed", "cancelled"],
        ..Setting::new("on_failure: pause", of(steps))
    }
}

/// A check that has its draft made anew.
pub fn redo_once() -> Setting {
    let steps = vec![step("a", &[]), redo("b", &["a"], "a", 1)];
    Setting {
        bounds: bounds(1, 2, 0, 0),
        fails: BROKEN,
        sights: &["a second round", "held: failures", "completed", "a late outcome is refused"],
        ..Setting::new("redo", of(steps))
    }
}

/// Two checks that have one draft made anew, at the same time.
pub fn redo_overlapping() -> Setting {
    let steps = vec![step("a", &[]), redo("b", &["a"], "a", 1), redo("c", &["a"], "a", 1)];
    Setting {
        bounds: bounds(0, 2, 0, 0),
        fails: BROKEN,
        sights: &["a second round", "held: failures", "completed", "a late outcome is refused"],
        ..Setting::new("two redos", of(steps))
    }
}

/// A step that waits, and one after it.
pub fn timer() -> Setting {
    let timer = StepPlan { uses: Uses::Timer, ..step("t", &[]) };
    Setting {
        bounds: bounds(1, 0, 1, 1),
        sights: &["waiting", "held: timer", "completed", "cancelled"],
        ..Setting::new("timer", of(vec![timer, step("b", &["t"])]))
    }
}

/// A claim that is renewed while a timer makes time pass.
pub fn renewed() -> Setting {
    let timer = StepPlan { uses: Uses::Timer, ..step("t", &[]) };
    Setting {
        bounds: bounds(2, 0, 0, 0),
        renews: true,
        sights: &["waiting", "completed", "an attempt is taken over", "a stale commit is refused"],
        ..Setting::new("renewed claim", of(vec![timer, step("a", &[])]))
    }
}

/// A step that runs at every end.
pub fn finally() -> Setting {
    let submission = submission(plan(vec![step("a", &[])], vec![step("f", &[])]));
    Setting {
        bounds: bounds(1, 1, 0, 1),
        fails: BROKEN,
        sights: &["a second epoch", "a step that failed", "completed", "cancelled"],
        ..Setting::new("finally", submission)
    }
}

fn deadline(then: DeadlineThen) -> Submission {
    let mut submission = of(vec![step("a", &[])]);
    submission.plan.deadline = Some(Deadline { when: When::In(Span::from_secs(40)), then });
    submission
}

/// A deadline that pauses.
pub fn deadline_pauses() -> Setting {
    Setting {
        bounds: bounds(1, 0, 1, 0),
        sights: &["held: paused", "completed", "cancelled"],
        ..Setting::new("deadline, then: pause", deadline(DeadlineThen::Pause))
    }
}

/// A deadline that fails the task.
pub fn deadline_fails() -> Setting {
    Setting {
        bounds: bounds(1, 0, 0, 1),
        sights: &["failed", "cancelled", "completed"],
        ..Setting::new("deadline, then: fail", deadline(DeadlineThen::Fail))
    }
}

/// A deadline that stops the task.
pub fn deadline_stops() -> Setting {
    Setting {
        bounds: bounds(1, 0, 0, 1),
        sights: &["cancelled", "completed"],
        ..Setting::new("deadline, then: stop", deadline(DeadlineThen::Stop))
    }
}

/// A check of completion that does not hold.
pub fn verification() -> Setting {
    Setting {
        bounds: bounds(1, 0, 2, 1),
        fault: Some("`complete_when` is false"),
        sights: &["held: verification", "completed", "cancelled"],
        ..Setting::new("verification", of(vec![step("a", &[])]))
    }
}

fn effect_of(class: EffectClass, max_attempts: u32) -> Submission {
    let mut own = effect(class, step("a", &[]));
    own.retry.max_attempts = max_attempts;
    own.retry.backoff = Span::from_secs(0);
    of(vec![own])
}

/// An effect that only a person can find out about.
pub fn irreversible() -> Setting {
    Setting {
        bounds: bounds(1, 1, 1, 0),
        fails: &[FailureClass::Retryable],
        sights: &[
            "held: uncertain_effect",
            "a late receipt ends its hold",
            "an effect is sent again as bidden",
            "completed",
        ],
        ..Setting::new("irreversible effect", effect_of(EffectClass::Irreversible, 2))
    }
}

/// One step whose attempt a person stops, while its worker may be slow to hear of it.
pub fn attempt_stopped() -> Setting {
    Setting {
        bounds: Bounds { attempt_stops: 2, ..bounds(1, 0, 0, 1) },
        sights: &["a late outcome is refused", "cancelled", "completed"],
        ..Setting { name: "attempt stopped", ..one_step() }
    }
}

/// A person stops an attempt that may be sending.
pub fn irreversible_attempt_stopped() -> Setting {
    Setting {
        bounds: Bounds { attempt_stops: 1, ..bounds(1, 0, 1, 0) },
        sights: &["held: uncertain_effect", "a late receipt ends its hold", "completed"],
        ..Setting { name: "irreversible effect, attempt stopped", ..irreversible() }
    }
}

/// The same under a stop.
pub fn irreversible_stopped() -> Setting {
    Setting {
        bounds: bounds(1, 0, 1, 1),
        sights: &[
            "held: uncertain_effect",
            "a late receipt ends its hold",
            "an effect lands after the end",
            "cancelled",
        ],
        ..Setting { name: "irreversible effect, stopped", ..irreversible() }
    }
}

/// An effect that the outside world can be asked about.
pub fn checkable() -> Setting {
    Setting {
        bounds: bounds(1, 1, 1, 0),
        fails: &[FailureClass::Retryable],
        sights: &["held: uncertain_effect", "completed"],
        ..Setting::new("checkable effect", effect_of(EffectClass::Checkable, 2))
    }
}

/// An effect that may be sent again under its key.
pub fn idempotent() -> Setting {
    Setting {
        bounds: bounds(1, 1, 0, 1),
        fails: &[FailureClass::Retryable],
        sights: &["completed", "cancelled", "a late outcome is refused"],
        ..Setting::new("idempotent effect", effect_of(EffectClass::Idempotent, 2))
    }
}

/// An effect that has happened, and whose step is redone with another input.
pub fn changed() -> Setting {
    let steps = vec![effect(EffectClass::Irreversible, step("a", &[])), redo("b", &["a"], "a", 1)];
    let mut submission = of(steps);
    submission.templated.insert(id("a"));
    Setting {
        bounds: bounds(0, 2, 2, 0),
        fails: BROKEN,
        sights: &["held: effect_changed", "an effect is sent again as bidden", "completed"],
        ..Setting::new("changed effect", submission)
    }
}

/// A step whose effect can be undone, by something that changes nothing itself.
fn undoable(class: EffectClass, name: &str) -> StepPlan {
    undo(effect(class, step(name, &[])))
}

/// An effect under a stop that lets it land, and perhaps a stronger one after that.
pub fn drained() -> Setting {
    Setting {
        bounds: bounds(0, 0, 0, 2),
        modes: &[StopMode::Drain, StopMode::Undo],
        sights: &[
            "cancelled",
            "a step succeeds under a drain",
            "a stop is strengthened",
            "what has landed is being undone",
        ],
        ..Setting::new("drained", of(vec![undoable(EffectClass::Irreversible, "a")]))
    }
}

/// Two effects, undone in the reverse of the order in which they landed.
pub fn undone() -> Setting {
    let [a, b] = ["a", "b"].map(|name| undoable(EffectClass::Idempotent, name));
    let steps = [a, StepPlan { needs: vec![id("a")], ..b }];
    Setting {
        bounds: bounds(0, 0, 0, 1),
        modes: &[StopMode::Undo],
        sights: &["cancelled", "what has landed is being undone", "two effects are undone"],
        ..Setting::new("two undone", of(steps.to_vec()))
    }
}

/// An undo that fails until a person has settled it.
pub fn undo_failed() -> Setting {
    Setting {
        bounds: bounds(0, 1, 1, 1),
        fails: BROKEN,
        modes: &[StopMode::Undo],
        sights: &["cancelled", "held: undo_failed", "an undo is settled by hand"],
        ..Setting::new("failed undo", of(vec![undoable(EffectClass::Idempotent, "a")]))
    }
}

/// An effect that is undone by another one, of which nobody may know.
pub fn undo_uncertain() -> Setting {
    let mut own = undoable(EffectClass::Idempotent, "a");
    own.undo.as_mut().expect("it has one").effect =
        effect(EffectClass::Irreversible, step("a", &[])).effect;
    Setting {
        bounds: bounds(1, 0, 0, 1),
        modes: &[StopMode::Undo],
        sights: &["cancelled", "an undo is uncertain"],
        ..Setting::new("uncertain undo", of(vec![own]))
    }
}

/// A step with a total time, paused and stopped at every point.
pub fn paused() -> Setting {
    let mut timed = step("a", &[]);
    timed.timeout.total = Some(Span::from_secs(20));
    Setting {
        bounds: Bounds { pauses: 1, ..bounds(0, 0, 0, 1) },
        sights: &["a pause", "a clock struck in a pause", "completed", "cancelled"],
        ..Setting::new("paused", of(vec![timed]))
    }
}

/// All of them.
pub fn all() -> Vec<Setting> {
    vec![
        one_step(),
        chain(),
        chain_without_room(),
        join(),
        parallel_stopped(),
        retry(),
        total_time(),
        fail(),
        go_on(),
        pause(),
        redo_once(),
        redo_overlapping(),
        timer(),
        renewed(),
        finally(),
        deadline_pauses(),
        deadline_fails(),
        deadline_stops(),
        verification(),
        attempt_stopped(),
        irreversible(),
        irreversible_attempt_stopped(),
        irreversible_stopped(),
        checkable(),
        idempotent(),
        changed(),
        drained(),
        undone(),
        undo_failed(),
        undo_uncertain(),
        paused(),
    ]
}
