//! The subcommands, a file each: what may be typed, and what is done about it.

pub mod answer;
pub mod api;
pub mod artifacts;
pub mod attempt;
pub mod bench;
mod ceiling;
pub mod dead;
pub mod dev;
pub mod doctor;
pub mod effects;
pub mod events;
pub mod explain;
pub mod hand_over;
pub mod health;
pub mod list;
pub mod logs;
pub mod pause;
pub mod plan;
pub mod run;
pub mod scheduler;
pub mod steps;
pub mod stop;
pub mod stop_many;
pub mod submit;
pub mod token;
pub mod verify;
pub mod worker;

use std::time::Duration;

use crate::args::Command;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;

/// How long the end of the program may wait for threads that are blocked.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);

/// Carries out a command and says how the program ends.
pub fn execute(command: Command) -> Exit {
    run(command).unwrap_or_else(|failure| {
        failure.to_lines().iter().for_each(|line| look::note(line));
        failure.exit
    })
}

fn run(command: Command) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(format!("failed to start: {error}")))?;
    let result = runtime.block_on(dispatch(command));
    // Ends what still runs and closes the store, whatever a blocked thread does meanwhile.
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    result
}

/// Shows what was wrong with a command line, or the help that was asked for.
pub fn refuse(error: &clap::Error) -> Exit {
    // A pipe that nobody reads is no reason for another message.
    let _ = error.print();
    Exit::of_parsing(error)
}

async fn dispatch(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => run::execute(args).await,
        Command::Submit(args) => interruptible(submit::execute(args)).await,
        Command::Plan(args) => plan::execute(args),
        Command::List(args) => interruptible(list::execute(args)).await,
        Command::Explain(args) => interruptible(explain::execute(args)).await,
        Command::Steps(args) => interruptible(steps::execute(args)).await,
        Command::Events(args) => interruptible(events::execute(args)).await,
        Command::Effects(args) => interruptible(effects::execute(args)).await,
        Command::Logs(args) => interruptible(logs::execute(args)).await,
        Command::Artifacts(args) => interruptible(artifacts::execute(args)).await,
        Command::Answer(args) => interruptible(answer::execute(args)).await,
        Command::Attempt(args) => interruptible(attempt::execute(args)).await,
        Command::Pause(args) => interruptible(pause::pause(args)).await,
        Command::Resume(args) => interruptible(pause::resume(args)).await,
        Command::Stop(args) => interruptible(stop::execute(args)).await,
        Command::HandOver(args) => interruptible(hand_over::execute(args)).await,
        Command::Verify(args) => interruptible(verify::execute(args)).await,
        Command::Token(args) => interruptible(token::execute(args)).await,
        Command::Dead(args) => interruptible(dead::execute(args)).await,
        Command::Doctor(args) => interruptible(doctor::execute(args)).await,
        Command::Dev(args) => dev::execute(args).await,
        Command::Api(args) => api::execute(args).await,
        Command::Scheduler(args) => scheduler::execute(args).await,
        Command::Worker(args) => worker::execute(args).await,
        Command::Bench(args) => interruptible(bench::execute(args)).await,
        Command::Health(args) => interruptible(health::execute(args)).await,
    }
}

/// Ends a command at Ctrl-C. What it asked a server to do goes on there.
async fn interruptible(
    command: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    tokio::select! {
        result = command => result,
        _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
    }
}
