//! What is typed: subcommands, their groups in the help, and nothing of what they need.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    answer, api, artifacts, attempt, bench, dead, dev, doctor, effects, events, explain, hand_over,
    health, list, logs, pause, plan, run, scheduler, steps, stop, submit, token, verify, worker,
};

/// Durable tasks for long-running agents: stopped, they stay stopped; resumed, they do nothing
/// twice; and they can always say what they did and why they stand where they stand.
#[derive(Debug, Parser)]
#[command(name = "standfast", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands; each is a file of `commands`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a plan here, from start to end, with nothing else installed
    Run(run::RunArgs),
    /// Submit a plan to whoever holds the state
    Submit(submit::SubmitArgs),
    /// Look at plans without running them
    Plan(plan::PlanCommandArgs),
    /// List tasks, newest first
    List(list::ListArgs),
    /// Say where a task stands, why, what comes next, and what a stop would do
    Explain(explain::ExplainArgs),
    /// List a task's steps
    Steps(steps::StepsArgs),
    /// Show a task's history
    Events(events::EventsArgs),
    /// List what a task has changed outside, or may have
    Effects(effects::EffectsArgs),
    /// Show what a step's attempts wrote
    Logs(logs::LogsArgs),
    /// List a task's artifacts, or fetch one
    Artifacts(artifacts::ArtifactsArgs),
    /// Answer what holds a task or step
    Answer(answer::AnswerArgs),
    /// Pause a task: nothing new starts, and its clocks stand still
    Pause(pause::PauseArgs),
    /// Resume a task that is paused
    Resume(pause::PauseArgs),
    /// Stop a task, or all that match a filter
    Stop(stop::StopArgs),
    /// Stop one attempt, so that another one starts
    Attempt(attempt::AttemptArgs),
    /// Give a task to another owner
    HandOver(hand_over::HandOverArgs),
    /// Check a task's history against its records
    Verify(verify::VerifyArgs),
    /// Create, list and revoke tokens
    Token(token::TokenArgs),
    /// Look at messages that could not be accepted, send them again, drop them
    Dead(dead::DeadArgs),
    /// Check store, broker and clocks, and say what to do
    Doctor(doctor::DoctorArgs),
    /// Measure how fast tasks go here
    Bench(bench::BenchArgs),
    /// Start a whole installation in this process, over a folder
    Dev(dev::DevArgs),
    /// Start the HTTP api of an installation over Redis and RabbitMQ
    Api(api::ApiArgs),
    /// Start a scheduler: timers, take-overs, sweeps and incoming messages
    Scheduler(scheduler::SchedulerArgs),
    /// Start a worker that runs steps
    Worker(worker::WorkerArgs),
    /// Ask a process of Standfast whether it is ready
    Health(health::HealthArgs),
}

/// How the help groups the subcommands. A test holds it to [`Command`].
const GROUPS: &[(&str, &[&str])] = &[
    ("Start", &["run", "submit", "plan"]),
    ("Look", &["list", "explain", "steps", "events", "effects", "logs", "artifacts"]),
    ("Steer", &["answer", "pause", "resume", "stop", "attempt", "hand-over"]),
    ("Serve", &["dev", "api", "scheduler", "worker"]),
    ("Operate", &["verify", "token", "dead", "doctor", "health", "bench"]),
];

const EXAMPLES: &str = "\
Examples:
  standfast run examples/release-notes.yaml --input count=5
  standfast list --state blocked
  standfast explain t07-4k9v2mq8r5x1c
  standfast answer t07-4k9v2mq8r5x1c/draft retry

Exit codes: 0 completed, 1 error, 2 failed, 3 cancelled, 4 only a person or a signal can move it,
64 usage, 130 interrupted.";

/// Reads the command line.
pub fn parse(
    words: impl IntoIterator<Item = std::ffi::OsString>,
) -> clap::error::Result<Arguments> {
    Arguments::from_arg_matches(&command().try_get_matches_from(words)?)
}

/// Gives the command line's grammar with the grouped help.
fn command() -> clap::Command {
    let command = Arguments::command();
    let groups = grouped(&command);
    command
        .help_template(
            "{about-with-newline}\n{usage-heading} {usage}\n{before-help}Options:\n\
         {options}{after-help}",
        )
        .before_help(groups)
        .after_help(EXAMPLES)
}

fn grouped(command: &clap::Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        text.push_str(&format!("\n{group}:\n"));
        for name in *names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<10} {about}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::exit::Exit;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// Gives what is printed, at a width that does not depend on where the test runs.
    fn help(line: &str) -> String {
        command().term_width(100).try_get_matches_from(words(line)).unwrap_err().to_string()
    }

    #[test]
    fn the_grammar_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_subcommand_stands_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let command = command();
        let mut all: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn the_help_reads_well() {
        insta::assert_snapshot!(help("standfast --help"));
    }

    #[test]
    fn every_subcommand_has_help_with_an_example() {
        let command = command();
        let mut texts = Vec::new();
        for name in command.get_subcommands().map(clap::Command::get_name) {
            let text = help(&format!("standfast {name} --help"));
            assert!(text.contains(&format!("standfast {name}")), "{name}");
            assert!(text.contains("Example"), "{name} has no example");
            texts.push(format!("$ standfast {name} --help\n{text}"));
        }
        insta::assert_snapshot!(texts.join("\n"));
    }

    #[test]
    fn a_word_that_a_flag_took_from_the_command_is_told_from_one_of_its_own() {
        let id = "t07-4k9v2mq8r5x1c";
        for (line, says) in [
            (format!("stop --waiting {id}"), format!("`standfast stop {id}`")),
            (format!("list --waiting {id}"), format!("`standfast explain {id}`")),
            ("run --resume plan.yaml".to_owned(), "started without --resume".to_owned()),
        ] {
            let error = parse(words(&format!("standfast {line}"))).unwrap_err();
            assert_eq!(Exit::of_parsing(&error), Exit::Usage, "{line}");
            assert!(error.to_string().contains(&says), "{line}: {error}");
        }
        for line in [
            "stop --waiting failures".to_owned(),
            "list --waiting".to_owned(),
            format!("run --resume {id}"),
            "run --resume".to_owned(),
        ] {
            assert!(parse(words(&format!("standfast {line}"))).is_ok(), "{line}");
        }
    }

    #[test]
    fn a_wrong_command_line_is_a_usage_error_and_help_is_none() {
        for line in ["standfast", "standfast nothing", "standfast explain", "standfast list --x"] {
            let error = parse(words(line)).unwrap_err();
            assert_eq!(Exit::of_parsing(&error), Exit::Usage, "{line}");
        }
        for line in ["standfast --help", "standfast --version", "standfast run --help"] {
            let error = parse(words(line)).unwrap_err();
            assert_eq!(Exit::of_parsing(&error), Exit::Completed, "{line}");
        }
    }
}
