//! One attempt of `exec`, from secrets to report.
//!
//! ```text
//!  resolve secrets ─ start ─┬─ first process ends ────────────┬─ kill what is left ─ report
//!     (all pipes are served │  cancelled, time over ─ SIGTERM ─ grace ─┤
//!      at the same time)    └─ too much output ───────────────┘
//! ```

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use standfast_engine::crash;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::secrets::{Masker, Resolver};
use super::super::{
    Class, Failure, Job, LogSink, LogSource, Pulse, Report, SecretFault, Sent, outside,
};
use super::family::{Family, HOME_MARK};
use super::progress::Progress;
use super::report::{self, Seen};
use super::{ExecSettings, Input};

/// Bytes kept of standard error's end; the whole is in the log.
pub(super) const STDERR_BYTES_MAX: usize = 64 * 1024;
/// Where an attempt's own files lie within its directory.
const PRIVATE_DIRECTORY: &str = ".standfast";
/// How long the pipes are still read after the last process: only one that escaped could
/// hold them open.
const PIPES_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often the grace period looks whether everything has ended already.
const GRACE_LOOK: Duration = Duration::from_millis(50);

/// What ended the first process, or the wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It ended by itself.
    Exit,
    /// The job was cancelled.
    Cancelled,
    /// The job's time was over.
    TimeOver,
    /// It wrote too much.
    TooMuch,
}

/// Runs one attempt whose input is right.
pub(super) async fn run(settings: &ExecSettings, job: &Job, input: Input) -> Report {
    let started = Instant::now();
    let (input, masker) = match resolve(job, input) {
        Ok(resolved) => resolved,
        Err(fault) => return Failure::new(Class::Permanent, format!("exec: {fault}")).into(),
    };
    job.log.hide(masker.clone());
    if job.cancel.is_cancelled() {
        return Failure::new(Class::Cancelled, "exec: cancelled before the start").into();
    }
    let effect = job.effect.as_deref();
    if let Some(report) = outside::ask(effect, job.deadline).await {
        return report;
    }
    let private = job.directory.join(PRIVATE_DIRECTORY);
    let progress = Progress {
        file: private.join("progress"),
        outcome: private.join("outcome.json"),
        masker: masker.clone(),
        pulse: job.pulse.clone(),
    };
    crash::point("send.before");
    let (mut child, family) = match start(settings, job, &input, &progress) {
        Ok(started) => started,
        Err(failure) => return Failure { sent: Sent::Not, ..*failure }.into(),
    };
    crash::point("send.sent"); // what the program sends, and when, is its own affair
    let pipes = Pipes::serve(&mut child, &input, job, settings.output_bytes_max);
    let following = AbortOnDropHandle::new(tokio::spawn(progress.clone().follow()));
    let left = job.deadline.saturating_sub(started.elapsed());
    let (ending, status) = wait(&mut child, job, left, &pipes.too_much).await;
    let ended = stop(settings, ending, &mut child, family).await;
    if !ended {
        job.log.note("some processes of this attempt could not be ended");
    }
    let (stdout, stderr) = pipes.finish().await;
    drop(following);
    crash::point("send.answered");
    progress.look((None, None)); // what was said at the very end
    let seen = Seen { ending, status, stdout, stderr, outcome: progress.outcome, masker };
    report::report(settings, job, &input, &seen)
}

/// Puts secrets in place; nothing is started or written yet.
fn resolve(job: &Job, input: Input) -> Result<(Input, Masker), SecretFault> {
    let mut resolver = Resolver::new(&*job.secrets);
    let mut text = |text: &String| resolver.text(text).map(|(text, _)| text);
    let command = input.command.iter().map(&mut text).collect::<Result<_, _>>()?;
    let env = input.env.iter().map(|(name, value)| Ok((name.clone(), text(value)?)));
    let env = env.collect::<Result<_, SecretFault>>()?;
    let stdin = input.stdin.as_ref().map(|value| resolver.value(value)).transpose()?;
    Ok((Input { command, env, stdin, ..input }, resolver.masker()))
}

fn start(
    settings: &ExecSettings,
    job: &Job,
    input: &Input,
    progress: &Progress,
) -> Result<(Child, Family), Box<Failure>> {
    let fail = |class, message: String| Box::new(Failure::new(class, message));
    let Some((program, arguments)) = input.command.split_first() else {
        return Err(fail(Class::Permanent, "exec: the command is empty".to_owned()));
    };
    let temporary = job.directory.join(PRIVATE_DIRECTORY).join("tmp");
    std::fs::create_dir_all(&temporary).map_err(|error| {
        fail(Class::Retryable, format!("exec: the attempt's directory: {error}"))
    })?;
    let program = located(program, &job.directory);
    let mut command = Command::new(&program);
    command
        .args(arguments)
        .current_dir(&job.directory)
        .env_clear()
        .envs(environment(settings, job, progress, temporary))
        .envs(input.env.iter().map(|(name, value)| (name, value)))
        .stdin(if input.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mark = uuid::Uuid::now_v7().to_string();
    Family::start(&mut command, &mark).map_err(|error| {
        let (class, why) = start_fault(&error, &program, &job.directory);
        let program = &input.command[0];
        let text = format!("exec: `{program}` could not be started: {why}");
        fail(class, progress.masker.text(&text))
    })
}

/// Looks a relative program up where the attempt runs; the kernel would look where the
/// worker does.
fn located(program: &str, directory: &Path) -> PathBuf {
    if program.contains('/') { directory.join(program) } else { PathBuf::from(program) }
}

fn environment(
    settings: &ExecSettings,
    job: &Job,
    progress: &Progress,
    temporary: PathBuf,
) -> Vec<(&'static str, OsString)> {
    let own = |name, default: &str| std::env::var_os(name).unwrap_or_else(|| default.into());
    // A variable ends at a NUL character, which a handler elsewhere may have said.
    let last = job.last_details.as_ref().map(|details| details.replace('\0', ""));
    let last = last.map(|details| ("STANDFAST_LAST_DETAILS", OsString::from(details)));
    let effect = job.effect.as_ref();
    let effect = effect.map(|effect| ("STANDFAST_EFFECT_KEY", effect.key.clone().into()));
    let trace = job.traceparent.clone().map(|trace| ("TRACEPARENT", trace.into()));
    let mut variables = vec![
        ("PATH", own("PATH", "/usr/local/bin:/usr/bin:/bin")),
        ("HOME", own("HOME", "/")),
        ("LANG", own("LANG", "C.UTF-8")),
        ("TMPDIR", temporary.into()),
        ("STANDFAST_TASK", job.task.clone().into()),
        ("STANDFAST_STEP", job.step.clone().into()),
        ("STANDFAST_ATTEMPT", job.attempt.to_string().into()),
        ("STANDFAST_ROUND", job.round.to_string().into()),
        ("STANDFAST_INPUTS", job.directory.join("inputs").into()),
        ("STANDFAST_OUTCOME", progress.outcome.clone().into()),
        ("STANDFAST_PROGRESS", progress.file.clone().into()),
        (HOME_MARK, settings.home_id.clone().into()),
    ];
    variables.extend(last);
    variables.extend(effect);
    variables.extend(trace);
    variables
}

/// Says why a program did not start. "No such file" may mean the program, its folder, what
/// interprets it, or the attempt's own directory; only the last is the worker's and is made anew
/// for another attempt.
pub(super) fn start_fault(error: &io::Error, program: &Path, directory: &Path) -> (Class, String) {
    if !directory.is_dir() {
        return (Class::Retryable, format!("the attempt's directory is gone: {error}"));
    }
    let class = start_class(error);
    let missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let folder = program.parent().filter(|folder| !folder.as_os_str().is_empty());
    let why = match folder {
        _ if !missing => error.to_string(),
        None => "it is not in the worker's `PATH`".to_owned(),
        Some(folder) if !folder.is_dir() => format!("there is no folder {}", folder.display()),
        Some(_) if program.exists() => {
            "the file is there; the interpreter that it names is not".to_owned()
        }
        Some(folder) => format!("there is no such file in {}", folder.display()),
    };
    (class, why)
}

/// A program that is not there or cannot be run will not be there next time either; a lack
/// of memory or processes passes.
fn start_class(error: &io::Error) -> Class {
    let passing = [
        io::ErrorKind::OutOfMemory,
        io::ErrorKind::WouldBlock,
        io::ErrorKind::Interrupted,
        io::ErrorKind::ExecutableFileBusy,
        io::ErrorKind::ResourceBusy,
    ];
    let files = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    let no_files = files.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    if passing.contains(&error.kind()) || no_files { Class::Retryable } else { Class::Permanent }
}

async fn wait(
    child: &mut Child,
    job: &Job,
    left: Duration,
    too_much: &CancellationToken,
) -> (Ending, Option<ExitStatus>) {
    tokio::select! {
        // What has been decided elsewhere counts before how the process ended.
        biased;
        () = job.cancel.cancelled() => (Ending::Cancelled, None),
        () = too_much.cancelled() => (Ending::TooMuch, None),
        status = child.wait() => (Ending::Exit, status.ok()),
        () = sleep(left) => (Ending::TimeOver, None),
    }
}

/// Ends all processes: those that are told to end get a grace period, the others had theirs.
async fn stop(settings: &ExecSettings, ending: Ending, child: &mut Child, family: Family) -> bool {
    let family = match ending {
        Ending::Cancelled | Ending::TimeOver => grace(settings.grace, child, family).await,
        Ending::Exit | Ending::TooMuch => family,
    };
    let ended = tokio::task::spawn_blocking(move || family.end());
    // Waiting reaps the first process; by now it is dead or about to be.
    let (ended, _) = tokio::join!(ended, timeout(PIPES_WAIT_MAX, child.wait()));
    ended.unwrap_or(false)
}

async fn grace(length: Duration, child: &mut Child, family: Family) -> Family {
    let until = Instant::now() + length;
    family.signal(Signal::TERM);
    while Instant::now() < until {
        // An ended process does not count, but it is reaped all the same.
        let _ = child.try_wait();
        if family.count() == 0 {
            break;
        }
        sleep(GRACE_LOOK.min(until.saturating_duration_since(Instant::now()))).await;
    }
    family
}

/// The three pipes of the first process, each served by a task that ends with this.
struct Pipes {
    stdin: Option<AbortOnDropHandle<()>>,
    stdout: Option<AbortOnDropHandle<Vec<u8>>>,
    stderr: Option<AbortOnDropHandle<(Vec<u8>, bool)>>,
    too_much: CancellationToken,
}

impl Pipes {
    fn serve(child: &mut Child, input: &Input, job: &Job, bytes_max: usize) -> Self {
        let too_much = CancellationToken::new();
        let signs = || (job.log.clone(), job.pulse.clone());
        let stdin = child.stdin.take().zip(input.stdin.as_ref()).map(|(mut pipe, value)| {
            let bytes = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            AbortOnDropHandle::new(tokio::spawn(async move {
                // A program need not read all it is given.
                let _ = pipe.write_all(bytes.as_bytes()).await;
            }))
        });
        let stdout = child.stdout.take().map(|pipe| {
            let keep = Keep { bytes_max, too_much: Some(too_much.clone()) };
            let reading = read(pipe, signs(), LogSource::Stdout, keep);
            AbortOnDropHandle::new(tokio::spawn(async { reading.await.0 }))
        });
        let stderr = child.stderr.take().map(|pipe| {
            let keep = Keep { bytes_max: STDERR_BYTES_MAX, too_much: None };
            let reading = read(pipe, signs(), LogSource::Stderr, keep);
            AbortOnDropHandle::new(tokio::spawn(reading))
        });
        Self { stdin, stdout, stderr, too_much }
    }

    /// Gives both outputs once their pipes are closed.
    async fn finish(self) -> (Vec<u8>, (Vec<u8>, bool)) {
        drop(self.stdin);
        let both = async {
            let stdout = match self.stdout {
                Some(reading) => reading.await.unwrap_or_default(),
                None => Vec::new(),
            };
            let stderr = match self.stderr {
                Some(reading) => reading.await.unwrap_or_default(),
                None => (Vec::new(), false),
            };
            (stdout, stderr)
        };
        timeout(PIPES_WAIT_MAX, both).await.unwrap_or_default()
    }
}

/// How much of a pipe is kept: the beginning, with a call when there is more, or the end.
struct Keep {
    bytes_max: usize,
    too_much: Option<CancellationToken>,
}

/// Reads a pipe to its end; gives what is kept and whether there was more.
async fn read(
    mut pipe: impl AsyncRead + Unpin,
    (log, pulse): (LogSink, Pulse),
    source: LogSource,
    keep: Keep,
) -> (Vec<u8>, bool) {
    let mut kept = Vec::new();
    let mut more = false;
    let mut chunk = vec![0; 32 * 1024];
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        pulse.beat();
        log.write(source, &chunk[..count]);
        kept.extend_from_slice(&chunk[..count]);
        let over = kept.len().saturating_sub(keep.bytes_max);
        if over == 0 {
            continue;
        }
        more = true;
        match &keep.too_much {
            Some(too_much) => {
                too_much.cancel();
                kept.truncate(keep.bytes_max);
            }
            None => drop(kept.drain(..over)),
        }
    }
    log.end(source);
    (kept, more)
}
