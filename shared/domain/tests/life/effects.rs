//! Lives of tasks that change the outside world: sent once, or said to be uncertain.

use crate::model::fair::{failure, speaker, success};
use crate::model::plans::{effect, id, plan, redo, step, submission};
use crate::model::world::{World, draw};
use standfast_domain::decide::{Command, TimerKind};
use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::outcome::{EffectEnd, Failure, FailureClass, Outcome};
use standfast_domain::plan::{Retry, StepPlan};
use standfast_domain::record::{EffectClass, NotLanded, Standing, StopMode, TaskState};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;
use standfast_domain::view::Attempt;

const MAIN: &str = "main";

fn given(class: EffectClass) -> World {
    let pay = effect(class, StepPlan { retry: tries(5), ..step("pay", &[]) });
    let steps = vec![pay, step("close", &["pay"])];
    World::new(submission(plan(steps, Vec::new())), 0, 250)
}

fn tries(max_attempts: u32) -> Retry {
    Retry { max_attempts, ..Retry::default() }
}

/// Starts an attempt that is about to send.
fn sending(world: &mut World, class: EffectClass) -> Attempt {
    assert_eq!(world.claim(0, "pay", "w1"), Ok(true));
    let at = world.attempt_of("pay");
    assert_eq!(world.intend(0, &at, MAIN, class), Ok(true));
    at
}

/// Its worker falls silent.
fn fall_silent(world: &mut World, at: &Attempt) {
    world.pass(60);
    let (step, attempt) = (at.step.clone(), at.attempt);
    assert_eq!(world.run(1, Command::ExpireClaim { step, attempt, proven: false }), Ok(true));
}

fn standing(world: &mut World) -> Standing {
    world.effect("pay", MAIN).expect("it is recorded").standing
}

fn not_landed(how: NotLanded) -> Outcome {
    let failure = Failure::new(FailureClass::Retryable, "no route to host");
    Outcome::Failed(Failure { effect: EffectEnd::NotLanded(how), ..failure })
}

#[test]
fn a_lost_irreversible_effect_is_never_sent_again_by_itself() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    fall_silent(&mut world, &at);
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
    assert_eq!((world.header().state, world.header().effects_owed), (TaskState::Blocked, 1));
    assert!(matches!(standing(&mut world), Standing::Uncertain { .. }));
}

#[test]
fn a_worker_cannot_weaken_what_the_plan_declares() {
    for (at, planned) in EffectClass::ALL.into_iter().enumerate() {
        for (told_at, told) in EffectClass::ALL.into_iter().enumerate() {
            let mut world = given(planned);
            assert_eq!(world.claim(0, "pay", "w1"), Ok(true));
            let attempt = world.attempt_of("pay");
            let said = world.intend(0, &attempt, MAIN, told);
            match told_at < at {
                true => assert!(matches!(said, Err(Refusal::Effect { .. })), "{said:?}"),
                false => assert_eq!(said, Ok(true), "{planned} told as {told}"),
            }
        }
    }
}

#[test]
fn happened_goes_on_without_sending() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    fall_silent(&mut world, &at);
    assert_eq!(world.answer(Some("pay"), Answer::Happened), Ok(true));
    assert_eq!((world.header().effects_owed, world.header().effects_landed), (0, 1));
    world.claim(0, "pay", "w2").expect("it is ready");
    let again = world.attempt_of("pay");
    assert_eq!(world.intend(0, &again, MAIN, EffectClass::Irreversible), Ok(false));
    assert!(matches!(standing(&mut world), Standing::Landed { .. }));
    world.complete(0, again, success(Vec::new())).expect("the kept receipt completes it");
    assert_eq!(world.header().effects_landed, 1);
    world.drive();
}

#[test]
fn not_happened_sends_once_more() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    fall_silent(&mut world, &at);
    assert_eq!(world.answer(Some("pay"), Answer::NotHappened), Ok(true));
    let again = sending(&mut world, EffectClass::Irreversible);
    assert_eq!(again.attempt, at.attempt + 1);
    world.complete(0, again, success(Vec::new())).expect("it was sent");
    assert!(matches!(standing(&mut world), Standing::Landed { output_round: Some(1), .. }));
    world.drive();
}

#[test]
fn nobody_can_say_that_it_has_not_happened_while_it_may_be_under_way() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    let (step, attempt) = (at.step.clone(), at.attempt);
    world.run(1, Command::ExpireClaim { step, attempt, proven: true }).expect("it is silent");
    let early = world.answer(Some("pay"), Answer::NotHappened);
    assert!(matches!(early, Err(Refusal::NotApplicable { .. })), "{early:?}");
    world.pass(15);
    assert_eq!(world.answer(Some("pay"), Answer::NotHappened), Ok(true));
}

#[test]
fn a_late_receipt_ends_the_hold() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    fall_silent(&mut world, &at);
    let late = world.complete(0, at.clone(), success(Vec::new()));
    assert_eq!(late, Ok(true), "it is recorded that it came");
    assert!(matches!(world.watch.history.last(), Some(Change::LateResultRefused { .. })));
    assert_eq!(world.confirm(0, &at, MAIN), Ok(true));
    assert_eq!(world.word("pay"), "ready");
    assert_eq!(world.confirm(1, &at, MAIN), Ok(false), "a receipt is taken once");
    world.drive();
}

#[test]
fn a_late_result_is_recorded_once_and_refused_then() {
    let mut world = given(EffectClass::None);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    fall_silent(&mut world, &at);
    assert_eq!(world.complete(0, at.clone(), success(Vec::new())), Ok(true));
    assert_eq!(world.word("pay"), "retrying");
    let cost = world.header().cost_usd_micros;
    assert_eq!(cost, 1, "what it cost counts");
    let again = world.complete(0, at.clone(), success(Vec::new()));
    assert_eq!(again, Err(Refusal::Fenced { step: id("pay"), attempt: at.attempt }));
    assert_eq!(world.header().cost_usd_micros, cost);
    world.drive();
}

#[test]
fn an_attempt_that_its_worker_ended_is_not_charged_again() {
    let mut world = given(EffectClass::None);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    assert_eq!(world.complete(0, at.clone(), failure(FailureClass::Retryable)), Ok(true));
    let cost = world.header().cost_usd_micros;
    let fenced = Err(Refusal::Fenced { step: id("pay"), attempt: at.attempt });
    assert_eq!(world.complete(0, at.clone(), success(Vec::new())), fenced);
    assert_eq!(world.complete(0, at, failure(FailureClass::Permanent)), fenced);
    assert_eq!(world.header().cost_usd_micros, cost);
    world.drive();
}

#[test]
fn of_another_epoch_a_late_result_is_refused() {
    let mut world = given(EffectClass::None);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    fall_silent(&mut world, &at);
    let other = Attempt { epoch: at.epoch + 1, ..at.clone() };
    let fenced = Err(Refusal::Fenced { step: id("pay"), attempt: at.attempt });
    assert_eq!(world.complete(0, other, success(Vec::new())), fenced);
    assert_eq!(world.complete(0, at, success(Vec::new())), Ok(true));
    world.drive();
}

#[test]
fn a_receipt_is_taken_after_a_stop() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    world.stop().expect("a task can be stopped");
    fall_silent(&mut world, &at);
    world.settle(0);
    assert_eq!(world.header().state, TaskState::Cancelled);
    assert_eq!(world.header().effects_owed, 1, "nobody knows yet");
    assert_eq!(world.confirm(0, &at, MAIN), Ok(true));
    assert_eq!((world.header().effects_owed, world.header().effects_landed), (0, 1));
    assert_eq!(world.header().state, TaskState::Cancelled);
    world.drive();
}

#[test]
fn a_person_settles_an_effect_of_a_stopped_task() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    world.stop().expect("a task can be stopped");
    fall_silent(&mut world, &at);
    world.settle(0);
    assert_eq!(world.answer(Some("pay"), Answer::NotHappened), Ok(true));
    assert_eq!(world.header().effects_owed, 0);
    assert_eq!(world.word("pay"), "ready", "and it never starts again");
    world.claim(0, "pay", "w1").expect_err("the task has ended");
    world.drive();
}

#[test]
fn a_stop_never_makes_a_landed_effect_uncertain() {
    for class in [EffectClass::Idempotent, EffectClass::Irreversible] {
        let mut world = given(class);
        world.claim(0, "pay", "w1").expect("it is ready");
        let at = world.attempt_of("pay");
        if class == EffectClass::Irreversible {
            world.intend(0, &at, MAIN, class).expect("it may be sent");
        }
        world.stop().expect("a task can be stopped");
        world.complete(0, at, success(Vec::new())).expect("it was sent all the same");
        assert!(matches!(standing(&mut world), Standing::Landed { .. }), "{class}");
        world.settle(0);
        let header = world.header();
        assert_eq!((header.state, header.effects_owed), (TaskState::Cancelled, 0), "{class}");
        world.drive();
    }
}

#[test]
fn a_success_that_is_not_accepted_has_landed_all_the_same() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    let needs_what_is_not_there = success(vec![step("x", &["nowhere"])]);
    world.complete(0, at, needs_what_is_not_there).expect("it is taken");
    assert!(matches!(standing(&mut world), Standing::Landed { .. }));
    assert_eq!(world.held(), [(id("pay"), HoldReason::Failures)]);
    world.drive();
}

#[test]
fn after_a_stop_nothing_more_is_sent() {
    let mut world = given(EffectClass::Irreversible);
    world.claim(1, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    world.stop_in(0).expect("a task can be stopped"); // process 1 knows nothing of it
    assert_eq!(world.intend(1, &at, MAIN, EffectClass::Irreversible), Ok(true));
    assert_eq!(world.claim_of("pay"), None, "the attempt ended there and then");
    assert_eq!(world.effect("pay", MAIN), None);
    world.settle(0);
    assert_eq!(world.header().state, TaskState::Cancelled);
}

#[test]
fn what_was_proven_unsent_is_tried_again_like_any_other_failure() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    let said = world.complete(0, at, not_landed(NotLanded::NotSent));
    assert_eq!((said, world.word("pay")), (Ok(true), "retrying"));
    assert!(matches!(standing(&mut world), Standing::NotLanded { .. }));
    world.drive();
}

#[test]
fn a_failure_that_knows_nothing_holds_an_irreversible_step() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    world.complete(0, at, failure(FailureClass::Retryable)).expect("it is taken");
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
}

#[test]
fn an_attempt_handed_back_while_it_sends_is_not_started_again() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    world.run(0, Command::HandBack { at, why: "draining".to_owned() }).expect("it is taken");
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
}

#[test]
fn an_attempt_stopped_while_it_sends_is_uncertain_and_a_late_receipt_is_taken() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    let (step, attempt) = (at.step.clone(), at.attempt);
    let stop = Command::StopAttempt { step, attempt, reason: None };
    assert_eq!(world.run(0, stop.clone()), Ok(true));
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
    assert_eq!(world.run(1, stop), Ok(false), "twice is once");
}

#[test]
fn nobody_follows_a_stopped_attempt_while_its_claim_lets_it_send() {
    let mut world = given(EffectClass::Idempotent);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    let claim = world.claim_of("pay").expect("it runs");
    world.pass(1);
    let stop = Command::StopAttempt { step: at.step, attempt: at.attempt, reason: None };
    assert_eq!(world.run(0, stop), Ok(true));
    let due = world.watch.history.iter().find_map(|change| match change {
        Change::RetryScheduled { due, .. } => Some(*due),
        _ => None,
    });
    assert_eq!(due, Some(claim.expires_at));
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn an_attempt_that_may_send_is_not_stopped_by_itself_while_its_task_ends() {
    for class in [EffectClass::Idempotent, EffectClass::Irreversible] {
        let mut world = given(class);
        world.claim(0, "pay", "w1").expect("it is ready");
        let at = world.attempt_of("pay");
        if class == EffectClass::Irreversible {
            assert_eq!(world.intend(0, &at, MAIN, class), Ok(true));
        }
        let stop = Command::Stop { reason: None, mode: StopMode::Drain };
        assert_eq!(world.run(0, stop), Ok(true));
        let alone = Command::StopAttempt { step: at.step, attempt: at.attempt, reason: None };
        let refused = world.run(1, alone.clone());
        assert!(matches!(refused, Err(Refusal::NotStoppable { .. })), "{class}: {refused:?}");
        assert!(!matches!(world.watch.history.last(), Some(Change::EpochRaised { .. })));
        world.pass(60);
        assert_eq!(world.run(1, alone), Ok(true), "{class}: nothing is sent after its claim");
        world.drive();
        assert_eq!(world.header().state, TaskState::Cancelled);
    }
}

#[test]
fn an_idempotent_effect_is_sent_again_and_lands_once() {
    let mut world = given(EffectClass::Idempotent);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    fall_silent(&mut world, &at);
    assert!(matches!(standing(&mut world), Standing::Uncertain { .. }));
    assert_eq!(world.header().effects_owed, 0, "it keeps nobody waiting");
    world.drive();
    assert!(matches!(standing(&mut world), Standing::Landed { .. }));
    assert_eq!(world.header().effects_landed, 1);
}

#[test]
fn what_a_claim_let_fly_when_its_task_was_stopped_is_an_item_of_the_stop() {
    for sent in [true, false] {
        let mut world = given(EffectClass::Idempotent);
        world.claim(0, "pay", "w1").expect("it is ready");
        let first = world.attempt_of("pay");
        fall_silent(&mut world, &first);
        assert_eq!(world.retract(0, &first, MAIN), Ok(true), "the first had sent nothing");
        world.pass(60);
        world.fire(Some("pay"), TimerKind::Retry).expect("it is due");
        world.claim(0, "pay", "w2").expect("it is ready");
        let second = world.attempt_of("pay");
        let stop = Command::Stop { reason: None, mode: StopMode::Drain };
        assert_eq!(world.run(0, stop), Ok(true));
        let came = if sent { success(Vec::new()) } else { failure(FailureClass::Retryable) };
        world.complete(0, second, came).expect("it may finish");
        let effect = world.effect("pay", MAIN).expect("it is recorded");
        assert_eq!(matches!(effect.standing, Standing::Landed { .. }), sent);
        assert!(effect.after_stop && !effect.intended_after_stop, "{effect:?}");
        world.drive();
    }
}

#[test]
fn a_checkable_effect_is_asked_about_before_it_is_sent_again() {
    let mut world = given(EffectClass::Checkable);
    let at = sending(&mut world, EffectClass::Checkable);
    fall_silent(&mut world, &at);
    assert_eq!(world.word("pay"), "retrying");
    world.pass(60);
    world.fire(Some("pay"), TimerKind::Retry).expect("it is due");
    world.claim(0, "pay", "w2").expect("it is ready");
    let again = world.attempt_of("pay");
    assert_eq!(world.intend(0, &again, MAIN, EffectClass::Checkable), Ok(false), "check first");
    assert!(matches!(standing(&mut world), Standing::Uncertain { .. }));
    assert_eq!(world.retract(0, &again, MAIN), Ok(true), "it did not happen");
    assert_eq!(world.intend(0, &again, MAIN, EffectClass::Checkable), Ok(true));
    world.complete(0, again, success(Vec::new())).expect("now it did");
    world.drive();
}

#[test]
fn who_has_sent_nothing_says_nothing_of_an_earlier_request() {
    let mut world = given(EffectClass::Checkable);
    let at = sending(&mut world, EffectClass::Checkable);
    fall_silent(&mut world, &at);
    world.pass(60);
    world.fire(Some("pay"), TimerKind::Retry).expect("it is due");
    world.claim(0, "pay", "w2").expect("it is ready");
    let again = world.attempt_of("pay");
    for how in [NotLanded::NotSent, NotLanded::Refused] {
        let said = world.run(0, Command::RetractEffect { by: speaker(&again, MAIN), how });
        assert!(matches!(said, Err(Refusal::Effect { .. })), "{how:?}: {said:?}");
    }
    assert!(matches!(standing(&mut world), Standing::Uncertain { .. }));
    world.drive();
}

#[test]
fn a_repeat_that_was_not_sent_leaves_the_first_request_in_doubt() {
    let mut world = given(EffectClass::None);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    assert_eq!(world.intend(0, &at, "mail", EffectClass::Idempotent), Ok(true));
    fall_silent(&mut world, &at);
    world.pass(60);
    world.fire(Some("pay"), TimerKind::Retry).expect("it is due");
    world.claim(0, "pay", "w2").expect("it is ready");
    let again = world.attempt_of("pay");
    assert_eq!(world.intend(0, &again, "mail", EffectClass::Idempotent), Ok(true), "once more");
    let how = NotLanded::NotSent;
    let said = world.run(0, Command::RetractEffect { by: speaker(&again, "mail"), how });
    assert!(matches!(said, Err(Refusal::Effect { .. })), "{said:?}");
    assert!(world.effect("pay", "mail").is_some_and(|effect| effect.is_open()));
    world.drive();
}

#[test]
fn a_checkable_effect_without_attempts_left_needs_a_person() {
    let pay = effect(EffectClass::Checkable, step("pay", &[]));
    let mut world = World::new(submission(plan(vec![pay], Vec::new())), 0, 250);
    let at = sending(&mut world, EffectClass::Checkable);
    fall_silent(&mut world, &at);
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
    world.drive();
}

#[test]
fn a_checkable_effect_whose_step_has_no_time_left_needs_a_person() {
    let mut pay = StepPlan { retry: tries(5), ..step("pay", &[]) };
    pay.timeout.total = Some(Span::from_secs(50));
    let pay = effect(EffectClass::Checkable, pay);
    let mut world = World::new(submission(plan(vec![step("first", &[])], vec![pay])), 0, 250);
    world.work("first", success(Vec::new()));
    let at = sending(&mut world, EffectClass::Checkable);
    fall_silent(&mut world, &at);
    world.fire(Some("pay"), TimerKind::GiveUp).expect("it is due");
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
    assert_eq!(world.answer(Some("pay"), Answer::Happened), Ok(true));
    assert_eq!((world.header().effects_owed, world.word("pay")), (0, "ready"));
    world.drive();
}

#[test]
fn a_redone_step_keeps_the_receipt_of_the_same_request() {
    let pay = effect(EffectClass::Irreversible, step("pay", &[]));
    let steps = vec![pay, redo("test", &["pay"], "pay", 1)];
    let mut world = World::new(submission(plan(steps, Vec::new())), 0, 250);
    let at = sending(&mut world, EffectClass::Irreversible);
    world.complete(0, at, success(Vec::new())).expect("it lands");
    world.work("test", failure(FailureClass::Permanent));
    world.claim(0, "pay", "w1").expect("the round is open");
    let again = world.attempt_of("pay");
    assert_eq!(world.intend(0, &again, MAIN, EffectClass::Irreversible), Ok(false), "kept");
    world.complete(0, again, success(Vec::new())).expect("it completes with the receipt");
    assert_eq!(world.header().effects_landed, 1);
    world.drive();
}

/// A world whose step `pay` resolves to one request in its first round, another in its second.
fn changing(class: EffectClass) -> World {
    let pay = effect(class, step("pay", &[]));
    let steps = vec![pay, redo("test", &["pay"], "pay", 1)];
    let mut submitted = submission(plan(steps, Vec::new()));
    submitted.templated.insert(id("pay"));
    let drawn = |seed: u64, round: &str| draw(seed, &["pay", round]);
    let fits = |seed: &u64| {
        let (one, two) = (drawn(*seed, "1"), drawn(*seed, "2"));
        seed % 5 != 1 && one % 8 > 1 && two % 8 > 1 && one % 2 != two % 2
    };
    World::new(submitted, (0..).find(fits).expect("one of a few"), 250)
}

#[test]
fn a_changed_request_after_an_effect_has_landed_needs_a_person() {
    for (class, answer, landed) in [
        (EffectClass::Irreversible, Answer::Keep, 1),
        (EffectClass::Irreversible, Answer::SendAlso, 2),
        (EffectClass::Idempotent, Answer::Keep, 1),
        (EffectClass::Idempotent, Answer::SendAlso, 2),
    ] {
        let mut world = changing(class);
        let first = class == EffectClass::Irreversible;
        world.claim(0, "pay", "w1").expect("it is ready");
        let at = world.attempt_of("pay");
        if first {
            world.intend(0, &at, MAIN, class).expect("it may be sent");
        }
        world.complete(0, at, success(Vec::new())).expect("it lands");
        world.work("test", failure(FailureClass::Permanent));
        assert_eq!(world.held(), [(id("pay"), HoldReason::EffectChanged)]);
        assert_eq!(world.answer(Some("pay"), answer), Ok(true));
        world.claim(0, "pay", "w1").expect("it is ready");
        let at = world.attempt_of("pay");
        if first {
            let sends = answer == Answer::SendAlso;
            assert_eq!(world.intend(0, &at, MAIN, class), Ok(sends), "{class} {answer}");
        }
        world.complete(0, at, success(Vec::new())).expect("it lands");
        assert_eq!(world.header().effects_landed, landed, "{class} {answer}");
        world.drive();
    }
}

#[test]
fn another_request_waits_until_it_is_known_what_became_of_the_first() {
    let pay = redo("pay", &["draft"], "draft", 1);
    let steps = vec![step("draft", &[]), effect(EffectClass::Idempotent, pay)];
    let mut submitted = submission(plan(steps, Vec::new()));
    submitted.templated.insert(id("pay"));
    let drawn = |seed: u64, round: &str| draw(seed, &["pay", round]);
    let fits = |seed: &u64| {
        let (one, two) = (drawn(*seed, "1"), drawn(*seed, "2"));
        seed % 5 != 1 && one % 8 > 1 && two % 8 > 1 && one % 2 != two % 2
    };
    let seed = (0..).find(fits).expect("one of a few");
    for (answer, next) in [(Answer::NotHappened, "ready"), (Answer::Happened, "held")] {
        let mut world = World::new(submitted.clone(), seed, 250);
        world.work("draft", success(Vec::new()));
        world.work("pay", failure(FailureClass::Permanent)); // who knows what it has sent
        world.work("draft", success(Vec::new()));
        assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
        assert_eq!(world.answer(Some("pay"), answer), Ok(true));
        assert_eq!(world.word("pay"), next, "after {answer}");
        let changed = world.held().iter().all(|(_, why)| *why == HoldReason::EffectChanged);
        assert!(changed, "after {answer}");
        world.drive();
    }
}

#[test]
fn what_was_taken_back_before_a_hand_back_is_not_uncertain() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    assert_eq!(world.retract(0, &at, MAIN), Ok(true));
    world.run(0, Command::HandBack { at, why: "draining".to_owned() }).expect("it is taken");
    assert_eq!(world.word("pay"), "ready");
    world.drive();
}

#[test]
fn an_effect_of_ones_own_that_was_left_open_is_not_a_success() {
    let mut world = given(EffectClass::None);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    world.intend(0, &at, "mail", EffectClass::Irreversible).expect("it may be sent");
    world.complete(0, at, success(Vec::new())).expect("it is taken");
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
    world.drive();
}

#[test]
fn several_uncertain_effects_are_settled_one_by_one() {
    let mut world = given(EffectClass::None);
    world.claim(0, "pay", "w1").expect("it is ready");
    let at = world.attempt_of("pay");
    for name in ["mail", "page"] {
        world.intend(0, &at, name, EffectClass::Irreversible).expect("it may be sent");
    }
    fall_silent(&mut world, &at);
    let unnamed = world.answer(Some("pay"), Answer::Happened);
    assert!(matches!(unnamed, Err(Refusal::NotApplicable { .. })), "{unnamed:?}");
    assert_eq!(world.confirm(0, &at, "mail"), Ok(true));
    assert_eq!(world.held(), [(id("pay"), HoldReason::UncertainEffect)]);
    assert_eq!(world.answer(Some("pay"), Answer::Happened), Ok(true));
    assert_eq!(world.word("pay"), "ready");
    world.drive();
}

#[test]
fn nobody_else_speaks_of_an_effect() {
    let mut world = given(EffectClass::Irreversible);
    let at = sending(&mut world, EffectClass::Irreversible);
    let other = Attempt { worker: "w9".to_owned().try_into().expect("a name"), ..at.clone() };
    assert!(matches!(world.confirm(0, &other, MAIN), Err(Refusal::Effect { .. })));
    assert!(matches!(world.confirm(0, &at, "other"), Err(Refusal::Effect { .. })));
    assert_eq!(world.confirm(0, &at, MAIN), Ok(true));
}
