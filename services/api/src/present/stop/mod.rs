//! Stop plans and settlements as readers see them.

mod items;
mod lines;

use std::collections::BTreeMap;

use standfast_domain::record::StopMode as Mode;
use standfast_domain::stop_plan::{self as domain, Settled};
use standfast_domain::time::Time;
use standfast_engine::stopping::Planned;
use standfast_protocol::explain::StopOutlook;
use standfast_protocol::stops::{Settlement, StopItem, StopPlan};
use standfast_protocol::tasks::StopMode;

use super::task;
use crate::reads::Base;

pub(crate) use items::label;
pub(crate) use lines::came_to;

/// Hex digits of a digest that a command shows: far more than are needed to tell plans apart.
const DIGEST_CHARS: usize = 12;
/// Items of one kind that are listed.
const LISTED_MAX: usize = 200;

/// Gives the protocol's word for a mode.
pub(crate) fn mode(mode: Mode) -> StopMode {
    match mode {
        Mode::Drain => StopMode::Drain,
        Mode::Halt => StopMode::Halt,
        Mode::Undo => StopMode::Undo,
    }
}

/// Shows a plan.
pub(crate) fn plan(base: &Base, now: Time, planned: &Planned) -> StopPlan {
    let plan = &planned.plan;
    let items: Vec<StopItem> = plan.items.iter().map(|item| items::item(base, item)).collect();
    StopPlan {
        id: base.task.to_string(),
        mode: mode(plan.mode),
        state: task::state(base.header.state),
        at: now.rfc3339(),
        digest: planned.digest().map(str::to_owned),
        covers_claims: plan.covers_claims,
        counts: counts(&items),
        text: lines::plan(base, now, planned),
        items: listed(items),
    }
}

/// Shows a settlement.
pub(crate) fn settlement(base: &Base, now: Time, settlement: &domain::Settlement) -> Settlement {
    let shown = settlement.items.iter().map(|settled| items::settled(base, settled));
    let items: Vec<StopItem> = shown.collect();
    Settlement {
        id: base.task.to_string(),
        state: task::state(base.header.state),
        stop: task::stop(&settlement.stop),
        plan_digest: settlement.stop.plan_sha256.clone(),
        ended_at: settlement.ended_at.map(Time::rfc3339),
        took_ms: settlement.took().map(|took| took.0),
        counts: counts(&items),
        waits_for: lines::waits_for(base, settlement),
        text: lines::settlement(base, now, settlement),
        items: listed(items),
    }
}

/// Says what a stop of each mode would do where it differs from `halt`, which comes first, and
/// the command that stops by that plan.
pub(crate) fn outlooks(base: &Base, plans: &[Planned]) -> (Vec<StopOutlook>, Option<String>) {
    let halt = plans.iter().find(|planned| planned.plan.mode == Mode::Halt);
    let shown = plans.iter().filter_map(|planned| {
        let text = lines::outlook(&planned.plan)?;
        let digest = planned.digest().map(str::to_owned);
        Some(StopOutlook { mode: mode(planned.plan.mode), digest, text })
    });
    (shown.collect(), halt.map(|planned| command(base, planned)))
}

/// Writes the command that stops by a plan.
fn command(base: &Base, planned: &Planned) -> String {
    let digest = planned.digest().and_then(|digest| digest.get(..DIGEST_CHARS));
    let digest = digest.map_or_else(String::new, |digest| format!(" --digest {digest}"));
    format!("standfast stop {} --mode {}{digest}", base.task, planned.plan.mode)
}

fn counts(items: &[StopItem]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for item in items {
        *counts.entry(item.kind.clone()).or_default() += 1;
    }
    counts
}

/// Keeps the first items of each kind.
fn listed(items: Vec<StopItem>) -> Vec<StopItem> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut room = |item: &StopItem| {
        let count = counts.entry(item.kind.clone()).or_default();
        *count += 1;
        *count <= LISTED_MAX
    };
    items.into_iter().filter(|item| room(item)).collect()
}

/// True for what a person must still settle.
fn is_owed(settled: &Settled) -> bool {
    matches!(settled.became, domain::Became::ToSettle | domain::Became::UndoHeld)
        || settled.hold.is_some()
}
