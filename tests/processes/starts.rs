//! Processes that start while the broker or Redis is away.

use std::time::Duration;

use standfast_tests::fleet::Process;
use standfast_tests::private_redis::{PrivateRedis, free_port};
use standfast_tests::processes::Installation;
use standfast_tests::wait;

/// How long a process waits at its start for what is away; told to end, it must not.
const START_WAIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn told_to_end_while_they_wait_for_the_broker_they_end_in_order() {
    let nowhere = format!("amqp://guest:guest@127.0.0.1:{}/%2f", free_port());
    let own = Installation::start_on(&nowhere, "30s").await;
    for kind in ["worker", "scheduler"] {
        let mut process = Process::start(&own, kind, &[kind], &[]);
        wait::until(&format!("the {kind} to look for the broker"), async || {
            (process.said("the broker is not reached") > 0).then_some(())
        })
        .await;
        process.signal("TERM");
        let (code, took) = process.ended().await;
        assert_eq!(code, Some(0), "{}", process.log());
        assert!(took < START_WAIT, "{kind} ended only after {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_late_is_waited_for() {
    let mut own = Installation::start("30s").await;
    own.redis.kill();
    let kinds: [(&str, &[&str]); 3] =
        [("api", &["api"]), ("scheduler", &["scheduler"]), ("worker", &["worker"])];
    let processes = kinds.map(|(kind, words)| Process::start(&own, kind, words, &[]));
    for process in &processes {
        wait::until(&format!("{} to look for redis", process.name), async || {
            (process.said("redis is not reached") > 0).then_some(())
        })
        .await;
    }
    own.redis.revive().await;
    for process in &processes {
        process.green(START_WAIT).await;
        assert_eq!(process.said("redis is not reached"), 1, "{}", process.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_no_waiting_can_cure_ends_a_start_at_once_with_one_sentence() {
    let mut own = Installation::start("30s").await;
    let locked = PrivateRedis::start(&["--requirepass", "right"]).await;
    let at = |user: &str, redis: &PrivateRedis, database: &str| {
        redis.url().replace("redis://", &format!("redis://{user}")) + database
    };
    let cluster = PrivateRedis::start(&["--cluster-enabled", "yes"]).await;
    for (url, wanted) in [
        (at("", &locked, ""), "it wants a password, and the URL has none"),
        (at(":wrong@", &locked, ""), "it refuses the user or password of the URL"),
        (at("", &own.redis, "/99"), "it has no database of the number at the end of the URL"),
        (at("", &cluster, ""), "it runs in cluster mode"),
    ] {
        let mut process =
            Process::start(&own, "refused", &["scheduler"], &[("STANDFAST_REDIS", &url)]);
        let (code, took) = process.ended().await;
        let log = process.log();
        assert_eq!(code, Some(1), "{log}");
        assert!(took < START_WAIT / 2, "{wanted}: ended only after {took:?}");
        assert!(log.contains(wanted), "{wanted}: {log}");
        assert_eq!(process.said("redis is not reached"), 0, "{log}");
    }
    own.redis.kill();
}
