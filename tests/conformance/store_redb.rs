//! What is particular to the file: its lock, reopening, other formats, and a process that dies.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use standfast_engine::ports::Store;
use standfast_stores::redb::{OpenError, RedbStore};

use crate::support::{Make, applied, bodies, commit, load, members, range, task, text};

/// Set for the child process that commits until it is killed: the directory.
const CHILD: &str = "STANDFAST_TEST_CHILD_DIRECTORY";

#[tokio::test]
async fn a_second_open_is_refused_until_the_first_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(directory.path()).unwrap();
    assert!(matches!(RedbStore::open(directory.path()), Err(OpenError::Held(_))));
    assert!(applied(&store, &commit(&task()).put("a", "1")).await, "the first is not disturbed");
    drop(store);
    RedbStore::open(directory.path()).unwrap();
}

#[tokio::test]
async fn what_was_answered_is_there_after_reopening() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("made/by/open");
    let made = commit(&task()).put("a", "1").events(0, &["x"]).add("i", "m");
    let store = RedbStore::open(&directory).unwrap();
    assert!(applied(&store, &made).await);
    let time = store.now().await.unwrap();
    drop(store);
    let store = RedbStore::open(&directory).unwrap();
    assert_eq!(text(&store, &task(), "a").await.as_deref(), Some("1"));
    assert_eq!(bodies(&store, &task(), 0, 10).await, ["x"]);
    assert_eq!(members(&store, range(task().home(), "i")).await, ["m"]);
    assert!(applied(&store, &made).await, "the repeat is recognised");
    assert!(store.now().await.unwrap() >= time);
    assert!(store.health().await.unwrap().durable);
}

#[test]
fn files_that_are_not_ours_are_told_apart() {
    let open = |directory: &Path| RedbStore::open(directory).err();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("standfast.redb");
    std::fs::write(&path, "dear diary").unwrap();
    assert!(matches!(open(directory.path()), Some(OpenError::Corrupt { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"dear diary", "and it is left alone");
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(open(&file), Some(OpenError::Io { .. })));
}

/// Not a test by itself: the process that the next one kills.
#[tokio::test]
async fn commits_until_killed() {
    let Ok(directory) = std::env::var(CHILD) else {
        return;
    };
    let store = RedbStore::open(Path::new(&directory)).unwrap();
    for number in 0_u64.. {
        let name = number.to_string();
        let made = commit(&task()).put(&name, vec![7; 3_000]).events(number, &[&name]);
        assert!(applied(&store, &made).await);
        writeln!(std::io::stdout(), "answered {number}").unwrap();
    }
}

#[tokio::test]
async fn a_process_killed_amid_commits_loses_nothing_it_had_answered() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..3 {
        // Later rounds would repeat event numbers, so each has a directory of its own.
        let place = directory.path().join(round.to_string());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "redb_only::commits_until_killed", "--nocapture"])
            .env(CHILD, &place)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut answered = 0_u64;
        for number in lines.filter_map(|line| line.strip_prefix("answered ")?.parse::<u64>().ok()) {
            answered = number + 1;
            if number == 20 + round {
                child.kill().unwrap();
            }
        }
        assert!(!child.wait().unwrap().success());
        let store = RedbStore::open(&place).unwrap();
        let events = bodies(&store, &task(), 0, 500).await.len() as u64;
        assert!(events >= answered && answered > 20, "{answered} answered, {events} stored");
        let names: Vec<String> = (0..events).map(|number| number.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let records = load(&store, &task(), &names).await;
        assert!(records.iter().all(Option::is_some), "records and events are of one moment");
    }
}
