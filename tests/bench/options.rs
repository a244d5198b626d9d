//! What may be typed.

use clap::{Parser, ValueEnum};

/// Measures Standfast and the least durable loop side by side.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench", max_term_width = 100)]
pub struct Options {
    /// Jobs to run
    #[arg(long, value_delimiter = ',', default_value = "a,b,d,h")]
    pub jobs: Vec<JobName>,
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

/// A job by its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum JobName {
    A,
    B,
    D,
    E,
    G,
    H,
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

impl JobName {
    /// Gives the job.
    pub fn job(self) -> standfast_bench::Job {
        use standfast_bench::Job;
        match self {
            Self::A => Job::A,
            Self::B => Job::B,
            Self::D => Job::D,
            Self::E => Job::E,
            Self::G => Job::G,
            Self::H => Job::H,
        }
    }
}
