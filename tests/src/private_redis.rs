//! A Redis of the test's own, on a free port, ended with the test.

use std::process::{Child, Command, Stdio};

use crate::wait;

/// The folder of the append-only files within that of the server.
const FILES: &str = "appendonlydir";

/// A running redis-server.
pub struct PrivateRedis {
    child: Child,
    pub port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
}

impl PrivateRedis {
    /// Starts one; `arguments` come after the port and folder.
    pub async fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let child = spawn(port, directory.path(), &arguments);
        let redis = Self { child, port, directory, arguments };
        redis.ready().await;
        redis
    }

    /// Gives the address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Gives the process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with -9 and starts it again on the same files.
    pub async fn restart(&mut self) {
        self.kill();
        self.revive().await;
    }

    /// Kills it with -9.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it on its files after a kill.
    pub async fn revive(&mut self) {
        self.child = spawn(self.port, self.directory.path(), &self.arguments);
        self.ready().await;
    }

    /// Sends a signal by name, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Copies its append-only files as they are at one moment.
    pub fn copy_files(&self, to: &std::path::Path) {
        self.signal("STOP");
        copy(&self.directory.path().join(FILES), to);
        self.signal("CONT");
    }

    /// Puts files copied before in the place of its own; it must have been killed.
    pub fn put_files(&self, from: &std::path::Path) {
        let files = self.directory.path().join(FILES);
        std::fs::remove_dir_all(&files).unwrap();
        copy(from, &files);
    }

    async fn ready(&self) {
        let url = self.url();
        wait::until("redis-server to answer", async || {
            let client = redis::Client::open(url.as_str()).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            match redis::cmd("PING").query_async::<String>(&mut connection).await {
                Err(error) if error.code() != Some("NOAUTH") => None, // one that is locked answers
                Ok(_) | Err(_) => Some(()),
            }
        })
        .await;
    }

    /// Runs one command that is answered with a text or a number.
    pub async fn command(&self, words: &[&str]) -> String {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query_async(&mut connection).await.unwrap()
    }
}

impl Drop for PrivateRedis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, directory: &std::path::Path, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .arg("--dir")
        .arg(directory)
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("these tests start a Redis of their own: install redis-server")
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Finds a port that nobody listens on.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
