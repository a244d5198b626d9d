//! `fetch-report`, against the server that it ships.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use standfast_domain::event::Change;
use standfast_domain::record::TaskState;

use crate::support;

/// The server of the example, ended with this.
struct Server {
    process: Child,
    base_url: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new("python3")
            .arg(support::examples().join("fetch-report/server.py"))
            .args(["--port", "0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|fault| {
                panic!("the examples' tests need the program `python3` on the PATH: {fault}")
            });
        let mut base_url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut base_url).unwrap();
        let base_url = base_url.trim().to_owned();
        assert!(base_url.starts_with("http://127.0.0.1:"), "the server said {base_url:?}");
        Self { process, base_url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_answers_make_a_report_though_one_service_fails_twice() {
    let server = Server::start();
    let example = support::examples().join("fetch-report");
    let mut plan = support::read_plan(&example.join("plan.yaml"));
    plan["input"]["base_url"] = json!(server.base_url);
    let (_directory, world) = support::world().await;
    let task = support::submit(&world, &example, plan).await;
    let header = support::ended(&world, &task, TaskState::Completed).await;
    assert_eq!((header.succeeded, header.attempts), (4, 6));
    let mut failed = Vec::new();
    for event in world.events(&task).await {
        if let Change::AttemptFailed { step, class, message, .. } = event.change {
            assert!(message.contains("answered 503"), "{message}");
            failed.push((step.as_str().to_owned(), format!("{class:?}")));
        }
    }
    let expected = [("stock", "RateLimited"), ("stock", "Retryable")]
        .map(|(step, class)| (step.to_owned(), class.to_owned()));
    assert_eq!(failed, expected);
    let report = support::artifact(&world, &task, "report", "REPORT.md").await;
    insta::assert_snapshot!(report, @"
    # The shop's day

    - orders: 42 paid
    - visits: 1280
    - stock: 3 items; soon out of stock:
      honey, tea
    ");
    world.close().await;
}

#[test]
fn the_script_runs_the_program_against_a_live_server_and_stops_it() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("standfast");
    let ask = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).status)";
    let stand_in = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$@\"\npython3 -c '{ask}' \"${{5#base_url=}}/orders\"\nexit 4\n"
    );
    std::fs::write(&program, stand_in).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let example = support::examples().join("fetch-report");
    let mut command = Command::new(example.join("run.sh"));
    let output = support::run(command.arg("--json").env("STANDFAST", &program));
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let plan = example.join("plan.yaml").display().to_string();
    let [run, file, allow, input, set, json, status] = lines[..] else { panic!("{text}") };
    assert_eq!([run, file, allow], ["run", &plan, "--allow-private-addresses"]);
    assert_eq!([input, json, status], ["--input", "--json", "200"]);
    let address = set.strip_prefix("base_url=http://").unwrap();
    assert!(TcpStream::connect(address).is_err(), "the server still runs at {address}");
}
