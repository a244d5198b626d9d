//! A Redis of the test's own, on a free port, ended with the test.

use std::process::{Child, Command, Stdio};

use crate::wait;

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

    /// Kills it with -9 and starts it again on the same files.
    pub async fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.port, self.directory.path(), &self.arguments);
        self.ready().await;
    }

    async fn ready(&self) {
        let url = self.url();
        wait::until("redis-server to answer", async || {
            let client = redis::Client::open(url.as_str()).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.ok()?;
            let pong: redis::RedisResult<String> =
                redis::cmd("PING").query_async(&mut connection).await;
            pong.ok()
        })
        .await;
    }

    /// Runs one command.
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

/// Finds a port that nobody listens on.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
