//! A worker that dies anywhere on a step's way: the task completes with the same output, only a
//! death between the handler and the commit runs a handler twice, and each successor runs once.

use std::collections::BTreeMap;
use std::path::Path;

use futures::StreamExt;
use standfast_domain::time::Time;
use standfast_protocol::events::EventView;
use standfast_tests::binary::Running;
use standfast_tests::private_redis::free_port;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::doomed;
use crate::ledger::{self, LAST_OUTPUT, STEPS};

/// How long a claim lasts here: short, and longer than a busy machine keeps a worker waiting.
const CLAIM: &str = "5s";
const CLAIM_MS: u64 = 5_000;
/// How much later than its claim's length a lost attempt may be made ready again.
const TAKEN_OVER_MS: u64 = 5_000;
/// Workers at a time: enough to wait together, few enough for a small machine.
const AT_ONCE: usize = 10;

/// A point on a worker's way.
#[derive(Clone, Copy)]
struct Case {
    point: &'static str,
    /// Steps of the three on whose way the point lies.
    passes: u64,
    /// How often the handler of the step starts.
    starts: usize,
    /// True if the claim is there and no outcome is: it must be taken over.
    lost: bool,
}

const fn case(point: &'static str, passes: u64, starts: usize, lost: bool) -> Case {
    Case { point, passes, starts, lost }
}

const CASES: [Case; 10] = [
    case("claim.before", 3, 1, false),
    case("claim.stored", 3, 1, true),
    case("handler.before", 3, 1, true),
    case("handler.after", 3, 2, true),
    case("complete.before", 3, 2, true),
    case("complete.stored", 3, 1, false),
    case("publish.sent", 2, 1, false), // the last step wakes nobody
    case("publish.confirmed", 2, 1, false),
    case("ack.before", 3, 1, false),
    case("ack.after", 3, 1, false),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_before_its_claim_or_after_its_outcome_repeats_nothing() {
    each_dies(|case| !case.lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_dies_with_its_claim_repeats_only_a_handler_whose_outcome_was_not_stored() {
    each_dies(|case| case.lost).await;
}

/// Lets a worker die at each of these points, on each step that passes it.
async fn each_dies(these: impl Fn(&Case) -> bool) {
    let mut own = Installation::start(CLAIM).await;
    let cases = CASES.iter().filter(|case| these(case));
    let each = cases.flat_map(|case| (1..=case.passes).map(move |nth| (*case, nth)));
    let each: Vec<(Case, u64)> = each.collect();
    own.queues = each.iter().map(|(case, nth)| queue(case, *nth)).collect();
    let _api = own.api().await;
    let _processes = [own.process(&["scheduler"]), own.process(&["worker"])];
    let own = &own;
    let running = futures::stream::iter(each.iter().map(|(case, nth)| dies(own, *case, *nth)));
    let tasks: Vec<String> = running.buffer_unordered(AT_ONCE).collect().await;
    assert_eq!(tasks.len(), each.len());
}

fn queue(case: &Case, nth: u64) -> String {
    format!("{}-{nth}", case.point)
}

/// Lets a worker die at a point of its `nth` step, and another go on. Gives the task.
async fn dies(own: &Installation, case: Case, nth: u64) -> String {
    let (what, ledger) =
        (queue(&case, nth), own.path().join(format!("ledger-{}-{nth}", case.point)));
    let arguments = ["worker", "--queue", &what];
    let mut worker = doomed::start(own, &arguments, case.point, 1);
    // The steps around it are another worker's: the doomed one dies of this one alone.
    let mut queues = ["default"; 3];
    queues[nth as usize - 1] = &what;
    let task = own.client().submit(ledger::plan(&ledger, queues)).await.unwrap().id;
    doomed::death(&mut worker, &what).await;
    let admin = free_port();
    let mut command = own.command(&arguments);
    command.env("STANDFAST_ADMIN_ADDR", admin.to_string());
    let _heir = Running::start(command, &own.path().join("heir.log"));
    own.completed(std::slice::from_ref(&task)).await;

    let step = STEPS[nth as usize - 1];
    let last = own.client().step(&task, STEPS[2]).await.unwrap();
    assert_eq!(last.output.unwrap()["stdout"], LAST_OUTPUT, "{what}");
    counts(&ledger, &task, step, case, &what);
    let events = own.events(&task).await;
    lost(&events, step, case, &what);
    if case.point == "ack.before" {
        // The message whose outcome is stored has come again, and has woken nobody.
        spent(admin, &what).await;
        counts(&ledger, &task, step, case, &what);
    }
    task
}

/// Checks the ledger: the step that was hit as the case says, all others once.
fn counts(ledger: &Path, task: &str, step: &str, case: Case, what: &str) {
    let expected: BTreeMap<String, (usize, usize)> = STEPS
        .iter()
        .map(|name| {
            let count = if *name == step { case.starts } else { 1 };
            ((*name).to_owned(), (count, count))
        })
        .collect();
    assert_eq!(ledger::of(ledger, task), expected, "{what}");
}

/// Checks the history: one attempt is lost where a claim was left without a worker, and soon.
fn lost(events: &[EventView], step: &str, case: Case, what: &str) {
    let failed: Vec<&EventView> =
        events.iter().filter(|event| event.kind == "attempt_failed").collect();
    if !case.lost {
        assert!(failed.is_empty(), "{what}: {failed:?}");
        return;
    }
    let [failed] = &failed[..] else { panic!("{what}: {events:?}") };
    assert_eq!((failed.step.as_deref(), &failed.data["class"]), (Some(step), &"lost".into()));
    // It was claimed right after what came before it in the log.
    let place = events.iter().position(|event| event.sequence == failed.sequence).unwrap();
    let at = |event: &EventView| Time::parse_rfc3339(&event.at).unwrap();
    let after = at(failed).since(at(&events[place - 1])).0;
    assert!(after >= CLAIM_MS, "{what}: taken over {after} ms after its claim");
    assert!(after <= CLAIM_MS + TAKEN_OVER_MS, "{what}: taken over only after {after} ms");
}

/// Waits until a worker says that a delivery has woken it for nothing.
async fn spent(admin: u16, what: &str) {
    let url = format!("http://127.0.0.1:{admin}/metrics");
    wait::until(&format!("a redelivery to {what}"), async || {
        let text = reqwest::get(&url).await.ok()?.text().await.ok()?;
        let line =
            text.lines().find(|line| line.starts_with("standfast_worker_deliveries_spent"))?;
        (!line.ends_with(" 0")).then_some(())
    })
    .await;
}
