//! What the answers say of effects: why one needs a person, what has landed, what is open.

use standfast_domain::outcome::FailureClass;
use standfast_domain::plan::Uses;
use standfast_domain::record::{EffectClass, MAIN_EFFECT, Payload, Phase, Standing, effect_key};
use standfast_domain::time::Time;
use standfast_protocol::explain::{Landed, LandedEffect, Open};
use standfast_protocol::holds::{AnswerView, HoldView};

use super::super::effect::{Seen, http_line, standing};
use super::super::text::{bytes, clock, line, names, plain};
use super::{Facts, Outside};

/// Artifacts, and effects, that are named one by one.
const SHOWN: usize = 8;
/// Characters of a request, a receipt or an author's words within a line.
const WORDS_CHARS_MAX: usize = 80;
/// Characters of a failure's message within a line.
const MESSAGE_CHARS_MAX: usize = 120;

impl Outside {
    /// Finds the effect that a hold is about.
    fn held(&self, hold: &HoldView) -> Option<&Seen> {
        let (step, held) = (hold.step.as_deref()?, hold.effect.as_ref()?);
        let mut all = self.open.iter().chain(&self.landed);
        all.find(|seen| seen.step.as_str() == step && seen.name == held.name)
    }
}

impl Seen {
    /// Names it: by its step, and by itself where a step may have several.
    fn label(&self) -> String {
        match self.name.as_str() {
            MAIN_EFFECT => self.step.to_string(),
            name => format!("{}/{name}", self.step),
        }
    }

    /// Says what was to be sent, as exactly as fits a line.
    fn what(&self) -> String {
        let request = match &self.exchanged.request {
            Some(Payload::Inline(request)) => http_line(request),
            Some(Payload::Blob { .. }) | None => None,
        };
        request
            .map(|request| line(&request, 2 * WORDS_CHARS_MAX))
            .or_else(|| self.words())
            .unwrap_or_else(|| format!("effect `{}`", self.name))
    }

    /// Gives the author's words.
    fn words(&self) -> Option<String> {
        let effect = &self.effect;
        let words: Vec<&str> =
            effect.says.iter().chain(&effect.target).map(String::as_str).collect();
        (!words.is_empty()).then(|| line(&words.join(", "), 2 * WORDS_CHARS_MAX))
    }

    fn is_uncertain(&self) -> bool {
        matches!(self.effect.standing, Standing::Uncertain { .. })
    }
}

/// Says why a hold of an effect needs a person, what to look for, and the commands; nothing of
/// other holds.
pub(super) fn hold_lines(facts: &Facts<'_>, hold: &HoldView) -> Option<Vec<String>> {
    let seen = facts.outside.held(hold)?;
    let key = &hold.effect.as_ref()?.key;
    let by = hold.ends_by.join(" or ");
    let (mut lines, answers) = match seen.is_uncertain() {
        true => {
            let mut lines = uncertain_lines(facts, seen);
            lines.push(format!("{by} can end it. Look for key {key}, then one of:"));
            (lines, &seen.answers)
        }
        false => {
            let (_, since) = standing(&seen.effect);
            let lines = vec![
                format!(
                    "`{}` would now send another request than the one that happened at {}, under \
                     key {key}.",
                    hold.step.as_deref().unwrap_or_default(),
                    clock(since, facts.now())
                ),
                format!("That was: {}. Nothing is sent by itself. No deadline.", seen.what()),
                format!("{by} can end it; one of:"),
            ];
            (lines, &hold.answers)
        }
    };
    lines.extend(command_lines(answers));
    let handler = facts.definitions.get(&seen.step).map(|found| &found.plan.uses);
    if seen.is_uncertain()
        && matches!(handler, Some(Uses::Handler(name)) if name.as_str() == "http")
    {
        let shape = r#"{"status": 201, "body": …}"#;
        lines.push(format!("the receipt is the answer as `http` gives it: {shape}"));
    }
    Some(lines)
}

/// Says what was to be sent when, by whom, and what became of that attempt.
fn uncertain_lines(facts: &Facts<'_>, seen: &Seen) -> Vec<String> {
    let (now, effect) = (facts.now(), &seen.effect);
    let state =
        facts.survey.live.iter().find(|live| live.step == seen.step).map(|live| &live.state);
    let failure = state
        .and_then(|state| state.failure.as_ref())
        .filter(|failure| failure.attempt == effect.attempt);
    let (_, since) = standing(effect);
    let ended = clock(since, now);
    let end = match failure {
        Some(failure) if failure.class == FailureClass::Lost => {
            format!("The worker fell silent and lost the attempt at {ended}")
        }
        Some(failure) => {
            let message = line(&failure.message, MESSAGE_CHARS_MAX);
            format!("The attempt ended at {ended} ({}: {message})", failure.class.as_str())
        }
        None => format!("The attempt ended at {ended}"),
    };
    let words = seen.words().map_or_else(String::new, |words| format!(" ({words})"));
    vec![
        format!(
            "{} may have been sent from {} on (attempt {}, worker {}).",
            seen.what(),
            clock(effect.intended_at, now),
            effect.attempt,
            effect.worker
        ),
        format!("{end}, no answer kept."),
        format!(
            "Whether it happened{words} cannot be known from here; it is not sent again by \
             itself. No deadline."
        ),
    ]
}

fn command_lines(answers: &[AnswerView]) -> Vec<String> {
    let width = answers.iter().map(|answer| answer.command.chars().count()).max().unwrap_or(0);
    let each = answers.iter();
    each.map(|answer| format!("  {:width$}  ({})", answer.command, answer.effect)).collect()
}

/// 4: what has landed.
pub(super) fn landed(facts: &Facts<'_>) -> Landed {
    let now = facts.now();
    let seen = &facts.outside.landed;
    let mut text: Vec<String> =
        seen.iter().take(SHOWN).map(|seen| landed_line(facts, seen, now)).collect();
    let more = (facts.survey.base.header.effects_landed as usize).saturating_sub(text.len());
    if more > 0 {
        let task = &facts.survey.base.task;
        text.push(format!("and {more} more: standfast effects {task}"));
    }
    let artifacts = facts.artifacts;
    text.extend(artifacts.iter().take(SHOWN).map(|artifact| {
        format!("{}: {} {}", artifact.step, plain(&artifact.name), bytes(artifact.bytes))
    }));
    match artifacts.len().saturating_sub(SHOWN) {
        0 => {}
        more => text.push(format!("and {more} more artifacts")),
    }
    if text.is_empty() {
        let elsewhere = "what handlers changed without declaring it stands in their logs";
        text.push(format!("no effects, no artifacts; {elsewhere}"));
    }
    let effects = seen.iter().map(|seen| landed_view(facts, seen)).collect();
    Landed { effects, artifacts: artifacts.to_vec(), text }
}

fn landed_line(facts: &Facts<'_>, seen: &Seen, now: Time) -> String {
    let (_, at) = standing(&seen.effect);
    let receipt = match &seen.exchanged.receipt {
        Some(Payload::Inline(receipt)) if receipt.is_null() => "without a receipt".to_owned(),
        Some(Payload::Inline(receipt)) => {
            format!("receipt {}", line(&receipt.to_string(), WORDS_CHARS_MAX))
        }
        Some(Payload::Blob { bytes: size, .. }) => format!("receipt of {}", bytes(*size)),
        None => "its receipt is kept".to_owned(),
    };
    let undo = match seen.undone_at {
        Some(undone_at) => format!(", undone at {}", clock(undone_at, now)),
        None if facts.can_be_undone(seen) => ", can be undone".to_owned(),
        None => String::new(),
    };
    format!("{}: {} at {} · {receipt}{undo}", seen.label(), seen.what(), clock(at, now))
}

fn landed_view(facts: &Facts<'_>, seen: &Seen) -> LandedEffect {
    let receipt = match &seen.exchanged.receipt {
        Some(Payload::Inline(receipt)) => Some(receipt.clone()),
        Some(Payload::Blob { .. }) | None => None,
    };
    LandedEffect {
        step: seen.step.to_string(),
        name: seen.name.clone(),
        target: seen.effect.target.as_deref().map(plain),
        at: standing(&seen.effect).1.rfc3339(),
        receipt,
        can_be_undone: facts.can_be_undone(seen),
        undone_at: seen.undone_at.map(Time::rfc3339),
    }
}

/// 5: what is staged, in flight or uncertain.
pub(super) fn open(facts: &Facts<'_>, holds: &[HoldView]) -> Open {
    let staged = staged(facts);
    let in_flight = in_flight(facts);
    let uncertain: Vec<String> =
        facts.outside.open.iter().filter(|seen| seen.is_uncertain()).map(Seen::label).collect();
    let pending = facts.survey.base.header.open as usize;
    let only = match pending > facts.staged_among && phase_is_main(facts) {
        true => format!(" (of the next {} steps)", facts.staged_among),
        false => String::new(),
    };
    let mut text = vec![format!(
        "staged: {}{only} · in flight: {} · uncertain: {}",
        names(&staged),
        names(&in_flight),
        names(&uncertain)
    )];
    text.extend(settle_lines(facts, holds));
    Open { staged, in_flight, uncertain, text }
}

fn phase_is_main(facts: &Facts<'_>) -> bool {
    matches!(facts.survey.base.header.phase, Phase::Main)
}

/// Names the steps that have declared an effect and not begun to send it.
fn staged(facts: &Facts<'_>) -> Vec<String> {
    if !phase_is_main(facts) {
        return Vec::new(); // nothing of the plan starts any more
    }
    let begun = |step: &str| {
        let seen = facts.outside.open.iter().chain(&facts.outside.landed);
        seen.into_iter().any(|seen| seen.step.as_str() == step)
    };
    let running = by_claim(facts);
    let staged = facts.staged.iter().map(ToString::to_string);
    staged.filter(|step| !begun(step) && !running.contains(step)).collect()
}

/// Names the steps whose running attempt is the intent of their one effect.
fn by_claim(facts: &Facts<'_>) -> Vec<String> {
    let running = facts.survey.live.iter().filter(|live| live.claim.is_some());
    let declares = |step| {
        let definition = facts.definitions.get(step);
        definition.is_some_and(|found| found.plan.effect_class() == EffectClass::Idempotent)
    };
    running.filter(|live| declares(&live.step)).map(|live| live.step.to_string()).collect()
}

/// Names what may be under way now.
fn in_flight(facts: &Facts<'_>) -> Vec<String> {
    let mut in_flight: Vec<String> =
        facts.outside.open.iter().filter(|seen| !seen.is_uncertain()).map(Seen::label).collect();
    for step in by_claim(facts) {
        if !in_flight.contains(&step) {
            in_flight.push(step);
        }
    }
    in_flight
}

/// Effects that a person must settle and that no hold shows: their step goes no further.
fn settle_lines(facts: &Facts<'_>, holds: &[HoldView]) -> Vec<String> {
    let held =
        |seen: &&Seen| !holds.iter().any(|hold| hold.step.as_deref() == Some(seen.step.as_str()));
    let mut lines = Vec::new();
    for seen in to_settle(facts).filter(held).filter(|seen| !seen.answers.is_empty()).take(SHOWN) {
        let task = &facts.survey.base.task;
        let key = effect_key(task, &seen.step, &seen.name, seen.effect.generation);
        lines.push(format!("{}: {}; look for key {key}, then:", seen.label(), seen.what()));
        lines.extend(command_lines(&seen.answers));
    }
    lines
}

/// Walks the effects that a person must settle, unless a check or a late receipt does.
pub(super) fn to_settle<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = &'a Seen> {
    let uncertain = facts.outside.open.iter().filter(|seen| seen.is_uncertain());
    uncertain.filter(|seen| seen.effect.is_owed())
}

/// Names effects, each step once unless it has several.
pub(super) fn labels<'a>(effects: impl Iterator<Item = &'a Seen>) -> Vec<String> {
    effects.map(Seen::label).collect()
}
