//! Workers outside hear at once of a stop, whichever process it was given to.

use std::time::Duration;

use serde_json::json;
use standfast_protocol::tasks::{StopMode, StopRequest, TaskState};
use standfast_sdk::Client;
use standfast_tests::fleet::{Process, TURNS};
use standfast_tests::private_redis::free_port;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::attempts::{python_worker, submit};

/// An api looks this often by itself for the stops of others, in case word was lost.
const LOOK: Duration = Duration::from_secs(5);

/// What the Python worker's handler does: it says when it starts, and when it was told to end.
const SHOUT: &str = "    place = text_input['text'] + '.' + str(attempt.number)
    open(place + '.started', 'w').close()
    attempt.cancelled.wait()
    open(place + '.told', 'w').close()
    raise Cancelled('told to end')";

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_outside_hears_of_a_stop_that_another_api_was_given() {
    // A claim of an hour has its first heartbeat after twenty minutes.
    let own = Installation::start("1h").await;
    let _here = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let port = free_port();
    let listen = [("STANDFAST_LISTEN", &*format!("127.0.0.1:{port}"))];
    let there = Process::start(&own, "there", &["api"], &listen);
    there.green(TURNS).await;
    let other = Client::new(&format!("http://127.0.0.1:{port}"), &own.token).unwrap();
    let token = own.make_token("worker", "worker:outside");
    let _worker = python_worker(&own, &token, "outside", SHOUT);
    for number in 0..3 {
        let place = own.path().join(format!("attempt-{number}"));
        let plan = json!({ "kind": "outside", "steps": [
            { "id": "only", "uses": "shout", "with": { "text": place } },
        ]});
        let task = submit(&own, plan).await;
        let said = |what: &str| place.with_extension(format!("1.{what}"));
        wait::until("the attempt to start", async || said("started").exists().then_some(())).await;
        let request = StopRequest { mode: StopMode::Halt, reason: None, digest: None };
        other.stop(&task, &request).await.unwrap();
        // The request that waits for word looked when it came, just before, and looks again only
        // after this.
        let bound = LOOK - Duration::from_millis(1_500);
        wait::within(bound, "the worker to be told", async || said("told").exists().then_some(()))
            .await;
        assert_eq!(own.ended(&task).await.state, TaskState::Cancelled);
    }
}
