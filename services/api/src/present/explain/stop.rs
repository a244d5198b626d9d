//! 6: what a stop would do now; once one was asked for, what it came to.

use standfast_domain::stop_plan::{Became, Fate, Item, Now, Settlement};
use standfast_engine::stopping::Planned;
use standfast_protocol::explain::StopNow;

use super::super::stop;
use super::{Facts, SHOWN_MAX, effects};

/// What there is to say of a stop.
pub(crate) enum Stopping {
    /// It can be stopped: the plans of all modes.
    Planned(Vec<Planned>),
    /// A stop was asked for: what it has come to.
    Stopped(Box<Settlement>),
    /// Its end is decided without a stop.
    Decided,
}

/// Answers from the stop plan, or from the settlement.
pub(super) fn stop_now(facts: &Facts<'_>) -> StopNow {
    match facts.stopping {
        Stopping::Planned(plans) => planned(facts, plans),
        Stopping::Stopped(settlement) => stopped(facts, settlement),
        Stopping::Decided => decided(facts),
    }
}

fn planned(facts: &Facts<'_>, plans: &[Planned]) -> StopNow {
    let base = &facts.survey.base;
    let (modes, command) = stop::outlooks(base, plans);
    let items: &[Item] = plans.first().map_or(&[], |planned| &planned.plan.items);
    let named = |wanted: fn(&Item) -> bool| {
        let found = items.iter().filter(|item| wanted(item)).take(SHOWN_MAX);
        found.map(|item| stop::label(&item.subject)).collect()
    };
    let mut text: Vec<String> = modes.iter().map(|outlook| outlook.text.clone()).collect();
    text.extend(command.clone());
    StopNow {
        told_to_end: named(|item| item.now == Now::Running),
        will_not_happen: named(|item| item.fate == Fate::WillNotHappen),
        stays: named(|item| item.now == Now::Landed),
        to_settle: named(|item| item.fate == Fate::ToSettle),
        finally: named(|item| item.fate == Fate::Runs),
        modes,
        command,
        text,
    }
}

fn stopped(facts: &Facts<'_>, settlement: &Settlement) -> StopNow {
    let named = |wanted: fn(Became) -> bool| {
        let found = settlement.items.iter().filter(|settled| wanted(settled.became));
        found.map(|settled| stop::label(&settled.item.subject)).take(SHOWN_MAX).collect()
    };
    StopNow {
        told_to_end: named(|became| became == Became::Running),
        stays: named(|became| {
            matches!(became, Became::Stays | Became::LandedLate | Became::LeftByAnswer)
        }),
        to_settle: named(|became| matches!(became, Became::ToSettle | Became::UndoHeld)),
        text: stop::came_to(&facts.survey.base, facts.now(), settlement),
        ..nothing()
    }
}

fn decided(facts: &Facts<'_>) -> StopNow {
    let ended = facts.survey.base.header.state.is_final();
    let stays = effects::labels(facts.outside.landed.iter());
    let to_settle = effects::labels(effects::to_settle(facts));
    let mut text = vec![match ended {
        true => "nothing: it has ended".to_owned(),
        false => "nothing more: its end is decided, and what runs cleans up after it".to_owned(),
    }];
    text.extend(outside_line(&stays, &to_settle));
    StopNow { stays, to_settle, text, ..nothing() }
}

fn nothing() -> StopNow {
    StopNow {
        told_to_end: Vec::new(),
        will_not_happen: Vec::new(),
        stays: Vec::new(),
        to_settle: Vec::new(),
        modes: Vec::new(),
        finally: Vec::new(),
        command: None,
        text: Vec::new(),
    }
}

/// Says what stays outside, and what is still to be settled.
fn outside_line(stays: &[String], to_settle: &[String]) -> Option<String> {
    let names = super::super::text::names::<String>;
    let landed = format!("landed effects stay: {}", names(stays));
    let left = format!("uncertain ones stay to be settled by a person: {}", names(to_settle));
    match (stays.is_empty(), to_settle.is_empty()) {
        (true, true) => None,
        (false, true) => Some(landed),
        (true, false) => Some(left),
        (false, false) => Some(format!("{landed} · {left}")),
    }
}
