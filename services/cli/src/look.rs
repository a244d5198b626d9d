//! How things are shown, decided once: on a terminal or not, how wide, in colour or not.

use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use standfast_domain::time::Time;

use crate::failure::Failure;

/// Columns where no terminal says how many and nothing else does: lines are not cut then.
const WIDTH_UNLIMITED: usize = usize::MAX;
/// The narrowest width that is believed; below it a table would be nothing but cuts.
const WIDTH_MIN: usize = 40;

/// How to show something to whoever reads standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether a person watches: lines may be redrawn and times are told as people tell them.
    pub terminal: bool,
    /// Whether colours may be used; they never say anything that words or marks do not.
    pub colour: bool,
    /// Columns; without end where the output is a file or pipe.
    pub width: usize,
    /// Now, by the local clock, for telling how long ago something was.
    pub now: Time,
}

/// What a colour is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// It went well.
    Good,
    /// It went wrong.
    Bad,
    /// It needs a look.
    Warning,
    /// It matters less.
    Dim,
    /// It is a heading.
    Strong,
}

impl Look {
    /// Looks at standard output and the environment.
    pub fn of_stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            terminal: terminal && !dumb,
            colour: terminal && !dumb && !set("NO_COLOR"),
            width: columns(terminal),
            now: now(),
        }
    }

    /// Puts a text into a tone.
    pub fn tone(&self, tone: Tone, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Warning => "33",
            Tone::Dim => "2",
            Tone::Strong => "1",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Gives the local time, in milliseconds.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn columns(terminal: bool) -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let seen = || terminal.then(window_columns).flatten();
    told.or_else(seen).map_or(WIDTH_UNLIMITED, |width: usize| width.max(WIDTH_MIN))
}

fn window_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Writes a line to standard output.
pub fn line(text: &str) -> Result<(), Failure> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Writes lines to standard output.
pub fn lines(texts: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    for text in texts {
        writeln!(out, "{text}")?;
    }
    Ok(out.flush()?)
}

/// Writes a value as indented JSON.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&to_json(value, true)?)
}

/// Writes a value as JSON on one line.
pub fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    line(&to_json(value, false)?)
}

fn to_json(value: &impl Serialize, indented: bool) -> Result<String, Failure> {
    let text =
        if indented { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    text.map_err(|error| Failure::new(format!("failed to write JSON: {error}")))
}

/// Tells a person something beside the output proper. Nobody listening there is no failure.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// A terminal of a width at 2026-11-29T14:14:11Z, without colours.
    pub fn terminal(width: usize) -> Look {
        Look { terminal: true, colour: false, width, now: at("2026-11-29T14:14:11Z") }
    }

    /// A pipe at the same time.
    pub fn pipe() -> Look {
        Look { terminal: false, width: WIDTH_UNLIMITED, ..terminal(80) }
    }

    /// Reads a time.
    pub fn at(text: &str) -> Time {
        Time::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn without_colours_nothing_is_added() {
        assert_eq!(terminal(80).tone(Tone::Bad, "failed"), "failed");
        let look = Look { colour: true, ..terminal(80) };
        assert_eq!(look.tone(Tone::Bad, "failed"), "\u{1b}[31mfailed\u{1b}[0m");
    }
}
