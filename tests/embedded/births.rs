//! Large plans, whose records are written before their tasks are visible.

use std::sync::Arc;

use serde_json::{Value, json};
use standfast_domain::record::TaskState;
use standfast_tests::embedded::World;

fn plan(steps: usize, word: &str) -> Value {
    let steps: Vec<Value> = (0..steps)
        .map(|n| {
            json!({ "id": format!("{word}{n}"), "uses": "exec", "if": "false",
                    "with": { "command": ["true"] } })
        })
        .collect();
    json!({ "kind": "large", "idempotency_key": "one", "steps": steps })
}

#[tokio::test(flavor = "multi_thread")]
async fn two_large_bodies_under_one_key_never_mix() {
    for _ in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        let mut world = World::open(directory.path()).await;
        world.schedule();
        let world = Arc::new(world);
        let submit = |word: &'static str, steps: usize| {
            let world = world.clone();
            tokio::spawn(async move { world.try_submit(plan(steps, word)).await })
        };
        let both = [submit("a", 300), submit("b", 400)];
        let mut accepted = Vec::new();
        for one in both {
            accepted.extend(one.await.unwrap().ok());
        }
        assert_eq!(accepted.len(), 1, "one body has the key");
        let header = world.wait_verified(&accepted[0], TaskState::Completed).await;
        assert!(matches!(header.skipped, 300 | 400), "{header:?}");
        assert_eq!(header.skipped, header.steps);
    }
}
