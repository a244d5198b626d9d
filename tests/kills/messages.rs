//! Messages that are no good, and a queue without room: each is counted and explained, none is
//! lost, none goes round for ever.

use lapin::options::{BasicGetOptions, BasicNackOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use serde_json::{Value, json};
use standfast_brokers::rabbitmq::DELIVERY_LIMIT;
use standfast_protocol::tasks::TaskState;
use standfast_tests::processes::said;
use standfast_tests::wait;

use standfast_tests::fleet::Fleet;

/// More than any broker of today carries by default, and more than our own messages may have.
const OVERSIZE: usize = 17 * 1024 * 1024;
/// Bytes of a header that leaves no room for a problem in its frame of 128 KiB.
const WIDE_HEADER: usize = 130_700;
/// Steps that a full queue has room for.
const ROOM: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_are_counted_and_explained_and_a_full_queue_loses_nothing() {
    let mut fleet = Fleet::start(&[], "30s", &[&["api"]]).await;
    let (_connection, channel) = fleet.channel().await;
    let intake = format!("{}.intake", fleet.own.place.prefix);
    // This declares the topology, of which the api needs nothing yet.
    fleet.own.run(&["dead", "list"], 0);
    let poison = properties("poison");
    publish(&channel, "", &intake, poison, b"{}").await;
    kill_consumers(&channel, &intake).await;

    let scheduler = fleet.member(&["scheduler"]);
    fleet.green(scheduler).await;
    bad_submissions_are_kept_with_their_problem(&fleet, &channel).await;

    let (dead, _) = fleet.submit("dead", &fleet.chain(1, "0")).await;
    kill_consumers(&channel, &fleet.steps_queue("default")).await;
    let died = r#"standfast_scheduler_steps_dead_total{reason="delivery_limit"}"#;
    counted(&fleet, died, 1.0).await;

    let waiting = a_full_queue_takes_no_more(&fleet).await;
    fleet.member(&["worker", "--concurrency", "8"]);
    fleet.completed_once(&[vec![dead], waiting.clone()].concat(), 1).await;

    bad_step_messages_are_counted(&fleet, &channel, &waiting[0]).await;
    attempts_are_counted_by_the_record_alone(&fleet, &channel).await;
    the_topology_is_one_that_every_broker_takes(&fleet).await;
}

fn properties(id: &str) -> BasicProperties {
    BasicProperties::default()
        .with_message_id(id.into())
        .with_user_id("guest".into())
        .with_delivery_mode(2)
}

async fn publish(
    channel: &Channel,
    exchange: &str,
    key: &str,
    properties: BasicProperties,
    body: &[u8],
) {
    let options = BasicPublishOptions::default();
    let sent = channel.basic_publish(exchange.into(), key.into(), options, body, properties);
    sent.await.unwrap().await.unwrap();
}

/// Takes the only message of a queue and hands it back, as consumers that die do, until the
/// broker has seen enough.
async fn kill_consumers(channel: &Channel, queue: &str) {
    for _ in 0..=DELIVERY_LIMIT {
        let taken = wait::until(&format!("the message of {queue}"), async || {
            channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap()
        })
        .await;
        let back = BasicNackOptions { multiple: false, requeue: true };
        assert!(taken.delivery.acker.nack(back).await.unwrap());
    }
}

async fn counted(fleet: &Fleet, metric: &str, wanted: f64) {
    wait::until(&format!("{metric} to be {wanted}"), async || {
        (fleet.metric(metric).await == wanted).then_some(())
    })
    .await;
}

async fn bad_submissions_are_kept_with_their_problem(fleet: &Fleet, channel: &Channel) {
    let prefix = fleet.own.place.prefix.as_str();
    let submit = async |properties: BasicProperties, body: &[u8]| {
        publish(channel, prefix, "submit", properties, body).await;
    };
    let good = fleet.chain(1, "0").to_string();
    let unknown = json!({ "kind": "k", "steps": [{ "id": "a", "uses": "no-such-handler" }] });
    let unknown = unknown.to_string();
    submit(properties("malformed"), b"{\"kind\"").await;
    submit(properties("unknown"), unknown.as_bytes()).await;
    submit(properties("oversize"), &vec![b' '; OVERSIZE]).await;
    let mut headers = FieldTable::default();
    headers.insert("wide".into(), AMQPValue::LongString("w".repeat(WIDE_HEADER).into()));
    headers.insert("small".into(), AMQPValue::LongString("kept".into()));
    submit(properties("wide").with_headers(headers), unknown.as_bytes()).await;
    let nobody = BasicProperties::default().with_message_id("nobody".into());
    submit(nobody, good.as_bytes()).await;
    publish(channel, prefix, "signal", properties("foreign"), b"{}").await;
    submit(properties("good"), good.as_bytes()).await;
    submit(properties("good"), good.as_bytes()).await;

    for (outcome, count) in [
        ("created", 1.0),
        ("known", 1.0),
        ("invalid_json", 2.0),
        ("invalid_plan", 2.0),
        ("unauthorized", 1.0),
        ("invalid_request", 1.0),
    ] {
        let metric = format!(r#"standfast_intake_messages_total{{outcome="{outcome}"}}"#);
        counted(fleet, &metric, count).await;
    }
    let listed = fleet.own.command(&["dead", "list", "--json"]).output().unwrap();
    assert!(listed.status.success(), "{}", said(&listed));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let kept = listed["messages"].as_array().unwrap();
    let mut why: Vec<(&str, &str)> = kept.iter().map(explained).collect();
    why.sort_unstable();
    let expected = [
        ("foreign", "invalid_request"),
        ("malformed", "invalid_json"),
        ("nobody", "unauthorized"),
        ("oversize", "invalid_json"),
        ("poison", "delivery_limit"),
        ("unknown", "invalid_plan"),
        ("wide", "invalid_plan"),
    ];
    assert_eq!(why, expected);
    let of = |id: &str| kept.iter().find(|message| message["message_id"] == id).unwrap();
    assert_eq!(of("oversize")["body"].as_str().unwrap().len(), OVERSIZE);
    let headers = of("wide")["headers"].to_string();
    assert!(headers.contains("small") && !headers.contains("www"), "{}", headers.len());
    let table = fleet.own.run(&["dead", "list"], 0);
    assert!(table.contains("no-such-handler") && table.contains("delivery_limit"), "{table}");
    fleet.own.run(&["dead", "drop", "--all"], 0);
}

/// Gives a kept message's id, and the kind of its problem or the broker's word.
fn explained(message: &Value) -> (&str, &str) {
    let reason = &message["reason"];
    let kind = reason["type"].as_str().or(reason.as_str()).unwrap_or_default();
    (message["message_id"].as_str().unwrap(), kind.rsplit('/').next().unwrap())
}

async fn a_full_queue_takes_no_more(fleet: &Fleet) -> Vec<String> {
    let queues = format!("^{}[.]steps[.]", fleet.own.place.prefix);
    let policy = format!(r#"{{"max-length":{ROOM},"overflow":"reject-publish"}}"#);
    let apply = ["set_policy", "full", &queues, &policy, "--apply-to", "queues"];
    fleet.node.control(&apply).await;
    let tasks = fleet.submit_all("full", &fleet.chain(1, "0"), 4 * ROOM).await;
    wait::until("messages to be refused", async || {
        (fleet.metric("standfast_rabbitmq_nacked_total").await >= ROOM as f64).then_some(())
    })
    .await;
    // The sweep does not take what was refused for sent.
    wait::until("the sweep to try again", async || {
        let log = fleet.members[1].log();
        log.contains("the broker does not take step messages").then_some(())
    })
    .await;
    tasks
}

async fn bad_step_messages_are_counted(fleet: &Fleet, channel: &Channel, done: &str) {
    let queue = fleet.steps_queue("default");
    let message =
        |task: &str, step: &str| json!({"task": task, "step": step, "epoch": 1, "attempt": 1});
    let mut oversize = message(done, "s0");
    oversize["padding"] = json!("x".repeat(OVERSIZE));
    let before = fleet.metric("standfast_worker_attempts_started_total{queue=\"default\"}").await;
    let not_claimable = r#"standfast_worker_deliveries_spent_total{reason="not_claimable"}"#;
    let spent = fleet.metric(not_claimable).await;
    for body in [
        "{\"task\"".to_owned(),
        "\u{1}".to_owned(),
        "{}".to_owned(),
        message(&format!("{}zzzzzzzzzzzzz", &done[..4]), "s0").to_string(),
        message(done, "no-such-step").to_string(),
        message(done, "s0").to_string(),
        message(done, "s0").to_string(),
        oversize.to_string(),
    ] {
        publish(channel, "", &queue, properties("bad"), body.as_bytes()).await;
    }
    counted(fleet, "standfast_worker_deliveries_malformed_total", 3.0).await;
    counted(fleet, r#"standfast_scheduler_steps_dead_total{reason="unreadable"}"#, 3.0).await;
    counted(fleet, r#"standfast_worker_deliveries_spent_total{reason="no_task"}"#, 1.0).await;
    counted(fleet, r#"standfast_worker_deliveries_spent_total{reason="no_step"}"#, 1.0).await;
    counted(fleet, not_claimable, spent + 3.0).await;
    let after = fleet.metric("standfast_worker_attempts_started_total{queue=\"default\"}").await;
    assert_eq!(before, after, "nothing was started");
}

async fn attempts_are_counted_by_the_record_alone(fleet: &Fleet, channel: &Channel) {
    let attempts = fleet.own.path().join("attempts-made");
    let script = format!("echo $STANDFAST_ATTEMPT >> {}; exit 1", attempts.display());
    let mut step = fleet.step("s0", &[], &script);
    step["retry"] = json!({ "max_attempts": 4, "backoff": "0s" });
    step["on_failure"] = json!("fail");
    let (task, _) = fleet.submit("forged", &json!({ "kind": "k", "steps": [step] })).await;
    let mut death = FieldTable::default();
    death.insert("count".into(), AMQPValue::LongLongInt(99));
    death.insert("reason".into(), AMQPValue::LongString("rejected".into()));
    let mut headers = FieldTable::default();
    headers
        .insert("x-death".into(), AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into()));
    headers.insert("x-delivery-count".into(), AMQPValue::LongLongInt(99));
    for attempt in (1..=5).rev() {
        let body = json!({"task": task, "step": "s0", "epoch": 1, "attempt": attempt}).to_string();
        let forged = properties("forged").with_headers(headers.clone());
        publish(channel, "", &fleet.steps_queue("default"), forged, body.as_bytes()).await;
    }
    assert_eq!(fleet.own.ended(&task).await.state, TaskState::Failed);
    assert_eq!(std::fs::read_to_string(attempts).unwrap(), "1\n2\n3\n4\n");
}

/// Newer brokers refuse queues that are neither durable nor exclusive, and old arguments.
async fn the_topology_is_one_that_every_broker_takes(fleet: &Fleet) {
    let columns = ["name", "durable", "exclusive", "auto_delete", "arguments"];
    let words = [&["list_queues", "--no-table-headers"][..], &columns[..]].concat();
    let listed = fleet.node.control(&words).await;
    let ours = listed.lines().filter(|line| line.starts_with(&fleet.own.place.prefix));
    let mut count = 0;
    for line in ours {
        count += 1;
        let fields: Vec<&str> = line.split('\t').collect();
        // Durable, not exclusive, not deleted by itself.
        assert!(matches!(fields[1..4], ["true", "" | "false", "false"]), "{fields:?}");
        assert!(line.contains("x-queue-type") && line.contains("quorum"), "{line}");
        for old in ["x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-ha-"] {
            assert!(!line.contains(old), "{line}");
        }
    }
    assert_eq!(count, 4, "{listed}");
}
