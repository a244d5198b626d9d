//! A RabbitMQ node of the tests' own, on free ports and with its own directory.
//!
//! It is started by the first test that needs it and serves all of them, one at a time, since
//! each does it harm. A watcher process ends it when the test process ends, however that ends.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

use crate::rig::until;

/// A start of the Erlang machine on a loaded computer of two cores.
const START_BOUND: Duration = Duration::from_secs(90);

/// Where packages put the scripts that take their settings from the environment.
const FOLDERS: [&str; 4] = [
    "/usr/lib/rabbitmq/bin",
    "/opt/rabbitmq/sbin",
    "/usr/local/sbin",
    "/usr/local/opt/rabbitmq/sbin",
];

static NODE: Mutex<Option<Node>> = Mutex::const_new(None);

pub struct Node {
    name: String,
    port: u16,
    dist_port: u16,
    scripts: PathBuf,
    folder: TempDir,
    /// Lives on a pipe to this process, and ends the node when the pipe breaks.
    _watcher: Child,
}

/// Lends the node to one test, started and answering.
pub async fn node() -> MutexGuard<'static, Option<Node>> {
    let mut node = NODE.lock().await;
    if node.is_none() {
        *node = Some(Node::create());
    }
    let started = node.as_ref().unwrap();
    if !started.answers().await {
        started.start().await;
    }
    node
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn scripts() -> PathBuf {
    let chosen = std::env::var_os("STANDFAST_TEST_RABBITMQ_BIN").map(PathBuf::from);
    let mut folders = chosen.into_iter().chain(FOLDERS.iter().map(PathBuf::from));
    folders.find(|folder| folder.join("rabbitmq-server").exists()).expect(
        "these tests start a RabbitMQ node and found no rabbitmq-server; install it or set \
         STANDFAST_TEST_RABBITMQ_BIN to the folder of its scripts",
    )
}

impl Node {
    fn create() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, dist_port) = (free_port(), free_port());
        let path = folder.path();
        let config = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\ndisk_free_limit.absolute = 1MB\n\
             log.file.level = warning\n"
        );
        std::fs::write(path.join("rabbitmq.conf"), config).unwrap();
        std::fs::write(path.join("environment.conf"), "").unwrap();
        std::fs::write(path.join("enabled_plugins"), "[].").unwrap();
        Self {
            name: format!("standfast-test-{port}@localhost"),
            port,
            dist_port,
            scripts: scripts(),
            _watcher: watch(path),
            folder,
        }
    }

    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f?heartbeat=5", self.port)
    }

    fn command(&self, script: &str) -> Command {
        let path = self.folder.path();
        let mut command = Command::new(self.scripts.join(script));
        command
            .env("HOME", path)
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", path.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", path.join("log"))
            .env("RABBITMQ_PID_FILE", path.join("pid"))
            .env("RABBITMQ_CONF_ENV_FILE", path.join("environment.conf"))
            .env("RABBITMQ_CONFIG_FILE", path.join("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path.join("enabled_plugins"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", path.join("generated"))
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .stdin(Stdio::null());
        command
    }

    async fn answers(&self) -> bool {
        let url = self.url();
        let attempt = Connection::connect(&url, ConnectionProperties::default());
        matches!(tokio::time::timeout(Duration::from_secs(2), attempt).await, Ok(Ok(_)))
    }

    /// Starts the machine and waits until it lets clients in.
    pub async fn start(&self) {
        let output = std::fs::File::create(self.folder.path().join("output")).unwrap();
        let mut command = self.command("rabbitmq-server");
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let mut script = command.spawn().expect("rabbitmq-server is started");
        // Waited for, so that a killed node does not stay in the process table.
        std::thread::spawn(move || script.wait());
        until("the node lets clients in", START_BOUND, || self.answers()).await;
    }

    /// Runs `rabbitmqctl` and expects success.
    pub async fn control(&self, arguments: &[&str]) {
        let mut command = self.command("rabbitmqctl");
        command.arg("-n").arg(&self.name).args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "rabbitmqctl {arguments:?}: {said}");
    }

    /// Sends a signal to the Erlang machine.
    pub fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.folder.path().join("pid")).unwrap();
        let status = Command::new("kill").arg(signal).arg(pid.trim()).status().unwrap();
        assert!(status.success(), "kill {signal} {pid}");
    }
}

/// Starts the watcher: it waits for the end of its input, which is the end of this process.
fn watch(folder: &Path) -> Child {
    let script = "cat > /dev/null; \
                  [ -f \"$1/pid\" ] && kill -9 \"$(cat \"$1/pid\")\"; sleep 1; rm -rf \"$1\"";
    let mut watcher = Command::new("sh")
        .args(["-c", script, "watcher"])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the watcher is started");
    let input = watcher.stdin.as_mut().expect("the watcher has an input");
    input.write_all(b"\n").expect("the watcher listens");
    watcher
}
