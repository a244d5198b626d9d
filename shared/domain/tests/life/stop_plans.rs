//! What a stop would do, what its plan's digest is good for, and what it came to.

use crate::model::fair::{failure, success};
use crate::model::planned::{over, view_of};
use crate::model::plans::{effect, id, plan, redo, step, submission};
use crate::model::world::World;
use standfast_domain::decide::Command;
use standfast_domain::hold::Answer;
use standfast_domain::outcome::{EffectEnd, Failure, FailureClass, Outcome};
use standfast_domain::plan::{OnFailure, StepPlan};
use standfast_domain::record::{EffectClass, Key, NotLanded, StopMode, TaskState};
use standfast_domain::refusal::Refusal;
use standfast_domain::stop_plan::{
    Basis, Became, Fate, Now, Settlement, StopPlan, Subject, basis, plan as plan_of, settlement,
};
use standfast_domain::time::Span;

fn given(steps: Vec<StepPlan>) -> World {
    World::new(submission(plan(steps, vec![step("tidy", &[])])), 0, 250)
}

fn planned(world: &World, mode: StopMode) -> Result<StopPlan, Refusal> {
    let mut view = view_of(&world.task, &world.store.records());
    over(&mut view, |view| plan_of(view, mode))
}

fn halt(world: &World) -> StopPlan {
    planned(world, StopMode::Halt).expect("it can be stopped")
}

fn came_to(world: &World) -> Settlement {
    let mut view = view_of(&world.task, &world.store.records());
    over(&mut view, settlement).expect("it was stopped")
}

/// The basis of a halt's plan, with versions as a reader of the store knows them.
fn made_on(world: &mut World) -> Basis {
    let digest = halt(world).digest;
    let mut view = standfast_domain::view::View::new(world.task.clone());
    for key in world.store.records().into_keys() {
        let (record, version) = world.store.load(&key);
        view.load(key, record, version);
    }
    over(&mut view, |view| basis(view, &digest)).expect("it can be stopped").expect("versions")
}

fn stop_by(basis: &Basis) -> Command {
    Command::StopAsPlanned { reason: None, mode: StopMode::Halt, basis: Box::new(basis.clone()) }
}

fn line(plan: &StopPlan) -> Vec<(String, Now, Fate)> {
    plan.items.iter().map(|item| (named(&item.subject), item.now, item.fate)).collect()
}

fn named(subject: &Subject) -> String {
    match subject {
        Subject::Effect { step, name, generation } => format!("{step}/{name}/{generation}"),
        Subject::Attempt { step, attempt } => format!("{step}#{attempt}"),
        Subject::Step { step } => step.to_string(),
        Subject::Hold { reason, .. } => format!("hold {reason}"),
        Subject::Deadline => "deadline".to_owned(),
        Subject::Finally { step } => format!("finally {step}"),
    }
}

fn settled(world: &World) -> Vec<(String, Became)> {
    let items = came_to(world).items;
    items.iter().map(|settled| (named(&settled.item.subject), settled.became)).collect()
}

/// One of each: landed, running while it sends, uncertain, held, pending.
fn busy() -> World {
    let mut world = given(vec![
        effect(EffectClass::Irreversible, step("reserve", &[])),
        effect(EffectClass::Irreversible, step("pay", &["reserve"])),
        effect(EffectClass::Irreversible, step("mail", &["reserve"])),
        StepPlan { on_failure: Some(OnFailure::Pause), ..step("odd", &["reserve"]) },
        step("close", &["pay", "mail"]),
    ]);
    send(&mut world, "reserve");
    let at = world.attempt_of("reserve");
    assert_eq!(world.complete(0, at, success(Vec::new())), Ok(true));
    send(&mut world, "mail");
    let at = world.attempt_of("mail");
    assert_eq!(world.complete(0, at, failure(FailureClass::Permanent)), Ok(true));
    send(&mut world, "pay");
    world.work("odd", failure(FailureClass::Permanent));
    world
}

fn send(world: &mut World, step: &str) {
    assert_eq!(world.claim(0, step, "w1"), Ok(true));
    let at = world.attempt_of(step);
    assert_eq!(world.intend(0, &at, "main", EffectClass::Irreversible), Ok(true));
}

#[test]
fn a_plan_names_what_is_there_and_what_a_halt_does_with_it() {
    let world = busy();
    let expected = [
        ("reserve/main/1", Now::Landed, Fate::Stays),
        ("pay#1", Now::Running, Fate::ToldToEnd),
        ("pay/main/1", Now::InFlight, Fate::MayLand),
        ("mail", Now::Held, Fate::WillNotHappen),
        ("mail/main/1", Now::Uncertain, Fate::ToSettle),
        ("odd", Now::Held, Fate::WillNotHappen),
        ("close", Now::Pending, Fate::WillNotHappen),
        ("hold paused", Now::Held, Fate::Lapses),
        ("finally tidy", Now::Waiting, Fate::Runs),
    ];
    let expected = expected.map(|(name, now, fate)| (name.to_owned(), now, fate));
    assert_eq!(line(&halt(&world)), expected);
}

#[test]
fn a_settlement_says_what_became_of_each() {
    let mut world = busy();
    let at = world.attempt_of("pay");
    assert_eq!(world.stop(), Ok(true));
    assert_eq!(settled(&world)[1].1, Became::Running);
    assert_eq!(world.confirm(0, &at, "main"), Ok(true));
    assert_eq!(world.complete(0, at, failure(FailureClass::Retryable)), Ok(true));
    world.drive();
    let expected = [
        ("reserve/main/1", Became::Stays),
        ("pay#1", Became::Cancelled),
        ("pay/main/1", Became::LandedLate),
        ("mail", Became::Cancelled),
        ("mail/main/1", Became::ToSettle),
        ("odd", Became::Cancelled),
        ("close", Became::Cancelled),
        ("hold paused", Became::Lapsed),
        ("finally tidy", Became::Succeeded),
    ];
    assert_eq!(settled(&world), expected.map(|(name, became)| (name.to_owned(), became)));
    let report = came_to(&world);
    assert_eq!(report.took(), report.ended_at.map(|at| at.since(report.stop.at)));
}

#[test]
fn a_settlement_remembers_what_was_uncertain_when_the_stop_was_asked_for() {
    for (answer, became) in [
        (Answer::Happened, Became::LandedLate),
        (Answer::NotHappened, Became::NotLanded(NotLanded::Answered)),
    ] {
        let mut world = busy();
        world.pass(3_600);
        assert_eq!(world.stop(), Ok(true));
        assert_eq!(world.answer(Some("mail"), answer), Ok(true));
        let report = came_to(&world);
        let mail =
            report.items.iter().find(|settled| named(&settled.item.subject) == "mail/main/1");
        let mail = mail.expect("it is an item");
        assert_eq!((mail.item.now, mail.item.fate), (Now::Uncertain, Fate::ToSettle));
        assert_eq!(mail.became, became);
    }
}

#[test]
fn what_was_known_not_to_have_happened_is_no_item_of_a_stop_that_it_lands_after() {
    let mut world = given(vec![effect(EffectClass::Irreversible, step("pay", &[]))]);
    send(&mut world, "pay");
    let at = world.attempt_of("pay");
    let not_sent = EffectEnd::NotLanded(NotLanded::NotSent);
    let failed = Failure { effect: not_sent, ..Failure::new(FailureClass::Retryable, "no") };
    assert_eq!(world.complete(0, at.clone(), Outcome::Failed(failed)), Ok(true));
    assert!(line(&halt(&world)).iter().all(|(name, ..)| name != "pay/main/1"));
    assert_eq!(world.stop(), Ok(true));
    assert_eq!(world.confirm(0, &at, "main"), Ok(true));
    let report = came_to(&world);
    let pay = report.items.iter().find(|settled| named(&settled.item.subject) == "pay/main/1");
    let pay = pay.expect("it has landed");
    assert_eq!((pay.since_stop, pay.became), (true, Became::LandedLate));
}

#[test]
fn an_attempt_of_a_redone_step_is_not_settled_by_the_round_before() {
    let again = redo("b", &["a"], "a", 2);
    let mut world = given(vec![step("a", &[]), again]);
    world.work("a", success(vec![]));
    world.now = world.now.after(Span::from_secs(1));
    world.work("b", failure(FailureClass::Permanent));
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let at = world.attempt_of("a");
    let number = at.attempt;
    assert_eq!(world.stop(), Ok(true));
    assert_eq!(world.complete(0, at, failure(FailureClass::Cancelled)), Ok(true));
    world.drive();
    assert_eq!(settled(&world)[0], (format!("a#{number}"), Became::Cancelled));
}

#[test]
fn neither_time_nor_a_heartbeat_changes_a_digest() {
    let mut world = busy();
    let before = halt(&world).digest;
    let at = world.attempt_of("pay");
    world.pass(3);
    assert_eq!(world.renew(0, &at, Some("half way")), Ok(true));
    assert_eq!(halt(&world).digest, before);
    let drain = planned(&world, StopMode::Drain).unwrap().digest;
    assert_ne!(drain, before, "another mode is another plan");
}

#[test]
fn a_stop_as_planned_is_refused_once_something_has_happened() {
    let mut world = given(vec![step("a", &[]), step("b", &[])]);
    let basis = made_on(&mut world);
    world.work("a", success(Vec::new()));
    for process in [0, 1] {
        assert_eq!(world.run(process, stop_by(&basis)), Err(Refusal::PlanMoved));
    }
    let basis = made_on(&mut world);
    assert_eq!(world.run(1, stop_by(&basis)), Ok(true));
    assert_eq!(world.header().state, TaskState::Cancelling);
    assert_eq!(came_to(&world).stop.plan_sha256, Some(basis.digest.clone()));
    assert_eq!(world.run(0, stop_by(&basis)), Ok(false), "twice is once");
    world.drive();
}

#[test]
fn a_stop_as_planned_sees_claims_although_they_are_not_logged() {
    let mut world = given(vec![step("a", &[]), step("b", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true)); // the first start is logged
    let basis = made_on(&mut world);
    let at = world.attempt_of("a");
    assert_eq!(world.renew(0, &at, None), Ok(true));
    assert_eq!(world.claim(1, "b", "w2"), Ok(true));
    assert_eq!(world.run(0, stop_by(&basis)), Err(Refusal::PlanMoved));
    assert_eq!(world.run(1, stop_by(&basis)), Err(Refusal::PlanMoved));
    let basis = made_on(&mut world);
    assert_eq!(world.renew(0, &at, None), Ok(true), "a heartbeat is no move");
    assert_eq!(world.run(1, stop_by(&basis)), Ok(true));
    world.drive();
}

#[test]
fn a_stop_as_planned_sees_what_its_own_commit_has_changed() {
    let mut world = given(vec![step("a", &[]), step("b", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    let basis = made_on(&mut world);
    let claim = crate::model::fair::claim_command("b", "w2");
    let said = world.execute(0, &[claim, stop_by(&basis)]);
    assert_eq!(said, [Ok(true), Err(Refusal::PlanMoved)]);
    let basis = made_on(&mut world);
    let (at, outcome) = (world.attempt_of("a"), Box::new(success(Vec::new())));
    let done = Command::CompleteAttempt { at, outcome, added: Vec::new(), cost_usd_micros: 0 };
    let said = world.execute(0, &[done, stop_by(&basis)]);
    assert_eq!(said, [Ok(true), Err(Refusal::PlanMoved)]);
    world.drive();
}

#[test]
fn a_stronger_stop_as_planned_sees_what_has_happened_since_the_weaker_one() {
    let mut world = given(vec![step("a", &[]), step("b", &[])]);
    assert_eq!(world.claim(0, "a", "w1"), Ok(true));
    assert_eq!(world.claim(0, "b", "w2"), Ok(true));
    let before = made_on(&mut world);
    assert_eq!(world.stop_as(StopMode::Drain), Ok(true));
    assert_eq!(planned(&world, StopMode::Drain).unwrap_err(), Refusal::Stopped);
    assert_eq!(world.run(1, stop_by(&before)), Err(Refusal::PlanMoved), "the stop was logged");
    let basis = made_on(&mut world);
    assert_eq!(basis.digest, before.digest, "what a halt does is the same");
    let at = world.attempt_of("b");
    assert_eq!(world.complete(0, at, failure(FailureClass::Cancelled)), Ok(true));
    assert_eq!(world.run(1, stop_by(&basis)), Err(Refusal::PlanMoved));
    let basis = made_on(&mut world);
    assert_eq!(world.run(1, stop_by(&basis)), Ok(true));
    assert_eq!(came_to(&world).stop.mode, StopMode::Halt);
    assert_eq!(world.run(0, stop_by(&basis)), Ok(false), "twice is once");
    world.drive();
}

#[test]
fn there_is_no_plan_once_the_end_is_decided_and_no_settlement_without_a_stop() {
    let mut world = given(vec![step("a", &[])]);
    let mut view = view_of(&world.task, &world.store.records());
    assert_eq!(over(&mut view, settlement).unwrap_err(), Refusal::NotStopped);
    assert_eq!(world.stop(), Ok(true));
    assert_eq!(planned(&world, StopMode::Halt).unwrap_err(), Refusal::Stopped);
    let mut other = given(vec![step("a", &[])]);
    other.work("a", success(Vec::new()));
    let refusal = planned(&other, StopMode::Halt).unwrap_err();
    assert!(matches!(refusal, Refusal::EndDecided(_)), "{refusal}");
    other.drive();
    assert_eq!(planned(&other, StopMode::Halt).unwrap_err(), Refusal::Ended(TaskState::Completed));
}

#[test]
fn of_too_many_steps_that_may_run_a_digest_tells_not_apart_which_do() {
    let names: Vec<String> = (0..401).map(|number| format!("s{number}")).collect();
    let mut world = given(names.iter().map(|name| step(name, &[])).collect());
    world.sweep_all();
    assert_eq!(world.claim(0, "s0", "w1"), Ok(true));
    let before = halt(&world);
    assert!(!before.covers_claims);
    let basis = made_on(&mut world);
    assert_eq!(basis.claims, []);
    assert_eq!(world.claim(0, "s1", "w1"), Ok(true));
    assert_eq!(halt(&world).digest, before.digest);
    assert_ne!(halt(&world).items, before.items, "what is shown tells them apart all the same");
    world.work("s2", success(Vec::new()));
    assert_ne!(halt(&world).digest, before.digest);
    assert_eq!(world.run(0, stop_by(&basis)), Err(Refusal::PlanMoved));
    assert!(world.store.load(&Key::Claim(id("s0"))).0.is_some());
}
