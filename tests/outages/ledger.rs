//! Steps that say when and where they started, in a file outside of the product.

use std::path::Path;

use serde_json::{Value, json};
use standfast_tests::processes::Installation;
use standfast_tests::wait;

/// Gives a step that writes `MILLISECONDS LANG TASK STEP ATTEMPT` to the ledger when it starts,
/// runs `then`, and is tried again for as long as it takes.
pub fn noted(own: &Installation, id: &str, needs: &[&str], then: &str) -> Value {
    let note = "echo $(date +%s%3N) $LANG $STANDFAST_TASK $STANDFAST_STEP $STANDFAST_ATTEMPT";
    let script = format!("{note} >> {}; {then}", own.ledger().display());
    json!({ "id": id, "uses": "exec", "needs": needs, "with": { "command": ["sh", "-c", script] },
            "retry": { "max_attempts": 100, "backoff": "0s" } })
}

/// Gives a script that waits until a file exists.
pub fn wait_for(file: &Path) -> String {
    format!("until test -e {}; do sleep 0.1; done", file.display())
}

/// One start of an attempt, as its step wrote it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub at_ms: u64,
    pub worker: String,
    pub task: String,
    pub step: String,
    pub attempt: u32,
}

/// Reads the ledger.
pub fn starts(own: &Installation) -> Vec<Start> {
    let text = std::fs::read_to_string(own.ledger()).unwrap_or_default();
    let start = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Start {
            at_ms: words[0].parse().unwrap(),
            worker: words[1].to_owned(),
            task: words[2].to_owned(),
            step: words[3].to_owned(),
            attempt: words[4].parse().unwrap(),
        }
    };
    text.lines().map(start).collect()
}

/// Waits until so many attempts have started.
pub async fn started(own: &Installation, count: usize) -> Vec<Start> {
    wait::until(&format!("{count} starts"), async || {
        let starts = starts(own);
        (starts.len() >= count).then_some(starts)
    })
    .await
}

/// Asserts that each of so many steps has started exactly once.
pub fn once_each(own: &Installation, count: usize) {
    let starts = starts(own);
    let mut steps: Vec<(&str, &str)> =
        starts.iter().map(|start| (start.task.as_str(), start.step.as_str())).collect();
    steps.sort_unstable();
    steps.dedup();
    assert_eq!((steps.len(), starts.len()), (count, count), "steps and their starts: {starts:#?}");
}

/// Gives the attempts of a task that ended without success.
pub async fn failures(own: &Installation, task: &str) -> Vec<Value> {
    let events = own.events(task).await;
    let failed = events.into_iter().filter(|event| event.kind == "attempt_failed");
    failed.map(|event| event.data).collect()
}

/// Gives the milliseconds of the clock that the ledger uses.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_millis() as u64
}
