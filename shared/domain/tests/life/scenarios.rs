//! Lives of single tasks, each around one rule that is easily broken.

use crate::model::check::status;
use crate::model::fair::{failure, success};
use crate::model::plans::{id, plan, redo, step, submission};
use crate::model::world::World;
use standfast_domain::decide::{Addition, Command, Submission, TimerKind};
use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::index::{OUTBOX, WORK, parse_outbox_member};
use standfast_domain::outcome::{FailureClass, Outcome};
use standfast_domain::plan::{OnFailure, StepPlan, Uses};
use standfast_domain::record::{Key, Record, Status, StopMode, TaskState};
use standfast_domain::refusal::Refusal;
use standfast_domain::time::Span;

/// Room for all that follows, as the engine gives it.
pub const ROOM: usize = 250;

pub fn given(steps: Vec<StepPlan>) -> World {
    World::new(submission(plan(steps, Vec::new())), 0, ROOM)
}

pub fn done() -> Outcome {
    success(Vec::new())
}

pub fn broken() -> Outcome {
    failure(FailureClass::Permanent)
}

pub fn with(on_failure: OnFailure, plan: StepPlan) -> StepPlan {
    StepPlan { on_failure: Some(on_failure), ..plan }
}

pub fn expire(world: &mut World, step: &str, proven: bool) {
    let attempt = world.attempt_of(step).attempt;
    let said = world.run(1, Command::ExpireClaim { step: id(step), attempt, proven });
    assert!(said.is_ok(), "{said:?}");
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("d{n:03}")).collect()
}

#[test]
fn two_checks_that_redo_the_same_draft_share_a_round() {
    let checks = [redo("b", &["a"], "a", 2), redo("c", &["a"], "a", 2)];
    let mut world = given([vec![step("a", &[])], checks.to_vec()].concat());
    world.work("a", done());
    world.work("b", broken());
    world.work("c", broken());
    assert_eq!(world.word("a"), "ready");
    world.work("a", done());
    assert_eq!((world.word("b"), world.word("c")), ("ready", "ready"));
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn a_round_ends_the_attempts_of_an_overlapping_one_uncharged() {
    let checks = [redo("b", &["a"], "a", 2), redo("c", &["a"], "a", 2)];
    let mut world = given([vec![step("a", &[])], checks.to_vec()].concat());
    world.work("a", done());
    assert_eq!(world.claim(0, "c", "w2"), Ok(true));
    world.work("b", broken());
    assert_eq!(world.claim(0, "a", "w3"), Ok(true));
    let (old, at) = (world.attempt_of("a"), world.attempt_of("c"));
    assert_eq!(world.complete(0, at, broken()), Ok(true));
    assert_eq!(world.claim_of("a"), None);
    assert_eq!(world.complete(1, old.clone(), done()), Ok(true), "that it came is recorded");
    assert!(matches!(world.complete(1, old, done()), Err(Refusal::Fenced { .. })));
    world.drive();
}

#[test]
fn a_claim_that_another_process_gives_meanwhile_survives_no_new_round() {
    let checks = [redo("b", &["a"], "a", 2), redo("c", &["a"], "a", 2)];
    let mut world = given([vec![step("a", &[])], checks.to_vec()].concat());
    world.work("a", done());
    assert_eq!(world.claim(0, "c", "w2"), Ok(true));
    world.work("b", broken());
    let at = world.attempt_of("c");
    // Process 0 still believes that nobody has claimed `a`.
    assert_eq!(world.claim(1, "a", "w3"), Ok(true));
    assert_eq!(world.complete(0, at, broken()), Ok(true));
    assert_eq!(world.claim_of("a"), None);
    world.drive();
}

#[test]
fn a_redo_within_a_redo_keeps_the_outer_one_waiting() {
    let steps = vec![
        step("a", &[]),
        redo("b", &["a"], "a", 3),
        redo("c", &["b"], "a", 3),
        step("d", &["c"]),
    ];
    let mut world = given(steps);
    world.work("a", done());
    world.work("b", done());
    world.work("c", broken());
    world.work("a", done());
    world.work("b", broken()); // the inner redo, within the round of the outer one
    world.work("a", done());
    world.work("b", done());
    assert_eq!(world.word("c"), "ready");
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn a_step_outside_a_round_reads_how_its_needs_settled_before() {
    let steps =
        vec![step("a", &[]), step("z", &[]), redo("b", &["a"], "a", 2), step("d", &["a", "z"])];
    let mut world = given(steps);
    let seen = |world: &mut World| match world.store.load(&Key::Step(id("a"))).0 {
        Some(Record::Step(state)) => {
            (matches!(state.seen().0, Status::Succeeded { .. }), state.seen().1)
        }
        _ => panic!("`a` has a state"),
    };
    world.work("a", done());
    world.work("b", broken());
    world.work("z", done()); // `d` was told by `a` in round one, and starts while `a` runs again
    assert_eq!((world.word("a"), world.word("d")), ("ready", "ready"));
    assert_eq!(seen(&mut world), (true, 1));
    world.work("a", done());
    assert_eq!(seen(&mut world), (true, 2));
    world.drive();
}

#[test]
fn a_step_skipped_for_a_need_outside_the_round_stays_skipped() {
    let steps =
        vec![step("a", &[]), step("z", &[]), step("w", &["a", "z"]), redo("b", &["w"], "a", 2)];
    let mut submitted = submission(plan(steps, Vec::new()));
    submitted.templated.insert(id("z"));
    submitted.named_in_if.insert(id("b"), [id("w")].into());
    let skips = |seed: &u64| {
        seed.is_multiple_of(5) && crate::model::world::draw(*seed, &["z", "1"]).is_multiple_of(8)
    };
    let mut world = World::new(submitted, (0..).find(skips).expect("one of forty"), ROOM);
    world.work("a", done());
    assert_eq!((world.word("z"), world.word("w")), ("skipped", "skipped"));
    world.work("b", broken());
    world.work("a", done());
    assert_eq!((world.word("w"), world.word("b")), ("skipped", "ready"));
    world.drive();
}

#[test]
fn a_redone_adder_adds_other_steps_and_its_dependents_wait_for_them() {
    let mut world =
        given(vec![step("a", &[]), redo("b", &["a"], "a", 2), redo("c", &["a"], "a", 2)]);
    world.work("a", success(vec![step("x1", &[])]));
    world.work("x1", done());
    world.work("b", broken());
    world.work("a", success(vec![step("x2", &[]), step("x3", &["x2"])]));
    assert_eq!(world.word("b"), "pending");
    world.work("c", broken()); // `a` is settled and still owes
    world.work("a", done());
    assert_eq!((world.word("b"), world.word("c")), ("pending", "pending"));
    world.work("x2", done());
    world.work("x3", done());
    assert_eq!((world.word("b"), world.word("c")), ("ready", "ready"));
    world.drive();
}

#[test]
fn a_redone_adder_that_adds_the_same_steps_runs_them_again() {
    let then = || success(vec![step("x1", &[]), step("x2", &["x1"])]);
    let mut world = given(vec![step("a", &[]), redo("b", &["a"], "a", 2)]);
    world.work("a", then());
    world.work("x1", done());
    world.work("x2", done());
    world.work("b", broken());
    world.work("a", then());
    assert_eq!(
        (world.word("x1"), world.word("x2"), world.word("b")),
        ("ready", "pending", "pending")
    );
    world.work("x1", done());
    world.work("x2", done());
    assert_eq!(world.word("b"), "ready");
    world.work("b", broken());
    world.work("a", success(vec![step("x1", &[]), step("y", &[])])); // fewer, and another
    assert_eq!(
        (world.word("x1"), world.word("x2"), world.word("y")),
        ("ready", "succeeded", "ready")
    );
    world.work("x1", done());
    world.work("y", done());
    assert_eq!(world.word("b"), "ready");
    assert_eq!((world.header().steps, world.header().open), (5, 1));
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn steps_that_are_added_again_while_they_run_begin_anew() {
    let then = || success(vec![step("x", &[]), redo("y", &["x"], "x", 2)]);
    let mut world =
        given(vec![step("a", &[]), redo("b", &["a"], "a", 3), redo("c", &["a"], "a", 3)]);
    world.work("a", done());
    world.work("b", broken());
    world.work("a", then());
    world.work("x", done());
    assert_eq!(world.claim(0, "y", "w2"), Ok(true));
    let old = world.attempt_of("y");
    assert_eq!(world.word("c"), "ready"); // told in round one
    world.work("c", broken());
    world.work("a", then()); // `y` still runs
    assert_eq!(world.complete(0, old, done()), Ok(true)); // noted as late, and not used
    assert_eq!((world.word("x"), world.word("y")), ("ready", "pending"));
    world.work("x", done());
    world.work("y", broken()); // a loop within
    assert_eq!((world.word("x"), world.word("y")), ("ready", "pending"));
    world.work("x", done());
    assert_eq!((world.word("b"), world.word("c")), ("pending", "pending"));
    world.work("y", done());
    assert_eq!((world.word("b"), world.word("c")), ("ready", "ready"));
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn another_step_under_a_name_that_is_taken_is_refused_by_name() {
    let mut other = step("x", &[]);
    other.with = serde_json::json!({ "other": 1 });
    let cases = [
        (vec![other], "`x`, which exists already"),
        (vec![step("x", &["z"])], "`x`, which exists already"),
        (vec![step("b", &[])], "`b`, which exists already"),
        (vec![step("x", &[]), step("n", &["x"])], "`n` is new and needs `x`"),
    ];
    for (then, said) in cases {
        let steps = vec![step("z", &[]), step("a", &[]), redo("b", &["a"], "a", 2)];
        let mut world = given(steps);
        world.work("z", done());
        world.work("a", success(vec![step("x", &[])]));
        world.work("x", done());
        world.work("b", broken());
        world.work("a", success(then));
        assert_eq!(world.held(), [(id("a"), HoldReason::Failures)]);
        let Some(Status::Held { hold }) = status(&mut world.store, &id("a")) else {
            panic!("`a` is held");
        };
        assert!(hold.message.contains(said), "{}", hold.message);
        world.drive();
    }
}

#[test]
fn dependents_of_an_adder_wait_for_what_its_steps_add() {
    let mut world = given(vec![step("a", &[]), step("b", &["a"])]);
    world.work("a", success(vec![step("x", &[])]));
    world.work("x", success(vec![step("y", &[])]));
    world.work("y", success(vec![step("z", &[])]));
    assert_eq!(world.word("b"), "pending");
    world.work("z", done());
    assert_eq!(world.word("b"), "ready");
    world.drive();
}

#[test]
fn an_added_step_counts_the_adding_one_among_its_needs() {
    let mut world = given(vec![step("a", &[])]);
    world.work("a", success(vec![step("x", &[])]));
    let Some(Record::Definition(x)) = world.store.load(&Key::Definition(id("x"))).0 else {
        panic!("`x` is defined");
    };
    assert_eq!(x.needs_count, 1);
}

#[test]
fn an_added_step_cannot_redo_what_is_not_new() {
    let mut world = given(vec![step("a", &[])]);
    world.work("a", success(vec![redo("x", &[], "a", 5)]));
    assert_eq!(world.word("a"), "held");
    world.drive();
}

#[test]
fn a_round_that_begins_while_dependents_are_told_tells_each_once() {
    let names = names(210);
    let dependents = names.iter().map(|name| {
        let needs = ["a", "z"];
        step(name, &needs)
    });
    let check = redo("b", &["a"], "a", 2);
    let steps = [vec![step("a", &[]), step("z", &[]), check], dependents.collect()].concat();
    let mut world = World::new(submission(plan(steps, Vec::new())), 0, 0);
    world.sweep_all();
    world.work("a", done());
    world.sweep(0, &release(&world, "b"));
    world.work("b", broken()); // one list of the dependents of `a` has not been told yet
    world.sweep(0, &release(&world, "a"));
    world.work("a", done());
    world.sweep_all();
    assert_eq!((world.word("d000"), world.word("d209")), ("pending", "pending"));
    world.work("z", done());
    world.sweep_all();
    assert_eq!((world.word("d000"), world.word("d209")), ("ready", "ready"));
}

fn release(world: &World, step: &str) -> String {
    let members = world.store.members(WORK);
    members.into_iter().find(|member| member.ends_with(&format!("|{step}"))).expect("an entry")
}

#[test]
fn more_than_two_hundred_dependents_are_released_in_several_commits() {
    let names = names(250);
    let dependents = names.iter().map(|name| step(name, &["a"]));
    let steps = [vec![step("a", &[])], dependents.collect()].concat();
    let mut world = given(steps);
    world.sweep_all();
    world.work("a", done());
    world.sweep_all();
    assert_eq!(world.ready().len(), 250);
}

#[test]
fn a_chain_of_skips_goes_on_over_commits() {
    let mut steps = vec![step("s000", &[])];
    for n in 1..120 {
        let need = format!("s{:03}", n - 1);
        steps.push(step(&format!("s{n:03}"), &[&need]));
    }
    let mut submitted = submission(plan(steps, Vec::new()));
    submitted.templated.insert(id("s000"));
    let skips = |seed: &u64| {
        seed.is_multiple_of(5) && crate::model::world::draw(*seed, &["s000", "1"]).is_multiple_of(8)
    };
    let mut world = World::new(submitted, (0..).find(skips).expect("one of forty"), 10);
    assert!(world.header().skipped < 20, "one commit does not walk the whole chain");
    assert_eq!(world.store.members(WORK).len(), 1, "the rest is left to the index");
    world.drive();
    assert_eq!(world.header().skipped, 120);
}

#[test]
fn a_result_after_a_take_over_is_fenced() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    expire(&mut world, "a", true);
    assert_eq!(world.complete(0, at.clone(), done()), Ok(true), "that it came is recorded");
    assert!(matches!(world.watch.history.last(), Some(Change::LateResultRefused { .. })));
    assert!(matches!(world.complete(0, at.clone(), done()), Err(Refusal::Fenced { .. })));
    assert!(matches!(world.complete(0, at, broken()), Err(Refusal::Fenced { .. })));
}

#[test]
fn a_repeated_outcome_is_accepted_and_changes_nothing() {
    for outcome in [done(), broken()] {
        let mut world = given(vec![with(OnFailure::Continue, step("a", &[])), step("b", &["a"])]);
        assert_eq!(world.claim(0, "a", "w1"), Ok(true));
        let at = world.attempt_of("a");
        assert_eq!(world.complete(0, at.clone(), outcome.clone()), Ok(true));
        assert_eq!(world.complete(1, at, outcome), Ok(false));
    }
}

#[test]
fn a_step_that_is_handed_back_in_the_millisecond_of_its_start_stays_listed() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(world.run(0, Command::HandBack { at, why: String::new() }), Ok(true));
    assert_eq!(world.ready(), [id("a")]);
}

#[test]
fn a_success_leaves_no_expiry_of_a_claim_that_was_renewed_meanwhile() {
    let mut world = given(vec![step("a", &[]), step("b", &["a"])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    world.pass(5);
    // Process 0 does not hear of the renewal; the world checks all entries after each commit.
    assert_eq!(world.renew(1, &at, None), Ok(true));
    assert_eq!(world.complete(0, at, done()), Ok(true));
}

#[test]
fn a_claim_and_giving_up_at_one_moment_do_not_both_happen() {
    let mut timed = step("a", &[]);
    timed.timeout.total = Some(Span::from_secs(10));
    let mut world = given(vec![timed]);
    assert_eq!(world.claim(1, "a", "w1"), Ok(true));
    world.pass(11);
    // Process 0 believes that nobody has claimed it; the attempt ends, or its claim dies.
    assert_eq!(world.fire(Some("a"), TimerKind::GiveUp), Ok(false));
    expire(&mut world, "a", true);
    assert_eq!(world.held(), [(id("a"), HoldReason::WorkerDied)]);
    world.drive();
}

#[test]
fn telling_ends_with_the_task() {
    let names = names(250);
    let dependents = names.iter().map(|name| step(name, &["a"]));
    let steps = [vec![step("a", &[])], dependents.collect()].concat();
    let mut world = World::new(submission(plan(steps, Vec::new())), 0, 0);
    world.sweep_all();
    world.work("a", done());
    let member = release(&world, "a");
    assert_eq!(world.stop(), Ok(true));
    let events = world.store.events.len();
    world.sweep(0, &member);
    assert_eq!(world.store.events.len(), events, "nothing more is told");
    world.drive();
}

#[test]
fn a_timer_step_is_skipped_by_an_answer_and_counts_as_done() {
    let timer = StepPlan { uses: Uses::Timer, ..step("t", &[]) };
    let mut world = given(vec![timer, step("b", &["t"])]);
    assert_eq!(world.header().state, TaskState::Waiting);
    assert_eq!(world.answer(Some("t"), Answer::Skip), Ok(true));
    let found = status(&mut world.store, &id("t"));
    assert!(matches!(found, Some(Status::Succeeded { .. })), "{found:?}");
    world.drive();
}

#[test]
fn twenty_generations_of_an_agent_loop_end() {
    let mut world = given(vec![step("g0", &[]), step("last", &["g0"])]);
    for n in 1..20 {
        let next = step(&format!("g{n}"), &[]);
        world.work(&format!("g{}", n - 1), success(vec![next]));
    }
    assert_eq!(world.word("last"), "pending");
    world.work("g19", done());
    assert_eq!(world.word("last"), "ready");
    world.drive();
}

#[test]
fn an_answer_with_many_outcomes_in_one_batch_is_one_commit() {
    let mut world = given(vec![step("a", &[]), step("b", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    assert_eq!(world.claim(0, "b", "w2"), Ok(true));
    let complete = |at| Command::CompleteAttempt {
        at,
        outcome: Box::new(done()),
        added: Vec::<Addition>::new(),
        cost_usd_micros: 0,
    };
    let batch = [complete(world.attempt_of("a")), complete(world.attempt_of("b"))];
    assert_eq!(world.execute(0, &batch), [Ok(true), Ok(true)]);
    let ended =
        world.watch.history.iter().filter(|change| matches!(change, Change::TaskEnded { .. }));
    assert_eq!(ended.count(), 1);
}

#[test]
fn what_a_birth_promises_is_stored_with_it_and_no_later_commit_touches_it() {
    let mut submission = submission(plan(vec![step("a", &[]), step("b", &["a"])], Vec::new()));
    submission.outgoing.insert("m1".to_owned(), serde_json::json!({"to": "someone"}));
    let mut world = World::new(submission, 0, ROOM);
    let entries = world.store.members(OUTBOX);
    let [member] = &entries[..] else { panic!("{entries:?}") };
    let (at, task, id) = parse_outbox_member(member).expect("its own form");
    assert_eq!((at, task, id.as_str()), (world.header().created_at, world.task.clone(), "m1"));
    let (_, version) = world.store.load(&Key::Outgoing(id.clone()));
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
    assert_eq!(world.store.members(OUTBOX), entries);
    assert_eq!(world.store.load(&Key::Outgoing(id)).1, version);
}

#[test]
fn a_body_comes_again_under_its_key_and_no_other_does() {
    let body = |key: Option<&str>, sha256: &str| Submission {
        idempotency_key: key.map(str::to_owned),
        sha256: sha256.to_owned(),
        ..submission(plan(vec![step("a", &[])], Vec::new()))
    };
    let submit = |body| Command::Submit(Box::new(body));
    let mut world = World::new(body(Some("k"), "one"), 0, ROOM);
    let reused = Refusal::KeyReused(world.task.clone());
    for _ in 0..2 {
        for process in 0..2 {
            assert_eq!(world.run(process, submit(body(Some("k"), "one"))), Ok(false));
            assert_eq!(world.run(process, submit(body(Some("k"), "two"))), Err(reused.clone()));
        }
        world.drive();
    }
    // Without a key nobody else has the id: it is the birth whose answer was lost.
    let mut world = World::new(body(None, "one"), 0, ROOM);
    assert_eq!(world.run(1, submit(body(None, "one"))), Ok(false));
}

#[test]
fn a_claim_on_records_from_before_a_stop_is_refused() {
    let mut world = given(vec![step("a", &[]), step("b", &[])]);
    assert_eq!(world.claim(1, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    assert_eq!(world.run(1, Command::HandBack { at, why: String::new() }), Ok(true));
    assert_eq!(world.claim(0, "b", "w2"), Ok(true));
    let stop = Command::Stop { reason: None, mode: StopMode::Halt };
    assert_eq!(world.run(0, stop), Ok(true));
    // Process 1 knows all that a claim needs, from before the stop; and the stop, which waits for
    // `b` to end, has left the records of `a` as they were.
    let said = world.claim(1, "a", "w1");
    assert!(matches!(said, Err(Refusal::NotClaimable { .. })), "{said:?}");
    world.drive();
}
