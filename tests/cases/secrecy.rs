//! What others wrote does not reach a terminal or a log as anything but text, and a token
//! reaches neither.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use serde_json::{Value, json};
use standfast_tests::binary::{self, Running};
use standfast_tests::private_redis::{PrivateRedis, free_port};
use standfast_tests::services::{Place, amqp_url};
use standfast_tests::wait;

/// Moves the cursor, rings, hides and forges lines; and what a browser would run.
const HOSTILE: &str = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\u{1b}[2J\
                       \u{1b}]0;title\u{7}\r\nforged: line\u{9b}31m javascript:alert(3)";

fn parts(command: &mut Command, place: &Place, redis: &PrivateRedis, directory: &Path) {
    command
        .env("STANDFAST_REDIS", redis.url())
        .env("STANDFAST_AMQP", amqp_url())
        .env("STANDFAST_AMQP_PREFIX", &place.prefix)
        .env("STANDFAST_BLOBS", directory.join("blobs"))
        .env("STANDFAST_LOG", "debug");
}

/// Makes a command of an installation; what it logs is as detailed as an operator can ask for.
fn process(words: &[&str], place: &Place, redis: &PrivateRedis, directory: &Path) -> Command {
    let mut command = binary::command(directory);
    command.args(words);
    parts(&mut command, place, redis, directory);
    command
}

async fn logged(log: &Path, text: &str) -> String {
    wait::until(&format!("`{text}` in {}", log.display()), async || {
        let all = std::fs::read_to_string(log).unwrap_or_default();
        all.contains(text).then_some(all)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_every_route_and_stands_in_no_log() {
    let (redis, place) = (PrivateRedis::start(&[]).await, Place::new());
    let directory = tempfile::tempdir().unwrap();
    let make = ["token", "create", "--role", "admin", "--name", "user:ana"];
    let made = binary::command(directory.path())
        .args(make)
        .env("STANDFAST_REDIS", redis.url())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    assert!(token.starts_with("sf_"));
    let address = format!("127.0.0.1:{}", free_port());
    let log = directory.path().join("api.log");
    let words = ["api", "--listen", &address];
    let _api = Running::start(process(&words, &place, &redis, directory.path()), &log);
    logged(&log, "the api listens").await;
    let client = reqwest::Client::new();
    let url = |path: &str| format!("http://{address}{path}");
    for path in ["/v1/tasks", "/metrics", &format!("/v1/tasks?token={token}")] {
        assert_eq!(client.get(url(path)).send().await.unwrap().status(), 401, "{path}");
    }
    let authorized = |request: reqwest::RequestBuilder| request.bearer_auth(&token);
    let list = authorized(client.get(url("/v1/tasks"))).send().await.unwrap();
    assert_eq!(list.status(), 200);
    let plan = r#"{"kind":"k","steps":[]}"#;
    for (media, origin, status) in [
        ("application/json", "https://evil.example", 403),
        ("text/plain", "https://evil.example", 403),
        ("text/plain", url("").as_str(), 415),
    ] {
        let request = authorized(client.post(url("/v1/tasks"))).body(plan);
        let request = request.header("content-type", media).header("origin", origin);
        assert_eq!(request.send().await.unwrap().status(), status, "{media} {origin}");
    }
    let wrong = client.get(url("/v1/tasks")).header("authorization", format!("Basic {token}"));
    assert_eq!(wrong.send().await.unwrap().status(), 401);
    let wrong = client.post(url(&format!("/v1/tasks?token={token}"))).body(plan);
    assert_eq!(wrong.send().await.unwrap().status(), 401);
    let all = logged(&log, "refused").await;
    let (start, _) = token.split_at(12);
    assert!(!all.contains(start), "the log holds the token");
    place.clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_others_can_reach_demands_a_token_first() {
    let (redis, place) = (PrivateRedis::start(&[]).await, Place::new());
    let directory = tempfile::tempdir().unwrap();
    let address = format!("0.0.0.0:{}", free_port());
    let mut command = process(&["api", "--listen", &address], &place, &redis, directory.path());
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(text.contains("standfast token create"), "{text}");
    let help = binary::output(directory.path(), &["api", "--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("127.0.0.1:8080"));
    place.clean(&[]).await;
}

/// Gives the addresses that a process listens on, as the kernel writes them in proc(5).
fn listens_on(pid: u32) -> Vec<String> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let own: BTreeSet<String> = links.map(|link| link.display().to_string()).collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (local, state, inode) = (fields[1], fields[3], fields[9]);
            if state == "0A" && own.contains(&format!("socket:[{inode}]")) {
                found.push(local.split_once(':').unwrap().0.to_owned());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_token_yet_is_reached_from_this_machine_and_by_no_page() {
    let (redis, place) = (PrivateRedis::start(&[]).await, Place::new());
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let log = directory.path().join("api.log");
    let words = ["api", "--listen", &address];
    let api = Running::start(process(&words, &place, &redis, directory.path()), &log);
    logged(&log, "the api listens").await;
    let admin = free_port();
    let mut command = process(&["scheduler"], &place, &redis, directory.path());
    command.env("STANDFAST_ADMIN_ADDR", admin.to_string());
    let scheduler = Running::start(command, &directory.path().join("scheduler.log"));
    let client = reqwest::Client::new();
    wait::until("the scheduler to answer its operator", async || {
        client.get(format!("http://127.0.0.1:{admin}/healthz")).send().await.ok()
    })
    .await;
    for process in [&api, &scheduler] {
        assert_eq!(listens_on(process.0.id()), ["0100007F"], "127.0.0.1, and nothing else");
    }

    let url = |path: &str| format!("http://{address}{path}");
    let plan =
        json!({"kind": "k", "steps": [{"id": "a", "uses": "exec", "with": {"command": ["true"]}}]});
    let made = client.post(url("/v1/tasks")).json(&plan).send().await.unwrap();
    assert_eq!(made.status(), 201);
    let task = made.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned();
    let stop = url(&format!("/v1/tasks/{task}/stop"));
    let own = format!("http://{address}");
    let (json, form) = ("application/json", "application/x-www-form-urlencoded");
    let attack = |media: &'static str, more: &[(&'static str, &str)]| {
        let request = client.post(&stop).header("content-type", media);
        let request =
            more.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(r#"{"mode":"halt"}"#)
    };
    for (media, more, status) in [
        (json, vec![("origin", "https://evil.example")], 403),
        (form, vec![("origin", "https://evil.example")], 403),
        ("text/plain", vec![("origin", "null"), ("sec-fetch-mode", "no-cors")], 403),
        (json, vec![("sec-fetch-site", "cross-site")], 403),
        (json, vec![("sec-fetch-site", "same-site")], 403),
        (form, vec![("origin", own.as_str())], 415),
        ("text/plain", vec![], 415),
        (json, vec![("host", "evil.example")], 421),
        (json, vec![("host", "evil.example"), ("origin", "http://evil.example")], 421),
    ] {
        let answer = attack(media, &more).send().await.unwrap();
        assert_eq!(answer.status(), status, "{media} {more:?}");
        assert!(!answer.headers().contains_key("access-control-allow-origin"));
    }
    assert_eq!(client.get(&stop).send().await.unwrap().status(), 405);
    let view = client.get(url(&format!("/v1/tasks/{task}"))).send().await.unwrap();
    assert_eq!(view.json::<Value>().await.unwrap()["stop"], Value::Null, "nothing has stopped it");
    let stopped = attack(json, &[("origin", &own)]).send().await.unwrap();
    assert_eq!(stopped.status(), 200, "its own page may");
    drop((api, scheduler));
    place.clean(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_record_stays_one_line_whatever_a_publisher_sends() {
    let (redis, place) = (PrivateRedis::start(&[]).await, Place::new());
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("scheduler.log");
    let command = process(&["scheduler"], &place, &redis, directory.path());
    let _scheduler = Running::start(command, &log);
    let url = amqp_url();
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let name: String = HOSTILE.chars().take(60).chain("\r\nforged: line".chars()).collect();
    let properties = BasicProperties::default()
        .with_message_id(name.as_str().into())
        .with_correlation_id(name.as_str().into())
        .with_reply_to(name.as_str().into())
        .with_user_id("guest".into());
    let body = json!({"kind": HOSTILE, HOSTILE: HOSTILE}).to_string();
    wait::until("the intake's queue", async || {
        intake_exists(&connection, &place).await.then_some(())
    })
    .await;
    // A message that came before the queue was bound is returned, and sent again.
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    wait::until("the message to be taken", async || {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let prefix = place.prefix.as_str().into();
        let (body, properties) = (body.as_bytes(), properties.clone());
        let sent = channel.basic_publish(prefix, "submit".into(), options, body, properties);
        let confirmed = sent.await.unwrap().await.unwrap();
        matches!(confirmed, Confirmation::Ack(None)).then_some(())
    })
    .await;
    let all = logged(&log, "nobody waits for the reply").await;
    assert!(all.contains("message rejected"));
    plain(&all);
    assert!(all.lines().all(|line| !line.starts_with("forged")), "{all}");
    place.clean(&[]).await;
}

async fn intake_exists(connection: &Connection, place: &Place) -> bool {
    let channel = connection.create_channel().await.unwrap();
    let options = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
    let name = format!("{}.intake", place.prefix);
    channel.queue_declare(name.as_str().into(), options, Default::default()).await.is_ok()
}

/// Checks that a text moves no cursor: line feeds and tabs are all it has.
fn plain(text: &str) {
    let odd = text.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\t'));
    assert_eq!(odd, None, "{text:?}");
}

#[test]
fn what_others_wrote_is_only_text_on_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("error.json");
    let error = json!({"error": {"class": "permanent", "message": HOSTILE}});
    std::fs::write(&file, error.to_string()).unwrap();
    std::fs::write(directory.path().join("text"), HOSTILE).unwrap();
    let fail = format!("cat {} > $STANDFAST_OUTCOME", file.display());
    let speak = format!("cat {0}; cat {0} >&2", directory.path().join("text").display());
    let step = |id: &str, script: &str| -> Value {
        json!({"id": id, "uses": "exec", "with": {"command": ["sh", "-c", script]},
               "retry": {"max_attempts": 1}})
    };
    let plan = json!({
        "kind": "hostile", "goal": HOSTILE,
        "steps": [step("speak", &speak), step("fail", &fail)],
        "complete_when": "steps.speak.output.stdout == \"nothing\"",
    });
    let path = directory.path().join("plan.json");
    std::fs::write(&path, plan.to_string()).unwrap();
    let run = binary::output(directory.path(), &["run", "plan.json"]);
    shown(&run, "run");
    let list = binary::json(directory.path(), &["list"], &[0]);
    let task = list["tasks"][0]["id"].as_str().unwrap().to_owned();
    let mut texts = String::new();
    for words in [
        &["list"][..],
        &["explain", &task],
        &["steps", &task],
        &["events", &task],
        &["logs", &task, "speak"],
        &["answer", &format!("{task}/fail"), HOSTILE],
        &["explain", HOSTILE],
    ] {
        let output = binary::output(directory.path(), words);
        texts.push_str(&shown(&output, words[0]));
    }
    assert!(texts.contains("onerror"), "the texts are shown: {texts}");
}

/// Checks what a command wrote, and gives it.
fn shown(output: &std::process::Output, what: &str) -> String {
    let mut all = String::new();
    for text in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(text);
        plain(&text);
        assert!(text.lines().all(|line| !line.starts_with("forged")) || what == "logs", "{text}");
        all.push_str(&text);
    }
    all
}
