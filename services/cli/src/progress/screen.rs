//! Where progress is shown: redrawn on a terminal, written once elsewhere, or nowhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::look::{self, Look};

/// Lines that are redrawn; more would push away what has settled.
const LIVE_LINES_MAX: usize = 12;

/// Shows settled lines for good and, where it can, what is under way below them.
pub enum Screen {
    /// A terminal: the lines under way are redrawn.
    Live(ProgressBar),
    /// A file or a pipe: each line once.
    Lines,
    /// Nothing, because something else is printed.
    Quiet,
}

impl Screen {
    /// Chooses by what standard output is.
    pub fn of(look: &Look, quiet: bool) -> Self {
        match (quiet, look.terminal) {
            (true, _) => Self::Quiet,
            (false, false) => Self::Lines,
            (false, true) => {
                let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
                let style = ProgressStyle::with_template("{msg}");
                bar.set_style(style.expect("the template is fixed and right"));
                Self::Live(bar)
            }
        }
    }

    /// Says whether lines under way are shown at all.
    pub fn is_live(&self) -> bool {
        match self {
            Self::Live(_) => true,
            Self::Lines | Self::Quiet => false,
        }
    }

    /// Gives how often it is worth looking at what is under way.
    pub fn interval(&self) -> Duration {
        match self {
            Self::Live(_) => Duration::from_millis(200),
            Self::Lines | Self::Quiet => Duration::from_secs(2),
        }
    }

    /// Writes a line that stays.
    pub fn settled(&self, line: &str) -> Result<(), Failure> {
        match self {
            Self::Live(bar) => bar.println(line),
            Self::Lines => look::line(line)?,
            Self::Quiet => {}
        }
        Ok(())
    }

    /// Redraws what is under way.
    pub fn live(&self, mut lines: Vec<String>) {
        if let Self::Live(bar) = self {
            let more = lines.len().saturating_sub(LIVE_LINES_MAX);
            if more > 0 {
                lines.truncate(LIVE_LINES_MAX);
                lines.push(format!("  … and {more} more"));
            }
            bar.set_message(lines.join("\n"));
        }
    }

    /// Ends the redrawing; what was under way disappears.
    pub fn finish(&self) {
        if let Self::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}
