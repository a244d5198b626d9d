//! What must be true once everything has run out, by ledgers that stand outside of the product.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use standfast_protocol::events::{EventQuery, EventView};
use standfast_protocol::tasks::{TaskState, TaskView};
use standfast_sdk::Client;

use crate::load::{Load, Sent};
use crate::plans::CHAIN_OUTPUT;
use crate::site::Site;

/// Tasks that are read at a time.
const AT_ONCE: usize = 8;

/// Where a step stands: task and step, and the round.
type Place = (String, u64);

/// What was counted.
#[derive(Debug, Default)]
pub struct Counts {
    pub states: BTreeMap<&'static str, u64>,
    pub stopped: u64,
    pub starts: usize,
    pub lost_attempts: u64,
    /// By class: orders, how often they were asked for, how often they were carried out.
    pub effects: BTreeMap<String, (usize, usize, usize)>,
    pub settled_again: usize,
    pub doubled: usize,
    pub missing: usize,
    pub lost: usize,
    pub stuck: usize,
    pub unverified: usize,
    pub events: u64,
}

/// Looks at each task and at the ledgers; what is wrong is noted as faults of the load.
pub async fn judge(load: &Load, site: &Site, views: &[TaskView], counts: &mut Counts) {
    let client = &load.clients[0];
    let sent = load.sent().clone();
    let by_task: BTreeMap<&str, &Sent> =
        sent.values().filter_map(|sent| Some((sent.task.as_deref()?, sent))).collect();
    let mut settled: BTreeMap<Place, u64> = BTreeMap::new();
    let read = views.iter().map(|view| async move {
        (view, events(client, &view.id).await, client.verify(&view.id).await)
    });
    let mut read = futures::stream::iter(read).buffered(AT_ONCE);
    while let Some((view, events, verified)) = read.next().await {
        *counts.states.entry(view.state.as_str()).or_default() += 1;
        let stopped = by_task.get(view.id.as_str()).is_some_and(|sent| sent.stop);
        match view.state {
            TaskState::Completed => completed(load, client, view, counts).await,
            TaskState::Cancelled if stopped => counts.stopped += 1,
            _ if !view.state.is_ended() => {} // it is stuck, which was said
            other => load.blame(format!("{} is {other}: {:?}", view.id, view.failure)),
        }
        for event in events {
            counts.events += 1;
            let number = |name: &str| event.data[name].as_u64().unwrap_or_default();
            match event.kind.as_str() {
                "step_succeeded" => {
                    let step = event.step.as_deref().unwrap_or_default();
                    let place = (format!("{}/{step}", view.id), number("round"));
                    settled.insert(place, number("attempt"));
                }
                "attempt_failed" if event.data["class"] == "lost" => counts.lost_attempts += 1,
                _ => {}
            }
        }
        match verified {
            Ok(report) if report.ok => {}
            Ok(report) => {
                counts.unverified += 1;
                load.blame(format!("the log of {} has a fault: {:?}", view.id, report.fault));
            }
            Err(error) => load.blame(format!("the log of {} was not read: {error}", view.id)),
        }
    }
    starts(load, site, &settled, counts);
    effects(load, counts);
    doctor(load, site);
}

/// Reads all events of a task.
async fn events(client: &Client, task: &str) -> Vec<EventView> {
    let mut all = Vec::new();
    let mut query = EventQuery { limit: Some(200), ..EventQuery::default() };
    loop {
        let page = client.event_page(task, &query).await.unwrap();
        let last = page.events.len() < 200;
        all.extend(page.events);
        if last {
            return all;
        }
        query.after = Some(page.next);
    }
}

/// Checks what a completed task has given, and that what it says has landed was carried out.
async fn completed(load: &Load, client: &Client, view: &TaskView, counts: &mut Counts) {
    if view.kind == "chain" {
        let last = client.step(&view.id, "four").await.unwrap().output.unwrap_or_default();
        if last["stdout"] != CHAIN_OUTPUT {
            load.blame(format!("{} gave {last}", view.id));
        }
    }
    let names: &[&str] = match view.kind.as_str() {
        "shop" => &[
            "ask-idempotent",
            "ask-irreversible",
            "ask-checkable",
            "run-idempotent",
            "run-irreversible",
            "run-checkable",
        ],
        "outside" => &["idempotent", "irreversible", "checkable"],
        _ => return,
    };
    let orders = load.shop.orders();
    let name = &view.labels["name"];
    for order in names.iter().map(|step| format!("{name}-{step}")) {
        if orders.get(&order).is_none_or(|order| order.done == 0) {
            counts.missing += 1;
            load.blame(format!("{} is completed without order {order}", view.id));
        }
    }
}

/// Reads the ledger of starts, `TASK/STEP ROUND ATTEMPT` a line.
fn starts(load: &Load, site: &Site, settled: &BTreeMap<Place, u64>, counts: &mut Counts) {
    let text = std::fs::read_to_string(site.own.ledger()).unwrap_or_default();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for line in text.lines() {
        counts.starts += 1;
        if !seen.insert(line) {
            load.blame(format!("an attempt has started twice: {line}"));
        }
        let words: Vec<&str> = line.split(' ').collect();
        let (round, attempt): (u64, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        if settled.get(&(words[0].to_owned(), round)).is_some_and(|done| attempt > *done) {
            counts.settled_again += 1;
            load.blame(format!("a settled step has started again: {line}"));
        }
    }
}

fn effects(load: &Load, counts: &mut Counts) {
    for (name, order) in load.shop.orders() {
        let sums = counts.effects.entry(order.class.clone()).or_default();
        *sums = (sums.0 + 1, sums.1 + order.asked, sums.2 + order.done);
        if order.done > 1 || order.keys.len() > 1 {
            counts.doubled += 1;
            load.blame(format!("order {name} came about more than once: {order:?}"));
        }
    }
}

/// Compares counts and indexes with the records.
fn doctor(load: &Load, site: &Site) {
    let output = site.own.command(&["doctor", "--counts"]).output().unwrap();
    if !output.status.success() {
        load.blame(format!("doctor --counts: {}", standfast_tests::processes::said(&output)));
    }
}
