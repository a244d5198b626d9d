//! The publisher and the worker against a real broker, `STANDFAST_TEST_AMQP` or the local one.

use std::time::Duration;

use crate::support::{Api, PATIENCE, claim, nothing, ok, usual};
use futures::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use serde_json::{Value, json};
use standfast_protocol::amqp::{
    CONTROL_EXCHANGE, ControlMessage, StepMessage, SubmitReply, steps_queue,
};
use standfast_protocol::problem::{Problem, ProblemKind};
use standfast_protocol::tasks::{Submitted, TaskState};
use standfast_sdk::{AmqpPublisher, Context, Error, Worker};
use tokio::sync::{oneshot, watch};

fn url() -> String {
    std::env::var("STANDFAST_TEST_AMQP")
        .unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672".to_owned())
}

async fn broker() -> (Connection, Channel) {
    let connection = Connection::connect(&url(), ConnectionProperties::default()).await;
    let connection = connection.unwrap_or_else(|error| {
        panic!("these tests need RabbitMQ at {} (set STANDFAST_TEST_AMQP): {error}", url())
    });
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

fn unique(name: &str) -> String {
    format!("sdk-test-{name}-{}", uuid::Uuid::now_v7().simple())
}

async fn declare_exchange(channel: &Channel, name: &str) {
    let options = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    let declare =
        channel.exchange_declare(name.into(), ExchangeKind::Topic, options, FieldTable::default());
    declare.await.unwrap();
}

/// Declares an exchange and answers the submissions to it. Plans of kind `bad` are refused,
/// plans of kind `mute` get no reply.
async fn intake(channel: &Channel, exchange: &str) {
    declare_exchange(channel, exchange).await;
    let none = FieldTable::default;
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    let queue = channel.queue_declare("".into(), options, none()).await.unwrap().name().clone();
    let bind = QueueBindOptions::default();
    channel
        .queue_bind(queue.clone(), exchange.into(), "submit".into(), bind, none())
        .await
        .unwrap();
    let options = BasicConsumeOptions::default();
    let mut messages = channel.basic_consume(queue, "".into(), options, none()).await.unwrap();
    let channel = channel.clone();
    tokio::spawn(async move {
        while let Some(Ok(message)) = messages.next().await {
            let body: Value = serde_json::from_slice(&message.data).unwrap();
            let properties = message.properties.clone();
            let key = properties.message_id().as_ref().unwrap().to_string();
            let user = properties.user_id().as_ref().map(ToString::to_string);
            let reply = match body["plan"]["kind"].as_str() {
                Some("mute") => continue,
                Some("bad") => {
                    SubmitReply::Problem(Problem::new(ProblemKind::InvalidPlan, "bad it is"))
                }
                _ => SubmitReply::Submitted(Submitted {
                    id: format!("t-{key}-{}", user.unwrap_or_default()),
                    created: true,
                    state: TaskState::Queued,
                    url: String::new(),
                }),
            };
            let to = properties.reply_to().clone().unwrap();
            let correlation = properties.correlation_id().clone().unwrap();
            let properties = BasicProperties::default().with_correlation_id(correlation);
            let body = serde_json::to_vec(&reply).unwrap();
            let options = BasicPublishOptions::default();
            channel.basic_publish("".into(), to, options, &body, properties).await.unwrap();
        }
    });
}

fn request(kind: &str) -> standfast_protocol::tasks::SubmitRequest {
    standfast_protocol::tasks::SubmitRequest { plan: json!({"kind": kind}), plan_dir: None }
}

#[tokio::test]
async fn a_publisher_gets_the_task_or_the_problem() {
    let (_connection, channel) = broker().await;
    let exchange = unique("exchange");
    intake(&channel, &exchange).await;
    let publisher = AmqpPublisher::new(&url()).unwrap().exchange(&exchange);
    let good = request("good");
    let answer = publisher.submit_keyed(&good, "k1").await.unwrap();
    assert_eq!(answer.id, "t-k1-guest");
    let error = publisher.submit_keyed(&request("bad"), "k2").await.unwrap_err();
    assert_eq!(error.problem(), Some(ProblemKind::InvalidPlan));
    let (a, b) =
        tokio::join!(publisher.submit_keyed(&good, "a"), publisher.submit_keyed(&good, "b"));
    assert_eq!((a.unwrap().id.as_str(), b.unwrap().id.as_str()), ("t-a-guest", "t-b-guest"));
    let error = publisher.submit_keyed(&good, &"k".repeat(256)).await.unwrap_err();
    assert!(matches!(error, Error::Setup(_)), "{error}");
}

#[tokio::test]
async fn a_publisher_without_a_reply_ends_in_time() {
    let (_connection, channel) = broker().await;
    let exchange = unique("exchange");
    intake(&channel, &exchange).await;
    let publisher = AmqpPublisher::new(&url()).unwrap().exchange(&exchange);
    let publisher = publisher.reply_timeout(Duration::from_millis(50));
    let error = publisher.submit_keyed(&request("mute"), "k").await.unwrap_err();
    assert!(matches!(error, Error::NoReply { key } if key == "k"));
}

#[tokio::test]
async fn a_publisher_connects_again_after_its_channel_broke() {
    let (_connection, channel) = broker().await;
    let exchange = unique("exchange");
    let publisher = AmqpPublisher::new(&url()).unwrap().exchange(&exchange);
    let error = publisher.submit(json!({})).await.unwrap_err();
    assert!(error.is_passing(), "no such exchange: {error}");
    declare_exchange(&channel, &exchange).await;
    let error = publisher.submit(json!({})).await.unwrap_err();
    assert!(error.to_string().contains("no queue takes submissions"), "{error}");
    intake(&channel, &exchange).await;
    assert!(publisher.submit(json!({})).await.is_ok());
}

#[tokio::test]
async fn a_worker_acks_what_is_reported_and_what_cannot_be_claimed() {
    let (_connection, channel) = broker().await;
    let queue = unique("queue");
    let name = steps_queue(&queue);
    let none = FieldTable::default;
    let options = QueueDeclareOptions::default();
    channel.queue_declare(name.as_str().into(), options, none()).await.unwrap();
    // One message at a time is delivered, so all were dealt with once the last one is.
    publish(&channel, &name, &step("stale")).await;
    publish(&channel, &name, b"not ours").await;
    publish(&channel, &name, &step("s")).await;

    let (_leave, left) = watch::channel(false);
    let api = Api::start(move |call| {
        let mut left = left.clone();
        async move {
            if call.is("/claims") {
                let stale = call.json()["step"]["step"] == "stale";
                return if stale { nothing() } else { claim(json!({})) };
            }
            usual(&call, &mut left, nothing()).await
        }
    });
    let (end, ended) = oneshot::channel::<()>();
    let worker = Worker::connect(&api.url, "t").unwrap().queue(&queue).amqp(&url());
    let worker = worker.handler("h", |_: Context, input: Value| async move { Ok(input) });
    let running = worker.run_until(async { drop(ended.await) });
    let watching = async {
        api.until("/complete", 1).await;
        drop(end);
    };
    let (run, ()) = tokio::join!(tokio::time::timeout(PATIENCE, running), watching);
    run.unwrap().unwrap();
    assert_eq!(api.calls("/complete").len(), 1);
    assert_eq!(left_in(&channel, &name).await, Vec::<Vec<u8>>::new());
}

#[tokio::test]
async fn a_worker_hears_of_a_stop_without_waiting_for_its_heartbeat() {
    let (_connection, channel) = broker().await;
    let control = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let fanout = ExchangeKind::Fanout;
    channel
        .exchange_declare(CONTROL_EXCHANGE.into(), fanout, control, FieldTable::default())
        .await
        .unwrap();
    let queue = unique("queue");
    let name = steps_queue(&queue);
    let options = QueueDeclareOptions::default();
    channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await.unwrap();
    publish(&channel, &name, &step("s")).await;

    let (_leave, left) = watch::channel(false);
    let api = Api::start(move |call| {
        let mut left = left.clone();
        async move {
            if call.is("/claims") {
                return claim(json!({ "heartbeat_ms": 3_600_000 }));
            }
            if call.is("/heartbeat") {
                return ok(json!({"stop": true, "expires_ms": 3_600_000}));
            }
            usual(&call, &mut left, nothing()).await
        }
    });
    let (end, ended) = oneshot::channel::<()>();
    let (started, running) = watch::channel(false);
    let worker = Worker::connect(&api.url, "t").unwrap().queue(&queue).amqp(&url());
    let worker = worker.handler("h", move |context: Context, _: Value| {
        started.send_replace(true);
        async move {
            context.cancellation().cancelled().await;
            Ok(Value::Null)
        }
    });
    let worker = tokio::spawn(worker.run_until(async { drop(ended.await) }));
    running.clone().wait_for(|running| *running).await.unwrap();
    assert!(api.calls("/heartbeat").is_empty(), "the first one is due in an hour");
    let message = ControlMessage {
        what: "task_ending".to_owned(),
        task: "t".to_owned(),
        step: None,
        epoch: 2,
        attempt: None,
    };
    let options = BasicPublishOptions::default();
    let body = serde_json::to_vec(&message).unwrap();
    channel
        .basic_publish(CONTROL_EXCHANGE.into(), "".into(), options, &body, Default::default())
        .await
        .unwrap();
    api.until("/complete", 1).await;
    drop(end);
    tokio::time::timeout(PATIENCE, worker).await.unwrap().unwrap().unwrap();
    assert_eq!(left_in(&channel, &name).await, Vec::<Vec<u8>>::new());
}

fn step(step: &str) -> Vec<u8> {
    let message = StepMessage { task: "t".into(), step: step.into(), epoch: 2, attempt: 3 };
    serde_json::to_vec(&message).unwrap()
}

async fn publish(channel: &Channel, queue: &str, body: &[u8]) {
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default();
    channel.basic_publish("".into(), queue.into(), options, body, properties).await.unwrap();
}

/// Takes what is left in a queue, up to a marker, and removes the queue.
async fn left_in(channel: &Channel, queue: &str) -> Vec<Vec<u8>> {
    publish(channel, queue, b"marker").await;
    let options = BasicConsumeOptions::default();
    let consume = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
    let mut messages = consume.await.unwrap();
    let mut left = Vec::new();
    loop {
        let next = tokio::time::timeout(PATIENCE, messages.next()).await;
        let message = next.expect("the marker comes").unwrap().unwrap();
        message.acker.ack(BasicAckOptions::default()).await.unwrap();
        if message.data == b"marker" {
            break;
        }
        left.push(message.data.clone());
    }
    channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    left
}
