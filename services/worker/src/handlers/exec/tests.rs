//! `exec` with real processes: `sh` and what every system has beside it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use super::super::testing::{described, failed, job, succeeded};
use super::super::{Class, Success};
use super::*;

fn exec() -> Exec {
    let grace = Duration::from_millis(300);
    Exec::new(ExecSettings { grace, ..ExecSettings::new("tests") })
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Runs a shell script in a fresh directory.
async fn script(text: &str) -> Report {
    with(json!({ "command": ["sh", "-c", text] })).await
}

async fn with(input: Value) -> Report {
    let directory = directory();
    exec().run(job(directory.path(), input)).await
}

async fn output(input: Value) -> Value {
    succeeded(with(input).await).output
}

/// Runs a script that writes an outcome file.
async fn outcome(text: &str, then: &str) -> Report {
    let write = format!("cat > \"$STANDFAST_OUTCOME\"; {then}");
    with(json!({ "command": ["sh", "-c", write], "stdin": text })).await
}

/// Says whether a process runs; one that has ended and waits to be reaped does not.
fn lives(pid: i32) -> bool {
    processes::one(pid).is_some_and(|process| !process.ended)
}

/// Waits for a file that a script writes whole, by renaming it.
async fn pid_in(path: PathBuf) -> i32 {
    loop {
        if let Ok(text) = std::fs::read_to_string(&path) {
            return text.trim().parse().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until no process has the number; a test's own time limit ends a wait in vain.
async fn gone(pid: i32) {
    let until = Instant::now() + Duration::from_secs(20);
    while processes::one(pid).is_some() {
        assert!(Instant::now() < until, "process {pid} is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn output_exit_code_and_stderr_come_back() {
    let output = output(json!({ "command": ["sh", "-c", "echo out; echo; echo err >&2"] })).await;
    assert_eq!(output, json!({ "exit_code": 0, "stdout": "out", "stderr": "err" }));
}

#[tokio::test]
async fn stdin_is_a_text_or_compact_json_or_empty() {
    let cases = [
        (json!({ "command": ["cat"], "stdin": "a\nb" }), "a\nb"),
        (json!({ "command": ["cat"], "stdin": { "a": [1, "x"] } }), r#"{"a":[1,"x"]}"#),
        (json!({ "command": ["cat"] }), ""),
    ];
    for (input, expected) in cases {
        assert_eq!(output(input).await["stdout"], expected);
    }
}

#[tokio::test]
async fn a_program_need_not_read_what_it_is_given() {
    let big = "x".repeat(1 << 20);
    succeeded(with(json!({ "command": ["true"], "stdin": big })).await);
}

#[tokio::test]
async fn the_environment_is_small_and_names_the_attempt() {
    let directory = directory();
    let input = json!({ "command": ["env"], "env": { "EXTRA": "1", "LANG": "de" } });
    let output = succeeded(exec().run(job(directory.path(), input)).await).output;
    let text = output["stdout"].as_str().unwrap();
    let mut names: Vec<&str> = text.lines().filter_map(|l| Some(l.split_once('=')?.0)).collect();
    names.sort_unstable();
    let expected = [
        "EXTRA",
        "HOME",
        "LANG",
        "PATH",
        "STANDFAST_ATTEMPT",
        "STANDFAST_ATTEMPT_ID",
        "STANDFAST_HOME_ID",
        "STANDFAST_INPUTS",
        "STANDFAST_OUTCOME",
        "STANDFAST_PROGRESS",
        "STANDFAST_ROUND",
        "STANDFAST_STEP",
        "STANDFAST_TASK",
        "STANDFAST_WORKER_PROCESS",
        "TMPDIR",
    ];
    assert_eq!(names, expected);
    let inputs = directory.path().join("inputs");
    for line in [
        "STANDFAST_STEP=draft",
        "STANDFAST_ATTEMPT=3",
        "LANG=de",
        "EXTRA=1",
        &format!("STANDFAST_INPUTS={}", inputs.display()),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
    }
}

#[tokio::test]
async fn it_runs_in_the_attempts_directory_and_finds_programs_there() {
    let directory = directory();
    std::fs::create_dir(directory.path().join("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/pwd", directory.path().join("bin/where")).unwrap();
    let input = json!({ "command": ["bin/where"] });
    let output = succeeded(exec().run(job(directory.path(), input)).await).output;
    let expected = directory.path().canonicalize().unwrap();
    assert_eq!(output["stdout"], expected.to_str().unwrap());
}

#[tokio::test]
async fn temporary_files_go_into_the_attempt() {
    let directory = directory();
    let input = json!({ "command": ["sh", "-c", "echo x > \"$TMPDIR/f\"; echo \"$TMPDIR\""] });
    let output = succeeded(exec().run(job(directory.path(), input)).await).output;
    assert!(Path::new(output["stdout"].as_str().unwrap()).starts_with(directory.path()));
}

#[tokio::test]
async fn the_form_of_the_output_is_chosen() {
    let run =
        |form: &str, text: &str| with(json!({ "command": ["printf", "%s", text], "output": form }));
    assert_eq!(succeeded(run("json", "{\"a\":1}").await).output["stdout"], json!({ "a": 1 }));
    assert_eq!(succeeded(run("none", "x").await).output, json!({ "exit_code": 0 }));
    failed(run("json", "{\"a\":1,\"a\":2}").await, Class::Permanent, "key `a` occurs twice");
    failed(run("json", "").await, Class::Permanent, "not the JSON asked for");
}

#[tokio::test]
async fn other_exit_codes_can_be_expected() {
    let run = |code: &str| with(json!({ "command": ["sh", "-c", code], "expect_exit": [1, 3] }));
    assert_eq!(succeeded(run("exit 3").await).output["exit_code"], 3);
    failed(run("exit 0").await, Class::Retryable, "exit code 0");
}

#[tokio::test]
async fn an_unexpected_exit_is_retryable_and_names_command_code_and_last_line() {
    let report = script("echo part; echo first >&2; echo 'no such host' >&2; echo >&2; exit 7");
    let failure = failed(report.await, Class::Retryable, "ended with exit code 7: no such host");
    assert!(failure.message.starts_with("exec: `sh -c echo part;"), "{}", failure.message);
    let output = failure.output.unwrap();
    assert_eq!((&output["exit_code"], &output["stdout"]), (&json!(7), &json!("part")));
}

#[tokio::test]
async fn long_last_lines_are_cut() {
    let report = script("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1").await;
    let failure = failed(report, Class::Retryable, "exit code 1");
    assert!(failure.message.len() < 2 * 1024 + 200);
    let kept = failure.output.unwrap()["stderr"].as_str().unwrap().len();
    assert_eq!(kept, super::super::FAILURE_TEXT_BYTES_MAX);
}

#[tokio::test]
async fn a_signal_is_retryable() {
    failed(script("kill -9 $$").await, Class::Retryable, "was killed by signal 9");
}

#[tokio::test]
async fn programs_that_cannot_run_are_permanent() {
    let directory = directory();
    std::fs::write(directory.path().join("plain"), "text").unwrap();
    for program in ["no-such-program-anywhere", "./nothing", "./plain", "/etc"] {
        let report = exec().run(job(directory.path(), json!({ "command": [program] }))).await;
        failed(report, Class::Permanent, &format!("`{program}` could not be started"));
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let directory = directory();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let here = directory.path().display().to_string();
    for (program, said) in [
        ("no-such-program-anywhere", "it is not in the worker's `PATH`".to_owned()),
        ("/gone/plan/script", "there is no folder /gone/plan".to_owned()),
        ("./script/x", "there is no folder".to_owned()),
        ("./nothing", format!("there is no such file in {here}")),
        ("./script", "the interpreter that it names is not".to_owned()),
    ] {
        let report = exec().run(job(directory.path(), json!({ "command": [program] }))).await;
        failed(report, Class::Permanent, &said);
    }
}

#[test]
fn a_lack_that_passes_is_retryable_and_what_stays_is_not() {
    use rustix::io::Errno;
    let (directory, program) = (directory(), Path::new("/bin/sh"));
    let class = |errno: Errno, directory: &Path| {
        run::start_fault(
            &std::io::Error::from_raw_os_error(errno.raw_os_error()),
            program,
            directory,
        )
    };
    for errno in [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::TXTBSY] {
        assert_eq!(class(errno, directory.path()).0, Class::Retryable, "{errno}");
    }
    for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC, Errno::TOOBIG] {
        assert_eq!(class(errno, directory.path()).0, Class::Permanent, "{errno}");
    }
    let gone = class(Errno::NOENT, &directory.path().join("gone"));
    assert_eq!(gone.0, Class::Retryable);
    assert!(gone.1.starts_with("the attempt's directory is gone"), "{}", gone.1);
}

#[tokio::test]
async fn secrets_reach_the_program_and_nobody_else() {
    let directory = directory();
    let input = json!({
        "command": ["sh", "-c", "cat; echo \"$T $1\"; echo \"$T\" >&2; exit 4", "x",
                    "pin=${{ secrets.PIN }}"],
        "stdin": { "token": "${{ secrets.TOKEN }}" },
        "env": { "T": "Bearer ${{ secrets.TOKEN }}" },
    });
    let job = job(directory.path(), input);
    let log = job.log.clone();
    let failure = failed(exec().run(job).await, Class::Retryable, "pin=***` ended");
    let output = failure.output.clone().unwrap();
    assert_eq!(output["stdout"], "{\"token\":\"***\"}Bearer *** pin=***");
    let all = format!("{failure:?}{:?}", log.snapshot());
    assert!(!all.contains("hunter2") && !all.contains("8471"), "{all}");
    assert!(all.contains("Bearer ***"));
}

#[tokio::test]
async fn secrets_are_masked_in_outcomes() {
    let text =
        json!({ "output": ["${{ secrets.TOKEN }}"], "then": [{ "a": "x${{ secrets.PIN }}" }] });
    let Success { output, then, .. } = succeeded(outcome(&text.to_string(), "").await);
    assert_eq!((output, then), (json!(["***"]), vec![json!({ "a": "x***" })]));
    let text = json!({ "error": { "class": "permanent",
        "message": format!("{}${{{{ secrets.TOKEN }}}}", "m".repeat(4090)) } });
    let failure = failed(outcome(&text.to_string(), "").await, Class::Permanent, "m***");
    assert!(!failure.message.contains("hun"));
}

#[tokio::test]
async fn an_unknown_secret_starts_nothing() {
    let directory = directory();
    let input = json!({ "command": ["touch", "f"], "env": { "A": "${{ secrets.NOPE }}" } });
    let report = exec().run(job(directory.path(), input)).await;
    failed(report, Class::Permanent, "secret `NOPE` is not known");
    assert!(!directory.path().join("f").exists());
}

#[tokio::test]
async fn the_log_holds_both_streams() {
    let directory = directory();
    let job = job(directory.path(), json!({ "command": ["sh", "-c", "echo o; echo e >&2"] }));
    let log = job.log.clone();
    succeeded(exec().run(job).await);
    let text = log.snapshot().head;
    assert!(text.contains("o\n") && text.contains("e\n") && text.len() == 4, "{text}");
}

#[tokio::test]
async fn the_log_is_read_while_the_program_runs() {
    let directory = directory();
    let job = job(directory.path(), json!({ "command": ["sh", "-c", "echo now; exec sleep 600"] }));
    let (log, cancel) = (job.log.clone(), job.cancel.clone());
    let mut watch = log.watch();
    let running = tokio::spawn(async move { exec().run(job).await });
    watch.wait_for(|total| *total >= 4).await.unwrap();
    assert_eq!(log.read(0).text, "now\n");
    cancel.cancel();
    failed(running.await.unwrap(), Class::Cancelled, "cancelled");
}

#[tokio::test]
async fn too_much_output_ends_the_attempt_and_names_the_limit() {
    let directory = directory();
    let exec = Exec::new(ExecSettings { output_bytes_max: 100_000, ..ExecSettings::new("tests") });
    let input = json!({ "command": ["sh", "-c", "while :; do echo xxxxxxxxxxxxxxxx; done"] });
    let report = exec.run(job(directory.path(), input)).await;
    failed(report, Class::Permanent, "more than 100000 bytes");
    let input = json!({ "command": ["head", "-c", "100000", "/dev/zero"] });
    let output = succeeded(exec.run(job(directory.path(), input)).await).output;
    assert_eq!(output["stdout"].as_str().unwrap().len(), 100_000);
}

#[tokio::test]
async fn much_stderr_is_kept_by_its_end() {
    let output = output(json!({
        "command": ["sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x >&2; echo end >&2"],
    }))
    .await;
    let stderr = output["stderr"].as_str().unwrap();
    assert!(stderr.ends_with("xend") && stderr.len() < 65_536, "{}", stderr.len());
    assert_eq!(output["stderr_truncated"], true);
}

#[tokio::test]
async fn an_outcome_file_decides() {
    let text = r#"{"output":{"n":1},"artifacts":["a"],"cost":{"usd":"0.5"},"checkpoint":"c",
                   "then":[{"id":"s"}]}"#;
    let success = succeeded(outcome(text, "echo ignored").await);
    let expected = Success {
        output: json!({ "n": 1 }),
        artifacts: vec!["a".to_owned()],
        cost_usd_micros: 500_000,
        checkpoint: Some("c".to_owned()),
        then: vec![json!({ "id": "s" })],
        kept: false,
    };
    assert_eq!(success, expected);
    let success = succeeded(outcome(r#"{"cost":{"usd":1}}"#, "echo kept").await);
    assert_eq!((&success.output["stdout"], success.cost_usd_micros), (&json!("kept"), 1_000_000));
}

#[tokio::test]
async fn an_error_in_the_outcome_file_counts_whatever_the_exit_code() {
    let text = r#"{"error":{"class":"rate_limited","message":"wait","retry_after":"2s"}}"#;
    for code in ["exit 0", "exit 9"] {
        let failure = failed(outcome(text, code).await, Class::RateLimited, "wait");
        assert_eq!(failure.retry_after, Some(Duration::from_secs(2)));
        assert!(failure.output.unwrap()["exit_code"].is_number());
    }
}

#[tokio::test]
async fn an_outcome_without_error_does_not_excuse_an_exit_code() {
    let failure =
        failed(outcome(r#"{"cost":{"usd":2}}"#, "exit 5").await, Class::Retryable, "code 5");
    assert_eq!(failure.cost_usd_micros, 2_000_000);
}

#[tokio::test]
async fn faulty_outcome_files_are_permanent_unless_the_program_failed() {
    let deep = format!("{{\"output\":{}{}}}", "[".repeat(70), "]".repeat(70));
    for (text, fault) in [
        ("{", "EOF"),
        ("{\"output\":NaN}", "`NaN`"),
        ("{\"output\":1,\"output\":2}", "occurs twice"),
        ("{\"result\":1}", "unknown field `result`"),
        (deep.as_str(), "deeper than 64"),
    ] {
        failed(outcome(text, "").await, Class::Permanent, fault);
    }
    failed(outcome("{", "exit 1").await, Class::Retryable, "its outcome file: EOF");
    let pipe = script("mkfifo \"$STANDFAST_OUTCOME\"").await;
    failed(pipe, Class::Permanent, "not a regular file");
}

#[tokio::test]
async fn the_time_is_kept_and_the_cost_is_not_lost() {
    let directory = directory();
    let write = "echo '{\"cost\":{\"usd\":3}}' > \"$STANDFAST_OUTCOME\"; echo go; sleep 600";
    let mut job = job(directory.path(), json!({ "command": ["sh", "-c", write] }));
    job.deadline = Duration::from_millis(500);
    let failure = failed(exec().run(job).await, Class::Timeout, "its time of 500ms");
    assert_eq!(failure.cost_usd_micros, 3_000_000);
    assert_eq!(failure.output.unwrap()["stdout"], "go");
}

#[tokio::test]
async fn a_program_may_tidy_up_when_it_is_cancelled() {
    let directory = directory();
    let text = "trap 'echo tidy; exit 0' TERM; echo $$ > p.new; mv p.new p; \
                while :; do sleep 0.05; done";
    let job = job(directory.path(), json!({ "command": ["sh", "-c", text] }));
    let cancel = job.cancel.clone();
    let exec = Exec::new(ExecSettings { grace: Duration::from_secs(30), ..ExecSettings::new("t") });
    let running = tokio::spawn(async move { exec.run(job).await });
    let pid = pid_in(directory.path().join("p")).await;
    let started = Instant::now();
    cancel.cancel();
    let failure = failed(running.await.unwrap(), Class::Cancelled, "cancelled");
    assert!(started.elapsed() < Duration::from_secs(15), "the whole grace period was waited");
    assert_eq!(failure.output.unwrap()["stdout"], "tidy");
    gone(pid).await;
}

#[tokio::test]
async fn a_cancelled_job_starts_nothing() {
    let directory = directory();
    let job = job(directory.path(), json!({ "command": ["touch", "f"] }));
    job.cancel.cancel();
    failed(exec().run(job).await, Class::Cancelled, "before the start");
    assert!(!directory.path().join("f").exists());
}

/// A grandchild in a session of its own that ignores SIGTERM and loses its parent.
const DAEMON: &str = "(trap '' TERM; \
    setsid sh -c 'echo $$ > p.new; mv p.new p; while :; do sleep 0.05; done' &) ; \
    while [ ! -e p ]; do sleep 0.01; done";

#[tokio::test]
async fn daemons_end_with_a_successful_attempt() {
    let directory = directory();
    let input = json!({ "command": ["sh", "-c", format!("{DAEMON}; echo done")] });
    let output = succeeded(exec().run(job(directory.path(), input)).await).output;
    assert_eq!(output["stdout"], "done");
    let pid = pid_in(directory.path().join("p")).await;
    assert!(!lives(pid));
    gone(pid).await;
}

#[tokio::test]
async fn daemons_end_with_a_cancelled_attempt() {
    let directory = directory();
    let text = format!("trap '' TERM; {DAEMON}; while :; do sleep 0.05; done");
    let job = job(directory.path(), json!({ "command": ["sh", "-c", text] }));
    let cancel = job.cancel.clone();
    let running = tokio::spawn(async move { exec().run(job).await });
    let pid = pid_in(directory.path().join("p")).await;
    cancel.cancel();
    failed(running.await.unwrap(), Class::Cancelled, "cancelled");
    assert!(!lives(pid));
    gone(pid).await;
}

#[tokio::test]
async fn everything_ends_when_the_future_is_dropped() {
    let directory = directory();
    let text = format!("echo $$ > l.new; mv l.new l; {DAEMON}; sleep 600");
    let job = job(directory.path(), json!({ "command": ["sh", "-c", text] }));
    let running = tokio::spawn(async move { exec().run(job).await });
    let pid = pid_in(directory.path().join("p")).await;
    let leader = pid_in(directory.path().join("l")).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    gone(pid).await;
    gone(leader).await;
}

#[tokio::test]
async fn a_background_process_does_not_keep_the_attempt() {
    let started = Instant::now();
    succeeded(script("sleep 600 & echo $!").await);
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn attempts_side_by_side_do_not_end_each_other() {
    let directories: Vec<TempDir> = (0..8).map(|_| directory()).collect();
    let runs = directories.iter().enumerate().map(|(index, directory)| {
        let text = format!("setsid sleep 600 & sleep 0.{index}; echo {index}");
        let input = json!({ "command": ["sh", "-c", text] });
        async move { exec().run(job(directory.path(), input)).await }
    });
    for (index, report) in futures::future::join_all(runs).await.into_iter().enumerate() {
        assert_eq!(succeeded(report).output["stdout"], index.to_string());
    }
}

#[test]
fn wrong_inputs_are_refused_by_pointer() {
    let cases = [
        (json!([]), "", "expected an object"),
        (json!({}), "", "`command` is missing"),
        (json!({ "command": "ls -l" }), "/command", "for a shell write"),
        (json!({ "command": [] }), "/command", "expected a list"),
        (json!({ "command": [""] }), "/command/0", "empty"),
        (json!({ "command": ["a", 1] }), "/command/1", "expected a string, found a number"),
        (json!({ "command": ["a", "b\0"] }), "/command/1", "NUL"),
        (json!({ "command": ["a"], "shell": true }), "/shell", "unknown field `shell`"),
        (json!({ "command": ["a"], "env": [] }), "/env", "expected an object of strings"),
        (json!({ "command": ["a"], "env": { "A": 1 } }), "/env/A", "expected a string"),
        (json!({ "command": ["a"], "env": { "A=B": "" } }), "/env/A=B", "a letter or `_`"),
        (
            json!({ "command": ["a"], "env": { "STANDFAST_TASK": "" } }),
            "/env/STANDFAST_TASK",
            "reserved",
        ),
        (json!({ "command": ["a"], "expect_exit": 0 }), "/expect_exit", "list of exit codes"),
        (json!({ "command": ["a"], "expect_exit": [] }), "/expect_exit", "list of exit codes"),
        (json!({ "command": ["a"], "expect_exit": [256] }), "/expect_exit", "0 to 255"),
        (json!({ "command": ["a"], "output": "xml" }), "/output", "`text`, `json` or `none`"),
    ];
    for (input, pointer, part) in cases {
        let faults = exec().check(&input);
        assert_eq!(faults.len(), 1, "{input}: {faults:?}");
        assert_eq!(faults[0].pointer, pointer, "{input}");
        assert!(faults[0].message.contains(part), "{input}: {faults:?}");
    }
}

#[test]
fn templates_pass_the_check() {
    let template = "${{ input.x }}";
    for input in [
        json!({ "command": template }),
        json!({ "command": [template, template], "stdin": template, "env": { "A": template } }),
        json!({ "command": ["a"], "env": template, "expect_exit": template, "output": template }),
        json!({ "command": ["a"], "expect_exit": [0, template], "stdin": { "a": [1] } }),
    ] {
        assert_eq!(exec().check(&input), [], "{input}");
    }
}

#[tokio::test]
async fn faults_are_also_found_when_it_runs() {
    let report = with(json!({ "command": ["true"], "x": 1, "output": 2 })).await;
    failed(report, Class::Permanent, "exec: `with/x`: unknown field `x`");
    failed(with(json!({ "command": "${{ x }}" })).await, Class::Permanent, "command is empty");
}

#[tokio::test]
async fn what_a_program_says_of_its_progress_is_masked_and_known_at_its_end() {
    let directory = directory();
    let script = "echo one > $STANDFAST_PROGRESS; echo key $KEY >> $STANDFAST_PROGRESS; exit 1";
    let input =
        json!({ "command": ["sh", "-c", script], "env": { "KEY": "${{ secrets.TOKEN }}" } });
    let job = job(directory.path(), input);
    let pulse = job.pulse.clone();
    failed(exec().run(job).await, Class::Retryable, "exit code 1");
    let said = pulse.untold();
    assert_eq!((said.details.as_deref(), said.alive), (Some("key ***"), true));
}

#[tokio::test]
async fn output_is_a_sign_of_life_and_so_is_a_changed_file() {
    for script in ["echo x", "echo x >&2", "echo '{}' > $STANDFAST_OUTCOME"] {
        let directory = directory();
        let job = job(directory.path(), json!({ "command": ["sh", "-c", script] }));
        let pulse = job.pulse.clone();
        succeeded(exec().run(job).await);
        assert!(pulse.untold().alive, "{script}");
    }
    let directory = directory();
    let job = job(directory.path(), json!({ "command": ["true"] }));
    let pulse = job.pulse.clone();
    succeeded(exec().run(job).await);
    assert!(!pulse.untold().alive, "a program that says nothing gives no sign");
}

#[tokio::test]
async fn a_program_is_told_what_the_attempt_before_said_last() {
    let directory = directory();
    let input = json!({ "command": ["sh", "-c", "echo ${STANDFAST_LAST_DETAILS-none}"] });
    let mut job = job(directory.path(), input.clone());
    job.last_details = Some("row\0 400".to_owned());
    assert_eq!(succeeded(exec().run(job).await).output["stdout"], "row 400");
    assert_eq!(output(input).await["stdout"], "none");
}

#[tokio::test]
async fn a_program_names_each_class_of_failure_but_the_loss_of_its_worker() {
    for class in ["retryable", "permanent", "rate_limited", "timeout", "cancelled"] {
        let text = json!({ "error": { "class": class, "message": "so it is", "retry_after": 7 } });
        let failure = failed(
            outcome(&text.to_string(), "exit 0").await,
            Class::parse(class).unwrap(),
            "so it is",
        );
        assert_eq!(failure.retry_after, Some(Duration::from_secs(7)), "{class}");
    }
    let lost = json!({ "error": { "class": "lost", "message": "" } }).to_string();
    failed(outcome(&lost, "exit 0").await, Class::Permanent, "`error/class` must be");
}

#[test]
fn every_field_has_its_row_in_the_page_of_handlers() {
    described("exec", &FIELDS);
}
