//! What may be typed.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum};
use standfast_bench::Job;

/// Measures Standfast and the least durable loop side by side.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", max_term_width = 100, after_help = Job::help())]
pub struct Options {
    /// Jobs to run
    #[arg(long, value_name = "JOB", value_delimiter = ',', default_value = Job::USUAL)]
    #[arg(value_parser = job(), hide_possible_values = true)]
    pub jobs: Vec<Job>,
    /// Attempts under way at a time; each is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "32,256")]
    pub in_flight: Vec<u16>,
    /// How Redis keeps what is written; each is a run of its own
    #[arg(long, value_delimiter = ',', default_value = "everysec")]
    pub persistence: Vec<Persistence>,
    /// Runs of each job, besides one to warm up
    #[arg(long, default_value_t = 5)]
    pub repeats: usize,
    /// Steps that a worker may take over without a message, in a row
    #[arg(long, default_value_t = 0)]
    pub stay: u32,
    /// Times the usual amount of work in jobs A and B
    #[arg(long, default_value_t = 1)]
    pub factor: usize,
    /// Run the jobs embedded too: redb in a folder, queues in this process, no least loop
    #[arg(long)]
    pub embedded: bool,
    /// Instead: the jobs over an api, a scheduler and a worker of their own, the built binary
    #[arg(long, conflicts_with = "embedded")]
    pub processes: bool,
    /// Instead: what a step costs in tasks of more and more steps, and beside more and more stored
    /// tasks, and what a stored task takes
    #[arg(long, conflicts_with = "processes")]
    pub growth: bool,
    /// Steps of a task, for --growth; as many tasks as make the most of them
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "10,100,1000,10000")]
    pub steps: Vec<usize>,
    /// Tasks that are stored before the jobs run, for --growth
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000,100000")]
    pub stored: Vec<usize>,
    /// A RabbitMQ that runs already, instead of one of this run's own
    #[arg(long, value_name = "URL")]
    pub amqp: Option<String>,
    /// The id of that RabbitMQ's process, to watch what it uses
    #[arg(long, value_name = "PID", requires = "amqp")]
    pub amqp_pid: Option<u32>,
    /// Print one JSON document instead of tables
    #[arg(long)]
    pub json: bool,
}

/// Reads a job's name.
fn job() -> impl TypedValueParser<Value = Job> {
    PossibleValuesParser::new(Job::ALL.map(Job::name))
        .map(|name| Job::named(&name).expect("one of the possible values"))
}

/// How Redis keeps what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Persistence {
    /// On disk before each answer.
    Always,
    /// On disk within a second.
    Everysec,
    /// In memory alone.
    None,
}

impl Persistence {
    /// Gives the arguments of `redis-server`.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Always => &["--appendonly", "yes", "--appendfsync", "always"],
            Self::Everysec => &["--appendonly", "yes", "--appendfsync", "everysec"],
            Self::None => &["--appendonly", "no"],
        }
    }

    /// Gives its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Everysec => "everysec",
            Self::None => "none",
        }
    }
}
