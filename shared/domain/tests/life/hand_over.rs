//! Lives of tasks that change hands.

use crate::model::plans::{effect, id, plan, step, submission};
use crate::model::world::World;
use crate::scenarios::{ROOM, done, given};
use standfast_domain::decide::{Command, Submission};
use standfast_domain::ids::Principal;
use standfast_domain::index::{owner_index, sees_index};
use standfast_domain::outcome::Outcome;
use standfast_domain::plan::Plan;
use standfast_domain::record::{EffectClass, Key, Record, StopMode, TaskState};
use standfast_domain::refusal::Refusal;

fn who(text: &str) -> Principal {
    Principal::new(text).expect("a principal")
}

fn hand(world: &mut World, from: &str, to: &str) -> Result<bool, Refusal> {
    let (from, to, reason) = (who(from), who(to), Some("holidays".to_owned()));
    world.run(1, Command::HandOver { from, to, reason })
}

fn owner(world: &mut World) -> String {
    match world.store.load(&Key::Owner).0 {
        Some(Record::Owner(owner)) => owner.owner.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Names the indexes in which people find the task.
fn found_in(world: &World) -> Vec<String> {
    let of_people = |index: &&String| index.starts_with("owner:") || index.starts_with("sees:");
    world.store.indexes.iter().map(|(index, _)| index).filter(of_people).cloned().collect()
}

#[test]
fn a_task_changes_hands_once_and_lists_follow() {
    let mut world = given(vec![step("a", &[])]);
    let before = world.header().next_event;
    assert_eq!(found_in(&world), [owner_index(&Principal::local())]);
    assert_eq!(hand(&mut world, "user:local", "user:ben"), Ok(true));
    assert_eq!(owner(&mut world), "user:ben");
    let both = [owner_index(&who("user:ben")), sees_index(&Principal::local())];
    assert_eq!(found_in(&world), both, "who submitted it sees it still");
    assert_eq!(hand(&mut world, "user:local", "user:ben"), Ok(false), "twice is once");
    assert_eq!(world.header().next_event, before + 1);
    assert_eq!(hand(&mut world, "user:ben", "user:local"), Ok(true));
    assert_eq!(found_in(&world), [owner_index(&Principal::local())]);
    world.drive();
    assert_eq!(world.header().state, TaskState::Completed);
}

#[test]
fn of_two_that_hand_over_at_once_the_second_has_no_right_any_more() {
    let mut world = given(vec![step("a", &[])]);
    assert_eq!(hand(&mut world, "user:local", "user:ben"), Ok(true));
    let late = hand(&mut world, "user:local", "user:eve");
    assert_eq!(late, Err(Refusal::OwnerChanged(who("user:ben"))));
}

#[test]
fn a_task_that_is_ending_changes_hands_and_one_that_has_ended_does_not() {
    let steps = plan(vec![step("a", &[])], vec![step("tidy", &[])]);
    let mut world = World::new(submission(steps), 0, ROOM);
    assert_eq!(world.run(1, Command::Stop { reason: None, mode: StopMode::Halt }), Ok(true));
    assert_eq!(hand(&mut world, "user:local", "user:ben"), Ok(true));
    world.drive();
    assert_eq!(world.header().state, TaskState::Cancelled);
    let late = hand(&mut world, "user:ben", "user:eve");
    assert_eq!(late, Err(Refusal::Ended(TaskState::Cancelled)));
    assert_eq!(hand(&mut world, "user:eve", "user:ben"), Ok(false), "it is so already");
}

#[test]
fn everyone_whom_a_plan_names_finds_the_task() {
    let named = Plan {
        owner: Some(who("user:ana")),
        operators: vec![who("group:ops")],
        approvers: vec![who("group:finance"), who("user:ana")],
        viewers: vec![who("user:ben"), who("group:ops")],
        ..plan(vec![step("a", &[])], Vec::new())
    };
    let world = World::new(submission(named), 0, ROOM);
    let sees = ["group:finance", "group:ops", "user:ana", "user:ben", "user:local"];
    let mut all = vec![owner_index(&who("user:ana"))];
    all.extend(sees.map(|name| sees_index(&who(name))));
    assert_eq!(found_in(&world), all);
}

/// A task whose submitter may only have idempotent effects.
fn bounded() -> Submission {
    let call = effect(EffectClass::Idempotent, step("pay", &[]));
    let mut bounded = submission(plan(vec![call], Vec::new()));
    bounded.ceiling.effects = Some([EffectClass::None, EffectClass::Idempotent].into());
    bounded
}

#[test]
fn an_attempt_has_no_effect_beyond_the_ceiling_of_its_submitter() {
    let mut world = World::new(bounded(), 0, ROOM);
    assert_eq!(world.claim(0, "pay", "w1"), Ok(true));
    let at = world.attempt_of("pay");
    let refused = world.intend(0, &at, "extra", EffectClass::Irreversible);
    assert!(matches!(refused, Err(Refusal::Effect { .. })), "{refused:?}");
    assert_eq!(world.intend(0, &at, "extra", EffectClass::Idempotent), Ok(true));
}

#[test]
fn steps_that_are_added_inherit_the_ceiling() {
    let mut world = World::new(bounded(), 0, ROOM);
    let then = vec![step("more", &[])];
    let outcome = match done() {
        Outcome::Succeeded(mut success) => {
            success.then = then;
            Outcome::Succeeded(success)
        }
        failed @ Outcome::Failed(_) => failed,
    };
    world.work("pay", outcome);
    let Some(Record::Definition(added)) = world.store.load(&Key::Definition(id("more"))).0 else {
        panic!("it was not added");
    };
    assert_eq!(added.effects_allowed, bounded().ceiling.effects);
}
