//! Processes that start while the broker is away.

use std::time::Duration;

use standfast_tests::fleet::Process;
use standfast_tests::private_redis::free_port;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

/// How long a process waits for the broker at its start; told to end, it must not.
const BROKER_WAIT: Duration = Duration::from_secs(30);

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
        assert!(took < BROKER_WAIT, "{kind} ended only after {took:?}");
    }
}
