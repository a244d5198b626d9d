//! Whole worlds under one seed and virtual time: engine, schedulers, workers and in-process queues
//! over a store in memory, with faults in store, broker, clock and processes, and an oracle that
//! knows only what clients were promised.
//!
//! ```text
//! clients, person ─▶ api ─┐                       ┌─ ledger of starts
//!         supervisors ──▶ workers ─▶ ports, which │  handlers that follow a script
//!             weather ──▶ schedulers    draw ─────┤
//!                             │        faults     └─▶ the world outside, with its ledger of
//!                             │                       what it was sent and has done
//!                             ▼
//!              one store in memory, one trace ──▶ oracle
//! ```
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod broker;
mod directed;
mod faults;
mod ledger;
mod life;
mod oracle;
mod outside;
mod people;
mod plans;
mod process;
mod random;
mod records;
mod sending;
mod site;
mod stops;
mod store;
mod trace;
mod wishes;
mod world;

use std::collections::BTreeMap;
use std::time::Instant;

use crate::faults::Fault;
use crate::ledger::Way;
use crate::life::{Life, PANICS, live};

/// Worlds of a normal run: what one core goes through within two minutes in a debug build.
const SEEDS: u64 = 300;
/// Worlds from which on every kind of fault and state must have occurred.
const SEEDS_FOR_COVERAGE: u64 = 250;

/// What must occur in a run, besides every fault.
const MUST_OCCUR: &[&str] = &[
    "installation embedded",
    "installation of services",
    "submission repeated",
    "stop acknowledged",
    "start under way at a stop",
    "retention passed",
    "commit refused",
    "commit repeated",
    "task queued",
    "task running",
    "task waiting",
    "task blocked",
    "task cancelling",
    "task cancelled",
    "task completed",
    "task failed",
    "step pending",
    "step ready",
    "step running",
    "step retrying",
    "step held",
    "step succeeded",
    "step failed",
    "step skipped",
    "hold timer",
    "hold paused",
    "hold failures",
    "hold worker_died",
    "hold verification",
    "answer retry",
    "answer skip",
    "answer stop",
    "skipped Condition",
    "skipped Need",
    "skipped Answer",
    "failure retryable",
    "failure permanent",
    "failure rate_limited",
    "failure timeout",
    "failure cancelled",
    "failure lost",
    "event roots_opened",
    "event steps_added",
    "event round_opened",
    "event step_reopened",
    "event deadline_passed",
    "event entries_cleared",
    "hold uncertain_effect",
    "hold effect_changed",
    "answer happened",
    "answer not_happened",
    "answer keep",
    "answer send_also",
    "effect in flight",
    "effect uncertain",
    "effect landed",
    "effect not_sent",
    "effect refused",
    "effect checked",
    "effect answered",
    "sent idempotent",
    "sent checkable",
    "sent irreversible",
    "sent again after a refusal",
    "sent again after an answer",
    "sent again after its check",
    "sent again under its key",
    "send of a zombie",
    "outside not reached",
    "check yes",
    "check no",
    "check unanswered",
    "receipt kept",
    "receipt after the attempt's end",
    "landed after the task's end",
    "truth told too early",
    "truth told after the end",
    "Killed before intent",
    "Killed after intent",
    "Killed after send",
    "Killed after receipt",
    "Stopped before intent",
    "Stopped after intent",
    "Stopped after receipt",
    "Suspended after receipt",
    "attempt outlived an outage",
    "take-over from the dead",
    "take-over from the frozen",
    "start of a zombie",
    "stop with drain",
    "stop with halt",
    "stop with undo",
    "event stop_strengthened",
    "stop by digest",
    "stop refused, the plan has moved",
    "Pause acknowledged",
    "Resume acknowledged",
    "held back by a pause",
    "attempt stop acknowledged",
    "attempt stopped",
    "event undo_added",
    "undo landed",
    "undo sent a request",
    "hold undo_failed",
    "undo tried anew by a person",
    "undo left by a person",
    "settlement compared",
];

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a whole number, not `{text}`")))
}

/// Notes panics in tasks of the runtime, which nobody else would see.
fn note_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.lock().unwrap().push(format!("a panic: {info}"));
        before(info);
    }));
}

#[test]
fn every_world_keeps_what_was_promised() {
    note_panics();
    let only = number("STANDFAST_TEST_SEED");
    let from = only.or(number("STANDFAST_TEST_SEED_FROM")).unwrap_or(1);
    let seeds = only.map_or_else(|| number("STANDFAST_TEST_SEEDS").unwrap_or(SEEDS), |_| 1);
    let (began, mut counts, mut broken) = (Instant::now(), BTreeMap::new(), Vec::new());
    for seed in from..from + seeds {
        let life = live(seed);
        for (what, count) in &life.counts {
            *counts.entry(what.clone()).or_insert(0) += count;
        }
        if only.is_some() {
            life.lines.iter().for_each(|line| println!("{line}"));
        }
        if !life.faults.is_empty() {
            report(seed, &life);
            broken.push(seed);
        }
    }
    println!("{seeds} worlds from seed {from} in {:.1} s", began.elapsed().as_secs_f64());
    counts.iter().for_each(|(what, count)| println!("{count:>9} {what}"));
    assert!(broken.is_empty(), "seeds {broken:?} did not keep what was promised");
    if seeds >= SEEDS_FOR_COVERAGE {
        let wanted = MUST_OCCUR.iter().map(|what| (*what).to_owned());
        let wanted = wanted.chain(Fault::ALL.map(Fault::name)).chain(Way::ALL.map(Way::name));
        let never: Vec<String> = wanted.filter(|what| !counts.contains_key(what)).collect();
        assert!(never.is_empty(), "never occurred: {never:?}");
    }
}

fn report(seed: u64, life: &Life) {
    println!("seed {seed}:");
    life.faults.iter().take(20).for_each(|fault| println!("    {fault}"));
    println!("  repeat it, with its trace: STANDFAST_TEST_SEED={seed} ./tests/simulate");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for seed in [1, 2, 3, 5, 8, 13] {
        let (first, second) = (live(seed), live(seed));
        for (n, (one, other)) in first.lines.iter().zip(&second.lines).enumerate() {
            assert_eq!(one, other, "seed {seed}, line {} of the trace", n + 1);
        }
        assert_eq!(first.lines.len(), second.lines.len(), "seed {seed}");
        assert!(first.contents == second.contents, "seed {seed} stores other contents");
        assert!(!first.counts.is_empty(), "seed {seed} lives");
    }
}
