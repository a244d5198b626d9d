//! Processes that are to die at a point.

use std::os::unix::process::ExitStatusExt;

use standfast_engine::crash::POINTS;
use standfast_tests::binary::Running;
use standfast_tests::processes::Installation;
use standfast_tests::wait;

/// What the kernel sends a process that dies at a point.
const SIGKILL: i32 = 9;

/// Starts a process that dies when it passes `point` for the `nth` time.
pub fn start(own: &Installation, arguments: &[&str], point: &str, nth: u64) -> Running {
    assert!(POINTS.contains(&point), "{point} is a crash point");
    let mut command = own.command(arguments);
    command.env("STANDFAST_CRASH", format!("{point}:{nth}"));
    Running::start(command, &own.path().join(format!("{}.log", arguments[0])))
}

/// Waits until a process has died by its own hand.
pub async fn death(process: &mut Running, what: &str) {
    let status =
        wait::until(&format!("the death of {what}"), async || process.0.try_wait().unwrap()).await;
    assert_eq!(status.signal(), Some(SIGKILL), "{what}");
}
