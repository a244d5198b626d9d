//! The `standfast` binary as a user starts it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// Gives the path of the binary: `STANDFAST_TEST_BINARY`, else the one beside the tests or beside
/// this program.
pub fn path() -> PathBuf {
    if let Some(path) = std::env::var_os("STANDFAST_TEST_BINARY") {
        return path.into();
    }
    let own = std::env::current_exe().unwrap();
    let beside = own.with_file_name("standfast");
    if beside.exists() {
        return beside;
    }
    let path = own.ancestors().nth(2).unwrap().join("standfast");
    assert!(path.exists(), "{} is missing: run `cargo build -p standfast`", path.display());
    path
}

/// Makes a command with a clean environment and a working directory.
pub fn command(directory: &Path) -> Command {
    let mut command = Command::new(path());
    command.current_dir(directory).env_clear().stdin(Stdio::null());
    for name in ["PATH", "HOME", "LANG", "TMPDIR"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Runs a command to its end.
pub fn output(directory: &Path, arguments: &[&str]) -> Output {
    command(directory).args(arguments).output().unwrap()
}

/// Runs a command with `--json` to its end; panics unless its code is one of `codes`.
pub fn json(directory: &Path, arguments: &[&str], codes: &[i32]) -> Value {
    let output = command(directory).args(arguments).arg("--json").output().unwrap();
    let code = output.status.code();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        code.is_some_and(|code| codes.contains(&code)),
        "{arguments:?} ended with {code:?}\n{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

/// A process that is ended with the test.
pub struct Running(pub Child);

impl Running {
    /// Starts one; its output goes to a file.
    pub fn start(mut command: Command, log: &Path) -> Self {
        let file = std::fs::File::options().create(true).append(true).open(log).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        Self(command.spawn().unwrap())
    }

    /// Kills it with -9.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Sends SIGTERM and gives the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Numbers that look random and are the same for the same seed; the seed is printed.
pub struct Draw(u64);

impl Draw {
    /// Takes the seed from `STANDFAST_TEST_SEED`, else the clock.
    pub fn new() -> Self {
        let clock = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().as_nanos() as u64
        };
        let given = std::env::var("STANDFAST_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(clock);
        println!("STANDFAST_TEST_SEED={seed}");
        Self(seed)
    }

    /// Takes a given seed.
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Gives a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // SplitMix64, by Steele, Lea and Flood (2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

impl Default for Draw {
    fn default() -> Self {
        Self::new()
    }
}

/// How often a test repeats itself: `STANDFAST_TEST_REPEATS`, else few.
pub fn repeats(few: u64) -> u64 {
    std::env::var("STANDFAST_TEST_REPEATS").ok().and_then(|text| text.parse().ok()).unwrap_or(few)
}
