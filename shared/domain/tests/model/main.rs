//! An exhaustive check of small tasks: every order in which two workers, a scheduler, a person,
//! the network and crashes can act, over the rules themselves.
//!
//! Each test is one [`Setting`]: a small plan, and bounds on what could happen for ever. Within
//! them all states are visited, and their number is pinned: a rule that forbids or allows more
//! than before changes it, and whoever changed the rule says whether that was meant.
//!
//! - Bounded: faults (crashes, lost and repeated messages, lost answers, hand-backs, slow reads,
//!   takings-over of workers that live), failures of handlers, answers, stops. Each is counted
//!   down in the state.
//! - Time moves only when a timer fires or a claim expires, to that very moment; so it has as
//!   few points as there are timers and expiries.
//! - What follows from the bounds: attempts are at most one, the retries, the answers `retry`
//!   and the faults together; rounds are what `redo` allows.
//!
//! `STANDFAST_MODEL_DEPTH=2` raises each bound by one, `3` by two; then no number is pinned.

#[expect(dead_code, reason = "random lives draw their plans, this check names its own")]
#[path = "../life/model/plans.rs"]
mod plans;

mod deeds;
mod effects;
mod fair;
mod process;
mod rules;
mod setting;
mod settings;
mod state;

use std::collections::BTreeSet;

use stateright::{Checker, Model};

use setting::{Setting, sights};

/// Says how much deeper than usual to look.
#[expect(clippy::disallowed_methods, reason = "the depth is a setting of the run")]
fn deeper() -> u8 {
    match std::env::var("STANDFAST_MODEL_DEPTH") {
        Ok(depth) => depth.parse::<u8>().expect("a depth is 1, 2 or more").saturating_sub(1),
        Err(_) => 0,
    }
}

/// Visits all states of a setting; `states` is how many there are.
#[expect(clippy::print_stdout, reason = "how much was visited is what the check is worth")]
fn check(setting: Setting, states: usize) {
    let (name, deeper) = (setting.name, deeper());
    let checker = setting.deeper(deeper).checker().threads(1).spawn_bfs().join();
    let (found, all) = (checker.unique_state_count(), checker.state_count());
    println!("{name}: {found} states, {all} transitions, {} deep", checker.max_depth());
    checker.assert_properties();
    if deeper == 0 {
        assert_eq!(found, states, "states of the setting `{name}`");
    }
}

#[test]
fn every_sight_is_asked_for_in_some_setting() {
    let all: BTreeSet<&str> = sights().iter().map(|sight| sight.name).collect();
    let asked: BTreeSet<&str> =
        settings::all().iter().flat_map(|setting| setting.sights).copied().collect();
    assert_eq!(asked, all);
}

#[test]
fn one_step_keeps_the_rules_under_crashes_failures_and_a_stop() {
    check(settings::one_step(), 7720);
}

#[test]
fn a_chain_of_two_keeps_the_rules() {
    check(settings::chain(), 3924);
}

#[test]
fn a_chain_of_two_keeps_the_rules_with_a_commit_for_each_thing_that_follows() {
    check(settings::chain_without_room(), 7179);
}

#[test]
fn two_steps_and_a_join_keep_the_rules() {
    check(settings::join(), 19_386);
}

#[test]
fn two_steps_at_a_time_keep_the_rules_under_a_stop() {
    check(settings::parallel_stopped(), 2016);
}

#[test]
fn a_step_that_is_tried_again_keeps_the_rules() {
    check(settings::retry(), 11_127);
}

#[test]
fn a_step_with_a_total_time_keeps_the_rules() {
    check(settings::total_time(), 2373);
}

#[test]
fn a_failure_that_fails_its_task_keeps_the_rules() {
    check(settings::fail(), 4407);
}

#[test]
fn a_failure_that_counts_as_settled_keeps_the_rules() {
    check(settings::go_on(), 5719);
}

#[test]
fn a_failure_that_pauses_its_task_keeps_the_rules() {
    check(settings::pause(), 13_729);
}

#[test]
fn a_redo_keeps_the_rules() {
    check(settings::redo_once(), 3209);
}

#[test]
fn two_redos_of_one_draft_keep_the_rules() {
    check(settings::redo_overlapping(), 11_841);
}

#[test]
fn a_timer_keeps_the_rules() {
    check(settings::timer(), 2898);
}

#[test]
fn a_claim_that_is_renewed_keeps_the_rules() {
    check(settings::renewed(), 1748);
}

#[test]
fn a_finally_step_keeps_the_rules() {
    check(settings::finally(), 10_457);
}

#[test]
fn a_deadline_that_pauses_keeps_the_rules() {
    check(settings::deadline_pauses(), 1785);
}

#[test]
fn a_deadline_that_fails_its_task_keeps_the_rules() {
    check(settings::deadline_fails(), 2721);
}

#[test]
fn a_deadline_that_stops_its_task_keeps_the_rules() {
    check(settings::deadline_stops(), 2604);
}

#[test]
fn a_check_that_does_not_hold_keeps_the_rules() {
    check(settings::verification(), 2350);
}

#[test]
fn an_irreversible_effect_is_sent_once_unless_a_person_says_otherwise() {
    check(settings::irreversible(), 3315);
}

#[test]
fn an_attempt_that_a_person_stops_keeps_the_rules() {
    check(settings::attempt_stopped(), 14_742);
}

#[test]
fn an_irreversible_effect_is_sent_once_though_its_attempt_is_stopped() {
    check(settings::irreversible_attempt_stopped(), 10_593);
}

#[test]
fn an_irreversible_effect_is_sent_once_under_a_stop() {
    check(settings::irreversible_stopped(), 9628);
}

#[test]
fn a_checkable_effect_is_sent_once() {
    check(settings::checkable(), 4643);
}

#[test]
fn an_idempotent_effect_keeps_the_rules() {
    check(settings::idempotent(), 6384);
}

#[test]
fn an_effect_whose_request_has_changed_is_sent_only_as_bidden() {
    check(settings::changed(), 2064);
}

#[test]
fn a_drain_lets_what_runs_land_and_gives_way_to_a_stronger_stop() {
    check(settings::drained(), 1545);
}

#[test]
fn what_has_landed_is_undone_in_reverse_and_once() {
    check(settings::undone(), 4741);
}

#[test]
fn an_undo_that_fails_waits_for_a_person() {
    check(settings::undo_failed(), 2801);
}

#[test]
fn an_undo_that_fell_silent_is_uncertain_itself() {
    check(settings::undo_uncertain(), 20_023);
}

#[test]
fn a_pause_stops_the_clocks_and_ends_with_a_stop() {
    check(settings::paused(), 1749);
}
