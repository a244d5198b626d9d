//! Stop plans and settlements, as the server worded them.

use crate::look::{Look, Tone};
use crate::text;

/// Columns that further lines of an item are indented by.
const INDENT: usize = 11;

/// Shows the lines: the head, then section by section. Commands are not broken, and `place` is
/// added to them so that they find the same state.
pub fn lines(shown: &[String], place: &str, look: &Look) -> Vec<String> {
    let all = shown.iter().enumerate();
    all.flat_map(|(number, line)| {
        let line = text::plain(line);
        let parts = match line.contains("standfast ") {
            true => vec![with_place(&line, place)],
            false => text::wrap(&line, look.width, INDENT),
        };
        let head = number == 0;
        parts.into_iter().map(move |part| toned(&part, head, look))
    })
    .collect()
}

/// Adds the place behind the command of a line, before what is said of it.
fn with_place(line: &str, place: &str) -> String {
    let from = line.find("standfast ").unwrap_or_default();
    let end = line[from..].find("  ").map_or(line.len(), |at| from + at);
    format!("{}{place}{}", &line[..end], &line[end..])
}

fn toned(line: &str, head: bool, look: &Look) -> String {
    if head {
        return look.tone(Tone::Strong, line);
    }
    let named = line.chars().next().is_some_and(|first| first != ' ');
    match line.split_at_checked(INDENT).filter(|_| named) {
        Some((name, rest)) => format!("{}{rest}", look.tone(Tone::Dim, name)),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::{pipe, terminal};

    fn plan() -> Vec<String> {
        let lines = [
            "stop plan of t2c-81hx0q0000000 · halt · digest 41c7d09ab2f3",
            "Landed     reserve (hold for 120.00 EUR) at 14:01:38Z: stays (`--mode undo` would \
             undo it)",
            "Staged     mail, pending, with its irreversible effect: will not happen",
            "           close\u{1b}[2J, pending: will not happen",
            "To settle  pay is to be settled by user:ana:",
            "             standfast answer t2c-81hx0q0000000/pay not_happened  (takes it as not \
             done)",
            "Stop it    standfast stop t2c-81hx0q0000000 --mode halt --digest 41c7d09ab2f3",
        ];
        lines.map(str::to_owned).into()
    }

    #[test]
    fn a_plan_stands_as_the_server_gave_it_and_its_commands_find_the_same_state() {
        insta::assert_snapshot!(lines(&plan(), " --data /srv/x", &pipe()).join("\n"));
    }

    #[test]
    fn a_narrow_terminal_breaks_prose_and_keeps_commands() {
        let lines = lines(&plan(), "", &terminal(60));
        let prose = lines.iter().filter(|line| !line.contains("standfast "));
        assert!(prose.clone().all(|line| text::width(line) <= 60), "{lines:#?}");
        assert!(!lines.join("").contains('\u{1b}'));
    }
}
