//! An installation of separate processes: the real binary over RabbitMQ and a Redis of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use standfast_protocol::events::{EventQuery, EventView};
use standfast_protocol::tasks::{TaskState, TaskView};
use standfast_sdk::Client;

use crate::binary::{self, Running};
use crate::private_redis::{PrivateRedis, free_port};
use crate::services::{Place, amqp_url};
use crate::wait;

/// What an api asks of a Redis before it calls itself ready.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--maxmemory-policy", "noeviction"];

/// The same, and each write is on disk before it is answered: what effects ask of it.
const SYNCED: [&str; 6] =
    ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"];

/// Where processes of one test keep everything; queues are removed when it is dropped, so
/// processes must be dropped before it: declare them after it.
pub struct Installation {
    pub directory: tempfile::TempDir,
    pub redis: PrivateRedis,
    pub place: Place,
    pub port: u16,
    pub token: String,
    pub claim_length: &'static str,
    /// Queues to remove besides the usual ones.
    pub queues: Vec<String>,
    /// The broker: the shared one, or a node of the test's own.
    pub amqp: String,
}

impl Installation {
    /// Starts a Redis and makes a first token; no process of ours runs yet.
    pub async fn start(claim_length: &'static str) -> Self {
        Self::start_on(&amqp_url(), claim_length).await
    }

    /// The same over a Redis that syncs each write before it answers.
    pub async fn start_synced(amqp: &str, claim_length: &'static str) -> Self {
        Self::start_over(PrivateRedis::start(&SYNCED).await, amqp, claim_length).await
    }

    /// The same with a broker that is named.
    pub async fn start_on(amqp: &str, claim_length: &'static str) -> Self {
        Self::start_over(PrivateRedis::start(&DURABLE).await, amqp, claim_length).await
    }

    /// The same with a Redis and a broker that are named.
    pub async fn start_over(redis: PrivateRedis, amqp: &str, claim_length: &'static str) -> Self {
        let mut own = Self {
            directory: tempfile::tempdir().unwrap(),
            redis,
            place: Place::new(),
            port: free_port(),
            token: String::new(),
            claim_length,
            queues: Vec::new(),
            amqp: amqp.to_owned(),
        };
        own.token = own.make_token("admin", "user:operator");
        own
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Makes a command of the binary that knows this installation.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary::command(self.path());
        command.args(arguments);
        command.env("STANDFAST_REDIS", self.redis.url());
        command.env("STANDFAST_REDIS_PREFIX", &self.place.prefix);
        command.env("STANDFAST_AMQP", &self.amqp);
        command.env("STANDFAST_AMQP_PREFIX", &self.place.prefix);
        command.env("STANDFAST_BLOBS", self.path().join("blobs"));
        command.env("STANDFAST_ATTEMPTS", self.path().join("attempts"));
        command.env("STANDFAST_CLAIM_LENGTH", self.claim_length);
        command.env("STANDFAST_TOKEN", &self.token);
        command.env("STANDFAST_LISTEN", format!("127.0.0.1:{}", self.port));
        command
    }

    /// Runs a command to its end; panics unless it ends with `code`. Gives what it printed.
    pub fn run(&self, arguments: &[&str], code: i32) -> String {
        let output = self.command(arguments).output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{text}");
        text
    }

    /// Makes a token and gives its secret.
    pub fn make_token(&self, role: &str, name: &str) -> String {
        let arguments = ["token", "create", "--role", role, "--name", name];
        let output = self.command(&arguments).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Starts a process; its log is a file named like its first word.
    pub fn process(&self, arguments: &[&str]) -> Running {
        let log = self.path().join(format!("{}.log", arguments[0]));
        Running::start(self.command(arguments), &log)
    }

    /// Starts an api and waits until it can work.
    pub async fn api(&self) -> Running {
        let mut api = self.process(&["api"]);
        let url = format!("{}/readyz", self.url());
        wait::until("the api to be ready", async || {
            let ended = api.0.try_wait().unwrap();
            assert!(ended.is_none(), "the api ended: {}", self.log("api"));
            reqwest::get(&url).await.ok().filter(|answer| answer.status().is_success())
        })
        .await;
        api
    }

    /// Gives what processes of a kind have logged.
    pub fn log(&self, kind: &str) -> String {
        std::fs::read_to_string(self.path().join(format!("{kind}.log"))).unwrap_or_default()
    }

    pub fn client(&self) -> Client {
        let client = Client::new(&self.url(), &self.token).unwrap();
        client.patience(Duration::from_secs(30))
    }

    /// Waits until what is published is taken in: a scheduler has declared the queue for it.
    pub async fn takes_messages(&self) {
        let properties = lapin::ConnectionProperties::default();
        let connection = lapin::Connection::connect(&self.amqp, properties).await.unwrap();
        let name = format!("{}.intake", self.place.prefix);
        let passive = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
        wait::until("a scheduler to take messages", async || {
            let channel = connection.create_channel().await.ok()?;
            let name = name.as_str().into();
            let queue = channel.queue_declare(name, passive, Default::default()).await.ok()?;
            (queue.consumer_count() > 0).then_some(())
        })
        .await;
    }

    /// Publishes plans with the example script; gives the tasks' ids.
    pub async fn publish(&self, plan: &Value, count: usize) -> Vec<String> {
        self.takes_messages().await;
        let file = self.path().join("published.json");
        std::fs::write(&file, plan.to_string()).unwrap();
        let mut command = python();
        command.arg(examples().join("python/publish.py")).arg(&file);
        command.args(["--amqp", &self.amqp, "--exchange", &self.place.prefix]);
        command.args(["--count", &count.to_string(), "--wait", "--timeout", "60"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}\n{}", said(&output), self.log("scheduler"));
        let text = String::from_utf8(output.stdout).unwrap();
        let answers = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        answers.map(|answer| answer["submitted"]["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until all tasks have ended well and checks their histories.
    pub async fn completed(&self, tasks: &[String]) {
        let client = self.client();
        for task in tasks {
            let view = self.ended(task).await;
            assert_eq!(view.state, TaskState::Completed, "{task}: {:?}", view.failure);
            let report = client.verify(task).await.unwrap();
            assert!(report.ok, "{task}: {:?}", report.fault);
        }
    }

    /// Waits until a task has ended.
    pub async fn ended(&self, task: &str) -> TaskView {
        let client = self.client();
        wait::until(&format!("the end of {task}"), async || {
            client.get(task).await.ok().filter(|view| view.state.is_ended())
        })
        .await
    }

    /// Reads a task's events, up to the 200 that fit a page.
    pub async fn events(&self, task: &str) -> Vec<EventView> {
        let query = EventQuery { limit: Some(200), ..EventQuery::default() };
        self.client().event_page(task, &query).await.unwrap().events
    }

    pub fn ledger(&self) -> PathBuf {
        self.path().join("ledger")
    }

    /// Counts how often each `TASK/STEP` has started, by the ledger.
    pub fn starts(&self) -> BTreeMap<String, usize> {
        let mut starts = BTreeMap::new();
        let text = std::fs::read_to_string(self.ledger()).unwrap_or_default();
        for line in text.lines() {
            *starts.entry(line.to_owned()).or_insert(0) += 1;
        }
        starts
    }

    /// Makes a plan of three steps over two queues; each writes to the ledger when it starts
    /// and then takes `seconds`.
    pub fn two_queue_plan(&self, seconds: &str) -> Value {
        let script = "echo $STANDFAST_TASK/$STANDFAST_STEP >> $LEDGER; sleep $SECONDS";
        let step = |id: &str, queue: &str, needs: &[&str]| {
            json!({ "id": id, "uses": "exec", "queue": queue, "needs": needs,
                    "retry": { "max_attempts": 100, "backoff": "0s" },
                    "with": { "command": ["sh", "-c", script],
                              "env": { "LEDGER": self.ledger(), "SECONDS": seconds } } })
        };
        json!({ "kind": "fleet", "steps": [
            step("gather", "default", &[]), step("study", "research", &["gather"]),
            step("report", "default", &["study"]),
        ]})
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if self.amqp != amqp_url() {
            return; // a node of the test's own goes with all it has
        }
        let place = Place { prefix: self.place.prefix.clone() };
        let queues = std::mem::take(&mut self.queues);
        let cleaning = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let named = queues.iter().map(String::as_str).chain(["default", "research"]);
            runtime.unwrap().block_on(place.clean(&named.collect::<Vec<_>>()));
        });
        if cleaning.join().is_err() && !std::thread::panicking() {
            panic!("queues of {} were left behind", self.place.prefix);
        }
    }
}

/// Gives the folder of the examples.
pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").canonicalize().unwrap()
}

/// Gives a Python that has pika, or says how to get one.
pub fn python() -> Command {
    let program = std::env::var("STANDFAST_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&program).args(["-c", "import pika"]).stderr(Stdio::null()).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "{program} cannot import pika: run `pip install pika`, or name a Python that has it in \
         STANDFAST_TEST_PYTHON"
    );
    Command::new(program)
}

/// Gives both outputs of a command as text.
pub fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
