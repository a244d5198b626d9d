//! A scheduler that dies anywhere on an AMQP submission's way: one task, and its reply arrives,
//! at least once and always under one message id.

use std::collections::BTreeSet;

use futures::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use serde_json::{Value, json};
use standfast_protocol::tasks::TaskQuery;
use standfast_tests::binary::Running;
use standfast_tests::processes::Installation;
use standfast_tests::services::amqp_url;
use standfast_tests::wait;

use crate::doomed;

const POINTS: [&str; 5] =
    ["submit.before", "submit.stored", "submit.woken", "outbox.before", "outbox.confirmed"];

/// A publisher with a reply queue of its own.
struct Publisher {
    channel: Channel,
    replies: Consumer,
    queue: String,
    _connection: Connection,
}

impl Publisher {
    async fn connect() -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&amqp_url(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
        let declared = channel.queue_declare("".into(), options, Default::default()).await.unwrap();
        let queue = declared.name().to_string();
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let name = queue.as_str().into();
        let replies = channel.basic_consume(name, "".into(), options, Default::default());
        let replies = replies.await.unwrap();
        Self { channel, replies, queue, _connection: connection }
    }

    async fn submit(&self, exchange: &str, id: &str) {
        let plan = json!({ "kind": "asked", "steps": [
            { "id": "only", "uses": "exec", "with": { "command": ["true"] } },
        ]});
        let properties = BasicProperties::default()
            .with_message_id(id.into())
            .with_user_id("guest".into())
            .with_delivery_mode(2)
            .with_reply_to(self.queue.as_str().into());
        let (options, body) = (Default::default(), plan.to_string().into_bytes());
        let sent = self.channel.basic_publish(
            exchange.into(),
            "submit".into(),
            options,
            &body,
            properties,
        );
        sent.await.unwrap().await.unwrap();
    }

    /// Waits for the next reply: its message id, and the task that it names.
    async fn reply(&mut self, what: &str) -> (String, String) {
        let next = tokio::time::timeout(wait::PATIENCE, self.replies.next()).await;
        let delivery = next.unwrap_or_else(|_| panic!("no reply to {what}")).unwrap().unwrap();
        let id = delivery.properties.message_id().clone().unwrap().to_string();
        let body: Value = serde_json::from_slice(&delivery.data).unwrap();
        (id, body["submitted"]["id"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_dies_at_any_point_owes_no_reply() {
    let own = Installation::start("30s").await;
    let _api = own.api().await;
    let mut publisher = Publisher::connect().await;
    let mut tasks = BTreeSet::new();
    for point in POINTS {
        let mut scheduler = doomed::start(&own, &["scheduler"], point, 1);
        own.takes_messages().await;
        publisher.submit(&own.place.prefix, point).await;
        doomed::death(&mut scheduler, point).await;
        let log = own.path().join(format!("heir-{point}.log"));
        let mut heir = Running::start(own.command(&["scheduler"]), &log);
        // Replies to earlier messages may still come, as often as their points allow.
        let task = loop {
            let (id, task) = publisher.reply(point).await;
            if id == format!("reply/{point}") {
                break task;
            }
            assert!(tasks.contains(&task), "{point}: a reply {id} about {task}");
        };
        assert!(tasks.insert(task), "{point}: a task of its own");
        // It ends in order, so that its messages are acked and the next one dies of its own.
        let log = async || std::fs::read_to_string(&log).ok();
        wait::until("the heir to work", async || {
            log().await.filter(|text| text.contains("the scheduler works"))
        })
        .await;
        assert_eq!(heir.terminate(), Some(0), "{point}: {}", log().await.unwrap_or_default());
    }
    let listed = own.client().list(&TaskQuery::default()).await.unwrap();
    let listed: BTreeSet<String> = listed.tasks.into_iter().map(|task| task.id).collect();
    assert_eq!(listed, tasks, "one task a message");

    let _last = own.process(&["scheduler"]);
    wait::until("the outbox to be empty", async || {
        let report = own.command(&["doctor", "--counts", "--json"]).output().unwrap();
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let outbox = checks.iter().find(|check| check["name"] == "index outbox").unwrap();
        (outbox["found"] == "0 entries").then_some(())
    })
    .await;
}
