//! The answers to the six questions, as the server worded them.

use standfast_protocol::explain::Explain;

use crate::look::{Look, Tone};
use crate::text;

/// Columns that further lines of an answer are indented by.
const INDENT: usize = 12;

/// Shows the answers. Lines are broken between words where the terminal is too narrow, commands
/// excepted: they are there to be copied.
pub fn lines(explain: &Explain, look: &Look) -> Vec<String> {
    let heads = explain.task.text.len();
    let all = explain.lines().into_iter().enumerate();
    all.flat_map(|(number, line)| {
        let line = text::plain(&line);
        let command = line.trim_start().starts_with("standfast ");
        let parts = if command { vec![line] } else { text::wrap(&line, look.width, INDENT) };
        let head = number < heads;
        parts.into_iter().map(move |part| toned(&part, head, look))
    })
    .collect()
}

fn toned(line: &str, head: bool, look: &Look) -> String {
    if head {
        return look.tone(Tone::Strong, line);
    }
    let numbered = line.chars().next().is_some_and(|first| first.is_ascii_digit());
    match line.split_at_checked(INDENT).filter(|_| numbered) {
        Some((question, answer)) => format!("{}{answer}", look.tone(Tone::Dim, question)),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::{pipe, terminal};
    use crate::show::samples;

    #[test]
    fn the_six_answers_stand_as_the_server_gave_them() {
        insta::assert_snapshot!(lines(&samples::explain(), &pipe()).join("\n"));
    }

    #[test]
    fn a_narrow_terminal_breaks_prose_and_keeps_commands() {
        let lines = lines(&samples::explain(), &terminal(80));
        let prose = lines.iter().filter(|line| !line.contains("standfast "));
        assert!(prose.clone().count() > 6);
        assert!(prose.clone().all(|line| text::width(line) <= 80));
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let look = Look { colour: true, ..pipe() };
        let coloured = lines(&samples::explain(), &look).join("\n");
        let bare = coloured.replace("\u{1b}[1m", "").replace("\u{1b}[2m", "");
        assert_eq!(bare.replace("\u{1b}[0m", ""), lines(&samples::explain(), &pipe()).join("\n"));
    }
}
