//! A RabbitMQ node of the test's own, on free ports and with its own directory.
//!
//! A watcher process ends it when the test process ends, however that ends: a killed test would
//! leave an Erlang machine behind.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use tempfile::TempDir;

use crate::private_redis::free_port;
use crate::wait;

/// A start of the Erlang machine on a loaded computer of two cores.
const START_BOUND: Duration = Duration::from_secs(90);

/// Where packages put the scripts that take their settings from the environment.
const FOLDERS: [&str; 4] = [
    "/usr/lib/rabbitmq/bin",
    "/opt/rabbitmq/sbin",
    "/usr/local/sbin",
    "/usr/local/opt/rabbitmq/sbin",
];

/// A node; see [`PrivateRabbit::boot`].
pub struct PrivateRabbit {
    name: String,
    port: u16,
    dist_port: u16,
    scripts: PathBuf,
    folder: TempDir,
    /// The script that was started last: it runs as long as its node.
    started: Mutex<Option<Child>>,
    /// Lives on a pipe to this process, and ends the node when the pipe breaks.
    watcher: Child,
}

impl PrivateRabbit {
    /// Makes a node with further lines of `rabbitmq.conf` and starts it.
    pub async fn start(settings: &[&str]) -> Self {
        let node = Self::create(settings);
        node.boot().await;
        node
    }

    /// Makes a node that does not run yet. Consumers' time-outs are looked at each second.
    pub fn create(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, dist_port) = (free_port(), free_port());
        let path = folder.path();
        let config = format!(
            "listeners.tcp.local = 127.0.0.1:{port}\ndisk_free_limit.absolute = 1MB\n\
             log.file.level = warning\n{}\n",
            settings.join("\n")
        );
        let ticks = "[{rabbit,[{channel_tick_interval,1000}]}].";
        std::fs::write(path.join("rabbitmq.conf"), config).unwrap();
        std::fs::write(path.join("advanced.config"), ticks).unwrap();
        std::fs::write(path.join("environment.conf"), "").unwrap();
        std::fs::write(path.join("enabled_plugins"), "[].").unwrap();
        Self {
            name: format!("standfast-test-{port}@localhost"),
            port,
            dist_port,
            scripts: scripts(),
            started: Mutex::default(),
            watcher: watch(path),
            folder,
        }
    }

    /// Gives the address; heartbeats are short, so that a frozen node is noticed soon.
    pub fn url(&self) -> String {
        self.url_of("guest")
    }

    /// Gives the address of a user whose password is its name.
    pub fn url_of(&self, user: &str) -> String {
        format!("amqp://{user}:{user}@127.0.0.1:{}/%2f?heartbeat=5", self.port)
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
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", path.join("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path.join("enabled_plugins"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", path.join("generated"))
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_CRASH_DUMP", path.join("crash.dump"))
            .stdin(Stdio::null());
        command
    }

    /// True if it lets clients in.
    pub async fn answers(&self) -> bool {
        let url = self.url();
        let attempt = Connection::connect(&url, ConnectionProperties::default());
        matches!(tokio::time::timeout(Duration::from_secs(2), attempt).await, Ok(Ok(_)))
    }

    /// Starts the machine, also after a kill, and waits until it lets clients in.
    pub async fn boot(&self) {
        self.launch();
        wait::within(START_BOUND, "the node to let clients in", async || {
            self.answers().await.then_some(())
        })
        .await;
    }

    /// Starts the machine, also after a kill, and does not wait. One that runs already goes on: a
    /// second one of its name would end and take the file with its process id away.
    pub fn launch(&self) {
        let mut started = self.started.lock().unwrap();
        if started.as_mut().is_some_and(|script| script.try_wait().unwrap().is_none()) {
            return;
        }
        let output = std::fs::File::create(self.folder.path().join("output")).unwrap();
        let mut command = self.command("rabbitmq-server");
        command.stdout(output.try_clone().unwrap()).stderr(output);
        *started = Some(command.spawn().expect("rabbitmq-server is started"));
    }

    /// Runs `rabbitmqctl`, expects success, gives what it printed.
    pub async fn control(&self, arguments: &[&str]) -> String {
        let mut command = self.command("rabbitmqctl");
        command.arg("-q").arg("-n").arg(&self.name).args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "rabbitmqctl {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Closes all connections; nothing is said of a node that has gone meanwhile.
    pub async fn close_connections(&self) {
        let mut command = self.command("rabbitmqctl");
        command.arg("-q").arg("-n").arg(&self.name).args(["close_all_connections", "drill"]);
        let _ = tokio::task::spawn_blocking(move || command.output()).await;
    }

    /// Takes the server of each of these quorum queues away and leaves the queue's record, as a
    /// kill at a bad moment does; the node is stopped for it and started again.
    pub async fn lose_servers(&self, queues: &[&str]) {
        self.control(&["stop_app"]).await;
        self.signal("-9");
        let node = self.folder.path().join("mnesia").join(&self.name);
        let servers = node.join("quorum").join(&self.name);
        let mut lost = 0;
        for folder in std::fs::read_dir(servers).unwrap().map(|found| found.unwrap().path()) {
            let Ok(said) = std::fs::read_to_string(folder.join("config")) else { continue };
            if queues.iter().any(|queue| said.contains(&format!("'%2F_{queue}'"))) {
                std::fs::remove_dir_all(folder).unwrap();
                lost += 1;
            }
        }
        assert_eq!(lost, queues.len(), "each of {queues:?} had a server");
        self.boot().await;
    }

    /// Makes a quorum queue's server hang, as one that finds no leader does.
    pub async fn hang_server(&self, queue: &str) {
        let hang = format!("sys:suspend(whereis('%2F_{queue}')).");
        assert!(self.control(&["eval", &hang]).await.contains("ok"));
    }

    /// Sends a signal to the Erlang machine; one that is killed has ended then.
    pub fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.folder.path().join("pid")).unwrap();
        let status = Command::new("kill").arg(signal).arg(pid.trim()).status().unwrap();
        assert!(status.success(), "kill {signal} {pid}");
        if signal == "-9"
            && let Some(mut script) = self.started.lock().unwrap().take()
        {
            script.wait().unwrap();
        }
    }

    /// Gives the id of the Erlang machine's process.
    pub fn pid(&self) -> u32 {
        let pid = std::fs::read_to_string(self.folder.path().join("pid")).unwrap();
        pid.trim().parse().unwrap()
    }

    /// Gives the node's own log.
    pub fn log(&self) -> String {
        let Ok(files) = std::fs::read_dir(self.folder.path().join("log")) else {
            return String::new();
        };
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()));
        texts.filter_map(Result::ok).collect()
    }
}

impl Drop for PrivateRabbit {
    fn drop(&mut self) {
        drop(self.watcher.stdin.take()); // the watcher now ends the node
        let _ = self.watcher.wait();
    }
}

fn scripts() -> PathBuf {
    let chosen = std::env::var_os("STANDFAST_TEST_RABBITMQ_BIN").map(PathBuf::from);
    let mut folders = chosen.into_iter().chain(FOLDERS.iter().map(PathBuf::from));
    folders.find(|folder| folder.join("rabbitmq-server").exists()).expect(
        "these tests start a RabbitMQ node and found no rabbitmq-server; install it or set \
         STANDFAST_TEST_RABBITMQ_BIN to the folder of its scripts",
    )
}

/// Starts the watcher: it waits for the end of its input, which is at the latest the end of this
/// process.
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
