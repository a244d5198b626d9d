//! Whose a process is, told on invented trees, and the fate of real orphans.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

const OWN: i32 = 100;

/// Processes as `(pid, parent, group, start)`; this process is 100, in group 100.
fn tree(list: &[(i32, i32, i32, u64)]) -> BTreeMap<i32, Process> {
    let own = (OWN, 1, OWN, 1);
    let all = list.iter().chain([&own, &(1, 0, 1, 0)]);
    all.map(|&(pid, parent, group, start)| {
        (pid, Process { pid, parent, group, start, ended: false })
    })
    .collect()
}

fn attempt(leader: i32, start: u64, mark: &str) -> Ident {
    Ident { leader, start, mark: mark.to_owned() }
}

/// Gives who belongs to the first of the attempts.
fn belonging(list: &[(i32, i32, i32, u64)], marks: &[(i32, &str)], attempts: &[Ident]) -> Vec<i32> {
    let all = tree(list);
    let marks = |pid: i32| {
        marks.iter().find(|(marked, _)| *marked == pid).map(|(_, mark)| (*mark).to_owned())
    };
    let tree = Tree { own: OWN, all: &all, attempts, marks: &marks };
    all.values().filter(|one| tree.belongs(one, &attempts[0])).map(|one| one.pid).collect()
}

#[test]
fn descendants_belong_whatever_they_left() {
    let list = [(200, OWN, 200, 10), (201, 200, 201, 11), (202, 201, 202, 12)];
    assert_eq!(belonging(&list, &[], &[attempt(200, 10, "a")]), [200, 201, 202]);
}

#[test]
fn adopted_ones_belong_by_mark_group_or_ancestor() {
    let list = [(301, OWN, 301, 11), (302, OWN, 200, 12), (303, 301, 303, 13)];
    let attempts = [attempt(200, 10, "a"), attempt(400, 5, "b")];
    assert_eq!(belonging(&list, &[(301, "a")], &attempts), [301, 302, 303]);
    assert_eq!(belonging(&list, &[(301, "b")], &attempts), [302]);
}

#[test]
fn a_hidden_one_belongs_to_the_only_attempt_that_could_have_started_it() {
    let list = [(301, OWN, 301, 20)];
    assert_eq!(belonging(&list, &[], &[attempt(200, 10, "a")]), [301]);
    let later = [attempt(200, 10, "a"), attempt(400, 21, "b")];
    assert_eq!(belonging(&list, &[], &later), [301]);
    let earlier = [attempt(200, 10, "a"), attempt(400, 20, "b")];
    assert_eq!(belonging(&list, &[], &earlier), [0; 0]);
}

#[test]
fn what_is_outside_or_in_the_own_group_is_never_touched() {
    let list = [(50, 1, 200, 11), (51, 1, 51, 11), (300, OWN, OWN, 11), (301, 300, OWN, 12)];
    assert_eq!(belonging(&list, &[(50, "a"), (51, "a")], &[attempt(200, 10, "a")]), [0; 0]);
}

#[test]
fn a_number_used_again_is_another_process() {
    let list = [(200, OWN, 200, 99)];
    let attempts = [attempt(200, 10, "a"), attempt(200, 99, "b")];
    assert_eq!(belonging(&list, &[(200, "b")], &attempts), [0; 0]);
}

#[test]
fn circles_end() {
    let mut all = tree(&[(200, 201, 1, 1), (201, 200, 1, 1)]);
    all.remove(&1);
    assert!(ancestry(200, &all).count() <= all.len());
}

/// Starts a shell with a child that has no marks; gives both once both are there.
fn leftover(home: &str, worker: &str) -> (Child, Process) {
    let mut command = Command::new("sh");
    command.args(["-c", "env -i sleep 600 >/dev/null & echo $!; wait"]).stdout(Stdio::piped());
    let mut shell = command.env(HOME_MARK, home).env(WORKER_MARK, worker).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child = processes::one(line.trim().parse().unwrap()).unwrap();
    (shell, child)
}

#[test]
fn leftovers_of_a_dead_worker_are_killed_and_those_of_a_live_one_are_not() {
    let home = uuid::Uuid::now_v7().to_string();
    let (mut dead, its_child) = leftover(&home, "2147483646.1");
    let kept = [leftover("another", "2147483646.1"), leftover(&home, &own_mark())];
    assert_eq!(reap_orphans(&home), 2);
    assert!(!dead.wait().unwrap().success());
    assert!(
        processes::one(its_child.pid).is_none_or(|now| now.start != its_child.start || now.ended)
    );
    for (mut shell, child) in kept {
        assert_eq!(shell.try_wait().unwrap(), None);
        assert!(processes::signal(&child, Signal::KILL));
        shell.wait().unwrap();
    }
    assert_eq!(reap_orphans(&home), 0);
}
