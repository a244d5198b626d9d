//! The operator's commands, against what they are for: damage, settings, tokens, bad messages.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use standfast_protocol::tasks::{SubmitRequest, TaskQuery};
use standfast_tests::binary::Draw;
use standfast_tests::private_redis::PrivateRedis;
use standfast_tests::processes::{Installation, said};
use standfast_tests::services::amqp_url;
use standfast_tests::{binary, wait};

fn small() -> Value {
    json!({ "kind": "small", "steps": [
        { "id": "only", "uses": "exec", "with": { "command": ["true"] } },
    ]})
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_names_the_event_whose_byte_was_changed() {
    let own = Installation::start("30s").await;
    let _api = own.api().await;
    let _processes = [own.process(&["scheduler"]), own.process(&["worker"])];
    let task = own.client().submit(small()).await.unwrap().id;
    own.completed(std::slice::from_ref(&task)).await;
    let url = own.url();
    own.run(&["verify", &task, "--url", &url], 0);

    let partition = &task[1..3];
    let key = format!("{{{}:p{partition}}}:e:{task}", own.place.prefix);
    let event = own.redis.command(&["LINDEX", &key, "1"]).await;
    let letter = event.find("\"at\":").unwrap() + 6;
    let mut damaged = event.clone().into_bytes();
    damaged[letter] = if damaged[letter] == b'1' { b'2' } else { b'1' };
    let damaged = String::from_utf8(damaged).unwrap();
    own.redis.command(&["LSET", &key, "1", &damaged]).await;
    let text = own.run(&["verify", &task, "--url", &url], 1);
    assert!(text.contains("event 2"), "{text}\n{event}\n{damaged}");
    own.redis.command(&["LSET", &key, "1", &event]).await;
    own.run(&["verify", &task, "--url", &url], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_wants_a_redis_that_keeps_what_it_answered() {
    let directory = tempfile::tempdir().unwrap();
    let careless = PrivateRedis::start(&["--appendonly", "no"]).await;
    let careful = PrivateRedis::start(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--maxmemory-policy",
        "noeviction",
    ])
    .await;
    for (redis, code) in [(&careless, 1), (&careful, 0)] {
        let url = redis.url();
        let output = binary::output(directory.path(), &["doctor", "--redis", &url]);
        assert_eq!(output.status.code(), Some(code), "{}", said(&output));
        assert_eq!(said(&output).contains("appendonly"), code == 1, "{}", said(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relaxed_durability_is_shown_and_is_the_operators_to_accept() {
    let own = Installation::start("30s").await; // its Redis syncs once a second
    let effect = json!({ "class": "irreversible" });
    let plan = json!({ "kind": "small", "steps": [
        { "id": "only", "uses": "exec", "with": { "command": ["true"] }, "effect": effect },
    ]});
    let ready = async || {
        let answer = reqwest::get(format!("{}/readyz", own.url())).await.unwrap();
        answer.json::<Value>().await.unwrap()
    };
    let strict = own.api().await;
    assert_eq!(ready().await["durability"], "relaxed");
    let refused = own.client().submit(plan.clone()).await.unwrap_err().to_string();
    assert!(refused.contains("--accept-relaxed-durability"), "{refused}");
    drop(strict);
    let mut command = own.command(&["api"]);
    command.env("STANDFAST_ACCEPT_RELAXED_DURABILITY", "true");
    let _lenient = binary::Running::start(command, &own.path().join("api.log"));
    let task = wait::until("the submission to be taken", async || {
        own.client().submit(plan.clone()).await.ok()
    })
    .await;
    assert_eq!(ready().await["durability"], "relaxed", "accepting changes nothing about it");
    let text = own.run(&["effects", &task.id, "--url", &own.url()], 0);
    assert!(text.starts_with("no effects:"), "{text}");
    let text = own.run(&["doctor"], 0);
    assert!(text.contains("warning  durability: relaxed"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_made_listed_and_revoked() {
    let own = Installation::start("30s").await;
    let secret = own.make_token("publisher", "user:ana");
    let text = own.run(&["token", "list"], 0);
    assert!(text.contains("user:ana") && text.contains("user:operator"), "{text}");
    assert!(!text.contains(&secret), "a secret is shown once only");
    let _api = own.api().await;
    let status = async || {
        let url = format!("{}/v1/tasks", own.url());
        let request = reqwest::Client::new().get(url).bearer_auth(&secret);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status().await, 200);
    let listed = serde_json::from_str::<Value>(&own.run(&["token", "list", "--json"], 0)).unwrap();
    let tokens = listed["tokens"].as_array().unwrap();
    let ana = tokens.iter().find(|token| token["principal"] == "user:ana").unwrap();
    own.run(&["token", "revoke", ana["id"].as_str().unwrap()], 0);
    wait::until("the revoked token to be refused", async || (status().await == 401).then_some(()))
        .await;
    own.run(&["token", "revoke", ana["id"].as_str().unwrap()], 1);
}

/// Publishes a body with the key `submit`; gives the reply if one was asked for.
async fn publish(own: &Installation, id: &str, body: &[u8], reply: bool) -> Option<Value> {
    use futures::StreamExt;
    own.takes_messages().await;
    let properties = lapin::ConnectionProperties::default();
    let connection = lapin::Connection::connect(&amqp_url(), properties).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let exclusive = lapin::options::QueueDeclareOptions { exclusive: true, ..Default::default() };
    let queue = channel.queue_declare("".into(), exclusive, Default::default()).await.unwrap();
    let options = lapin::options::BasicConsumeOptions { no_ack: true, ..Default::default() };
    let name = queue.name().clone();
    let mut replies =
        channel.basic_consume(name.clone(), "".into(), options, Default::default()).await.unwrap();
    let properties = lapin::BasicProperties::default()
        .with_message_id(id.into())
        .with_user_id("guest".into())
        .with_delivery_mode(2)
        .with_reply_to(name);
    let prefix = own.place.prefix.as_str().into();
    let sent = channel.basic_publish(prefix, "submit".into(), Default::default(), body, properties);
    sent.await.unwrap().await.unwrap();
    if !reply {
        return None;
    }
    let delivery = tokio::time::timeout(wait::PATIENCE, replies.next()).await;
    let delivery = delivery.expect("a reply within patience").unwrap().unwrap();
    Some(serde_json::from_slice(&delivery.data).unwrap())
}

fn dead(own: &Installation) -> Vec<Value> {
    let listed = own.command(&["dead", "list", "--json"]).output().unwrap();
    assert!(listed.status.success(), "{}", said(&listed));
    let page: Value = serde_json::from_slice(&listed.stdout).unwrap();
    page["messages"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_message_is_listed_sent_again_and_dropped() {
    let own = Installation::start("30s").await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    // Until a handler `shout` is announced this plan is a fault; afterwards it is none.
    let plan = json!({ "kind": "later", "steps": [
        { "id": "only", "uses": "shout", "with": { "text": "x" } },
    ]});
    publish(&own, "bad-1", plan.to_string().as_bytes(), true).await;
    publish(&own, "bad-2", b"{ not json", true).await;
    wait::until("both messages to be rejected", async || (dead(&own).len() == 2).then_some(()))
        .await;
    let text = own.run(&["dead", "list"], 0);
    assert!(text.contains("bad-1") && text.contains("bad-2"), "{text}");
    let queue = format!("{}.rejected", own.place.prefix);
    wait::until("doctor to count both", async || {
        let report: Value = serde_json::from_str(&own.run(&["doctor", "--json"], 0)).unwrap();
        let mut checks = report["checks"].as_array().unwrap().iter();
        let check = checks.find(|check| check["name"] == "rejected messages").unwrap();
        let found = format!("2 messages in {queue}");
        (check["severity"] == "warning" && check["found"] == found).then_some(())
    })
    .await;

    let announced = json!({ "worker": "w-1", "queues": ["default"],
                            "handlers": [{ "name": "shout" }] });
    let worker = own.make_token("worker", "worker:w1");
    let request = reqwest::Client::new().post(format!("{}/v1/workers", own.url()));
    let answer = request.bearer_auth(worker).json(&announced).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    own.run(&["dead", "requeue", "bad-1"], 0);
    let client = own.client();
    wait::until("the requeued message to become a task", async || {
        client.list(&TaskQuery::default()).await.unwrap().tasks.pop()
    })
    .await;
    assert_eq!(dead(&own).len(), 1);
    own.run(&["dead", "drop", "bad-1"], 1);
    own.run(&["dead", "drop", "bad-2"], 0);
    assert!(dead(&own).is_empty());
}

/// A plan with six faults of six kinds, and the places they must be found at.
fn six_faults() -> (Value, BTreeSet<&'static str>) {
    let run = json!({ "command": ["true"] });
    let plan = json!({ "kind": "faulty", "steps": [
        { "id": "a", "uses": "nobody", "with": {} },
        { "id": "b", "uses": "exec", "with": run, "needs": ["missing"] },
        { "id": "c", "uses": "exec", "with": run, "if": "1 +" },
        { "id": "d", "uses": "exec", "with": run, "retry": { "max_attempts": 0 } },
        { "id": "e", "uses": "exec", "with": run, "timeout": { "attempt": "soon" } },
        { "id": "f", "uses": "exec", "with": run, "colour": "red" },
    ]});
    let places = [
        "/steps/0/uses",
        "/steps/1/needs/0",
        "/steps/2/if",
        "/steps/3/retry/max_attempts",
        "/steps/4/timeout/attempt",
        "/steps/5/colour",
    ];
    (plan, places.into())
}

fn pointers(problem: &Value) -> BTreeSet<&str> {
    let errors = problem["errors"].as_array().unwrap_or_else(|| panic!("{problem}"));
    assert_eq!(errors.len(), 6, "{problem}");
    errors.iter().map(|error| error["pointer"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn six_faults_are_told_alike_over_http_amqp_and_the_command_line() {
    let own = Installation::start("30s").await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let (plan, places) = six_faults();

    let request = reqwest::Client::new().post(format!("{}/v1/tasks", own.url()));
    let answer = request.bearer_auth(&own.token).json(&plan).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 422);
    let over_http: Value = answer.json().await.unwrap();
    assert_eq!(pointers(&over_http), places);

    let reply = publish(&own, "six", plan.to_string().as_bytes(), true).await.unwrap();
    assert_eq!(reply["problem"]["errors"], over_http["errors"]);

    std::fs::write(own.path().join("six.json"), plan.to_string()).unwrap();
    let url = own.url();
    for arguments in [&["plan", "check", "six.json"][..], &["submit", "six.json", "--url", &url]] {
        let text = own.run(arguments, 1);
        for error in over_http["errors"].as_array().unwrap() {
            let (pointer, message) = (error["pointer"].as_str(), error["message"].as_str());
            let line = format!("{}: {}", pointer.unwrap(), message.unwrap());
            assert!(text.contains(&line), "{arguments:?} does not say `{line}`:\n{text}");
        }
    }
}

#[test]
fn a_plan_may_come_from_standard_input() {
    let place = tempfile::tempdir().unwrap();
    let (plan, places) = six_faults();
    for (plan, code) in [(small(), 0), (plan, 1)] {
        let file = place.path().join("plan.json");
        std::fs::write(&file, plan.to_string()).unwrap();
        let mut command = binary::command(place.path());
        command.args(["plan", "check", "-"]).stdin(std::fs::File::open(&file).unwrap());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text}");
        let told = places.iter().filter(|pointer| text.contains(**pointer)).count();
        assert_eq!(told, if code == 0 { 0 } else { places.len() }, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keyed_submissions_lead_to_one_task_each_though_the_api_is_killed() {
    let mut draw = Draw::new();
    let own = Installation::start("3s").await;
    let mut api = own.api().await;
    let _processes = [own.process(&["scheduler"]), own.process(&["worker"])];
    let request = SubmitRequest { plan: small(), plan_dir: None };
    let keys: Vec<String> = (0..20).map(|n| format!("order-{n}")).collect();
    let hasty = own.client().patience(Duration::ZERO);
    let mut known: Vec<Option<String>> = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let (client, request, key) = (hasty.clone(), request.clone(), key.clone());
        let sending = tokio::spawn(async move { client.submit_keyed(&request, &key).await });
        if n % 5 == 4 {
            let moment = Duration::from_micros(draw.below(8_000));
            tokio::time::sleep(moment).await; // the moment of the kill, not a condition
            api.kill();
            known.push(sending.await.unwrap().ok().map(|submitted| submitted.id));
            api = own.api().await;
        } else {
            known.push(Some(sending.await.unwrap().unwrap().id));
        }
    }
    let mut tasks = Vec::new();
    for (key, before) in keys.iter().zip(known) {
        let submitted = own.client().submit_keyed(&request, key).await.unwrap();
        if let Some(before) = before {
            assert_eq!(submitted.id, before, "{key} led to a second task");
        }
        tasks.push(submitted.id);
    }
    own.completed(&tasks).await;
    let query = TaskQuery { limit: Some(200), ..TaskQuery::default() };
    let mut listed = BTreeSet::new();
    let mut page = own.client().list(&query).await.unwrap();
    loop {
        listed.extend(page.tasks.into_iter().map(|task| task.id));
        let Some(cursor) = page.next_cursor else { break };
        let query = TaskQuery { cursor: Some(cursor), ..query.clone() };
        page = own.client().list(&query).await.unwrap();
    }
    assert_eq!(listed, tasks.into_iter().collect::<BTreeSet<_>>());
    drop(api);
}
