//! The processes of an attempt: which they are, and how all of them end.
//!
//! A program may start others that leave its process group and session, ignore signals or
//! outlive their parent. On Linux the worker makes itself the *subreaper* of all it starts:
//! whoever loses a parent becomes the worker's child, so nothing ever leaves the worker's
//! subtree. Within the subtree a process belongs to the attempt
//!
//! 1. whose first process is among its ancestors, or else
//! 2. whose mark stands in its or an ancestor's environment, or else
//! 3. whose process group it or an ancestor is in, or else
//! 4. that is the only one which could have started it: every other live attempt began later.
//!
//! What is guaranteed: when an attempt has ended, all of its processes have; one that hid
//! from rules 1 to 3 (it cleared its environment, left its group and lost its parent) ends at
//! the latest with the last attempt that was already running when it started. Two escapes are
//! left: a process that the kernel holds in an uninterruptible call, and, after a `kill -9`
//! of the worker itself, one that had cleared its environment. All others that a killed
//! worker left behind are ended by [`reap_orphans`] at the next start. Elsewhere than on
//! Linux only the first process is ended.
//!
//! The worker's process must start nothing else in process groups of their own: it would be
//! taken for an attempt's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::process::{Child, Command};

use super::processes::{self, Process};

/// Names the attempt within the environment of its processes.
pub(super) const ATTEMPT_MARK: &str = "STANDFAST_ATTEMPT_ID";
/// Names the data directory within the environment of its processes.
pub(super) const HOME_MARK: &str = "STANDFAST_HOME_ID";
/// Names the worker process that started a process: `PID.START`.
pub(super) const WORKER_MARK: &str = "STANDFAST_WORKER_PROCESS";

/// How long ending an attempt's processes may take: a killed process is gone at once unless
/// the kernel holds it, and then no wait would help.
const END_WAIT_MAX: Duration = Duration::from_secs(10);

/// What tells an attempt's processes apart.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ident {
    leader: i32,
    start: u64,
    mark: String,
}

/// The attempts of this process that have not ended.
static LIVE: Mutex<Vec<Ident>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<Ident>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All processes of one attempt. Dropping it kills them.
#[derive(Debug)]
pub(super) struct Family {
    ident: Ident,
    ended: bool,
}

impl Family {
    /// Starts an attempt's first process, in a process group of its own.
    pub(super) fn start(command: &mut Command, mark: &str) -> io::Result<(Child, Self)> {
        adopt_orphans();
        command.process_group(0).env(ATTEMPT_MARK, mark).env(WORKER_MARK, own_mark());
        // Others must not see the child before they can see whose it is.
        let mut attempts = live();
        let child = command.spawn()?;
        let leader = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let start = processes::one(leader).map_or(0, |process| process.start);
        let ident = Ident { leader, start, mark: mark.to_owned() };
        attempts.push(ident.clone());
        Ok((child, Self { ident, ended: false }))
    }

    /// Sends a signal to every process of the attempt; gives how many there were.
    pub(super) fn signal(&self, signal: Signal) -> usize {
        let (members, _) = members(&self.ident);
        members.iter().filter(|process| processes::signal(process, signal)).count()
    }

    /// Gives how many processes the attempt has.
    pub(super) fn count(&self) -> usize {
        members(&self.ident).0.len()
    }

    /// Kills and reaps until nothing is left; gives whether that was reached. Blocks.
    pub(super) fn end(mut self) -> bool {
        self.ended = true;
        end(&self.ident)
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // The first blow falls here, because the process may be about to exit; what comes
        // after it must not block whoever drops a future.
        self.signal(Signal::KILL);
        let ident = self.ident.clone();
        thread::spawn(move || end(&ident));
    }
}

/// Kills what an earlier worker process of this data directory left behind. Call it at start.
///
/// Processes of workers that still live are left alone, so several workers can share a
/// directory. Gives how many were killed.
pub fn reap_orphans(home_id: &str) -> usize {
    let started = Instant::now();
    let mut killed = BTreeSet::new();
    loop {
        let all = processes::all();
        let roots: BTreeSet<i32> = all
            .values()
            .filter(|process| !process.ended && is_orphan(process, home_id, &all))
            .map(|process| process.pid)
            .collect();
        // One that was killed is gone only a moment later.
        let dying = |one: &Process| !one.ended && killed.contains(&(one.pid, one.start));
        let done = roots.is_empty() && !all.values().any(dying);
        if done || started.elapsed() > END_WAIT_MAX {
            return killed.len();
        }
        let below = |process: &&Process| {
            !process.ended && ancestry(process.pid, &all).any(|one| roots.contains(&one.pid))
        };
        for process in all.values().filter(below) {
            if processes::signal(process, Signal::KILL) {
                killed.insert((process.pid, process.start));
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn is_orphan(process: &Process, home_id: &str, all: &BTreeMap<i32, Process>) -> bool {
    if processes::variable(process.pid, HOME_MARK).as_deref() != Some(home_id) {
        return false;
    }
    let Some(worker) = processes::variable(process.pid, WORKER_MARK) else { return false };
    let Some((pid, start)) = worker.split_once('.') else { return false };
    let (Ok(pid), Ok(start)) = (pid.parse::<i32>(), start.parse::<u64>()) else { return false };
    !all.get(&pid).is_some_and(|worker| worker.start == start && !worker.ended)
}

/// Makes this process the parent of all below it that lose theirs.
fn adopt_orphans() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let own = rustix::process::getpid();
        if let Err(error) = rustix::process::set_child_subreaper(Some(own)) {
            tracing::warn!(%error, "failed to become the subreaper; orphans may escape");
        }
    });
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn own_mark() -> String {
    let start = processes::one(own_pid()).map_or(0, |process| process.start);
    format!("{}.{start}", own_pid())
}

/// Kills and reaps in turns: who was forked between look and blow is met in the next turn.
fn end(ident: &Ident) -> bool {
    let started = Instant::now();
    let mut pause = Duration::from_micros(500);
    let done = loop {
        let (members, remains) = members(ident);
        remains.iter().for_each(processes::reap);
        if members.is_empty() {
            break true;
        }
        if started.elapsed() > END_WAIT_MAX {
            tracing::error!(mark = ident.mark, left = members.len(), "failed to end processes");
            break false;
        }
        for process in &members {
            processes::signal(process, Signal::KILL);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    live().retain(|one| one != ident);
    done
}

/// Gives the attempt's processes, and the remains of adopted ones that nobody else reaps.
fn members(ident: &Ident) -> (Vec<Process>, Vec<Process>) {
    // The list stays locked while reaping is decided, so that no first process of another
    // attempt is taken for an adopted one.
    let attempts = live();
    let all = processes::all();
    let own = own_pid();
    let marks = |pid: i32| processes::variable(pid, ATTEMPT_MARK);
    let tree = Tree { own, all: &all, attempts: &attempts, marks: &marks };
    let members = all.values().filter(|p| !p.ended && tree.belongs(p, ident)).copied();
    let remains = all.values().filter(|p| p.ended && tree.is_adopted(p)).copied();
    (members.collect(), remains.collect())
}

/// A look at all processes, with what is needed to say whose each is.
struct Tree<'a> {
    own: i32,
    all: &'a BTreeMap<i32, Process>,
    attempts: &'a [Ident],
    /// Reads a process's mark.
    marks: &'a dyn Fn(i32) -> Option<String>,
}

impl Tree<'_> {
    fn belongs(&self, process: &Process, ident: &Ident) -> bool {
        let Some(line) = self.line(process) else { return false };
        if let Some(owner) = self.owner(&line) {
            return owner == ident;
        }
        let Some(top) = line.last() else { return false };
        let mut others = self.attempts.iter().filter(|one| *one != ident);
        self.is_adopted(top) && others.all(|other| top.start < other.start)
    }

    /// Gives a process and its ancestors up to, without, this process; `None` elsewhere.
    fn line(&self, process: &Process) -> Option<Vec<Process>> {
        let mut line: Vec<Process> = ancestry(process.pid, self.all).copied().collect();
        let at = line.iter().position(|one| one.pid == self.own)?;
        line.truncate(at);
        Some(line)
    }

    fn owner(&self, line: &[Process]) -> Option<&Ident> {
        let by = |fits: &dyn Fn(&Process, &Ident) -> bool| {
            line.iter().find_map(|one| self.attempts.iter().find(|attempt| fits(one, attempt)))
        };
        by(&|one, attempt| one.pid == attempt.leader && one.start == attempt.start)
            .or_else(|| by(&|one, attempt| (self.marks)(one.pid).as_ref() == Some(&attempt.mark)))
            .or_else(|| by(&|one, attempt| one.group == attempt.leader))
    }

    /// Says whether a child of this process came here by losing its parent. What this process
    /// starts itself is an attempt's first process or stays in its own group.
    fn is_adopted(&self, process: &Process) -> bool {
        let own_group = self.all.get(&self.own).map(|own| own.group);
        process.parent == self.own
            && Some(process.group) != own_group
            && !self.attempts.iter().any(|one| one.leader == process.pid)
    }
}

/// Walks from a process through its ancestors. Numbers seen at different moments could make
/// a circle; the walk ends at last after as many steps as there are processes.
fn ancestry(pid: i32, all: &BTreeMap<i32, Process>) -> impl Iterator<Item = &Process> {
    std::iter::successors(all.get(&pid), |process| all.get(&process.parent)).take(all.len())
}

#[cfg(test)]
#[path = "family_tests.rs"]
mod tests;
