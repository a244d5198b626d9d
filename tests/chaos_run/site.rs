//! All processes of the run: the product's, those outside, the broker and the store.

use std::path::Path;
use std::sync::Arc;

use standfast_tests::binary::Running;
use standfast_tests::fleet::Process;
use standfast_tests::private_rabbit::PrivateRabbit;
use standfast_tests::private_redis::free_port;
use standfast_tests::processes::{Installation, examples, python};

use crate::plans::OUTSIDE;

/// How long claims last: short, so that many are taken over.
const CLAIM: &str = "6s";

/// The site. Fields are dropped in this order.
pub struct Site {
    pub members: Vec<Member>,
    pub own: Installation,
    pub node: Arc<PrivateRabbit>,
    /// Addresses of the two apis.
    pub urls: [String; 2],
    worker_token: String,
}

/// A process that faults may hit.
pub struct Member {
    pub kind: &'static str,
    pub process: Is,
}

/// What it is.
pub enum Is {
    Ours(Process),
    Outside(Running),
}

impl Site {
    /// Starts everything but the workers outside, which want an api.
    pub async fn start() -> Self {
        let node = Arc::new(PrivateRabbit::start(&[]).await);
        let own = Installation::start_synced(&node.url(), CLAIM).await;
        let second = format!("127.0.0.1:{}", free_port());
        let urls = [own.url(), format!("http://{second}")];
        let worker_token = own.make_token("worker", "worker:outside");
        let mut members = Vec::new();
        let mut add = |kind, name: &str, words: &[&str], variables: &[(&str, &str)]| {
            let process = Is::Ours(Process::start(&own, name, words, variables));
            members.push(Member { kind, process });
        };
        add("api", "api-1", &["api"], &[]);
        add("api", "api-2", &["api"], &[("STANDFAST_LISTEN", &second)]);
        add("scheduler", "scheduler-1", &["scheduler"], &[]);
        add("scheduler", "scheduler-2", &["scheduler"], &[]);
        for (name, queue) in
            [("d-1", "default"), ("d-2", "default"), ("r-1", "research"), ("r-2", "research")]
        {
            let words =
                ["worker", "--queue", queue, "--concurrency", "4", "--allow-private-addresses"];
            add("worker", &format!("worker-{name}"), &words, &[("STANDFAST_GRACE", "5s")]);
        }
        Self { members, own, node, urls, worker_token }
    }

    /// Starts the workers outside, each with an api of its own.
    pub fn start_outside(&mut self) {
        for number in 0..2 {
            let running = self.outside(number);
            self.members.push(Member { kind: "outside", process: Is::Outside(running) });
        }
    }

    fn outside(&self, number: usize) -> Running {
        let mut command = python();
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("chaos_run/worker.py"))
            .args(["--url", &self.urls[number], "--token", &self.worker_token])
            .args(["--queue", OUTSIDE])
            .env("STANDFAST_EXAMPLES", examples().join("python"))
            .env("STANDFAST_LEDGER", self.own.ledger())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        Running::start(command, &self.own.path().join(format!("outside-{number}.log")))
    }

    /// Starts a process again that has ended.
    pub fn again(&mut self, number: usize) {
        let first_outside = self.members.iter().position(|member| member.kind == "outside");
        let outside = first_outside.map(|first| number.wrapping_sub(first));
        let started = match (&self.members[number].process, outside) {
            (Is::Outside(_), Some(of)) => Some(self.outside(of)),
            (Is::Outside(_) | Is::Ours(_), _) => None,
        };
        match (&mut self.members[number].process, started) {
            (Is::Outside(running), Some(started)) => *running = started,
            (Is::Ours(process), _) => process.again(&self.own),
            (Is::Outside(_), None) => {}
        }
    }
}

impl Member {
    pub fn running(&mut self) -> &mut Running {
        match &mut self.process {
            Is::Ours(process) => &mut process.running,
            Is::Outside(running) => running,
        }
    }

    /// True if it has ended because what it needs was not there when it started: then its
    /// supervisor starts it again.
    pub fn found_no_service(&self) -> bool {
        let log = match &self.process {
            Is::Ours(process) => process.log(),
            Is::Outside(_) => return false,
        };
        let mut last = log.lines().rev().take(3);
        last.any(|line| line.starts_with("standfast: failed to reach the "))
    }

    /// Sends a signal by name.
    pub fn signal(&mut self, name: &str) {
        let pid = self.running().0.id().to_string();
        let _ = std::process::Command::new("kill").args(["-s", name, &pid]).status();
    }
}
