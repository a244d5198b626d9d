//! Plans and settlements as lines to show.

use standfast_domain::record::StopMode;
use standfast_domain::stop_plan::{self as domain, Became, Fate, Item, Now, Settled, Subject};
use standfast_domain::time::Time;
use standfast_engine::stopping::Planned;

use super::super::text::{clock, line, names, plain, span};
use super::items::{label, to_settle};
use super::{command, is_owed};
use crate::reads::Base;

/// Characters of an author's words within a line.
const WORDS_CHARS_MAX: usize = 80;
/// Columns of the name of a line.
const NAME_WIDTH: usize = 11;
/// Items of one kind that have a line of their own.
const SHOWN_MAX: usize = 20;

/// Says in a line what a mode does; nothing where it is the same as `halt`.
pub(super) fn outlook(plan: &domain::StopPlan) -> Option<String> {
    let text = match plan.mode {
        StopMode::Halt => halt(plan),
        StopMode::Drain => {
            let running = labels(plan, |item| item.fate == Fate::MayFinish);
            if running.is_empty() {
                return None;
            }
            format!("as halt, but may finish first: {}", names(&running))
        }
        StopMode::Undo => undo(plan)?,
    };
    Some(format!("{}: {text}", plan.mode))
}

fn undo(plan: &domain::StopPlan) -> Option<String> {
    let undone = in_turn(&plan.items);
    let may_land: Vec<String> =
        labels(plan, |item| item.fate == Fate::MayLand && item.undo.is_some());
    match (undone.is_empty(), may_land.is_empty()) {
        (true, true) => None,
        (false, true) => Some(format!("as halt, then undoes {}", undone.join(", then "))),
        (true, false) => Some(format!("as halt, and undoes {} if it lands", names(&may_land))),
        (false, false) => Some(format!(
            "as halt, then undoes {}; {} too if it lands",
            undone.join(", then "),
            names(&may_land)
        )),
    }
}

/// Labels what is undone, in the order of the undos.
fn in_turn(items: &[Item]) -> Vec<String> {
    let mut undone: Vec<(u32, String)> = items
        .iter()
        .filter_map(|item| match item.fate {
            Fate::Undone { position } => Some((position, label(&item.subject))),
            _ => None,
        })
        .collect();
    undone.sort();
    undone.into_iter().map(|(_, label)| label).collect()
}

fn halt(plan: &domain::StopPlan) -> String {
    let told = labels(plan, |item| item.fate == Fate::ToldToEnd);
    let parts = [
        ("told to end", Some(told)),
        ("will not happen", Some(labels(plan, |item| item.fate == Fate::WillNotHappen))),
        ("stays", some(labels(plan, is_landed))),
        ("may still land", some(labels(plan, |item| item.fate == Fate::MayLand))),
        ("stays to be settled", some(labels(plan, |item| item.fate == Fate::ToSettle))),
        ("then finally", some(labels(plan, |item| item.fate == Fate::Runs))),
    ];
    let shown = parts.into_iter().filter_map(|(name, list)| {
        let list = list?;
        Some(format!("{name}: {}", names(&list)))
    });
    let shown: Vec<String> = shown.collect();
    format!("nothing more starts or is sent; {}", shown.join(" · "))
}

fn is_landed(item: &Item) -> bool {
    item.now == Now::Landed
}

fn some(list: Vec<String>) -> Option<Vec<String>> {
    (!list.is_empty()).then_some(list)
}

fn labels(plan: &domain::StopPlan, wanted: impl Fn(&Item) -> bool) -> Vec<String> {
    let found = plan.items.iter().filter(|item| wanted(item));
    found.map(|item| label(&item.subject)).collect()
}

/// Shows a plan: a head, what each item comes to, and the command.
pub(super) fn plan(base: &Base, now: Time, planned: &Planned) -> Vec<String> {
    let plan = &planned.plan;
    let digest = planned.digest().map_or("none, it moves too fast", |digest| digest);
    let mut lines = vec![format!("stop plan of {} · {} · digest {digest}", base.task, plan.mode)];
    for (name, wanted) in SECTIONS {
        let found: Vec<&Item> = plan.items.iter().filter(|item| wanted(item)).collect();
        section(name, &found, |item| planned_line(item, now), &mut lines);
    }
    let owed = plan.items.iter().filter(|item| item.fate == Fate::ToSettle).count();
    if owed > 0 {
        let by =
            super::super::hold::ends_by(base, standfast_domain::hold::HoldReason::UncertainEffect);
        lines.push(named("To settle", &format!("{owed} by {}", by.join(" or "))));
    }
    if !plan.covers_claims {
        let why = "so many steps may run that the digest does not say which of them do";
        lines.push(named("", why));
    }
    lines.push(named("Stop it", &command(base, planned)));
    lines
}

/// A section's name, and which items it shows.
type Section = (&'static str, fn(&Item) -> bool);

/// What the sections of a plan and of a settlement show.
const SECTIONS: [Section; 7] = [
    ("Landed", |item| item.now == Now::Landed),
    ("Running", |item| item.now == Now::Running),
    ("In flight", |item| item.now == Now::InFlight),
    ("Uncertain", |item| item.now == Now::Uncertain),
    ("Staged", |item| matches!(item.subject, Subject::Step { .. })),
    ("Lapses", |item| item.fate == Fate::Lapses),
    ("Finally", |item| item.fate == Fate::Runs),
];

fn section<T>(name: &str, found: &[T], show: impl Fn(&T) -> String, lines: &mut Vec<String>) {
    for (at, item) in found.iter().take(SHOWN_MAX).enumerate() {
        let name = if at == 0 { name } else { "" };
        lines.push(named(name, &show(item)));
    }
    if let Some(more) = found.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        lines.push(named("", &format!("and {more} more")));
    }
}

fn named(name: &str, text: &str) -> String {
    format!("{name:NAME_WIDTH$}{text}")
}

fn planned_line(item: &Item, now: Time) -> String {
    let what = what(item, now);
    let fate = match item.fate {
        Fate::Stays if item.undo.is_some() => "stays (`--mode undo` would undo it)".to_owned(),
        Fate::Stays => "stays; its plan does not say how to undo it".to_owned(),
        Fate::MayLand => "its request is not broken off; what comes of it is recorded".to_owned(),
        Fate::Undone { position: 1 } => "is undone first".to_owned(),
        Fate::Undone { position } => format!("is undone as number {position}"),
        Fate::ToSettle => "a person must settle it".to_owned(),
        Fate::StaysUncertain => "stays uncertain; that is harmless".to_owned(),
        Fate::ToldToEnd => "is told to end".to_owned(),
        Fate::MayFinish => "may finish".to_owned(),
        Fate::WillNotHappen => "will not happen".to_owned(),
        Fate::Lapses => "ends with the stop".to_owned(),
        Fate::Runs => "runs at the end".to_owned(),
    };
    format!("{what}: {fate}")
}

/// Names an item with what matters of it.
fn what(item: &Item, now: Time) -> String {
    let label = label(&item.subject);
    let words: Vec<&str> = item.says.iter().chain(&item.target).map(String::as_str).collect();
    let words = match words.is_empty() {
        true => String::new(),
        false => format!(" ({})", line(&words.join(", "), WORDS_CHARS_MAX)),
    };
    let since = item.since.map(|since| clock(since, now)).unwrap_or_default();
    match (&item.subject, item.now) {
        (Subject::Attempt { attempt, .. }, _) => {
            let worker = item.worker.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("{label}, attempt {attempt} on worker {} since {since}", plain(&worker))
        }
        (Subject::Effect { .. }, Now::Landed) if item.since.is_some() => {
            format!("{label}{words} at {since}")
        }
        (Subject::Effect { .. }, Now::InFlight | Now::Uncertain) => {
            format!("{label}{words} since {since}")
        }
        (Subject::Step { .. }, Now::Held) => {
            let reason = item.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            format!("{label}, held{reason}{}", effect_of(item))
        }
        (Subject::Step { .. }, stands) => {
            format!("{label}, {}{}", stands.as_str(), effect_of(item))
        }
        (Subject::Deadline, _) => {
            format!("deadline {}", item.due.map(|due| clock(due, now)).unwrap_or_default())
        }
        (Subject::Hold { .. }, _) => format!("hold {label}"),
        (Subject::Effect { .. } | Subject::Finally { .. }, _) => format!("{label}{words}"),
    }
}

/// Says which effect a step would have.
fn effect_of(item: &Item) -> String {
    item.class.map_or_else(String::new, |class| format!(", with its {class} effect"))
}

/// Says in short what a stop came to: for the sixth answer.
pub(crate) fn came_to(base: &Base, now: Time, settlement: &domain::Settlement) -> Vec<String> {
    let stop = &settlement.stop;
    let when = clock(stop.at, now);
    let mut lines = vec![match settlement.took() {
        Some(took) => {
            format!("stopped by {} at {when} ({}), done {} later", stop.by, stop.mode, span(took))
        }
        None => format!("stopped by {} at {when} ({}), under way", stop.by, stop.mode),
    }];
    let counted = [
        (
            "landed and stays",
            count(settlement, |became| {
                matches!(became, Became::Stays | Became::LandedLate | Became::LeftByAnswer)
            }),
        ),
        ("undone", count(settlement, |became| became == Became::Undone)),
        ("did not happen", count(settlement, |became| became == Became::Cancelled)),
        ("finished", count_attempts(settlement)),
        ("to be settled", settlement.items.iter().filter(|settled| is_owed(settled)).count()),
    ];
    let shown = counted.iter().filter(|(_, count)| *count > 0);
    let shown: Vec<String> = shown.map(|(name, count)| format!("{count} {name}")).collect();
    if !shown.is_empty() {
        lines.push(shown.join(" · "));
    }
    lines.extend(waits_for(base, settlement).into_iter().map(|wait| format!("waits for {wait}")));
    lines.extend(owed_lines(base, settlement));
    lines.push(format!("item by item: standfast stop {} --report", base.task));
    lines
}

fn count(settlement: &domain::Settlement, wanted: impl Fn(Became) -> bool) -> usize {
    settlement.items.iter().filter(|settled| wanted(settled.became)).count()
}

fn count_attempts(settlement: &domain::Settlement) -> usize {
    let finished = |settled: &&Settled| {
        matches!(settled.item.subject, Subject::Attempt { .. })
            && settled.became == Became::Succeeded
    };
    settlement.items.iter().filter(finished).count()
}

/// Says what a stop still waits for, each with who or what can end that.
pub(super) fn waits_for(base: &Base, settlement: &domain::Settlement) -> Vec<String> {
    if settlement.ended_at.is_some() {
        return Vec::new();
    }
    let each = settlement.items.iter().filter_map(|settled| {
        let label = label(&settled.item.subject);
        match (&settled.item.subject, settled.became) {
            (Subject::Attempt { attempt, .. }, Became::Running) => {
                let worker = settled.item.worker.as_ref().map(ToString::to_string);
                let worker = plain(&worker.unwrap_or_default());
                Some(format!("attempt {attempt} of `{label}` on worker {worker}"))
            }
            (_, Became::UndoHeld) => {
                let (by, _) = to_settle(base, settled);
                Some(format!("{}, to settle the undo of `{label}`", by.join(" or ")))
            }
            (_, Became::Undoing | Became::ToUndo) => Some(format!("the undo of `{label}`")),
            (Subject::Finally { .. }, Became::Waiting | Became::Running) => match &settled.hold {
                Some(_) => {
                    let (by, _) = to_settle(base, settled);
                    Some(format!("{}, to settle `{label}`", by.join(" or ")))
                }
                None => Some(format!("finally step `{label}`")),
            },
            _ => None,
        }
    });
    each.collect()
}

/// Says who must settle what, and by which commands.
fn owed_lines(base: &Base, settlement: &domain::Settlement) -> Vec<String> {
    let mut lines = Vec::new();
    for settled in settlement.items.iter().filter(|settled| is_owed(settled)).take(SHOWN_MAX) {
        let (by, answers) = to_settle(base, settled);
        lines.push(format!(
            "{} is to be settled by {}:",
            label(&settled.item.subject),
            by.join(" or ")
        ));
        let width = answers.iter().map(|answer| answer.command.chars().count()).max().unwrap_or(0);
        lines.extend(
            answers
                .iter()
                .map(|answer| format!("  {:width$}  ({})", answer.command, answer.effect)),
        );
    }
    lines
}

/// Shows a settlement: a head, what became of each item, what is waited for, what is owed.
pub(super) fn settlement(base: &Base, now: Time, settlement: &domain::Settlement) -> Vec<String> {
    let stop = &settlement.stop;
    let head = format!(
        "{} · stopped by {} at {} ({})",
        base.task,
        stop.by,
        clock(stop.at, now),
        stop.mode
    );
    let end = match settlement.took() {
        Some(took) => format!(" · {} {} later", base.header.state, span(took)),
        None => " · under way".to_owned(),
    };
    let mut lines = vec![format!("{head}{end}")];
    lines.extend(
        stop.reason.as_ref().map(|reason| named("Reason", &line(reason, WORDS_CHARS_MAX * 2))),
    );
    for (name, wanted) in SECTIONS {
        let found: Vec<&Settled> =
            settlement.items.iter().filter(|one| wanted(&one.item)).collect();
        section(name, &found, |settled| settled_line(settled, now), &mut lines);
    }
    let waits = waits_for(base, settlement);
    section("Waits for", &waits, |wait| wait.to_string(), &mut lines);
    let owed = owed_lines(base, settlement);
    lines.extend(
        owed.iter()
            .enumerate()
            .map(|(at, text)| named(if at == 0 { "To settle" } else { "" }, text)),
    );
    lines
}

fn settled_line(settled: &Settled, now: Time) -> String {
    let what = what(&settled.item, now);
    let at = settled.at.map(|at| format!(" at {}", clock(at, now))).unwrap_or_default();
    let became = match settled.became {
        Became::Stays => "stays".to_owned(),
        Became::LandedLate => format!("landed{at}, after the stop was asked for"),
        Became::NotLanded(how) => format!("did not happen ({})", how.as_str()),
        Became::Undone => format!("undone{at}"),
        Became::Undoing => "is being undone".to_owned(),
        Became::ToUndo => "is to be undone".to_owned(),
        Became::UndoHeld => format!("its undo is held since{}", at.replace(" at", "")),
        Became::LeftByAnswer => format!("left as it is by a person's answer{at}"),
        Became::InFlight => "its attempt still runs".to_owned(),
        Became::ToSettle => "uncertain; a person must settle it".to_owned(),
        Became::StaysUncertain => "stays uncertain; that is harmless".to_owned(),
        Became::Running => "still runs".to_owned(),
        Became::Cancelled => format!("cancelled{at}"),
        Became::Succeeded => format!("succeeded{at}"),
        Became::Failed(class) => {
            let class = class.map(|class| format!(" ({})", class.as_str())).unwrap_or_default();
            format!("failed{class}{at}")
        }
        Became::Skipped => "left out".to_owned(),
        Became::Lapsed => "ended with the stop".to_owned(),
        Became::Waiting => "has not begun".to_owned(),
    };
    let late = if settled.told_late { "; its worker told a result too late" } else { "" };
    let since = if settled.since_stop { " (came after the stop was asked for)" } else { "" };
    format!("{what}: {became}{late}{since}")
}
