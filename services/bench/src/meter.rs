//! What processes use: time on the processor and memory, as the kernel counts them.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use serde::Serialize;

/// The kernel's unit of processor time, in ticks a second: fixed for user space on Linux.
const TICKS_A_SECOND: f64 = 100.0;
/// Bytes of a kilobyte in `/proc/PID/status`.
const KIB: u64 = 1024;

/// Watches processes from one moment on.
pub struct Meter {
    began: Instant,
    /// By name: the process and the seconds it had used by then.
    processes: BTreeMap<String, (u32, f64)>,
}

/// What one process used while it was watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Used {
    /// Microseconds of processor time for each unit of work.
    pub cpu_us_each: f64,
    /// Share of one core, from 0 up.
    pub cores: f64,
    /// Resident memory at the end, in bytes.
    pub resident_bytes: u64,
}

impl Meter {
    /// Begins to watch processes, by name and id.
    pub fn start<'n>(processes: impl IntoIterator<Item = (&'n str, u32)>) -> Self {
        let watch = |(name, pid): (&str, u32)| (name.to_owned(), (pid, seconds(pid)));
        Self { began: Instant::now(), processes: processes.into_iter().map(watch).collect() }
    }

    /// Says what each has used since, for `units` of work. Nothing is said of a process that the
    /// kernel does not show.
    pub fn read(&self, units: u64) -> BTreeMap<String, Used> {
        let elapsed = self.began.elapsed().as_secs_f64();
        let shown = self.processes.iter().filter_map(|(name, (pid, before))| {
            let resident_bytes = resident_bytes(*pid)?;
            let used = seconds(*pid) - before;
            let cpu_us_each = used * 1e6 / units.max(1) as f64;
            Some((name.clone(), Used { cpu_us_each, cores: used / elapsed, resident_bytes }))
        });
        shown.collect()
    }
}

fn seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything; user and system time are 14th and 15th.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let fields = after.split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_A_SECOND
}

fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_memory_and_one_that_is_not_there_is_left_out() {
        let meter = Meter::start([("me", std::process::id()), ("nobody", u32::MAX)]);
        let used = meter.read(1);
        assert!(used["me"].resident_bytes > KIB);
        assert!(!used.contains_key("nobody"));
    }
}
