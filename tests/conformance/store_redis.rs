//! What is particular to Redis: its failures, its settings, its keys. Faults are brought about
//! in a private server, never in the one that all tests share.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::future::join_all;
use standfast_domain::commit::CommitId;
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Store, StoreError};
use standfast_stores::redis::{ConnectError, RedisOptions, RedisStore};
use tempfile::TempDir;

use crate::support::{Make, Place, applied, bodies, commit, commit_all, load, task, task_id, text};

/// A Redis of our own that may be killed, stopped and misconfigured.
struct Server {
    port: u16,
    directory: TempDir,
    child: Child,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let directory = tempfile::tempdir().unwrap();
        let child = Self::spawn(port, &directory);
        Self { port, directory, child }
    }

    /// Starts the process and reads its log up to the line that says that it listens.
    fn spawn(port: u16, directory: &TempDir) -> Child {
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
            .arg(directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`redis-server` is installed, since these tests start one of their own");
        let mut log = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = log.any(|line| line.unwrap().contains("Ready to accept connections"));
        assert!(ready, "redis-server ended before it listened on port {port}");
        // Its later lines are of no interest, but its pipe must not fill up or break.
        std::thread::spawn(move || log.for_each(drop));
        child
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = Self::spawn(self.port, &self.directory);
    }

    /// Sends a signal by name, such as `STOP`.
    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    fn options(&self) -> RedisOptions {
        RedisOptions::new(format!("redis://127.0.0.1:{}", self.port))
    }

    fn run(&self, words: &[&str]) {
        run(&self.options(), words);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(options: &RedisOptions, words: &[&str]) {
    let mut connection =
        redis::Client::open(options.url.as_str()).unwrap().get_connection().unwrap();
    redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection).unwrap();
}

fn options(place: &Place) -> &RedisOptions {
    match place {
        Place::Redis(options) => options,
        Place::Redb(_) | Place::Memory => unreachable!("these tests take a Redis"),
    }
}

#[tokio::test]
async fn after_a_kill_calls_fail_and_then_work_again_without_a_restart_of_ours() {
    let mut server = Server::start();
    let store = RedisStore::connect(&server.options()).await.unwrap();
    let scope = task();
    let before = commit(&scope).put("a", "1").events(0, &["x"]).add("i", "m");
    assert!(applied(&store, &before).await);
    server.kill();
    let lost = commit(&scope).guard("a", Some(before.id)).put("a", "2").events(1, &["y"]);
    for _ in 0..3 {
        let refused = store.commit(std::slice::from_ref(&lost)).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    let calls = join_all((0..50).map(|_| store.now())).await;
    assert!(calls.iter().all(|call| matches!(call, Err(StoreError::Unavailable(_)))));
    assert!(matches!(store.health().await, Err(StoreError::Unavailable(_))));
    server.restart();
    assert!(applied(&store, &lost).await);
    assert!(applied(&store, &before).await, "what was answered before the kill is there");
    assert_eq!(bodies(&store, &scope, 0, 10).await, ["x", "y"]);
    assert!(store.health().await.unwrap().durable);
}

#[tokio::test]
async fn callers_share_one_attempt_to_connect() {
    let mut server = Server::start();
    let store = RedisStore::connect(&server.options()).await.unwrap();
    server.kill();
    assert!(store.now().await.is_err());
    // Attempts of their own, one after another with pauses between, would take a minute.
    let start = Instant::now();
    assert!(join_all((0..200).map(|_| store.now())).await.iter().all(Result::is_err));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_on_in_time_and_comes_back() {
    let server = Server::start();
    let mut options = server.options();
    options.response_timeout = Duration::from_secs(1);
    options.connect_timeout = Duration::from_secs(1);
    let store = RedisStore::connect(&options).await.unwrap();
    let made = commit(&task()).guard("a", None).put("a", "1").events(0, &["x"]);
    server.signal("STOP");
    let hung = store.commit(std::slice::from_ref(&made)).await;
    assert!(matches!(hung, Err(StoreError::Unavailable(_))), "{hung:?}");
    server.signal("CONT");
    // The hung call may have been applied meanwhile; the repeat is answered alike either way.
    assert!(applied(&store, &made).await);
    assert_eq!(bodies(&store, &task(), 0, 10).await, ["x"]);
}

#[tokio::test]
async fn a_script_that_redis_forgot_is_sent_again() {
    let server = Server::start();
    let store = RedisStore::connect(&server.options()).await.unwrap();
    for round in 0..3 {
        let made = commit(&task()).put("a", "1").events(round, &["x"]);
        assert!(applied(&store, &made).await);
        server.run(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(bodies(&store, &task(), 0, 10).await.len(), 3);
}

#[tokio::test]
async fn a_replica_refuses_writes_by_name_and_still_reads() {
    let server = Server::start();
    let store = RedisStore::connect(&server.options()).await.unwrap();
    assert!(applied(&store, &commit(&task()).put("a", "1")).await);
    server.run(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = store.commit(&[commit(&task()).put("a", "2")]).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
    assert_eq!(text(&store, &task(), "a").await.as_deref(), Some("1"));
    let health = store.health().await.unwrap();
    assert!(health.faults.iter().any(|fault| fault.contains("primary")), "{health:?}");
    server.run(&["REPLICAOF", "NO", "ONE"]);
    assert!(applied(&store, &commit(&task()).put("a", "2")).await);
}

#[tokio::test]
async fn without_memory_writes_are_refused_whole_and_removals_go_on() {
    let server = Server::start();
    let store = RedisStore::connect(&server.options()).await.unwrap();
    assert!(applied(&store, &commit(&task()).put("a", "1").put("b", "1")).await);
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = store.commit(&[commit(&task()).remove("a").put("c", "1").add("i", "m")]).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
    let found = load(&store, &task(), &["a", "b", "c"]).await;
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
    assert!(applied(&store, &commit(&task()).remove("a")).await);
    assert!(!store.erase(&task_id(1), 10).await.unwrap());
    let health = store.health().await.unwrap();
    assert!(health.warnings.iter().any(|text| text.contains("maxmemory")), "{health:?}");
}

#[tokio::test]
async fn health_names_settings_that_lose_tasks() {
    let server = Server::start();
    let store = RedisStore::connect(&server.options()).await.unwrap();
    let health = store.health().await.unwrap();
    assert!(health.durable && health.faults.is_empty() && health.warnings.is_empty());
    server.run(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.run(&["CONFIG", "SET", "appendfsync", "everysec"]);
    let health = store.health().await.unwrap();
    assert!(!health.durable);
    assert!(health.faults[0].contains("noeviction"), "{health:?}");
    assert!(health.warnings[0].contains("appendfsync is everysec"), "{health:?}");
    server.run(&["CONFIG", "SET", "appendonly", "no"]);
    let health = store.health().await.unwrap();
    assert!(health.faults[1].contains("appendonly is off"), "{health:?}");
}

#[tokio::test]
async fn health_makes_do_where_config_is_forbidden() {
    let server = Server::start();
    server.run(&["ACL", "SETUSER", "plain", "on", ">pass", "~*", "+@all", "-config"]);
    let url = format!("redis://plain:pass@127.0.0.1:{}", server.port);
    let store = RedisStore::connect(&RedisOptions::new(url)).await.unwrap();
    let health = store.health().await.unwrap();
    assert!(!health.durable && health.faults.is_empty(), "{health:?}");
    assert!(health.warnings[0].starts_with("appendfsync is unknown"), "{health:?}");
}

#[tokio::test]
async fn time_is_never_before_one_that_any_process_stored() {
    let place = Place::redis();
    let (one, other) = (place.open().await, place.open().await);
    let ahead = Time(one.now().await.unwrap().0 + 60_000);
    let key = format!("{{{}:sys}}:clock", options(&place).prefix);
    run(options(&place), &["SET", &key, &ahead.0.to_string()]);
    let asked = Load { scope: task(), fields: vec!["a".to_owned()] };
    assert_eq!(one.load(&[asked]).await.unwrap().0, ahead);
    assert_eq!(other.commit(&[commit(&task()).put("a", "1")]).await.unwrap().0, ahead);
    run(options(&place), &["DEL", &key]);
    assert_eq!(one.now().await.unwrap(), ahead, "each process remembers");
    assert_eq!(one.commit(&[commit(&task()).put("a", "1")]).await.unwrap().0, ahead);
    let late = place.open().await;
    assert_eq!(late.now().await.unwrap(), ahead, "and a commit stores what it remembers");
    let health = late.health().await.unwrap();
    assert!(health.warnings.iter().any(|text| text.contains("clock is ")), "{health:?}");
}

#[tokio::test]
async fn what_others_wrote_under_our_keys_is_called_corrupt_and_tears_nothing() {
    let place = Place::redis();
    let store = place.open().await;
    let id = task_id(1);
    let home = format!("{{{}:p{:02x}}}", options(&place).prefix, id.partition().number());
    let (records, events) = (format!("{home}:r:{id}"), format!("{home}:e:{id}"));
    run(options(&place), &["SET", &records, "x"]);
    let asked = Load { scope: task(), fields: vec!["a".to_owned()] };
    assert!(matches!(store.load(std::slice::from_ref(&asked)).await, Err(StoreError::Corrupt(_))));
    let made = commit(&task()).put("a", "1").events(0, &["x"]);
    assert!(matches!(store.commit(std::slice::from_ref(&made)).await, Err(StoreError::Corrupt(_))));
    run(options(&place), &["DEL", &records]);
    run(options(&place), &["SET", &events, "x"]);
    assert!(matches!(store.commit(&[made]).await, Err(StoreError::Corrupt(_))));
    assert_eq!(load(&*store, &task(), &["a"]).await, [None]);
    run(options(&place), &["HSET", &records, "a", "no version"]);
    assert!(matches!(store.load(&[asked]).await, Err(StoreError::Corrupt(_))));
}

#[tokio::test]
async fn an_erased_task_leaves_only_the_clock() {
    let place = Place::redis();
    let store = place.open().await;
    let made = commit(&task()).put("header", "h").put("a", "1").events(0, &["x"]).add("i", "m");
    assert!(applied(&*store, &made).await);
    assert_eq!(place.keys().len(), 4);
    assert!(applied(&*store, &commit(&task()).take("i", "m")).await);
    while store.erase(&task_id(1), 1).await.unwrap() {}
    assert_eq!(place.keys(), [format!("{{{}:sys}}:clock", options(&place).prefix)]);
}

#[tokio::test]
async fn a_call_may_name_more_than_one_script_takes() {
    let place = Place::redis();
    let store = place.open().await;
    let names: Vec<String> = (0..400).map(|number| number.to_string()).collect();
    let mut batch: Vec<_> = (0..5).map(|_| commit(&task())).collect();
    let mut version: Option<CommitId> = None;
    for made in &mut batch {
        for name in &names {
            *made = made.clone().put(name, "x");
        }
        *made = made.clone().guard("0", version);
        version = Some(made.id);
    }
    assert!(commit_all(&*store, &batch).await.iter().all(|answer| answer.applied));
}

#[tokio::test]
async fn options_that_cannot_work_are_refused_by_name() {
    let mut options = RedisOptions::new("redis://127.0.0.1:1");
    options.connect_timeout = Duration::from_secs(1);
    let refused = RedisStore::connect(&options).await.err();
    assert!(matches!(refused, Some(ConnectError::Store(StoreError::Unavailable(_)))));
    options.prefix = "a}b".to_owned();
    assert!(matches!(RedisStore::open(&options).err(), Some(ConnectError::Prefix(_))));
    let url = RedisOptions::new("amqp://127.0.0.1");
    assert!(matches!(RedisStore::open(&url).err(), Some(ConnectError::Url(_))));
}
