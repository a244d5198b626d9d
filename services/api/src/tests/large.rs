//! Readings of a large task: few calls of the store, however many steps.

use std::time::Instant;

use serde_json::{Value, json};

use super::{World, request};

/// Enough that a call for each step, or for each of ten, would be seen.
const STEPS: usize = 2_000;

/// A plan of steps that follow one another, or of ones that are ready all at once.
fn plan(steps: usize, in_a_row: bool) -> Value {
    let step = |n: usize| {
        let needs: Vec<String> = match (in_a_row, n) {
            (true, 1..) => vec![format!("s{}", n - 1)],
            (_, _) => Vec::new(),
        };
        json!({"id": format!("s{n}"), "uses": "echo", "needs": needs})
    };
    json!({"kind": "large", "steps": (0..steps).map(step).collect::<Vec<_>>()})
}

/// Submits a plan and waits until as many of its steps are ready as can be: while some still
/// become so, a reading of one moment may begin anew.
async fn settled(world: &World, plan: &Value, ready: usize) -> String {
    let task = world.submit(plan).await;
    let path = format!("/v1/tasks/{task}");
    let mut changed = world.api.engine().listen();
    loop {
        let view = world.get(&path).await.json();
        if view["steps"]["ready"] == ready {
            return task;
        }
        let _ = changed.recv().await; // whoever fell behind looks again
    }
}

#[tokio::test]
async fn readings_of_a_large_task_take_few_calls_of_the_store() {
    for in_a_row in [true, false] {
        let world = World::open().await;
        let ready = if in_a_row { 1 } else { STEPS };
        let task = settled(&world, &plan(STEPS, in_a_row), ready).await;
        for (reading, most) in [("explain", 60), ("stop-plan", 40), ("steps", 6), ("effects", 3)] {
            let path = format!("/v1/tasks/{task}/{reading}");
            let (before, began) = (world.store.reads(), Instant::now());
            let answer = world.send(request("GET", &path, &[], "")).await;
            let (calls, took) = (world.store.reads() - before, began.elapsed());
            assert_eq!(answer.status, 200);
            println!("{reading} in_a_row {in_a_row}: {calls} calls, {took:?}");
            assert!(calls <= most, "{reading} of {STEPS} steps takes {calls} calls of the store");
        }
    }
}
