//! Processes over a broker of their own, and what they say of themselves.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lapin::{Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use standfast_protocol::tasks::SubmitRequest;
use standfast_tests::binary::Running;
use standfast_tests::private_rabbit::PrivateRabbit;
use standfast_tests::private_redis::free_port;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

/// The most of a core that a process may use while it waits for the broker.
const WAITING_SHARE_MAX: f64 = 0.3;
/// How soon health must turn red, and how soon green once the cause is gone.
pub const TURNS: Duration = Duration::from_secs(30);

/// An installation on a broker of its own. Fields are dropped in this order.
pub struct Fleet {
    pub members: Vec<Member>,
    pub own: Installation,
    pub node: PrivateRabbit,
}

/// One process with a port for its operator.
pub struct Member {
    name: String,
    words: Vec<String>,
    pub running: Running,
    port: u16,
    log: PathBuf,
}

/// What a process has said and used until a moment.
pub struct Mark {
    log_bytes: usize,
    seconds: f64,
    at: Instant,
}

impl Fleet {
    /// Starts a node, a Redis, and one process for each command.
    pub async fn start(settings: &[&str], claim_length: &'static str, words: &[&[&str]]) -> Self {
        let node = PrivateRabbit::start(settings).await;
        let own = Installation::start_on(&node.url(), claim_length).await;
        let mut fleet = Self { members: Vec::new(), own, node };
        for words in words {
            fleet.member(words);
        }
        for number in 0..fleet.members.len() {
            fleet.green(number).await;
        }
        fleet
    }

    /// Starts one more process; gives its number.
    pub fn member(&mut self, words: &[&str]) -> usize {
        let number = self.members.len();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let name = format!("{}-{number}", words[0]);
        let log = self.own.path().join(format!("{name}.log"));
        let port = free_port();
        let running = self.spawn(&words, port, &log);
        self.members.push(Member { name, words, running, port, log });
        number
    }

    /// Starts a process again that has ended.
    pub fn again(&mut self, number: usize) {
        let member = &self.members[number];
        let running = self.spawn(&member.words, member.port, &member.log);
        self.members[number].running = running;
    }

    fn spawn(&self, words: &[String], port: u16, log: &std::path::Path) -> Running {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.own.command(&words);
        command.env("STANDFAST_ADMIN_ADDR", port.to_string());
        Running::start(command, log)
    }

    /// Waits until a process calls itself ready.
    pub async fn green(&self, number: usize) {
        let member = &self.members[number];
        wait::within(TURNS, &format!("{} to be ready", member.name), async || {
            member.ready().await.is_ok().then_some(())
        })
        .await;
    }

    /// Waits until a process calls itself not ready with these words in the reason.
    pub async fn red(&self, number: usize, cause: &str) -> String {
        let member = &self.members[number];
        let what = format!("{} to be red for `{cause}`", member.name);
        wait::within(TURNS, &what, async || {
            member.ready().await.err().filter(|text| text.contains(cause))
        })
        .await
    }

    /// Opens a channel beside those of the fleet, which a drill may close like any other.
    pub async fn channel(&self) -> (Connection, Channel) {
        wait::until("a channel", async || {
            let properties = ConnectionProperties::default();
            let connection = Connection::connect(&self.node.url(), properties).await.ok()?;
            let channel = connection.create_channel().await.ok()?;
            Some((connection, channel))
        })
        .await
    }

    pub fn steps_queue(&self, queue: &str) -> String {
        format!("{}.steps.{queue}", self.own.place.prefix)
    }

    /// Waits until a step queue has that many consumers.
    pub async fn consumers(&self, queue: &str, wanted: u32) {
        let name = self.steps_queue(queue);
        wait::until(&format!("{wanted} consumers of {name}"), async || {
            let (_connection, channel) = self.channel().await;
            let passive =
                lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
            let found = channel.queue_declare(name.as_str().into(), passive, Default::default());
            (found.await.ok()?.consumer_count() == wanted).then_some(())
        })
        .await;
    }

    /// Submits a plan with a key; gives the task's id and how long the answer took.
    pub async fn submit(&self, key: &str, plan: &Value) -> (String, Duration) {
        let begun = Instant::now();
        let request = SubmitRequest { plan: plan.clone(), plan_dir: None };
        let submitted = self.own.client().submit_keyed(&request, key).await.unwrap();
        (submitted.id, begun.elapsed())
    }

    /// Submits that many tasks of one plan.
    pub async fn submit_all(&self, key: &str, plan: &Value, count: usize) -> Vec<String> {
        let mut tasks = Vec::new();
        for number in 0..count {
            tasks.push(self.submit(&format!("{key}-{number}"), plan).await.0);
        }
        tasks
    }

    /// Makes a plan of steps in a row; each writes to the ledger and then takes `seconds`.
    pub fn chain(&self, steps: usize, seconds: &str) -> Value {
        let steps: Vec<Value> = (0..steps)
            .map(|n| {
                let needs: Vec<String> = (0..n).last().iter().map(|n| format!("s{n}")).collect();
                self.step(&format!("s{n}"), &needs, &format!("sleep {seconds}"))
            })
            .collect();
        json!({ "kind": "chain", "steps": steps })
    }

    /// Makes a step that writes to the ledger and then runs a script.
    pub fn step(&self, id: &str, needs: &[String], script: &str) -> Value {
        let script = format!("echo $STANDFAST_TASK/$STANDFAST_STEP >> $LEDGER; {script}");
        json!({ "id": id, "uses": "exec", "needs": needs,
                "retry": { "max_attempts": 100, "backoff": "0s" },
                "with": { "command": ["sh", "-c", script],
                          "env": { "LEDGER": self.own.ledger() } } })
    }

    /// Waits until the ledger shows the start of a task's step.
    pub async fn started(&self, task: &str, step: &str) {
        let name = format!("{task}/{step}");
        wait::until(&format!("{name} to start"), async || {
            self.own.starts().contains_key(&name).then_some(())
        })
        .await;
    }

    /// Waits until all tasks are completed, and checks that each of their steps has started once.
    pub async fn completed_once(&self, tasks: &[String], steps: usize) {
        self.own.completed(tasks).await;
        let starts = self.own.starts();
        for task in tasks {
            let of_task: BTreeMap<&String, &usize> =
                starts.iter().filter(|(name, _)| name.starts_with(task.as_str())).collect();
            assert_eq!(of_task.len(), steps, "{task}: {of_task:?}");
            assert!(of_task.values().all(|times| **times == 1), "{task}: {of_task:?}");
        }
    }

    /// Checks what the processes did since the marks: nothing was said twice, and none was busy
    /// with waiting.
    pub fn calm_since(&self, marks: &[Mark]) {
        for (member, mark) in self.members.iter().zip(marks) {
            let share = (member.seconds() - mark.seconds) / mark.at.elapsed().as_secs_f64();
            assert!(share < WAITING_SHARE_MAX, "{} used {share:.2} of a core", member.name);
            let mut said: BTreeMap<String, usize> = BTreeMap::new();
            for line in member.log()[mark.log_bytes..].lines() {
                if line.contains(" WARN ") || line.contains(" ERROR ") {
                    // Without the time and the reason, which may be worded anew.
                    let text = line.split_once(' ').unwrap_or_default().1;
                    let text = text.split(" reason=").next().unwrap_or(text);
                    *said.entry(text.to_owned()).or_default() += 1;
                }
            }
            let twice: Vec<_> = said.iter().filter(|(_, times)| **times > 1).collect();
            assert!(twice.is_empty(), "{} said more than once: {twice:?}", member.name);
        }
    }

    pub fn marks(&self) -> Vec<Mark> {
        self.members.iter().map(Member::mark).collect()
    }

    /// Adds up a counter or gauge over all processes; labels are given as they are written.
    pub async fn metric(&self, name: &str) -> f64 {
        let mut sum = 0.0;
        for member in &self.members {
            sum += member.metric(name).await;
        }
        sum
    }
}

impl Member {
    async fn ready(&self) -> Result<(), String> {
        let url = format!("http://127.0.0.1:{}/readyz", self.port);
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
        let answer = client.get(&url).send().await.map_err(|error| error.to_string())?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(answer.text().await.unwrap_or_default()),
        }
    }

    /// Reads one metric; zero where it is not shown.
    pub async fn metric(&self, name: &str) -> f64 {
        let url = format!("http://127.0.0.1:{}/metrics", self.port);
        let text = reqwest::get(&url).await.unwrap().text().await.unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.map_or(0.0, |value| value.parse().unwrap())
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Gives the processor time used so far, in seconds.
    fn seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.running.0.id())).unwrap();
        let after_name = stat.rsplit(") ").next().unwrap();
        let fields: Vec<&str> = after_name.split(' ').collect();
        // Fields 14 and 15 of proc(5), in ticks of a hundredth of a second.
        let ticks = |field: usize| fields[field - 3].parse::<f64>().unwrap();
        (ticks(14) + ticks(15)) / 100.0
    }

    fn mark(&self) -> Mark {
        Mark { log_bytes: self.log().len(), seconds: self.seconds(), at: Instant::now() }
    }
}
