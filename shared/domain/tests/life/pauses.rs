//! Pauses: nothing new starts, and the clocks of the task stand still.

use crate::model::plans::{id, plan, step, submission};
use crate::model::world::{World, draw};
use crate::scenarios::{ROOM, broken, done, given, with};
use serde_json::json;
use standfast_domain::decide::TimerKind;
use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::index::{TIMERS, TimerEntry};
use standfast_domain::plan::{Deadline, DeadlineThen, OnFailure, StepPlan, Timeouts, Uses, When};
use standfast_domain::record::{Key, Record, TaskState};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::{Span, Time};

fn deadline(when: When, then: DeadlineThen) -> World {
    let mut submitted = submission(plan(vec![step("a", &[])], Vec::new()));
    submitted.plan.deadline = Some(Deadline { when, then });
    World::new(submitted, 0, ROOM)
}

fn due(world: &World, kind: TimerKind) -> Option<Time> {
    let members = world.store.members(TIMERS);
    let mut timers = members.iter().filter_map(|member| TimerEntry::parse(member));
    timers.find(|timer| timer.kind == kind).map(|timer| timer.due)
}

/// A step that must be settled ten seconds after it was first ready.
fn total() -> World {
    let timeout = Timeouts { total: Some(Span::from_secs(10)), ..Timeouts::default() };
    given(vec![StepPlan { timeout, ..step("a", &[]) }])
}

#[test]
fn nothing_starts_while_paused_and_what_runs_goes_on() {
    let mut world = given(vec![step("a", &[]), step("b", &["a"])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    assert_eq!(world.pause(), Ok(true));
    assert_eq!(world.header().state, TaskState::Blocked);
    let at = world.attempt_of("a");
    assert_eq!(world.complete(0, at, done()), Ok(true));
    assert_eq!(world.word("b"), "ready");
    let said = world.claim(0, "b", "w1");
    assert!(matches!(said, Err(Refusal::NotClaimable { .. })), "{said:?}");
    assert_eq!(world.resume(), Ok(true));
    assert_eq!(world.claim(0, "b", "w1"), Ok(true));
    world.drive();
}

#[test]
fn twice_is_once_either_way() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.resume(), Ok(false));
    assert_eq!(world.pause(), Ok(true));
    assert_eq!(world.pause(), Ok(false));
    assert_eq!(world.header().task_holds, 1);
    assert_eq!(world.resume(), Ok(true));
    assert_eq!(world.resume(), Ok(false));
    world.drive();
}

#[test]
fn an_answer_resumes_as_well() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.pause(), Ok(true));
    assert_eq!(world.answer(None, Answer::Retry), Ok(true));
    assert_eq!((world.header().task_holds, world.header().paused), (0, false));
    world.drive();
}

#[test]
fn resuming_leaves_a_step_held_whose_failure_had_paused_the_task() {
    let mut world = given(vec![with(OnFailure::Pause, step("a", &[])), step("b", &[])]);
    world.work("a", broken());
    assert_eq!(world.resume(), Ok(true));
    assert_eq!(world.held(), [(id("a"), HoldReason::Failures)]);
    world.work("b", done());
    world.drive();
}

#[test]
fn what_is_ending_or_has_ended_is_not_paused() {
    let mut world =
        World::new(submission(plan(vec![step("a", &[])], vec![step("f", &[])])), 0, ROOM);
    assert_eq!(world.stop(), Ok(true));
    assert_eq!(world.pause(), Err(Refusal::Ending(TaskState::Cancelling)));
    world.sweep_all();
    assert_eq!(world.resume(), Err(Refusal::Ending(TaskState::Cancelling)));
    world.work("f", done());
    assert_eq!(world.pause(), Err(Refusal::Ended(TaskState::Cancelled)));
}

#[test]
fn a_stop_ends_a_pause() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.pause(), Ok(true));
    assert_eq!(world.stop(), Ok(true));
    world.drive();
    assert_eq!((world.header().state, world.header().paused), (TaskState::Cancelled, false));
}

#[test]
fn a_deadline_given_as_a_span_stands_still() {
    let mut world = deadline(When::In(Span::from_secs(60)), DeadlineThen::Fail);
    let first = due(&world, TimerKind::Deadline).expect("it has a deadline");
    world.pass(50);
    assert_eq!(world.pause(), Ok(true));
    assert_eq!(due(&world, TimerKind::Deadline), None);
    world.pass(100);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(false), "it is paused");
    assert_eq!(world.resume(), Ok(true));
    assert_eq!(due(&world, TimerKind::Deadline), Some(first.after(Span::from_secs(100))));
    world.pass(9);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(false), "one second is left");
    world.pass(1);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(true));
    world.drive();
    assert_eq!(world.header().state, TaskState::Failed);
}

#[test]
fn a_deadline_given_as_a_time_stays_and_strikes_once_resumed() {
    let at = Time(1_000_000).after(Span::from_secs(60));
    let mut world = deadline(When::At(at), DeadlineThen::Stop);
    assert_eq!(world.pause(), Ok(true));
    world.pass(100);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(false), "it is paused");
    assert_eq!(world.resume(), Ok(true));
    assert_eq!(due(&world, TimerKind::Deadline), Some(at));
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(true));
    world.drive();
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn a_total_time_stands_still() {
    let mut world = total();
    world.pass(4);
    assert_eq!(world.pause(), Ok(true));
    world.pass(100);
    assert_eq!(world.fire(Some("a"), TimerKind::GiveUp), Ok(true), "it is looked at again");
    assert!(matches!(world.watch.history.last(), Some(Change::ClockPostponed { .. })));
    assert_eq!(world.word("a"), "ready");
    assert_eq!(world.resume(), Ok(true));
    world.pass(5);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true), "a second is left");
    let claim = world.claim_of("a").expect("it was claimed just now");
    assert_eq!(claim.ends_at.since(world.now), Span::from_secs(1));
    world.drive();
}

#[test]
fn a_total_time_strikes_when_what_was_left_is_over() {
    let mut world = total();
    world.pass(4);
    assert_eq!(world.pause(), Ok(true));
    world.pass(100);
    assert_eq!(world.resume(), Ok(true));
    world.pass(5);
    assert_eq!(world.fire(Some("a"), TimerKind::GiveUp), Ok(true));
    assert_eq!(world.word("a"), "ready");
    assert_eq!(due(&world, TimerKind::GiveUp), Some(world.now.after(Span::from_secs(1))));
    world.pass(1);
    assert_eq!(world.fire(Some("a"), TimerKind::GiveUp), Ok(true));
    assert_eq!(world.held(), [(id("a"), HoldReason::Failures)]);
    world.drive();
}

#[test]
fn a_long_pause_costs_few_looks_at_a_clock() {
    let mut world = total();
    world.pass(9);
    assert_eq!(world.pause(), Ok(true));
    let mut looks = 0;
    let end = world.now.after(Span::from_secs(7 * 24 * 60 * 60));
    while world.now < end {
        world.now = world.now.max(due(&world, TimerKind::GiveUp).expect("it is re-armed"));
        assert_eq!(world.fire(Some("a"), TimerKind::GiveUp), Ok(true));
        looks += 1;
    }
    assert!(looks < 1_200, "{looks} looks in a week");
    assert_eq!(world.word("a"), "ready");
    world.drive();
}

/// A timer step: `for` a span, or `until` a time.
fn waiting(with: serde_json::Value) -> World {
    let wait = StepPlan { uses: Uses::Timer, with, ..step("a", &[]) };
    let long = |seed: &u64| draw(*seed, &["a", "1"]) % 30 > 15;
    let seed = (0..).find(|seed| long(seed) && seed % 5 != 1).expect("some seed waits long");
    World::new(submission(plan(vec![wait], Vec::new())), seed, ROOM)
}

#[test]
fn a_wait_for_a_span_stands_still_and_one_until_a_time_does_not() {
    for (with, still) in [(json!({ "for": "20s" }), true), (json!({ "until": "x" }), false)] {
        let mut world = waiting(with);
        let first = due(&world, TimerKind::Hold).expect("it waits");
        world.pass(3);
        assert_eq!(world.pause(), Ok(true));
        world.pass(1000);
        assert_eq!(world.fire(Some("a"), TimerKind::Hold), Ok(true));
        assert_eq!(world.word("a") == "held", still);
        assert_eq!(world.resume(), Ok(true));
        if still {
            let left = first.after(Span::from_secs(1000));
            assert!(due(&world, TimerKind::Hold).is_some_and(|due| due <= left), "too late");
            world.now = left;
            assert_eq!(world.fire(Some("a"), TimerKind::Hold), Ok(true));
            assert_eq!(world.word("a"), "succeeded");
        }
        world.drive();
    }
}

#[test]
fn a_verification_hold_stops_no_clock() {
    let mut submitted = submission(plan(vec![step("a", &[])], Vec::new()));
    let when = When::In(Span::from_secs(60));
    submitted.plan.deadline = Some(Deadline { when, then: DeadlineThen::Stop });
    let mut world = World::new(submitted, 1, ROOM); // this seed's check does not hold
    world.work("a", done());
    assert_eq!(world.header().task_holds, 1);
    assert!(due(&world, TimerKind::Deadline).is_some());
    match world.store.load(&Key::Gate).0 {
        Some(Record::Gate(gate)) => assert_eq!(gate.paused_at, None),
        other => panic!("{other:?}"),
    }
    world.drive();
}
