//! What a process tells its operator, on stderr.
//!
//! A record may quote what others sent, such as the name of a reply queue. So it is made plain
//! before it is written: one record is one line, and none moves a terminal's cursor.

use std::fmt;

use clap::{Args, ValueEnum};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format as Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;
use crate::text;

/// The AMQP library's name in a filter.
const LIBRARY: &str = "lapin";

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

/// Adds what is not logged unless it is asked for by name: the AMQP library reports each failed
/// try of a connection several times, and the adapter over it says once that the broker is away.
fn filter(asked: &str) -> String {
    match asked.contains(LIBRARY) {
        true => asked.to_owned(),
        false => format!("{asked},{LIBRARY}=off"),
    }
}

/// Starts logging.
pub fn start(args: &LogArgs) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter(&args.log))
        .map_err(|error| Failure::usage(format!("`--log {}`: {error}", args.log)))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter);
    let subscriber = subscriber.with_writer(std::io::stderr);
    let started = match args.log_format {
        Format::Text => {
            let line = Line(Full::default().with_ansi(false));
            subscriber.with_ansi(false).event_format(line).try_init()
        }
        Format::Json => subscriber.json().try_init(),
    };
    started.map_err(|error| Failure::new(format!("failed to start logging: {error}")))
}

/// Writes a record as the usual text, without line ends and control characters within it.
struct Line(Full);

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut record = String::new();
        self.0.format_event(context, Writer::new(&mut record), event)?;
        writeln!(writer, "{}", text::plain(record.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_amqp_library_is_silent_unless_it_is_named() {
        assert_eq!(filter("info"), "info,lapin=off");
        assert_eq!(filter("warn,lapin=debug"), "warn,lapin=debug");
    }
}
