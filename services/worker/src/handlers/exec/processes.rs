//! Processes as the kernel shows them under `/proc`, and signals that reach the process that
//! was seen and no other.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

/// One process at one moment. Number and start together name it for as long as the machine
/// runs: a number is used again, but not within the same clock tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// Its number.
    pub pid: i32,
    /// Its parent's number.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// When it started, in clock ticks since the machine did.
    pub start: u64,
    /// Whether it has ended and only waits to be reaped.
    pub ended: bool,
}

/// Gives all processes by number; none where there is no `/proc`.
pub(super) fn all() -> BTreeMap<i32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, one(pid)?)))
        .collect()
}

/// Gives one process, if there is one of that number.
pub(super) fn one(pid: i32) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a line of `/proc/PID/stat` (proc(5)). The name in it may hold anything, so fields
/// are counted from its closing parenthesis; state is the first.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i64>().ok();
    let small = |at: usize| number(at).and_then(|n| i32::try_from(n).ok());
    // A process whose first thread has ended lives on in its other threads.
    let ended = matches!(*fields.first()?, "Z" | "X" | "x") && number(17)? <= 1;
    let start = u64::try_from(number(19)?).ok()?;
    Some(Process { pid, parent: small(1)?, group: small(2)?, start, ended })
}

/// Gives what a process's environment held for a name when it started.
pub(super) fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// Sends a signal to a process that was seen before. The descriptor is opened first and the
/// process looked at again after that: whatever has the number then is what the descriptor
/// holds, or the descriptor's process has ended and the signal goes nowhere.
pub(super) fn signal(process: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else { return false };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let same = one(process.pid).is_some_and(|now| now.start == process.start);
    same && pidfd_send_signal(&descriptor, signal).is_ok()
}

/// Takes the remains of an ended child, so that its number becomes free.
pub(super) fn reap(process: &Process) {
    if let Some(pid) = Pid::from_raw(process.pid) {
        // Somebody else may have been faster; then there is nothing left to do.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn this_process_is_seen() {
        let own = i32::try_from(std::process::id()).unwrap();
        let seen = all()[&own];
        assert!(!seen.ended && seen.start > 0);
        assert_eq!(one(own).map(|process| process.start), Some(seen.start));
    }

    #[test]
    fn names_may_hold_parentheses_and_blanks() {
        let rest = "S 7 8 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4321 0 0";
        let process = parse(5, &format!("5 (a) Z 1 (b) {rest}")).unwrap();
        let expected = Process { pid: 5, parent: 7, group: 8, start: 4321, ended: false };
        assert_eq!(process, expected);
        assert_eq!(parse(5, "5 (a"), None);
    }

    #[test]
    fn a_signal_does_not_reach_a_process_that_only_has_the_number() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let seen = one(i32::try_from(child.id()).unwrap()).unwrap();
        let other = Process { start: seen.start - 1, ..seen };
        assert!(!signal(&other, Signal::KILL));
        assert_eq!(child.try_wait().unwrap(), None);
        assert!(signal(&seen, Signal::KILL));
        assert!(!child.wait().unwrap().success());
        assert!(!signal(&seen, Signal::KILL));
    }
}
