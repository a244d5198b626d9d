//! What comes over AMQP: names as long as the protocol allows, bodies that are no JSON, plans
//! with more faults than a header can carry.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use standfast_domain::ceiling::Ceiling;
use standfast_domain::ids::Principal;
use standfast_engine::submission::RETENTION_DEFAULT;
use standfast_engine::tokens::{Grant, Role, Tokens};
use standfast_protocol::amqp::PROBLEM_HEADER;
use standfast_scheduler::Intake;
use standfast_tests::embedded::World;
use standfast_tests::services::{Place, amqp_url};
use standfast_tests::wait;
use tokio_util::sync::CancellationToken;

use crate::support::{count, plan, step};

/// An intake over Redis and RabbitMQ, and a publisher's channel.
struct Rig {
    place: Place,
    world: World,
    channel: Channel,
    _connection: Connection,
    replies: String,
    shutdown: CancellationToken,
    _directory: tempfile::TempDir,
}

impl Rig {
    async fn start() -> Self {
        let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
        let world = World::over(place.store().await, place.broker().await, directory.path()).await;
        let shutdown = CancellationToken::new();
        let intake = Intake {
            engine: world.engine.clone(),
            tokens: Arc::new(Tokens::new(world.engine.clone())),
            registry: world.registry.clone(),
            handlers: Arc::new(world.handlers.clone()),
            retention: RETENTION_DEFAULT,
            ungranted: Some(Arc::new(Ceiling::of_ungranted_users())),
            gauges: Arc::default(),
        };
        tokio::spawn(intake.run(shutdown.clone()));
        let url = amqp_url();
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        // As long as a queue's name may be.
        let replies = format!("{}.replies.{}", place.prefix, "x".repeat(200));
        let options = QueueDeclareOptions { auto_delete: true, ..Default::default() };
        let declared =
            channel.queue_declare(replies.as_str().into(), options, FieldTable::default());
        declared.await.unwrap();
        let _directory = directory;
        Self { place, world, channel, _connection: connection, replies, shutdown, _directory }
    }

    fn properties(&self) -> BasicProperties {
        BasicProperties::default()
            .with_user_id("guest".into())
            .with_reply_to(self.replies.as_str().into())
    }

    async fn publish(&self, body: &[u8], properties: BasicProperties) {
        let (exchange, options) = (self.place.prefix.as_str(), BasicPublishOptions::default());
        let sent =
            self.channel.basic_publish(exchange.into(), "submit".into(), options, body, properties);
        sent.await.unwrap().await.unwrap();
    }

    /// Waits for the next reply: its correlation id and body.
    async fn reply(&self) -> (String, Value) {
        let message = self.take(&self.replies).await;
        let id = message.properties.correlation_id().clone().map(|id| id.to_string());
        let reply: Value = serde_json::from_slice(&message.data).unwrap();
        let (_, told) = reply.as_object().unwrap().iter().next().unwrap();
        (id.unwrap_or_default(), told.clone())
    }

    async fn take(&self, queue: &str) -> lapin::message::Delivery {
        let options = BasicGetOptions { no_ack: true };
        wait::until(&format!("a message in {queue}"), async || {
            let got = self.channel.basic_get(queue.into(), options).await.unwrap();
            got.map(|message| message.delivery)
        })
        .await
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.place.clean(&["default"]).await;
    }
}

fn body() -> Vec<u8> {
    plan(vec![step("a", &[], "true")]).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_255_bytes_go_through_and_are_answered() {
    let rig = Rig::start().await;
    for (key, correlation) in [
        ("k".repeat(255), Some("c".repeat(255))),
        ("m".repeat(255), None),
        ("é".repeat(127), Some("é".repeat(127))),
    ] {
        let mut properties = rig.properties().with_message_id(key.as_str().into());
        if let Some(id) = &correlation {
            properties = properties.with_correlation_id(id.as_str().into());
        }
        rig.publish(&body(), properties.clone()).await;
        let (id, first) = rig.reply().await;
        assert_eq!(id, correlation.unwrap_or_else(|| key.clone()));
        assert!(first["id"].is_string(), "{first}");
        rig.publish(&body(), properties).await;
        let (_, again) = rig.reply().await;
        // It may be the reply that was promised to the first, not cleared yet.
        assert_eq!(again["id"], first["id"]);
    }
    assert_eq!(count(&rig.world.engine, "tasks").await, 3);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_accepted_is_kept_with_its_problem_and_the_intake_goes_on() {
    let rig = Rig::start().await;
    let rejected = format!("{}.rejected", rig.place.prefix);
    let steps = r#""steps":[{"id":"a","uses":"exec","with":{"command":["true"]}}]"#;
    let mut bodies: Vec<(Vec<u8>, &str)> = ["NaN", "Infinity", "-Infinity", "1e400"]
        .map(|value| {
            let text = format!(r#"{{"kind":"k","input":{{"a":[{{"b":{value}}}]}},{steps}}}"#);
            (text.into_bytes(), "invalid_json")
        })
        .to_vec();
    bodies.push((vec![b'{', 0xff, b'}'], "invalid_json"));
    for key in ["x".repeat(256), "é".repeat(128), "a\nb".to_owned()] {
        let mut plan = plan(vec![step("a", &[], "true")]);
        plan["idempotency_key"] = json!(key);
        bodies.push((plan.to_string().into_bytes(), "invalid_plan"));
    }
    for field in ["kind", "owner"] {
        let mut plan = plan(vec![step("a", &[], "true")]);
        plan[field] = json!("x".repeat(256));
        bodies.push((plan.to_string().into_bytes(), "invalid_plan"));
    }
    for (body, kind) in bodies {
        rig.publish(&body, rig.properties().with_message_id("m".into())).await;
        let (_, problem) = rig.reply().await;
        assert!(problem["type"].as_str().unwrap().ends_with(kind), "{problem}");
        let kept = rig.take(&rejected).await;
        assert_eq!(kept.data, body);
    }
    assert_eq!(count(&rig.world.engine, "tasks").await, 0);
    rig.publish(&body(), rig.properties().with_message_id("good".into())).await;
    assert_eq!(rig.reply().await.1["created"], true);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_with_thousands_of_faults_is_rejected_once_like_any_other() {
    let rig = Rig::start().await;
    let rejected = format!("{}.rejected", rig.place.prefix);
    let steps: Vec<Value> = (0..5_000).map(|n| json!({"id": format!("/{n}")})).collect();
    let body = plan(steps).to_string().into_bytes();
    rig.publish(&body, rig.properties().with_message_id("m".into())).await;
    let (_, problem) = rig.reply().await;
    assert!(problem["errors"].as_array().unwrap().len() > 1_000);
    let kept = rig.take(&rejected).await;
    assert_eq!(kept.data, body);
    let headers = kept.properties.headers().clone().unwrap();
    let reason = headers.inner().get(PROBLEM_HEADER).unwrap().as_long_string().unwrap();
    let reason: Value = serde_json::from_slice(reason.as_bytes()).unwrap();
    assert_eq!(reason["type"], problem["type"]);
    assert!(reason["detail"].as_str().unwrap().contains("fault"), "{reason}");
    rig.publish(&self::body(), rig.properties().with_message_id("good".into())).await;
    let next = tokio::time::timeout(Duration::from_secs(30), rig.reply()).await.unwrap();
    assert_eq!(next.1["created"], true);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_a_grant_publishes_within_a_ceiling_and_one_with_a_grant_within_its_own() {
    let rig = Rig::start().await;
    let mut plan = plan(vec![step("a", &[], "true")]);
    plan["owner"] = json!("user:boss");
    plan["operators"] = json!(["group:all"]);
    plan["steps"][0]["queue"] = json!("vault");
    plan["steps"][0]["timeout"] = json!({"attempt": "48h"});
    let publish = async |id: &str, effect: &str| {
        let mut plan = plan.clone();
        plan["steps"][0]["effect"] = json!({"class": effect, "target": "bank"});
        let properties = rig.properties().with_message_id(id.into());
        rig.publish(plan.to_string().as_bytes(), properties).await;
        rig.reply().await.1
    };
    let refused = publish("beyond", "irreversible").await;
    assert!(refused["type"].as_str().unwrap().ends_with("forbidden"), "{refused}");
    let errors = refused["errors"].as_array().unwrap().iter();
    let places: Vec<&str> = errors.map(|fault| fault["pointer"].as_str().unwrap()).collect();
    let step = |rest: &str| format!("/steps/0/{rest}");
    let expected = ["/owner".to_owned(), "/operators/0".to_owned(), step("effect")];
    for place in expected.iter().chain([&step("timeout/attempt")]) {
        assert!(places.contains(&place.as_str()), "{place} of {places:?}");
    }
    assert!(!places.contains(&step("queue").as_str()), "any queue may be reached: {places:?}");
    assert_eq!(count(&rig.world.engine, "tasks").await, 0);
    let tokens = Tokens::new(rig.world.engine.clone());
    let ceiling =
        Ceiling { owners: Some(["*".to_owned().try_into().unwrap()].into()), ..Ceiling::default() };
    let grant =
        Grant { ceiling, ..Grant::new(Principal::new("user:guest").unwrap(), Role::Publisher) };
    assert!(tokens.grant_amqp("guest", grant).await.unwrap().is_some());
    let granted = publish("granted", "none").await;
    assert_eq!(granted["created"], true, "{granted}");
    rig.end().await;
}
