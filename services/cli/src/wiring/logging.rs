//! What a process tells its operator, on stderr.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// What may be typed about it.
#[derive(Args, Clone, Debug)]
pub struct LogArgs {
    /// What is logged, such as info, debug or standfast_engine=debug,warn
    #[arg(long, env = "STANDFAST_LOG", hide_env_values = true, value_name = "FILTER")]
    #[arg(default_value = "info")]
    log: String,
    /// How it is written
    #[arg(long, env = "STANDFAST_LOG_FORMAT", hide_env_values = true, value_enum)]
    #[arg(default_value = "text")]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A line for people
    Text,
    /// A JSON object a line
    Json,
}

/// Starts logging.
pub fn start(args: &LogArgs) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&args.log)
        .map_err(|error| Failure::usage(format!("`--log {}`: {error}", args.log)))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter);
    let subscriber = subscriber.with_writer(std::io::stderr);
    let started = match args.log_format {
        Format::Text => subscriber.with_ansi(false).try_init(),
        Format::Json => subscriber.json().try_init(),
    };
    started.map_err(|error| Failure::new(format!("failed to start logging: {error}")))
}
