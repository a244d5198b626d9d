//! Effects, a block each: what was to happen, what is known of it, and what may be answered.

use standfast_protocol::task_effects::{EffectStanding, EffectView, Exchange};

use super::quantities::{bytes, when_both};
use crate::look::{Look, Tone};
use crate::text;

/// Columns before a line of a block.
const INDENT: usize = 4;
/// Columns of the name of a line within a block.
const NAME_WIDTH: usize = 9;
/// Columns of a request or receipt: the whole of it is in the JSON.
const VALUE_WIDTH_MAX: usize = 160;

/// Shows all effects of a task, the uncertain ones first; without any, says so. `place` is added
/// to commands so that they find the same state.
pub fn lines(effects: &[EffectView], place: &str, look: &Look) -> Vec<String> {
    if effects.is_empty() {
        let none = "no effects: no step has recorded a change of the world outside so far";
        return vec![none.to_owned()];
    }
    let uncertain = |effect: &&EffectView| effect.standing == EffectStanding::Uncertain;
    let first = effects.iter().filter(uncertain);
    let rest = effects.iter().filter(|effect| !uncertain(effect));
    first.chain(rest).flat_map(|effect| block(effect, place, look)).collect()
}

fn block(effect: &EffectView, place: &str, look: &Look) -> Vec<String> {
    let plain = text::plain;
    let (mark, tone) = match effect.standing {
        EffectStanding::Uncertain => ('?', Tone::Warning),
        EffectStanding::InFlight => ('▸', Tone::Strong),
        EffectStanding::Landed => ('✓', Tone::Good),
        EffectStanding::NotLanded => ('-', Tone::Dim),
    };
    let how = effect.how.as_deref().map(|how| format!(" ({})", plain(how))).unwrap_or_default();
    let undone = effect.undone_at.as_deref();
    let undone = undone.map(|at| format!(" · undone {}", when_both(at, look))).unwrap_or_default();
    let head = format!(
        "{mark} {}/{} · {} · {}{how} since {}{undone}",
        plain(&effect.step),
        plain(&effect.name),
        plain(&effect.class),
        effect.standing,
        when_both(&effect.since, look)
    );
    let intended = format!(
        "{} by worker {} (attempt {}), to be sent before {}",
        when_both(&effect.intended_at, look),
        plain(&effect.worker),
        effect.attempt,
        when_both(&effect.send_before, look)
    );
    let open = matches!(effect.standing, EffectStanding::InFlight | EffectStanding::Uncertain);
    let settled = open
        .then(|| format!("no check and no repeat before {}", when_both(&effect.settled_by, look)));
    let parts = [
        ("says", effect.says.as_deref().map(plain)),
        ("target", effect.target.as_deref().map(plain)),
        ("key", Some(plain(&effect.key))),
        ("intended", Some(intended)),
        ("settled", settled),
        ("request", effect.request.as_ref().map(|request| exchange(request, look))),
        ("receipt", effect.receipt.as_ref().map(|receipt| exchange(receipt, look))),
    ];
    let mut lines = vec![look.tone(tone, &text::fit(&head, look.width))];
    let known = parts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    lines.extend(known.flat_map(|(name, value)| {
        let line = format!("{:INDENT$}{}{value}", "", text::pad(name, NAME_WIDTH));
        text::wrap(&line, look.width, INDENT + NAME_WIDTH)
    }));
    let command = |command: &str| format!("{}{place}", plain(command));
    let answers = &effect.answers;
    let wide = answers.iter().map(|answer| text::width(&command(&answer.command))).max();
    lines.extend(answers.iter().map(|answer| {
        let padded = text::pad(&command(&answer.command), wide.unwrap_or_default());
        format!("    {padded}   {}", plain(&answer.effect)).trim_end().to_owned()
    }));
    lines
}

/// Shows a request or receipt in a line.
fn exchange(exchange: &Exchange, look: &Look) -> String {
    let room = look.width.saturating_sub(INDENT + NAME_WIDTH).min(VALUE_WIDTH_MAX);
    match (&exchange.value, &exchange.blob) {
        (Some(value), _) => text::fit(&text::plain(&value.to_string()), room),
        (None, Some(blob)) => {
            format!("{}, sha256 {}", bytes(blob.bytes), text::plain(&blob.sha256))
        }
        (None, None) => "null".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::{pipe, terminal};
    use crate::show::samples;

    #[test]
    fn the_uncertain_ones_come_first_with_their_commands() {
        let effects = [
            samples::effect("reserve", EffectStanding::Landed),
            samples::effect("mail", EffectStanding::NotLanded),
            samples::effect("pay", EffectStanding::Uncertain),
            samples::effect("log", EffectStanding::InFlight),
        ];
        insta::assert_snapshot!(lines(&effects, " --data /srv/x", &pipe()).join("\n"));
        let narrow = lines(&effects, "", &terminal(80));
        let prose = narrow.iter().filter(|line| !line.contains("standfast "));
        assert!(prose.clone().all(|line| text::width(line) <= 80), "{narrow:#?}");
        insta::assert_snapshot!(narrow.join("\n"));
    }

    #[test]
    fn none_is_a_sentence() {
        assert_eq!(lines(&[], "", &terminal(80)).len(), 1);
    }

    #[test]
    fn what_came_from_outside_moves_no_cursor() {
        let mut effect = samples::effect("pay", EffectStanding::Landed);
        effect.says = Some("a\u{1b}[2J".to_owned());
        effect.name = "x\u{1b}".to_owned();
        let shown = lines(&[effect], "", &terminal(80)).join("\n");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
    }
}
