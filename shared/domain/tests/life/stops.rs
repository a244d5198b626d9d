//! Stops in their modes, and what undoes what has landed.

use crate::model::fair::success;
use crate::model::plans::{effect, id, plan, step, submission, undo};
use crate::model::world::World;
use crate::scenarios::{ROOM, broken, done, expire, given};
use standfast_domain::decide::{Command, TimerKind, UNDO_ALLOWANCE};
use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::outcome::FailureClass;
use standfast_domain::plan::{Deadline, DeadlineThen, Retry, StepPlan, When};
use standfast_domain::record::{EffectClass, Ending, Phase, Standing, StopMode, TaskState};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;

const MAIN: &str = "main";

/// A step that sends something irreversible which can be undone.
fn sends(name: &str, needs: &[&str]) -> StepPlan {
    undo(effect(EffectClass::Irreversible, step(name, needs)))
}

fn chain(names: &[&str]) -> Vec<StepPlan> {
    let need = |n: usize| names[n.saturating_sub(1)..n].to_vec();
    names.iter().enumerate().map(|(n, name)| sends(name, &need(n))).collect()
}

/// Runs a step whose effect lands.
fn land(world: &mut World, name: &str) {
    assert_eq!(world.claim(0, name, "w1"), Ok(true), "`{name}` is claimed");
    let at = world.attempt_of(name);
    assert_eq!(world.intend(0, &at, MAIN, EffectClass::Irreversible), Ok(true));
    assert_eq!(world.complete(0, at, done()), Ok(true));
}

/// A task of which these effects have landed, in this order, and one more step is to come.
fn landed(names: &[&str]) -> World {
    let mut steps = chain(names);
    steps.push(step("rest", &names[names.len() - 1..]));
    let mut world = given(steps);
    names.iter().for_each(|name| land(&mut world, name));
    world
}

/// Says which undos were begun, in order.
fn undone(world: &World) -> Vec<String> {
    let added = world.watch.history.iter().filter_map(|change| match change {
        Change::UndoAdded { step, .. } => Some(step.to_string()),
        _ => None,
    });
    added.collect()
}

/// Lists the undos that a worker may claim.
fn undoing(world: &World) -> Vec<StepId> {
    world.ready().into_iter().filter(|step| step.undone().is_some()).collect()
}

fn stop(world: &mut World, mode: StopMode) {
    assert_eq!(world.stop_as(mode), Ok(true));
    world.sweep_all();
}

fn uncertain(world: &mut World, name: &str) {
    assert_eq!(world.claim(0, name, "w1"), Ok(true));
    let at = world.attempt_of(name);
    assert_eq!(world.intend(0, &at, MAIN, EffectClass::Irreversible), Ok(true));
    world.pass(60);
    let (step, attempt) = (at.step, at.attempt);
    assert_eq!(world.run(1, Command::ExpireClaim { step, attempt, proven: false }), Ok(true));
}

fn happened(world: &mut World, name: &str) {
    assert_eq!(world.answer(Some(name), Answer::Happened), Ok(true));
}

#[test]
fn a_drain_lets_attempts_send_and_succeed_and_their_followers_not_start() {
    let mut world = given(vec![sends("a", &[]), step("b", &["a"])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    stop(&mut world, StopMode::Drain);
    assert_eq!(world.intend(0, &at, MAIN, EffectClass::Irreversible), Ok(true));
    assert_eq!(world.complete(0, at, done()), Ok(true));
    assert_eq!(world.word("a"), "succeeded");
    world.drive();
    assert_eq!((world.word("b"), world.header().effects_landed), ("pending", 1));
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn a_drained_attempt_that_fails_is_cancelled_and_never_tried_again() {
    let again = Retry { max_attempts: 3, ..Retry::default() };
    let mut world = given(vec![StepPlan { retry: again, ..step("a", &[]) }]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    stop(&mut world, StopMode::Drain);
    let at = world.attempt_of("a");
    assert_eq!(world.complete(0, at, broken()), Ok(true));
    let class = world.watch.history.iter().rev().find_map(|change| match change {
        Change::AttemptFailed { class, .. } => Some(*class),
        _ => None,
    });
    assert_eq!(class, Some(FailureClass::Cancelled));
    world.drive();
    assert_eq!(world.header().attempts, 1);
}

#[test]
fn a_halt_refuses_an_intent_and_ends_the_attempt_there_and_then() {
    let mut world = given(vec![sends("a", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(world.stop_as(StopMode::Undo), Ok(true));
    assert_eq!(world.intend(0, &at, MAIN, EffectClass::Irreversible), Ok(true));
    assert_eq!(world.claim_of("a"), None);
    world.drive();
    assert_eq!(undone(&world), Vec::<String>::new());
}

#[test]
fn what_has_landed_is_undone_in_reverse_one_after_the_other() {
    let mut world = landed(&["a", "b", "c"]);
    stop(&mut world, StopMode::Undo);
    for (run, others) in [("c~undo-3", 0), ("b~undo-2", 1), ("a~undo-1", 2)] {
        assert_eq!(undoing(&world), [id(run)]);
        assert_eq!(world.header().state, TaskState::Cancelling);
        assert_eq!(undone(&world).len(), others + 1);
        world.work(run, done());
    }
    world.sweep_all();
    assert_eq!(world.header().state, TaskState::Cancelled);
    assert_eq!((world.header().undos, world.header().undo_top), (3, 0));
    world.drive();
}

#[test]
fn an_undo_runs_in_the_new_epoch_and_before_the_finally_steps() {
    let steps = vec![sends("a", &[]), step("b", &["a"])];
    let mut world = World::new(submission(plan(steps, vec![step("f", &[])])), 0, ROOM);
    land(&mut world, "a");
    stop(&mut world, StopMode::Undo);
    assert_eq!((world.word("f"), undoing(&world)), ("pending", vec![id("a~undo-1")]));
    assert_eq!(world.claim(0, "a~undo-1", "w1"), Ok(true));
    assert_eq!(world.claim_of("a~undo-1").expect("it was claimed").epoch, 2);
    let at = world.attempt_of("a~undo-1");
    assert_eq!(world.complete(0, at, done()), Ok(true));
    assert_eq!(world.word("f"), "ready");
    world.work("f", done());
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn a_halt_and_a_drain_undo_nothing() {
    for mode in [StopMode::Halt, StopMode::Drain] {
        let mut world = landed(&["a"]);
        stop(&mut world, mode);
        assert_eq!(world.header().state, TaskState::Cancelled);
        assert_eq!((undone(&world).len(), world.header().effects_landed), (0, 1));
    }
}

#[test]
fn what_has_no_undo_is_left() {
    let bare = effect(EffectClass::Irreversible, step("b", &["a"]));
    let mut world = given(vec![sends("a", &[]), bare, step("c", &["b"])]);
    land(&mut world, "a");
    land(&mut world, "b");
    stop(&mut world, StopMode::Undo);
    world.drive();
    assert_eq!(undone(&world), ["a~undo-1"]);
    assert_eq!((world.header().effects_landed, world.header().landings), (2, 1));
}

#[test]
fn a_failed_undo_waits_for_a_person_and_then_the_others_go_on() {
    for answer in [Answer::Skip, Answer::Retry] {
        let mut world = landed(&["a", "b", "c", "d", "e"]);
        stop(&mut world, StopMode::Undo);
        world.work("e~undo-5", done());
        world.work("d~undo-4", done());
        world.work("c~undo-3", broken());
        assert_eq!(world.held(), [(id("c~undo-3"), HoldReason::UndoFailed)]);
        assert_eq!(world.header().state, TaskState::Cancelling);
        assert_eq!((undoing(&world), undone(&world).len()), (Vec::<StepId>::new(), 3));
        assert_eq!(world.answer(Some("c~undo-3"), answer), Ok(true));
        if answer == Answer::Retry {
            world.work("c~undo-3", done());
        }
        world.work("b~undo-2", done());
        world.work("a~undo-1", done());
        world.sweep_all();
        assert_eq!(world.header().state, TaskState::Cancelled);
        world.drive();
    }
}

#[test]
fn an_undo_is_tried_three_times_within_what_all_may_take() {
    let again = Retry { max_attempts: 3, backoff: Span::from_secs(1), ..Retry::default() };
    let mut plan_of_a = sends("a", &[]);
    plan_of_a.undo.as_mut().expect("it has one").retry = again;
    let mut world = given(vec![plan_of_a, step("b", &["a"])]);
    land(&mut world, "a");
    stop(&mut world, StopMode::Undo);
    for attempt in 1..=3 {
        assert_eq!(world.attempt_number("a~undo-1"), attempt);
        world.work("a~undo-1", crate::model::fair::failure(FailureClass::Retryable));
        world.pass(5);
        let _ = world.fire(Some("a~undo-1"), TimerKind::Retry).expect("a timer is never refused");
    }
    assert_eq!(world.held(), [(id("a~undo-1"), HoldReason::UndoFailed)]);
    world.drive();
}

#[test]
fn a_spent_allowance_is_a_hold_and_an_answer_begins_it_anew() {
    let mut world = landed(&["a", "b"]);
    stop(&mut world, StopMode::Undo);
    world.now = world.now.after(UNDO_ALLOWANCE);
    assert_eq!(world.fire(Some("b~undo-2"), TimerKind::GiveUp), Ok(true));
    assert_eq!(world.held(), [(id("b~undo-2"), HoldReason::UndoFailed)]);
    world.pass(100_000);
    assert_eq!(world.answer(Some("b~undo-2"), Answer::Retry), Ok(true));
    world.work("b~undo-2", done());
    world.pass(UNDO_ALLOWANCE.0 / 1000 - 1);
    assert_eq!(world.claim(0, "a~undo-1", "w1"), Ok(true), "a second is left for all");
    let claim = world.claim_of("a~undo-1").expect("it was claimed just now");
    assert_eq!(claim.ends_at.since(world.now), Span::from_secs(1));
    world.drive();
}

#[test]
fn a_passed_deadline_hinders_no_undo() {
    let mut submitted = submission(plan(vec![sends("a", &[]), step("b", &["a"])], Vec::new()));
    let when = When::In(Span::from_secs(60));
    submitted.plan.deadline = Some(Deadline { when, then: DeadlineThen::Pause });
    let mut world = World::new(submitted, 0, ROOM);
    land(&mut world, "a");
    world.pass(61);
    assert_eq!(world.fire(None, TimerKind::Deadline), Ok(true));
    stop(&mut world, StopMode::Undo);
    world.work("a~undo-1", done());
    world.drive();
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn an_undo_that_was_sent_and_fell_silent_is_uncertain_itself() {
    for (answer, sends_again) in [(Answer::Happened, false), (Answer::NotHappened, true)] {
        let mut first = sends("a", &[]);
        first.undo.as_mut().expect("it has one").effect = first.effect.clone();
        let mut world = given(vec![first, step("b", &["a"])]);
        land(&mut world, "a");
        stop(&mut world, StopMode::Undo);
        uncertain(&mut world, "a~undo-1");
        assert_eq!(world.held(), [(id("a~undo-1"), HoldReason::UncertainEffect)]);
        assert_eq!(world.header().state, TaskState::Cancelling);
        assert!(matches!(
            world.answer(Some("a~undo-1"), Answer::Stop),
            Err(Refusal::NotApplicable { .. })
        ));
        assert_eq!(world.answer(Some("a~undo-1"), answer), Ok(true));
        assert_eq!(world.claim(0, "a~undo-1", "w2"), Ok(true));
        let at = world.attempt_of("a~undo-1");
        let intends = world.intend(0, &at, MAIN, EffectClass::Irreversible);
        assert_eq!(intends, Ok(sends_again), "a kept receipt is not sent again");
        assert_eq!(world.complete(0, at, done()), Ok(true));
        world.drive();
        assert_eq!(undone(&world), ["a~undo-1"]);
    }
}

#[test]
fn an_undo_whose_worker_dies_is_taken_over() {
    let mut first = sends("a", &[]);
    first.undo.as_mut().expect("it has one").retry.max_attempts = 2;
    let mut world = given(vec![first, step("b", &["a"])]);
    land(&mut world, "a");
    stop(&mut world, StopMode::Undo);
    assert_eq!(world.claim(0, "a~undo-1", "w1"), Ok(true));
    let old = world.attempt_of("a~undo-1");
    expire(&mut world, "a~undo-1", true);
    world.pass(5);
    world.fire(Some("a~undo-1"), TimerKind::Retry).expect("a timer is never refused");
    world.work("a~undo-1", done());
    assert!(matches!(world.complete(0, old, done()), Err(Refusal::Fenced { .. })));
    world.drive();
}

#[test]
fn an_uncertain_effect_does_not_keep_a_stop_from_its_end() {
    for mode in StopMode::ALL {
        let mut world = given(vec![sends("a", &[]), step("b", &["a"])]);
        uncertain(&mut world, "a");
        stop(&mut world, mode);
        assert_eq!(world.header().state, TaskState::Cancelled);
        assert_eq!(world.header().effects_owed, 1);
        happened(&mut world, "a");
        assert_eq!((world.header().effects_owed, world.header().effects_landed), (0, 1));
        assert_eq!(undone(&world), Vec::<String>::new(), "it landed after the end");
        world.drive();
    }
}

#[test]
fn an_uncertain_effect_that_turns_out_landed_is_undone_next() {
    let mut world = given(vec![sends("a", &[]), sends("b", &["a"]), sends("c", &["a"])]);
    land(&mut world, "a");
    land(&mut world, "b");
    uncertain(&mut world, "c");
    stop(&mut world, StopMode::Undo);
    assert_eq!(world.claim(0, "b~undo-2", "w1"), Ok(true));
    happened(&mut world, "c");
    let at = world.attempt_of("b~undo-2");
    assert_eq!(undone(&world).len(), 1, "one after the other");
    assert_eq!(world.complete(0, at, done()), Ok(true));
    world.work("c~undo-3", done());
    world.work("a~undo-1", done());
    world.drive();
    assert_eq!(undone(&world), ["b~undo-2", "c~undo-3", "a~undo-1"]);
}

#[test]
fn one_that_turns_out_landed_while_finally_runs_is_undone_after_it() {
    let steps = vec![sends("a", &[]), step("b", &["a"])];
    let mut world = World::new(submission(plan(steps, vec![step("f", &[])])), 0, ROOM);
    uncertain(&mut world, "a");
    stop(&mut world, StopMode::Undo);
    assert_eq!(world.claim(0, "f", "w1"), Ok(true));
    happened(&mut world, "a");
    let at = world.attempt_of("f");
    assert_eq!(world.complete(0, at, done()), Ok(true));
    world.work("a~undo-1", done());
    assert_eq!(world.header().state, TaskState::Cancelled);
    assert_eq!(world.header().finally_open, 0);
    world.drive();
}

#[test]
fn a_receipt_that_comes_after_the_stop_is_taken_and_undone() {
    let mut world = given(vec![sends("a", &[]), step("b", &["a"])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(world.intend(0, &at, MAIN, EffectClass::Irreversible), Ok(true));
    assert_eq!(world.stop_as(StopMode::Undo), Ok(true));
    assert_eq!(world.complete(0, at, done()), Ok(true));
    let standing = world.effect("a", MAIN).expect("it was intended").standing;
    assert!(matches!(standing, Standing::Landed { .. }), "{standing:?}");
    world.sweep_all();
    world.work("a~undo-1", done());
    world.drive();
}

#[test]
fn a_stronger_stop_takes_the_place_of_a_weaker_one_while_attempts_run() {
    let mut world = landed(&["a"]);
    assert_eq!(world.claim(0, "rest", "w1"), Ok(true));
    let at = world.attempt_of("rest");
    for (mode, said) in [
        (StopMode::Drain, true),
        (StopMode::Drain, false),
        (StopMode::Halt, true),
        (StopMode::Drain, false),
        (StopMode::Undo, true),
        (StopMode::Halt, false),
    ] {
        assert_eq!(world.stop_as(mode), Ok(said), "{mode}");
    }
    assert_eq!(world.complete(0, at, done()), Ok(true));
    assert_ne!(world.word("rest"), "succeeded", "it was to end");
    world.sweep_all();
    world.work("a~undo-1", done());
    world.drive();
}

#[test]
fn a_stronger_stop_that_comes_too_late_is_refused_by_name() {
    let steps = vec![sends("a", &[]), step("b", &["a"])];
    let mut world = World::new(submission(plan(steps, vec![step("f", &[])])), 0, ROOM);
    land(&mut world, "a");
    stop(&mut world, StopMode::Drain);
    let late = Refusal::EndDecided(Ending::Cancelled);
    assert_eq!(world.stop_as(StopMode::Undo), Err(late));
    assert_eq!(world.stop_as(StopMode::Drain), Ok(false));
    world.work("f", done());
    assert_eq!(world.stop_as(StopMode::Undo), Err(Refusal::Ended(TaskState::Cancelled)));
    assert_eq!(world.stop_as(StopMode::Drain), Ok(false));
    world.drive();
}

#[test]
fn a_step_that_adds_others_while_it_drains_starts_none_of_them() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    stop(&mut world, StopMode::Drain);
    let at = world.attempt_of("a");
    let (outcome, added) = (Box::new(success(vec![step("x", &[])])), vec![Default::default()]);
    let command = Command::CompleteAttempt { at, outcome, added, cost_usd_micros: 0 };
    assert_eq!(world.run(0, command), Ok(true));
    world.drive();
    assert_eq!((world.word("a"), world.word("x")), ("succeeded", "pending"));
}

#[test]
fn messages_timers_and_late_results_of_a_stopped_task_do_nothing() {
    let again = Retry { max_attempts: 3, ..Retry::default() };
    let mut world = given(vec![StepPlan { retry: again, ..step("a", &[]) }, step("b", &[])]);
    world.work("a", crate::model::fair::failure(FailureClass::Retryable));
    assert_eq!(world.claim(1, "b", "w2"), Ok(true));
    let late = world.attempt_of("b");
    assert_eq!(world.stop_in(0), Ok(true)); // process 1 knows nothing of it
    expire(&mut world, "b", true);
    world.sweep_all();
    assert_eq!(world.header().state, TaskState::Cancelled);
    world.pass(100);
    assert_eq!(world.fire(Some("a"), TimerKind::Retry), Ok(false));
    assert!(matches!(world.claim(0, "a", "w1"), Err(Refusal::NotClaimable { .. })));
    assert_eq!(world.complete(0, late, done()), Ok(true), "only that it came is recorded");
    assert!(matches!(world.watch.history.last(), Some(Change::LateResultRefused { .. })));
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn an_effect_that_was_sent_additionally_is_undone_as_often_as_it_landed() {
    let mut submitted = submission(plan(
        vec![sends("a", &[]), crate::model::plans::redo("b", &["a"], "a", 1), step("c", &["b"])],
        Vec::new(),
    ));
    submitted.templated.insert(id("a"));
    let rounds = |seed: &u64| {
        let drawn = |round: &str| crate::model::world::draw(*seed, &["a", round]);
        drawn("1") % 8 > 1 && drawn("2") % 8 > 1 && drawn("1") % 2 != drawn("2") % 2
    };
    let seed = (0..).find(|seed| rounds(seed) && seed % 5 != 1).expect("some seed fits");
    let mut world = World::new(submitted, seed, ROOM);
    land(&mut world, "a");
    world.work("b", broken());
    assert_eq!(world.held(), [(id("a"), HoldReason::EffectChanged)]);
    assert_eq!(world.answer(Some("a"), Answer::SendAlso), Ok(true));
    land(&mut world, "a");
    stop(&mut world, StopMode::Undo);
    world.drive();
    assert_eq!(undone(&world), ["a~undo-2", "a~undo-1"]);
    assert!(matches!(world.header().phase, Phase::Ended { .. }));
}
