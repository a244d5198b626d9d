//! How a life is held up or ends: pauses and their answers, stops, deadlines.

use crate::model::plans::{id, plan, step, submission};
use crate::model::world::World;
use crate::scenarios::{ROOM, broken, done, expire, given, with};
use standfast_domain::decide::{Command, TimerKind};
use standfast_domain::hold::Answer;
use standfast_domain::index::TIMERS;
use standfast_domain::plan::{Deadline, DeadlineThen, OnFailure, When};
use standfast_domain::record::{Ending, Key, Record, TaskState};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;

#[test]
fn a_held_step_of_an_ending_task_takes_no_answer_but_a_stop() {
    let mut world = given(vec![step("a", &[]), step("b", &[])]);
    world.work("a", broken());
    assert_eq!(world.claim(0, "b", "w1"), Ok(true));
    assert_eq!(world.stop(), Ok(true));
    for answer in [Answer::Retry, Answer::Skip] {
        let said = world.answer(Some("a"), answer);
        assert!(matches!(said, Err(Refusal::NotApplicable { .. })), "{said:?}");
    }
    assert_eq!(world.answer(Some("a"), Answer::Stop), Ok(false));
    world.drive();
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn an_answer_lifts_only_the_pause_that_the_step_made() {
    let mut submitted = submission(plan(vec![step("a", &[])], Vec::new()));
    let when = When::In(Span::from_secs(5));
    submitted.plan.deadline = Some(Deadline { when, then: DeadlineThen::Pause });
    let mut world = World::new(submitted, 0, ROOM);
    world.work("a", broken());
    world.pass(6);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(true));
    assert_eq!(world.answer(Some("a"), Answer::Retry), Ok(true));
    assert_eq!(world.header().task_holds, 1);
    world.drive();
}

#[test]
fn a_pause_by_a_step_and_one_by_the_deadline_are_ended_each_by_its_own_answer() {
    let pausing = with(OnFailure::Pause, step("a", &[]));
    let mut submitted = submission(plan(vec![pausing], Vec::new()));
    let when = When::In(Span::from_secs(5));
    submitted.plan.deadline = Some(Deadline { when, then: DeadlineThen::Pause });
    let held_by = |world: &mut World| match world.store.load(&Key::Gate).0 {
        Some(Record::Gate(gate)) => gate.holds.into_iter().map(|hold| hold.by).collect(),
        _ => Vec::new(),
    };
    for at_step in [true, false] {
        let mut world = World::new(submitted.clone(), 0, ROOM);
        assert_eq!(world.claim(0, "a", "w1"), Ok(true));
        world.pass(6);
        assert_eq!(world.fire(None, TimerKind::Deadline), Ok(true));
        let at = world.attempt_of("a");
        assert_eq!(world.complete(0, at, broken()), Ok(true));
        assert_eq!(held_by(&mut world), [None, Some(id("a"))]);
        let answered = at_step.then_some("a");
        assert_eq!(world.answer(answered, Answer::Retry), Ok(true));
        assert_eq!(held_by(&mut world), [(!at_step).then(|| id("a"))]);
        assert_eq!(world.header().state, TaskState::Blocked);
        assert_eq!(world.answer((!at_step).then_some("a"), Answer::Retry), Ok(true));
        assert_eq!(world.header().task_holds, 0);
        world.drive();
    }
}

#[test]
fn an_answer_to_one_pausing_step_leaves_the_pause_of_another() {
    let pausing = |name| with(OnFailure::Pause, step(name, &[]));
    let mut world = given(vec![pausing("a"), pausing("b")]);
    assert_eq!(world.claim(0, "b", "w1"), Ok(true));
    world.work("a", broken());
    let b = world.attempt_of("b");
    assert_eq!(world.complete(0, b, broken()), Ok(true));
    assert_eq!(world.answer(Some("a"), Answer::Skip), Ok(true));
    assert_eq!((world.header().task_holds, world.header().state), (1, TaskState::Blocked));
    assert_eq!(world.answer(Some("b"), Answer::Retry), Ok(true));
    assert_eq!((world.header().task_holds, world.word("b")), (0, "ready"));
    world.drive();
}

#[test]
fn several_steps_that_pause_their_task_are_answered_one_by_one() {
    let pausing = |name| with(OnFailure::Pause, step(name, &[]));
    let mut world = given(vec![pausing("a"), pausing("b"), step("c", &[])]);
    assert_eq!(world.claim(0, "b", "w1"), Ok(true));
    assert_eq!(world.claim(0, "c", "w2"), Ok(true));
    world.work("a", broken());
    let (b, c) = (world.attempt_of("b"), world.attempt_of("c"));
    assert_eq!(world.complete(0, c, done()), Ok(true)); // a running branch finishes
    assert_eq!(world.complete(0, b, broken()), Ok(true));
    assert_eq!(world.answer(None, Answer::Retry), Ok(true));
    assert_eq!(world.held().len(), 2);
    assert_eq!(world.answer(Some("a"), Answer::Retry), Ok(true));
    assert_eq!(world.answer(Some("b"), Answer::Skip), Ok(true));
    world.work("a", done());
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn a_paused_task_that_fails_runs_its_finally_steps_unheld() {
    let steps = vec![with(OnFailure::Pause, step("a", &[])), with(OnFailure::Fail, step("b", &[]))];
    let mut world = World::new(submission(plan(steps, vec![step("f", &[])])), 0, ROOM);
    assert_eq!(world.claim(0, "b", "w1"), Ok(true));
    world.work("a", broken());
    assert_eq!(world.header().state, TaskState::Blocked);
    let at = world.attempt_of("b");
    assert_eq!(world.complete(0, at, broken()), Ok(true));
    world.sweep_all();
    world.work("f", done());
    assert_eq!(world.header().state, TaskState::Failed);
    world.drive();
}

#[test]
fn a_skipped_check_leaves_no_hold_behind() {
    let mut submitted = submission(plan(vec![step("a", &[])], vec![step("f", &[])]));
    let when = When::In(Span::from_secs(5));
    submitted.plan.deadline = Some(Deadline { when, then: DeadlineThen::Pause });
    let mut world = World::new(submitted, 1, ROOM); // this seed's check does not hold
    world.work("a", done());
    world.pass(6);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(true));
    assert_eq!(world.header().task_holds, 2);
    assert_eq!(world.answer(None, Answer::Skip), Ok(true));
    world.work("f", done());
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn a_stop_turns_a_failing_task_into_a_cancelled_one() {
    let mut world = given(vec![with(OnFailure::Fail, step("a", &[])), step("b", &[])]);
    assert_eq!(world.claim(0, "b", "w1"), Ok(true));
    world.work("a", broken());
    assert_eq!(world.stop(), Ok(true));
    world.drive();
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn a_stop_during_finally_is_no_second_ending() {
    let mut world =
        World::new(submission(plan(vec![step("a", &[])], vec![step("f", &[])])), 0, ROOM);
    assert_eq!(world.stop(), Ok(true));
    world.sweep_all();
    assert_eq!(world.stop(), Ok(false));
    world.work("f", done());
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn a_stop_of_a_task_whose_end_is_decided_is_refused_by_name() {
    for (outcome, ending) in [(done(), Ending::Completed), (broken(), Ending::Failed)] {
        let steps = vec![with(OnFailure::Fail, step("a", &[]))];
        let mut world = World::new(submission(plan(steps, vec![step("f", &[])])), 0, ROOM);
        world.work("a", outcome);
        world.sweep_all();
        for _ in 0..2 {
            assert_eq!(world.stop(), Err(Refusal::EndDecided(ending)));
        }
        world.work("f", done());
        assert!(matches!(world.stop(), Err(Refusal::Ended(_))));
        world.drive();
    }
}

#[test]
fn a_deadline_does_not_apply_once_the_end_is_decided() {
    let due = |world: &World| world.store.members(TIMERS).len();
    for (fails, then) in [(false, false), (true, false), (false, true)] {
        let steps = vec![with(OnFailure::Fail, step("a", &[])), step("b", &[])];
        let mut submitted = submission(plan(steps, vec![step("f", &[])]));
        let when = When::In(Span::from_secs(5));
        submitted.plan.deadline = Some(Deadline { when, then: DeadlineThen::Fail });
        let mut world = World::new(submitted, 0, ROOM);
        assert_eq!(world.claim(0, "b", "w2"), Ok(true));
        assert_eq!(due(&world), 1);
        let at = world.attempt_of("b");
        match then {
            true => assert_eq!(world.stop(), Ok(true)),
            false => world.work("a", if fails { broken() } else { done() }),
        }
        if fails || then {
            assert_eq!(due(&world), 0, "the task is closing");
        }
        assert_eq!(world.complete(0, at, done()), Ok(true));
        world.sweep_all();
        assert_eq!(due(&world), 0, "`finally` runs");
        world.pass(6);
        assert_eq!(world.fire(None, TimerKind::Deadline), Ok(false));
        world.work("f", done());
        assert!(world.header().state.is_final());
        world.drive();
    }
}

#[test]
fn what_is_handed_back_or_expires_under_a_stop_does_not_start_again() {
    for stops in [0, 1] {
        let mut world = given(vec![step("a", &[]), step("b", &[])]);
        assert_eq!(world.claim(1, "b", "w2"), Ok(true));
        assert_eq!(world.claim(0, "a", "w1"), Ok(true));
        assert_eq!(world.stop_in(stops), Ok(true)); // the other process knows nothing of it
        let at = world.attempt_of("a");
        let hand_back = Command::HandBack { at, why: String::new() };
        if stops == 0 {
            expire(&mut world, "b", true);
        }
        assert_eq!(world.run(0, hand_back), Ok(true));
        if stops == 1 {
            assert_eq!(world.header().state, TaskState::Cancelling);
            expire(&mut world, "b", true);
        }
        world.sweep_all();
        assert_eq!(world.header().state, TaskState::Cancelled);
        world.drive();
    }
}

#[test]
fn a_task_does_not_end_over_a_claim_that_its_process_has_not_heard_of() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(world.run(0, Command::HandBack { at, why: String::new() }), Ok(true));
    assert_eq!(world.claim(1, "a", "w2"), Ok(true)); // process 0 knows that there is none
    assert_eq!(world.stop(), Ok(true));
    world.settle(0);
    assert_eq!(world.header().state, TaskState::Cancelling);
    world.drive();
}
