//! One folder, one process that works on it, and the commands beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use standfast_tests::binary::{self, Running};
use standfast_tests::private_redis::free_port;
use standfast_tests::processes::{examples, said};
use standfast_tests::wait;

/// Starts `standfast dev` and waits until others find it by the folder.
async fn dev(directory: &Path) -> Running {
    let mut command = binary::command(directory);
    command.args(["dev", "--listen", &format!("127.0.0.1:{}", free_port())]);
    let mut dev = Running::start(command, &directory.join("log"));
    wait::until("standfast dev to answer", async || {
        assert!(dev.0.try_wait().unwrap().is_none(), "dev ended: {}", log(directory));
        directory.join(".standfast/endpoint").exists().then_some(())
    })
    .await;
    dev
}

fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// Runs a command; panics unless it ends with `code`. Gives what it said.
fn run(directory: &Path, arguments: &[&str], code: i32) -> String {
    let output = binary::output(directory, arguments);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{text}\n{}", log(directory));
    text
}

fn write(directory: &Path, name: &str, plan: Value) -> PathBuf {
    let file = directory.join(name);
    std::fs::write(&file, plan.to_string()).unwrap();
    file
}

fn plan(command: &[&str], more: Value) -> Value {
    let mut step = json!({ "id": "only", "uses": "exec", "retry": { "max_attempts": 1 },
                           "with": { "command": command } });
    step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "kind": "small", "steps": [step] })
}

fn newest(directory: &Path) -> String {
    let page = binary::json(directory, &["list"], &[0]);
    page["tasks"][0]["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_submits_waits_and_gets_a_diff_that_applies() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let mut dev = dev(directory).await;
    let file = examples().join("code-fix/plan.yaml");
    run(directory, &["submit", file.to_str().unwrap(), "--wait"], 0);
    run(directory, &["artifacts", &newest(directory), "fix.diff", "--output", "fix.diff"], 0);

    let copied = Command::new("cp")
        .arg("-R")
        .arg(examples().join("code-fix/project"))
        .arg(directory.join("project"))
        .status();
    assert!(copied.unwrap().success());
    let project = directory.join("project");
    let inside = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).current_dir(&project).output().unwrap()
    };
    assert!(!inside("sh", &["tests/run.sh"]).status.success(), "it should be broken as shipped");
    assert!(inside("git", &["init", "-q"]).status.success());
    let applied = inside("git", &["apply", "../fix.diff"]);
    assert!(applied.status.success(), "{}", said(&applied));
    let tested = inside("sh", &["tests/run.sh"]);
    assert!(tested.status.success(), "{}", said(&tested));
    assert_eq!(dev.terminate(), Some(0), "{}", log(directory));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_exit_code_is_reached_and_an_answer_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let _dev = dev(directory).await;
    write(directory, "good.json", plan(&["true"], json!({})));
    write(directory, "fails.json", plan(&["false"], json!({ "on_failure": "fail" })));
    write(directory, "held.json", plan(&["test", "-e", "there"], json!({})));
    write(directory, "long.json", plan(&["sleep", "600"], json!({})));
    write(directory, "faulty.json", json!({ "kind": "x", "steps": [{ "id": "a", "uses": "no" }] }));

    run(directory, &["submit", "good.json", "--wait"], 0);
    run(directory, &["submit", "fails.json", "--wait"], 2);
    let text = run(directory, &["submit", "faulty.json"], 1);
    assert!(text.contains("/steps/0/uses"), "{text}");
    let text = run(directory, &["submit", "missing.json"], 1);
    assert!(text.contains("missing.json"), "{text}");
    run(directory, &["submit"], 64);
    run(directory, &["nonsense"], 64);

    let mut command = binary::command(directory);
    command.args(["submit", "long.json", "--wait"]);
    let mut waiting = Running::start(command, &directory.join("submit.log"));
    let task = wait::until("the long step to run", async || {
        let page = binary::json(directory, &["list", "--state", "running"], &[0]);
        page["tasks"][0]["id"].as_str().map(str::to_owned)
    })
    .await;
    run(directory, &["stop", &task], 0);
    let code =
        wait::until("submit --wait to see the stop", async || waiting.0.try_wait().unwrap()).await;
    assert_eq!(code.code(), Some(3));

    // The working folder of a step is its own, so the file it looks for is named in full.
    let there = directory.join("there").display().to_string();
    write(directory, "held.json", plan(&["test", "-e", &there], json!({})));
    let text = run(directory, &["submit", "held.json", "--wait"], 4);
    assert!(text.contains("standfast answer"), "{text}");
    std::fs::write(&there, "").unwrap();
    let held = newest(directory);
    run(directory, &["answer", &format!("{held}/only"), "retry"], 0);
    wait::until("the answered task to complete", async || {
        let view = binary::json(directory, &["list", "--state", "completed"], &[0]);
        let tasks = view["tasks"].as_array().unwrap();
        tasks.iter().any(|task| task["id"] == held.as_str()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_on_run_is_130_and_resume_completes() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let gate = directory.join("gate").display().to_string();
    let started = directory.join("started");
    let script = format!("touch {}; until test -e {gate}; do sleep 0.05; done", started.display());
    let again = json!({ "retry": { "max_attempts": 2 } });
    write(directory, "plan.json", plan(&["sh", "-c", &script], again));
    let mut command = binary::command(directory);
    command.args(["run", "plan.json"]);
    let mut running = Running::start(command, &directory.join("log"));
    wait::until("the step to start", async || started.exists().then_some(())).await;
    let pid = running.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let ended = wait::until("run to end", async || running.0.try_wait().unwrap()).await;
    assert_eq!(ended.code(), Some(130), "{}", log(directory));
    assert!(log(directory).contains("standfast run --resume"), "{}", log(directory));
    std::fs::write(&gate, "").unwrap();
    run(directory, &["run", "--resume"], 0);
    let report = binary::json(directory, &["verify", &newest(directory)], &[0]);
    assert_eq!(report["ok"], true, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_folder_is_told_who_holds_it() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let first = dev(directory).await;
    let listen = format!("127.0.0.1:{}", free_port());
    let text = run(directory, &["dev", "--listen", &listen], 1);
    assert!(text.contains("another process holds it"), "{text}");
    assert!(text.contains(&format!("process {}", first.0.id())), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncertain_effect_ends_a_run_and_its_answer_lets_it_complete() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let effect = json!({ "class": "irreversible", "says": "120.00 EUR to bob" });
    // Whether the money moved is not known.
    let script = format!("echo sent >> {}; exit 7", directory.join("ledger").display());
    let command = ["sh", "-c", &script];
    let mut plan = plan(&command, json!({ "effect": effect }));
    plan["steps"].as_array_mut().unwrap().push(json!({
        "id": "close", "uses": "exec", "needs": ["only"], "with": { "command": ["true"] } }));
    write(directory, "plan.json", plan);
    let text = run(directory, &["run", "plan.json"], 4);
    let task = newest(directory);
    let happened = format!("standfast answer {task}/only happened --receipt '{{…}}'");
    let not_happened = format!("standfast answer {task}/only not_happened");
    assert!(text.contains(&happened) && text.contains(&not_happened), "{text}");
    assert!(text.contains(&format!("Look for key {task}/only/main/1")), "{text}");

    let text = run(directory, &["effects", &task], 0);
    assert!(text.starts_with("? only/main · irreversible · uncertain since"), "{text}");
    assert!(text.contains(&happened) && text.contains("120.00 EUR to bob"), "{text}");
    let page = binary::json(directory, &["effects", &task], &[0]);
    assert_eq!(page["effects"][0]["request"]["value"]["command"][0], "sh", "{page}");
    let text = run(directory, &["explain", &task], 0);
    assert!(text.contains("exit code 7"), "{text}");
    assert!(text.contains("happened: close · not_happened: only, close"), "{text}");

    let held = format!("{task}/only");
    run(directory, &["answer", &held, "happened", "--receipt", r#"{"id": "ch_55"}"#], 0);
    let text = run(directory, &["run", "--resume", &task], 0);
    assert!(text.contains("landed    only"), "{text}");
    let page = binary::json(directory, &["effects", &task], &[0]);
    assert_eq!(page["effects"][0]["receipt"]["value"], json!({ "id": "ch_55" }), "{page}");
    let text = run(directory, &["events", &task], 0);
    assert!(text.contains("main · irreversible · 120.00 EUR to bob · attempt 1"), "{text}");
    let sent = std::fs::read_to_string(directory.join("ledger")).unwrap();
    assert_eq!(sent.lines().count(), 1, "it is sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_alone_when_the_process_that_worked_for_it_has_died() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let mut dev = dev(directory).await;
    let script = format!("until [ -e {} ]; do sleep 0.1; done", directory.join("go").display());
    let again = json!({ "retry": { "max_attempts": 2 } });
    write(directory, "plan.json", plan(&["sh", "-c", &script], again));
    let mut command = binary::command(directory);
    command.args(["run", "plan.json"]);
    let mut run = Running::start(command, &directory.join("run.log"));
    let said = || std::fs::read_to_string(directory.join("run.log")).unwrap_or_default();
    wait::until("the run to follow the other process", async || {
        said().contains("elsewhere:").then_some(())
    })
    .await;
    dev.0.kill().unwrap();
    dev.0.wait().unwrap();
    std::fs::write(directory.join("go"), "").unwrap();
    let status = wait::until("the run to end", async || run.0.try_wait().unwrap()).await;
    let text = said();
    assert!(text.contains("has ended; this one goes on"), "{text}");
    assert!(status.code() == Some(0) && text.contains("completed in"), "{status}: {text}");
}

/// A plan whose first step has landed an effect, with this program to undo it, when its last one
/// fails and is held.
fn landed_then_held(undo: &[&str]) -> Value {
    let undo = json!({ "uses": "exec", "with": { "command": undo },
                       "retry": { "max_attempts": 1 } });
    let mut plan = plan(&["true"], json!({ "effect": { "class": "idempotent" }, "undo": undo }));
    plan["steps"].as_array_mut().unwrap().push(json!({
        "id": "last", "uses": "exec", "needs": ["only"], "retry": { "max_attempts": 1 },
        "with": { "command": ["false"] } }));
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_undone_is_said_to_be_and_so_is_that_nobody_works() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    write(directory, "plan.json", landed_then_held(&["true"]));
    run(directory, &["run", "plan.json"], 4);
    let task = newest(directory);
    let text = run(directory, &["explain", &task], 0);
    assert!(text.contains("nobody works on this folder"), "{text}");
    assert!(text.contains("can be undone"), "{text}");
    let idle = "go on with: standfast run --resume";
    let text = run(directory, &["list"], 0);
    assert!(!text.contains(idle), "only a person can move it: {text}");

    run(directory, &["stop", &task, "--mode", "undo"], 0);
    let text = run(directory, &["list"], 0);
    assert!(text.contains(idle), "{text}");
    let text = run(directory, &["run", "--resume", &task], 3);
    assert!(text.contains("undone    only") && !text.contains("landed    only"), "{text}");
    let text = run(directory, &["explain", &task], 0);
    assert!(text.contains(", undone at ") && !text.contains("can be undone"), "{text}");
    assert!(!text.contains("nobody works"), "it has ended: {text}");
    let text = run(directory, &["effects", &task], 0);
    assert!(text.contains(" · undone "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_where_only_a_person_can_settle_a_failed_undo() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    write(directory, "plan.json", landed_then_held(&["false"]));
    run(directory, &["run", "plan.json"], 4);
    let task = newest(directory);
    run(directory, &["stop", &task, "--mode", "undo"], 0);
    let text = run(directory, &["run", "--resume", &task], 4);
    assert!(text.contains("undo_failed"), "{text}");
    assert!(text.contains(&format!("standfast answer {task}/only~undo-1 skip")), "{text}");
    run(directory, &["answer", &format!("{task}/only~undo-1"), "skip"], 0);
    run(directory, &["run", "--resume", &task], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_without_state_is_named_and_looking_makes_none() {
    let place = tempfile::tempdir().unwrap();
    let looks = [&["doctor"][..], &["list"], &["token", "list"], &["run", "--resume"]];
    for look in looks {
        let text = run(place.path(), look, 1);
        assert!(text.contains("there is no state in ./.standfast"), "{look:?}: {text}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "{look:?}");
    }
}
