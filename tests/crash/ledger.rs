//! What the handlers say that they did, in a file outside of the product.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

/// Steps of the plan, in order.
pub const STEPS: [&str; 3] = ["one", "two", "three"];
/// What the last step gives, whatever happened on the way.
pub const LAST_OUTPUT: &str = "one two three";

/// Makes a plan of three steps, each in a queue. Each writes to the ledger when it starts and
/// when its effect is done, and gives what the step before it gave and its own name.
pub fn plan(ledger: &Path, queues: [&str; 3]) -> Value {
    let script = "echo $STANDFAST_TASK/$STANDFAST_STEP start >> $LEDGER; \
                  printf '%s' \"$BEFORE$STANDFAST_STEP\"; \
                  echo $STANDFAST_TASK/$STANDFAST_STEP effect >> $LEDGER";
    let step = |place: usize| {
        let needs: Vec<&str> =
            place.checked_sub(1).map(|before| STEPS[before]).into_iter().collect();
        let before = match needs.first() {
            Some(need) => format!("${{{{ steps.{need}.output.stdout }}}} "),
            None => String::new(),
        };
        json!({ "id": STEPS[place], "uses": "exec", "queue": queues[place], "needs": needs,
                "retry": { "max_attempts": 5, "backoff": "0s" },
                "with": { "command": ["sh", "-c", script],
                          "env": { "LEDGER": ledger, "BEFORE": before } } })
    };
    json!({ "kind": "doomed", "steps": [step(0), step(1), step(2)] })
}

/// Counts for each step of a task how often it has started and how often it was done.
pub fn of(ledger: &Path, task: &str) -> BTreeMap<String, (usize, usize)> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for line in std::fs::read_to_string(ledger).unwrap_or_default().lines() {
        let (name, deed) = line.split_once(' ').unwrap();
        let Some(step) = name.strip_prefix(task).and_then(|rest| rest.strip_prefix('/')) else {
            continue;
        };
        let count = counts.entry(step.to_owned()).or_default();
        match deed {
            "start" => count.0 += 1,
            _ => count.1 += 1,
        }
    }
    counts
}
