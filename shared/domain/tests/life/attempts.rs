//! Attempts: how long a step may wait for one, how long its handler may be silent, what the
//! next one is told, and what follows each class of failure.

use standfast_domain::decide::{Command, TimerKind};
use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::index::{CLAIMS, TIMERS, TimerEntry};
use standfast_domain::outcome::{Failure, FailureClass, Outcome};
use standfast_domain::plan::{Deadline, DeadlineThen, OnFailure, Retry, StepPlan, Timeouts, When};
use standfast_domain::record::{Claim, Key, OVERRUN, Record, Status, StepState, TaskState};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::{Span, Time};

use crate::model::fair::{failure, success};
use crate::model::plans::{id, plan, redo, step, submission};
use crate::model::world::World;

const ROOM: usize = 250;
const CLASSES: [FailureClass; 6] = [
    FailureClass::Retryable,
    FailureClass::Permanent,
    FailureClass::RateLimited,
    FailureClass::Timeout,
    FailureClass::Lost,
    FailureClass::Cancelled,
];

fn given(steps: Vec<StepPlan>) -> World {
    World::new(submission(plan(steps, Vec::new())), 0, ROOM)
}

/// A step that waits 60 s for a worker, and whose handler may be silent for 20 s.
fn timed(name: &str) -> StepPlan {
    let (queue, heartbeat) = (Some(Span::from_secs(60)), Some(Span::from_secs(20)));
    let timeout = Timeouts { queue, heartbeat, ..Timeouts::default() };
    let retry = Retry { max_attempts: 3, ..Retry::default() };
    StepPlan { timeout, retry, ..step(name, &[]) }
}

fn state(world: &mut World, step: &str) -> StepState {
    match world.store.load(&Key::Step(id(step))).0 {
        Some(Record::Step(state)) => state,
        _ => panic!("`{step}` has no state"),
    }
}

fn claim(world: &mut World, step: &str) -> Claim {
    world.claim_of(step).unwrap_or_else(|| panic!("`{step}` is not claimed"))
}

fn queue_timers(world: &World) -> Vec<(Time, Option<StepId>)> {
    let members = world.store.members(TIMERS);
    let entries = members.iter().filter_map(|member| TimerEntry::parse(member));
    let own = entries.filter(|entry| entry.kind == TimerKind::Queue);
    own.map(|entry| (entry.due, entry.step)).collect()
}

fn queue_over(world: &mut World, step: &str, why: &str) -> bool {
    let (kind, why) = (TimerKind::Queue, Some(why.to_owned()));
    world.run(0, Command::FireTimer { step: Some(id(step)), kind, why }).expect("never refused")
}

fn expire(world: &mut World, step: &str) -> bool {
    let attempt = world.attempt_of(step).attempt;
    let command = Command::ExpireClaim { step: id(step), attempt, proven: false };
    world.run(1, command).expect("never refused")
}

#[test]
fn a_step_that_no_worker_starts_in_its_queue_time_fails_for_good_and_says_why() {
    let mut world = given(vec![timed("a")]);
    let due = world.now.after(Span::from_secs(60));
    assert_eq!(queue_timers(&world), [(due, Some(id("a")))]);
    world.pass(59);
    assert!(!queue_over(&mut world, "a", "too early"));
    world.pass(1);
    assert!(queue_over(&mut world, "a", "no live worker has handler `exec`"));
    let state = state(&mut world, "a");
    let Status::Held { hold } = &state.status else { panic!("{state:?}") };
    let right = "no worker started it within its queue time of 1m: \
                 no live worker has handler `exec`";
    assert_eq!((hold.reason, hold.message.as_str()), (HoldReason::Failures, right));
    assert_eq!((state.charged, state.attempts), (0, 0), "no attempt was made");
    assert!(queue_timers(&world).is_empty());
    assert_eq!(world.answer(Some("a"), Answer::Retry), Ok(true));
    assert_eq!(queue_timers(&world).len(), 1, "ready once more, with its time anew");
    world.drive();
}

#[test]
fn on_failure_follows_a_queue_time_that_is_over() {
    let step_a = StepPlan { on_failure: Some(OnFailure::Continue), ..timed("a") };
    let mut world = given(vec![step_a, step("b", &["a"])]);
    world.pass(60);
    assert!(queue_over(&mut world, "a", "because"));
    assert_eq!((world.word("a"), world.word("b")), ("failed", "ready"));
    let told = state(&mut world, "a").failure.expect("it keeps the reason");
    assert!(told.message.ends_with(": because"), "{told:?}");
    world.drive();
}

#[test]
fn what_an_attempt_told_outlasts_a_queue_time_that_is_over_later() {
    let step_a = StepPlan { on_failure: Some(OnFailure::Continue), ..timed("a") };
    let mut world = given(vec![step_a]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    world.complete(0, at, failure(FailureClass::Retryable)).expect("it is its own");
    world.pass(60);
    world.fire(Some("a"), TimerKind::Retry).expect("it is due");
    let before = state(&mut world, "a").failure;
    world.pass(60);
    assert!(queue_over(&mut world, "a", "because"));
    assert_eq!(world.word("a"), "failed");
    assert!(before.is_some());
    assert_eq!(state(&mut world, "a").failure, before);
    world.drive();
}

#[test]
fn a_queue_time_runs_from_each_time_that_the_step_becomes_ready() {
    let mut world = given(vec![timed("a")]);
    world.pass(50);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    assert!(queue_timers(&world).is_empty(), "gone once claimed");
    let at = world.attempt_of("a");
    world.pass(50);
    assert!(!queue_over(&mut world, "a", "it runs"));
    assert_eq!(world.run(0, Command::HandBack { at, why: String::new() }), Ok(true));
    assert_eq!(queue_timers(&world), [(world.now.after(Span::from_secs(60)), Some(id("a")))]);
    world.drive();
}

#[test]
fn a_claim_in_another_process_wins_over_the_queue_time() {
    let mut world = given(vec![timed("a")]);
    assert_eq!(world.fire(Some("a"), TimerKind::Queue), Ok(false)); // process 0 knows: no claim
    world.pass(60);
    assert_eq!(world.claim(1, "a", "w1"), Ok(true));
    assert!(!queue_over(&mut world, "a", "not so"));
    world.drive();
}

#[test]
fn time_under_a_hold_of_the_task_is_no_queue_time() {
    let mut submitted = submission(plan(vec![timed("a")], Vec::new()));
    let when = When::In(Span::from_secs(30));
    submitted.plan.deadline = Some(Deadline { when, then: DeadlineThen::Pause });
    let mut world = World::new(submitted, 0, ROOM);
    world.pass(30);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(true));
    world.pass(30);
    assert!(queue_over(&mut world, "a", "held"), "armed anew");
    assert_eq!(world.word("a"), "ready");
    assert_eq!(queue_timers(&world), [(world.now.after(Span::from_secs(60)), Some(id("a")))]);
    world.pass(50);
    assert_eq!(world.answer(None, Answer::Retry), Ok(true));
    let released = world.now;
    world.pass(10);
    assert!(queue_over(&mut world, "a", "released"), "counted from the end of the hold");
    assert_eq!(queue_timers(&world), [(released.after(Span::from_secs(60)), Some(id("a")))]);
    world.pass(50);
    assert!(queue_over(&mut world, "a", "no worker"));
    assert_eq!(world.word("a"), "held");
    world.drive();
}

#[test]
fn a_step_of_an_ending_task_has_no_queue_time() {
    let mut world = given(vec![timed("a"), step("b", &[])]);
    assert_eq!(world.claim(1, "b", "w1"), Ok(true));
    assert_eq!(world.stop_in(0), Ok(true)); // process 1 knows nothing of it
    world.pass(60);
    assert!(!queue_over(&mut world, "a", "stopped"));
    world.drive();
    assert!(queue_timers(&world).is_empty());
}

#[test]
fn a_handler_that_gives_signs_of_life_keeps_its_attempt() {
    let mut world = given(vec![timed("a")]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    for n in 0..20 {
        world.pass(10);
        assert_eq!(world.renew(0, &at, Some(&format!("{n}"))), Ok(true));
    }
    let claim = claim(&mut world, "a");
    assert_eq!(claim.expires_at, world.now.after(Span::from_secs(30)));
    assert_eq!((claim.heard_at(), claim.interval()), (world.now, Span::from_secs(10)));
    world.drive();
}

#[test]
fn a_claim_of_a_silent_handler_dies_though_its_worker_renews_it() {
    let mut world = given(vec![timed("a")]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    world.pass(5);
    let heard = world.now;
    assert_eq!(world.renew(0, &at, Some("half")), Ok(true));
    let end = heard.after(Span::from_secs(20)).after(OVERRUN);
    while world.now < end {
        world.pass(5);
        assert_eq!(world.renew(0, &at, None), Ok(true));
        let expires_at = claim(&mut world, "a").expires_at;
        assert_eq!(expires_at, world.now.after(Span::from_secs(30)).min(end));
    }
    assert_eq!(world.store.members(CLAIMS).len(), 1);
    assert!(expire(&mut world, "a"));
    let state = state(&mut world, "a");
    let failure = state.failure.clone().expect("it failed");
    assert_eq!(failure.class, FailureClass::Timeout);
    let right = "its handler gave no sign of life for 20s, and worker w1 did not end it";
    assert_eq!(failure.message, right);
    assert_eq!((state.charged, world.word("a")), (1, "retrying"), "tried again as timeouts are");
    assert!(matches!(world.renew(0, &at, None), Err(Refusal::Fenced { .. })));
    world.drive();
}

#[test]
fn a_renewal_is_seen_though_the_clock_stands_still() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    for _ in 0..3 {
        let (before, entries) = (claim(&mut world, "a").expires_at, world.store.members(CLAIMS));
        assert_eq!(world.renew(0, &at, None), Ok(true));
        assert!(claim(&mut world, "a").expires_at > before);
        assert_ne!(world.store.members(CLAIMS), entries, "whoever watches the entry sees it");
    }
}

#[test]
fn an_attempt_whose_worker_does_not_end_it_at_its_time_is_a_timeout() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    world.pass(30 * 60 + 15);
    assert_eq!(world.renew(0, &at, Some("going on and on")), Ok(true));
    world.pass(15);
    assert!(expire(&mut world, "a"));
    let failure = state(&mut world, "a").failure.expect("it failed");
    let right = "it was not done at the end of its time, and worker w1 did not end it";
    assert_eq!((failure.class, failure.message.as_str()), (FailureClass::Timeout, right));
}

#[test]
fn a_worker_that_falls_silent_loses_its_attempt_and_is_waited_for_as_after_any_failure() {
    let mut world = given(vec![timed("a")]);
    let mut waits = Vec::new();
    for n in 1..=3 {
        assert_eq!(world.claim(0, "a", "w1"), Ok(true));
        world.pass(30);
        assert!(expire(&mut world, "a"));
        let state = state(&mut world, "a");
        assert_eq!((state.charged, state.attempt), (n, n + 1), "counted before another starts");
        if let Status::Retrying { at } = state.status {
            waits.push(at.since(world.now));
            world.now = at;
            assert_eq!(world.fire(Some("a"), TimerKind::Retry), Ok(true));
        }
    }
    let jitter = |secs: u64| Span::from_secs(secs)..=Span(secs * 1_100);
    assert_eq!(waits.len(), 2);
    assert!(jitter(1).contains(&waits[0]) && jitter(2).contains(&waits[1]), "{waits:?}");
    assert_eq!(world.held(), [(id("a"), HoldReason::WorkerDied)]);
    world.drive();
}

#[test]
fn the_next_attempt_is_told_what_the_last_one_said() {
    let mut world = given(vec![timed("a")]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(world.renew(0, &at, Some("row 400")), Ok(true));
    assert_eq!(world.renew(0, &at, None), Ok(true));
    assert_eq!(world.run(0, Command::HandBack { at, why: String::new() }), Ok(true));
    assert_eq!(state(&mut world, "a").details.as_deref(), Some("row 400"), "handed back");
    assert_eq!(world.claim(0, "a", "w2"), Ok(true));
    world.pass(30);
    assert!(expire(&mut world, "a"));
    assert_eq!(state(&mut world, "a").details.as_deref(), Some("row 400"), "said nothing new");
    world.pass(60);
    assert_eq!(world.fire(Some("a"), TimerKind::Retry), Ok(true));
    assert_eq!(world.claim(0, "a", "w3"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(world.renew(1, &at, Some("row 900")), Ok(true));
    assert_eq!(world.complete(0, at, failure(FailureClass::Permanent)), Ok(true));
    assert_eq!(state(&mut world, "a").details.as_deref(), Some("row 900"), "failed");
    assert_eq!(world.answer(Some("a"), Answer::Retry), Ok(true));
    assert_eq!(state(&mut world, "a").details.as_deref(), Some("row 900"), "answered");
    world.work("a", success(Vec::new()));
    assert_eq!(state(&mut world, "a").details, None, "done");
    world.drive();
}

#[test]
fn a_new_round_begins_without_what_was_said_in_the_old_one() {
    let mut world = given(vec![step("a", &[]), redo("b", &["a"], "a", 2)]);
    world.work("a", success(Vec::new()));
    assert_eq!(world.claim(0, "b", "w1"), Ok(true));
    let at = world.attempt_of("b");
    assert_eq!(world.renew(0, &at, Some("half")), Ok(true));
    assert_eq!(world.complete(0, at, failure(FailureClass::Permanent)), Ok(true));
    assert_eq!((world.word("a"), world.word("b")), ("ready", "pending"));
    assert_eq!(state(&mut world, "b").details, None);
    world.drive();
}

#[test]
fn each_class_of_failure_is_followed_by_what_it_calls_for() {
    for class in CLASSES {
        let step_a =
            StepPlan { retry: Retry { max_attempts: 2, ..Retry::default() }, ..timed("a") };
        let mut world = given(vec![step_a]);
        let told = Failure { retry_after: Some(Span::from_secs(40)), ..Failure::new(class, "no") };
        world.work("a", Outcome::Failed(told.clone()));
        let again = class != FailureClass::Permanent;
        assert_eq!(world.word("a"), if again { "retrying" } else { "held" }, "{class:?}");
        if again {
            let Status::Retrying { at } = state(&mut world, "a").status else { panic!() };
            assert_eq!(at.since(world.now), Span::from_secs(40), "{class:?}: asked for");
            world.now = at;
            assert_eq!(world.fire(Some("a"), TimerKind::Retry), Ok(true));
            world.work("a", Outcome::Failed(told));
        }
        let reason = match class {
            FailureClass::Lost => HoldReason::WorkerDied,
            _ => HoldReason::Failures,
        };
        assert_eq!(world.held(), [(id("a"), reason)], "{class:?}");
        let charged = state(&mut world, "a").charged;
        assert_eq!(charged, if again { 2 } else { 1 }, "{class:?}: each is charged");
    }
}

#[test]
fn each_class_of_failure_after_a_stop_is_a_cancelled_attempt() {
    for class in CLASSES {
        let mut world = given(vec![timed("a")]);
        assert_eq!(world.claim(0, "a", "w1"), Ok(true));
        let at = world.attempt_of("a");
        assert_eq!(world.stop(), Ok(true));
        assert_eq!(world.complete(0, at, failure(class)), Ok(true));
        let ended = world.watch.history.iter().find_map(|change| match change {
            Change::AttemptFailed { class, charged, .. } => Some((*class, *charged)),
            _ => None,
        });
        assert_eq!(ended, Some((FailureClass::Cancelled, false)), "{class:?}");
        world.drive();
        assert_eq!(world.header().state, TaskState::Cancelled);
    }
}

fn stop_attempt(world: &mut World, step: &str, attempt: u32) -> Result<bool, Refusal> {
    let reason = Some("it hangs".to_owned());
    world.run(1, Command::StopAttempt { step: id(step), attempt, reason })
}

fn why(said: Result<bool, Refusal>) -> String {
    match said {
        Err(Refusal::NotStoppable { why, .. }) => why,
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[test]
fn a_stopped_attempt_is_not_charged_and_the_next_may_start_at_once() {
    let retry = Retry { max_attempts: 1, ..Retry::default() };
    let mut world = given(vec![StepPlan { retry, ..timed("a") }]);
    assert_eq!(why(stop_attempt(&mut world, "a", 1)), "it has not started");
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(stop_attempt(&mut world, "a", 1), Ok(true));
    assert_eq!(stop_attempt(&mut world, "a", 1), Ok(false), "twice is once");
    let now = state(&mut world, "a");
    assert_eq!((world.word("a"), now.attempt, now.charged), ("ready", 2, 0));
    let late = world.complete(0, at, failure(FailureClass::Retryable));
    assert!(late.is_ok(), "a late outcome is noted: {late:?}");

    assert_eq!(world.claim(0, "a", "w2"), Ok(true));
    assert_eq!(why(stop_attempt(&mut world, "a", 1)), "attempt 2 runs now");
    let at = world.attempt_of("a");
    assert_eq!(world.complete(0, at, success(Vec::new())), Ok(true));
    let settled = stop_attempt(&mut world, "a", 2);
    assert!(
        matches!(settled, Err(Refusal::Ended(_) | Refusal::NotStoppable { .. })),
        "{settled:?}"
    );
    let unknown = stop_attempt(&mut world, "nobody", 1);
    assert!(matches!(unknown, Err(Refusal::NoStep(_) | Refusal::Ended(_))), "{unknown:?}");
}

#[test]
fn a_stopped_attempt_of_a_task_that_ends_is_not_followed_by_another() {
    let mut world = given(vec![timed("a")]);
    assert_eq!(world.claim(1, "a", "w1"), Ok(true));
    assert_eq!(world.stop_in(0), Ok(true)); // process 1 knows nothing of it
    assert_eq!(stop_attempt(&mut world, "a", 1), Ok(true));
    world.drive();
    assert_eq!(world.header().state, TaskState::Cancelled);
}
