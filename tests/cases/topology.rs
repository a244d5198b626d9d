//! A queue that somebody else declared otherwise: the process that needs it ends at once and
//! says what it found; nothing is deleted, and others go on.

use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use standfast_tests::binary::{self, Running};
use standfast_tests::private_redis::PrivateRedis;
use standfast_tests::services::{Place, amqp_url};
use standfast_tests::wait;

fn classic() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(5_000));
    arguments
}

async fn declare(connection: &Connection, name: &str) -> lapin::Result<lapin::Queue> {
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let channel = connection.create_channel().await?;
    channel.queue_declare(name.into(), options, classic()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_queue_was_declared_otherwise_ends_and_says_what_it_found() {
    let (redis, place) = (PrivateRedis::start(&[]).await, Place::new());
    let directory = tempfile::tempdir().unwrap();
    let url = amqp_url();
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let start = |words: &[&str]| {
        let mut command = binary::command(directory.path());
        command
            .args(words)
            .env("STANDFAST_REDIS", redis.url())
            .env("STANDFAST_AMQP", amqp_url())
            .env("STANDFAST_AMQP_PREFIX", &place.prefix)
            .env("STANDFAST_BLOBS", directory.path().join("blobs"));
        command
    };
    let log = directory.path().join("other.log");
    let mut other = Running::start(start(&["worker", "--queue", "other"]), &log);
    let depth = format!("{}.steps.other", place.prefix);
    wait::until("the other worker's queue", async || {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let channel = connection.create_channel().await.unwrap();
        let found = channel.queue_declare(depth.as_str().into(), options, FieldTable::default());
        (found.await.ok()?.consumer_count() == 1).then_some(())
    })
    .await;
    let name = format!("{}.steps.taken", place.prefix);
    declare(&connection, &name).await.unwrap();
    let mut command = start(&["worker", "--queue", "taken"]);
    let began = Instant::now();
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    let ended = tokio::time::timeout(Duration::from_secs(10), ended).await;
    let ended = ended.expect("the worker ends by itself within ten seconds").unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    for part in [name.as_str(), "x-message-ttl", "wanted none", "found 5000", "delete it"] {
        assert!(text.contains(part), "`{part}` in: {text}");
    }
    // Only a queue that is as it was takes the same declaration again.
    declare(&connection, &name).await.unwrap();
    assert!(other.0.try_wait().unwrap().is_none(), "the other worker goes on");
    assert_eq!(other.terminate(), Some(0));
    place.clean(&["taken", "other"]).await;
}
