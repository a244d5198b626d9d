//! Processes of one installation that answer their operator, and fleets of them over a broker of
//! their own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lapin::{Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use standfast_protocol::tasks::SubmitRequest;

use crate::binary::Running;
use crate::private_rabbit::PrivateRabbit;
use crate::private_redis::free_port;
use crate::processes::Installation;
use crate::wait;

/// The most of a core that a process may use while it waits for the broker.
const WAITING_SHARE_MAX: f64 = 0.3;
/// How soon health must turn red, and how soon green once the cause is gone.
pub const TURNS: Duration = Duration::from_secs(30);

/// An installation on a broker of its own. Fields are dropped in this order.
pub struct Fleet {
    pub members: Vec<Process>,
    pub own: Installation,
    pub node: PrivateRabbit,
}

/// One process with a port for its operator, its log in a file of its own.
pub struct Process {
    pub name: String,
    pub running: Running,
    words: Vec<String>,
    variables: Vec<(String, String)>,
    admin: u16,
    log: PathBuf,
}

/// What a process has said and used until a moment.
pub struct Mark {
    log_bytes: usize,
    cpu: Duration,
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
        let name = format!("{}-{number}", words[0]);
        self.members.push(Process::start(&self.own, &name, words, &[]));
        number
    }

    /// Starts a process again that has ended.
    pub fn again(&mut self, number: usize) {
        self.members[number].again(&self.own);
    }

    /// Waits until a process calls itself ready.
    pub async fn green(&self, number: usize) {
        self.members[number].green(TURNS).await;
    }

    /// Waits until a process calls itself not ready with these words in the reason.
    pub async fn red(&self, number: usize, cause: &str) -> String {
        self.members[number].red(cause).await
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
            let used = member.cpu() - mark.cpu;
            let share = used.as_secs_f64() / mark.at.elapsed().as_secs_f64();
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
        self.members.iter().map(Process::mark).collect()
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

impl Process {
    /// Starts one under a name; `variables` are added to its environment.
    pub fn start(
        own: &Installation,
        name: &str,
        words: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let log = own.path().join(format!("{name}.log"));
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let admin = free_port();
        let running = Running::start(command(own, &words, &variables, admin), &log);
        Self { name: name.to_owned(), running, words, variables, admin, log }
    }

    /// Starts it again once it has ended, with the same port and log.
    pub fn again(&mut self, own: &Installation) {
        let command = command(own, &self.words, &self.variables, self.admin);
        self.running = Running::start(command, &self.log);
    }

    /// Asks whether it can work; gives its reason, or why no answer came, if it cannot.
    pub async fn ready(&self) -> Result<(), String> {
        match self.asked("/readyz").await {
            Ok((true, _)) => Ok(()),
            Ok((false, text)) => Err(text),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Gives where its metrics are read.
    pub fn metrics_url(&self) -> String {
        format!("http://127.0.0.1:{}/metrics", self.admin)
    }

    async fn asked(&self, path: &str) -> reqwest::Result<(bool, String)> {
        let url = format!("http://127.0.0.1:{}{path}", self.admin);
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
        let answer = client.get(url).send().await?;
        Ok((answer.status().is_success(), answer.text().await?))
    }

    /// Reads one metric, its labels given as they are written; zero where it is not shown.
    pub async fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.asked("/metrics").await.unwrap();
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.map_or(0.0, |value| value.parse().unwrap())
    }

    /// Waits until it can work; panics if that takes longer than `most`.
    pub async fn green(&self, most: Duration) {
        let start = Instant::now();
        let what = format!("{} to be ready", self.name);
        wait::until(&what, async || {
            let ready = self.ready().await;
            let late = start.elapsed() > most;
            assert!(ready.is_ok() || !late, "{} after {most:?}: {ready:?}", self.name);
            ready.ok()
        })
        .await;
    }

    /// Waits until it is not ready and names a cause; gives its words.
    pub async fn red(&self, cause: &str) -> String {
        let start = Instant::now();
        let what = format!("{} to say `{cause}`", self.name);
        wait::until(&what, async || {
            let ready = self.ready().await;
            let named = ready.as_ref().err().filter(|text| text.contains(cause)).cloned();
            let late = start.elapsed() > TURNS;
            assert!(named.is_some() || !late, "{} says after {TURNS:?}: {ready:?}", self.name);
            named
        })
        .await
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Counts the lines of its log that contain a text.
    pub fn said(&self, text: &str) -> usize {
        self.log().lines().filter(|line| line.contains(text)).count()
    }

    /// Gives the time of all its cores that it has used.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // Behind the name comes field 3 of proc(5); utime and stime are 14 and 15, in hundredths.
        let ticks = |field: usize| fields[field - 3].parse::<u64>().unwrap();
        Duration::from_millis((ticks(14) + ticks(15)) * 10)
    }

    /// Gives its memory that is not swapped out, in bytes.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Counts its open files and connections.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    pub fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// Sends a signal by name, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits for its end and gives the exit code and how long that took.
    pub async fn ended(&mut self) -> (Option<i32>, Duration) {
        let start = Instant::now();
        let what = format!("{} to end", self.name);
        let status = wait::until(&what, async || self.running.0.try_wait().unwrap()).await;
        (status.code(), start.elapsed())
    }

    fn mark(&self) -> Mark {
        Mark { log_bytes: self.log().len(), cpu: self.cpu(), at: Instant::now() }
    }
}

fn command(
    own: &Installation,
    words: &[String],
    variables: &[(String, String)],
    admin: u16,
) -> Command {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = own.command(&words);
    command.env("STANDFAST_ADMIN_ADDR", admin.to_string());
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command
}
