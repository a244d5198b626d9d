//! Processes of one installation that answer their operator, and what tests ask of them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use standfast_tests::binary::Running;
use standfast_tests::private_redis::free_port;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

/// One process, its log in a file of its own.
pub struct Process {
    pub name: &'static str,
    pub running: Running,
    admin: u16,
}

impl Process {
    /// Starts one under a name; `variables` are added to its environment.
    pub fn start(
        own: &Installation,
        name: &'static str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let admin = free_port();
        let mut command = own.command(arguments);
        command.env("STANDFAST_ADMIN_ADDR", admin.to_string()).envs(variables.iter().copied());
        let log = own.path().join(format!("{name}.log"));
        Self { name, running: Running::start(command, &log), admin }
    }

    /// Asks whether it can work; gives the answer's text, and why none came.
    pub async fn ready(&self) -> (bool, String) {
        match self.asked("/readyz").await {
            Ok((ok, text)) => (ok, text),
            Err(error) => (false, error.to_string()),
        }
    }

    async fn asked(&self, path: &str) -> reqwest::Result<(bool, String)> {
        let url = format!("http://127.0.0.1:{}{path}", self.admin);
        let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
        let answer = client.get(url).send().await?;
        Ok((answer.status().is_success(), answer.text().await?))
    }

    /// Reads one of its metrics without labels.
    pub async fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.asked("/metrics").await.unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{}: no {name} in\n{text}", self.name)).parse().unwrap()
    }

    /// Waits until it can work; panics if that takes longer than `most`.
    pub async fn green(&self, most: Duration) {
        let start = Instant::now();
        let mut last = String::new();
        let what = format!("{} to be ready", self.name);
        wait::until(&what, async || {
            let (ready, text) = self.ready().await;
            last = text;
            assert!(ready || start.elapsed() < most, "{} after {most:?}: {last}", self.name);
            ready.then_some(())
        })
        .await;
    }

    /// Waits until it names a cause, within half a minute.
    pub async fn red(&self, cause: &str) {
        let start = Instant::now();
        let what = format!("{} to say `{cause}`", self.name);
        wait::until(&what, async || {
            let (ready, text) = self.ready().await;
            let named = !ready && text.contains(cause);
            let late = start.elapsed() > Duration::from_secs(30);
            assert!(named || !late, "{} says after half a minute: {text}", self.name);
            named.then_some(())
        })
        .await;
    }

    /// Counts the lines of its log that contain a text.
    pub fn said(&self, own: &Installation, text: &str) -> usize {
        own.log(self.name).lines().filter(|line| line.contains(text)).count()
    }

    /// Gives the time of all its cores that it has used.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let after_name = stat.rsplit_once(')').unwrap().1;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // Behind the name comes field 3; utime and stime are 14 and 15, in hundredths.
        let ticks = |field: usize| fields[field - 3].parse::<u64>().unwrap();
        Duration::from_millis((ticks(14) + ticks(15)) * 10)
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
}

/// Gives a step that writes `MILLISECONDS LANG TASK STEP ATTEMPT` to the ledger when it starts,
/// runs `then`, and is tried again for as long as it takes.
pub fn noted(own: &Installation, id: &str, needs: &[&str], then: &str) -> Value {
    let note = "echo $(date +%s%3N) $LANG $STANDFAST_TASK $STANDFAST_STEP $STANDFAST_ATTEMPT";
    let script = format!("{note} >> {}; {then}", own.ledger().display());
    json!({ "id": id, "uses": "exec", "needs": needs, "with": { "command": ["sh", "-c", script] },
            "retry": { "max_attempts": 100, "backoff": "0s" } })
}

/// Gives a script that waits until a file exists.
pub fn wait_for(file: &Path) -> String {
    format!("until test -e {}; do sleep 0.1; done", file.display())
}

/// One start of an attempt, as its step wrote it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub at_ms: u64,
    pub worker: String,
    pub task: String,
    pub step: String,
    pub attempt: u32,
}

/// Reads the ledger.
pub fn starts(own: &Installation) -> Vec<Start> {
    let text = std::fs::read_to_string(own.ledger()).unwrap_or_default();
    let start = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Start {
            at_ms: words[0].parse().unwrap(),
            worker: words[1].to_owned(),
            task: words[2].to_owned(),
            step: words[3].to_owned(),
            attempt: words[4].parse().unwrap(),
        }
    };
    text.lines().map(start).collect()
}

/// Waits until so many attempts have started.
pub async fn started(own: &Installation, count: usize) -> Vec<Start> {
    wait::until(&format!("{count} starts"), async || {
        let starts = starts(own);
        (starts.len() >= count).then_some(starts)
    })
    .await
}

/// Asserts that each of so many steps has started exactly once.
pub fn once_each(own: &Installation, count: usize) {
    let starts = starts(own);
    let mut steps: Vec<(&str, &str)> =
        starts.iter().map(|start| (start.task.as_str(), start.step.as_str())).collect();
    steps.sort_unstable();
    steps.dedup();
    assert_eq!((steps.len(), starts.len()), (count, count), "steps and their starts: {starts:#?}");
}

/// Gives the attempts of a task that ended without success.
pub async fn failures(own: &Installation, task: &str) -> Vec<Value> {
    let events = own.events(task).await;
    let failed = events.into_iter().filter(|event| event.kind == "attempt_failed");
    failed.map(|event| event.data).collect()
}

/// Gives the milliseconds of the clock that the ledger uses.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_millis() as u64
}
