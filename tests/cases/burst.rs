//! One key is one task: for other bodies, other principals, and bursts from several processes.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::ids::Principal;
use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
use standfast_engine::tokens::Role;
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::embedded::World;
use standfast_tests::private_redis::PrivateRedis;

use crate::support::{Answer, Server, count, embedded, plan, step, token};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_used_again_for_another_request_is_refused_and_never_answered_for() {
    let (_directory, world) = embedded().await;
    let server = Server::start(&world).await;
    let ana = token(&world.engine, Role::Publisher, "user:ana").await;
    let ben = token(&world.engine, Role::Publisher, "user:ben").await;
    let send = async |who: &str, body: &str| -> Answer {
        let bearer = format!("Bearer {who}");
        let headers = [
            ("content-type", &b"application/json"[..]),
            ("authorization", bearer.as_bytes()),
            ("idempotency-key", &b"abc"[..]),
        ];
        server.send("POST", "/v1/tasks", &headers, body.as_bytes().to_vec()).await
    };
    let steps = r#""steps":[{"id":"a","uses":"exec","with":{"command":["true"]}}]"#;
    let first = format!(r#"{{"kind":"a","input":{{"x":1,"y":2}},{steps}}}"#);
    let made = send(&ana, &first).await;
    assert_eq!(made.status, 201, "{made:?}");
    let payload = format!(r#"{{"kind":"a","input":{{"x":2,"y":2}},{steps}}}"#);
    let kind = format!(r#"{{"kind":"b","input":{{"x":1,"y":2}},{steps}}}"#);
    for other in [&payload, &kind] {
        let refused = send(&ana, other).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.json()["type"].as_str().unwrap().ends_with("key_reused"), "{refused:?}");
    }
    let reordered = format!(r#"{{ {steps}, "input": {{"y":2,"x":1}}, "kind":"a" }}"#);
    let again = send(&ana, &reordered).await;
    assert_eq!((again.status, again.task()), (200, made.task()));
    let others = send(&ben, &payload).await;
    assert_eq!(others.status, 201, "{others:?}");
    assert_ne!(others.task(), made.task());
    assert_eq!(count(&world.engine, "tasks").await, 2);
    server.stop().await;
}

async fn submit(world: &World, plan: Value) -> (String, bool) {
    let submitted = Submitted {
        body: plan,
        plan_dir: None,
        by: Principal::local(),
        key: None,
        traceparent: None,
    };
    let announced = BTreeSet::new();
    let submission = prepare(submitted, RETENTION_DEFAULT, &world.handlers, &announced).unwrap();
    let (task, created) = world.engine.submit(submission).await.unwrap();
    (task.to_string(), created)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_from_several_processes_makes_one_task_whatever_redis_goes_through() {
    let redis = PrivateRedis::start(&[]).await;
    let directory = tempfile::tempdir().unwrap();
    let mut worlds = Vec::new();
    for _ in 0..5 {
        let store = RedisStore::connect(&RedisOptions::new(redis.url())).await.unwrap();
        let broker = Arc::new(InProcessBroker::new());
        worlds.push(World::over(Arc::new(store), broker, directory.path()).await);
    }
    let rounds: [&[&str]; 4] =
        [&["SCRIPT", "FLUSH"], &["CLIENT", "PAUSE", "300"], &["SCRIPT", "FLUSH"], &["PING"]];
    for (round, trouble) in rounds.into_iter().enumerate() {
        let mut plan = plan(vec![step("a", &[], "true")]);
        plan["idempotency_key"] = json!(format!("k{round}"));
        let submits = futures::future::join_all(
            (0..100).map(|n| submit(&worlds[n % worlds.len()], plan.clone())),
        );
        let (answers, _) = tokio::join!(submits, redis.command(trouble));
        let ids: BTreeSet<&String> = answers.iter().map(|(task, _)| task).collect();
        let created = answers.iter().filter(|(_, created)| *created).count();
        assert_eq!((ids.len(), created), (1, 1), "{trouble:?}");
        assert_eq!(count(&worlds[0].engine, "tasks").await, round as u64 + 1);
    }
}
