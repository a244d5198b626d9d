//! Holds, with the commands that end them.

use standfast_protocol::holds::{AnswerView, HoldView};

use super::steps::held;
use crate::look::{Look, Tone};
use crate::text;

/// Shows a hold: what happened, who can end it, and each answer as a command, the suggested
/// one first. `place` is added to commands so that they find the same state.
pub fn lines(hold: &HoldView, place: &str, look: &Look) -> Vec<String> {
    let whose = match &hold.step {
        Some(step) => format!("step `{}`", text::plain(step)),
        None => "the task".to_owned(),
    };
    let head = format!("? {whose} · {}", held(hold, look));
    let ends_by = hold.ends_by.iter().map(|by| text::plain(by)).collect::<Vec<_>>();
    let mut lines = vec![look.tone(Tone::Warning, &head)];
    lines.push(format!("  can be ended by {}", ends_by.join(", ")));
    let suggested = |answer: &&AnswerView| hold.suggested.as_ref() == Some(&answer.answer);
    let first = hold.answers.iter().filter(suggested);
    let rest = hold.answers.iter().filter(|answer| !suggested(answer));
    let answers: Vec<&AnswerView> = first.chain(rest).collect();
    let command = |answer: &AnswerView| format!("{}{place}", text::plain(&answer.command));
    let wide = answers.iter().map(|answer| text::width(&command(answer))).max().unwrap_or(0);
    for answer in answers {
        let padded = text::pad(&command(answer), wide);
        let effect = text::plain(&answer.effect);
        lines.push(format!("    {padded}   {effect}").trim_end().to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::terminal;
    use crate::show::samples;

    #[test]
    fn a_hold_shows_the_command_that_answers_it() {
        let hold = samples::hold("pay", "failures");
        insta::assert_snapshot!(lines(&hold, " --data /srv/x", &terminal(100)).join("\n"));
    }
}
