//! A run that is killed with -9 at any moment goes on where it was.
//!
//! Each step writes a line to a ledger when it starts. After each kill the settled steps are
//! read from the state; at the end, none of those may have started again.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use standfast_tests::binary::{self, Draw, Running};

/// Steps of the plan: a chain with a fan-out in the middle.
const STEPS: usize = 12;

fn plan(directory: &Path) -> std::path::PathBuf {
    let ledger = directory.join("ledger");
    let step = |n: usize, needs: Vec<String>| {
        let line = format!("echo s{n} >> {}; sleep 0.1", ledger.display());
        json!({ "id": format!("s{n}"), "uses": "exec", "needs": needs,
                "retry": { "max_attempts": 1000, "backoff": "0s" },
                "with": { "command": ["sh", "-c", line] } })
    };
    let steps: Vec<Value> = (0..STEPS)
        .map(|n| match n {
            0 => step(n, vec![]),
            3..=6 => step(n, vec!["s2".to_owned()]),
            7 => step(n, (3..=6).map(|n| format!("s{n}")).collect()),
            _ => step(n, vec![format!("s{}", n - 1)]),
        })
        .collect();
    let file = directory.join("plan.json");
    std::fs::write(&file, json!({ "kind": "kill", "steps": steps }).to_string()).unwrap();
    file
}

fn starts(directory: &Path) -> BTreeMap<String, usize> {
    let mut starts = BTreeMap::new();
    let text = std::fs::read_to_string(directory.join("ledger")).unwrap_or_default();
    for line in text.lines() {
        *starts.entry(line.to_owned()).or_insert(0) += 1;
    }
    starts
}

/// Reads which steps are settled, with nobody running.
fn settled(directory: &Path, task: &str) -> Vec<String> {
    let page = binary::json(directory, &["steps", task], &[0]);
    let steps = page["steps"].as_array().unwrap();
    let done = steps.iter().filter(|step| step["state"] == "succeeded");
    done.map(|step| step["id"].as_str().unwrap().to_owned()).collect()
}

/// Lists the ids and states of tasks.
fn tasks(directory: &Path) -> Vec<(String, String)> {
    let page = binary::json(directory, &["list"], &[0]);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let tasks = page["tasks"].as_array().unwrap();
    tasks.iter().map(|task| (text(&task["id"]), text(&task["state"]))).collect()
}

#[test]
fn no_settled_step_starts_again_however_often_the_run_is_killed() {
    let mut draw = Draw::new();
    let kills = binary::repeats(8);
    let mut killed = 0;
    while killed < kills {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path();
        let file = plan(directory);
        let mut kept: BTreeMap<String, usize> = BTreeMap::new();
        let mut arguments = vec!["run".to_owned(), file.display().to_string()];
        loop {
            let mut command = binary::command(directory);
            command.args(&arguments);
            let mut run = Running::start(command, &directory.join("log"));
            let moment = Duration::from_millis(draw.below(1_500));
            let ended = wait_or(&mut run, moment);
            run.kill();
            let known = match directory.join(".standfast").exists() {
                true => tasks(directory),
                false => vec![],
            };
            if let Some(code) = ended {
                let log = std::fs::read_to_string(directory.join("log")).unwrap();
                assert_eq!(code, 0, "{log}");
                break;
            }
            killed += 1;
            if let Some((task, state)) = known.first() {
                if state == "completed" {
                    break; // the kill came after the end
                }
                for step in settled(directory, task) {
                    let count = starts(directory)[&step];
                    kept.entry(step).or_insert(count);
                }
                arguments = vec!["run".to_owned(), "--resume".to_owned()];
            }
        }
        let counts = starts(directory);
        for (step, count) in kept {
            assert_eq!(counts[&step], count, "settled step `{step}` started again");
        }
        assert_eq!(counts.len(), STEPS);
        let (task, _) = tasks(directory).remove(0);
        let report = binary::json(directory, &["verify", &task], &[0]);
        assert_eq!(report["ok"], true, "{report}");
    }
}

/// Waits for the end for so long; gives the exit code if it came.
fn wait_or(run: &mut Running, moment: Duration) -> Option<i32> {
    let start = std::time::Instant::now();
    while start.elapsed() < moment {
        if let Some(status) = run.0.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5)); // the moment of the kill, not a condition
    }
    None
}
