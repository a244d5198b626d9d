//! Holds as readers see them: who can end one, with which answers, and by which command.

use standfast_domain::hold::{Answer, Hold, HoldClass as Class, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::record::MAIN_EFFECT;
use standfast_domain::rights::{People, Right};
use standfast_domain::time::Time;
use standfast_protocol::holds::{AnswerView, HeldEffectView, HoldClass, HoldView};

use super::text::{plain, span};
use crate::reads::Base;

/// What is said of a wait for a span while its task is paused.
const PAUSED_CLOCK: &str = "its clock stands still while the task is paused";

/// What an answer is about.
#[derive(Clone, Copy, Default)]
pub(crate) struct About<'a> {
    /// The step; none: the task itself.
    pub step: Option<&'a StepId>,
    /// The effect, where it must be named.
    pub effect: Option<&'a str>,
}

/// Shows a hold of a step, or of the task itself.
pub(crate) fn view(base: &Base, now: Time, step: Option<&StepId>, hold: &Hold) -> HoldView {
    let class = match hold.reason.class() {
        Class::Waiting => HoldClass::Waiting,
        Class::Blocked => HoldClass::Blocked,
    };
    let suggested = match (class, hold.reason) {
        // Which answer is true cannot be known from here.
        (HoldClass::Waiting, _) | (_, HoldReason::UncertainEffect) => None,
        (HoldClass::Blocked, _) => {
            hold.reason.answers().first().map(|answer| answer.as_str().to_owned())
        }
    };
    let still = hold.stands_still(&base.gate);
    let ends_at = hold.ends_at(&base.gate, now);
    let deadline = ends_at.filter(|_| !still).map(Time::rfc3339);
    let message = match (ends_at, &deadline, hold.reason) {
        (Some(at), None, _) => format!("{PAUSED_CLOCK}; {} are left", span(at.since(now))),
        // A pause has moved it since that was written.
        (_, Some(deadline), HoldReason::Timer) => format!("waits until {deadline}"),
        (_, _, _) => plain(&hold.message),
    };
    let mut ends_by = ends_by(base, hold.reason);
    if still {
        ends_by[0].push_str(", once the task is resumed");
    }
    HoldView {
        step: step.map(StepId::to_string),
        reason: hold.reason.as_str().to_owned(),
        class,
        message,
        since: hold.since.rfc3339(),
        then: deadline.as_ref().map(|_| "go_on".to_owned()),
        deadline,
        ends_by,
        answers: answers(base, step, hold),
        effect: hold
            .effect
            .as_ref()
            .map(|effect| HeldEffectView { name: effect.name.clone(), key: effect.key.clone() }),
        suggested,
    }
}

/// Shows the answers to a hold.
pub(crate) fn answers(base: &Base, step: Option<&StepId>, hold: &Hold) -> Vec<AnswerView> {
    let effect = hold.effect.as_ref().map(|effect| effect.name.as_str());
    let about = About { step, effect: effect.filter(|name| *name != MAIN_EFFECT) };
    let each = hold.reason.answers().iter();
    each.map(|answer| answer_view(base, about, hold.reason, *answer)).collect()
}

/// Names who or what can end a hold; never nobody, since every task has an owner.
pub(crate) fn ends_by(base: &Base, reason: HoldReason) -> Vec<String> {
    let mut by = match reason {
        HoldReason::Timer => vec!["the timer".to_owned()],
        HoldReason::Paused
        | HoldReason::Failures
        | HoldReason::WorkerDied
        | HoldReason::Verification
        | HoldReason::UncertainEffect
        | HoldReason::EffectChanged
        | HoldReason::UndoFailed => Vec::new(),
    };
    let people = People::of(&base.meta.owner, &base.meta);
    by.extend(people.who_may(Right::to_answer(reason)).into_iter().map(ToString::to_string));
    by
}

/// Shows an answer.
pub(crate) fn answer_view(
    base: &Base,
    about: About<'_>,
    reason: HoldReason,
    answer: Answer,
) -> AnswerView {
    AnswerView {
        answer: answer.as_str().to_owned(),
        command: command(base, about, answer),
        effect: effect(about.step, reason, answer),
    }
}

/// Says of an answer that nothing follows from it: its step will not run again.
pub(crate) fn for_the_record(view: AnswerView) -> AnswerView {
    AnswerView { effect: "for the record: nothing more is sent".to_owned(), ..view }
}

/// Writes the command that gives an answer.
fn command(base: &Base, about: About<'_>, answer: Answer) -> String {
    let named = about.effect.map_or_else(String::new, |name| format!(" --effect {name}"));
    let rest = match answer {
        Answer::Happened => format!("{named} --receipt '{{…}}'"),
        Answer::NotHappened => named,
        Answer::Retry | Answer::Skip | Answer::Keep | Answer::SendAlso | Answer::Stop => {
            String::new()
        }
    };
    match about.step {
        Some(step) => format!("standfast answer {}/{step} {answer}{rest}", base.task),
        None => format!("standfast answer {} {answer}", base.task),
    }
}

/// Says what an answer will do.
fn effect(step: Option<&StepId>, reason: HoldReason, answer: Answer) -> String {
    let name = step.map_or("the task", StepId::as_str);
    match answer {
        Answer::Retry => match reason {
            HoldReason::Verification => "checks again whether the task is complete".to_owned(),
            HoldReason::Paused => "lifts the pause; steps that are ready start".to_owned(),
            HoldReason::Timer
            | HoldReason::Failures
            | HoldReason::WorkerDied
            | HoldReason::UncertainEffect
            | HoldReason::EffectChanged
            | HoldReason::UndoFailed => {
                format!("runs `{name}` again, with all its attempts")
            }
        },
        Answer::Skip => match reason {
            HoldReason::Verification => {
                "completes the task although the check does not hold".to_owned()
            }
            HoldReason::Timer => "ends the wait now".to_owned(),
            HoldReason::UndoFailed => {
                "leaves the effect as it is, settled by hand; what else has landed is undone".into()
            }
            HoldReason::Paused
            | HoldReason::Failures
            | HoldReason::WorkerDied
            | HoldReason::UncertainEffect
            | HoldReason::EffectChanged => {
                format!("leaves `{name}` out and goes on with what needs it")
            }
        },
        Answer::Happened => format!("takes it as done; `{name}` goes on without sending it again"),
        Answer::NotHappened => {
            format!("takes it as not done; `{name}` sends the stored request, under the same key")
        }
        Answer::Keep => format!("`{name}` goes on with the receipt of what was sent before"),
        Answer::SendAlso => {
            format!("`{name}` sends the changed request too, under a key of its own")
        }
        Answer::Stop => "stops the whole task: halt".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use standfast_domain::hold::HeldEffect;

    use super::super::task::tests::base;
    use super::*;

    #[test]
    fn a_hold_names_who_ends_it_and_how() {
        let base = base();
        let step = StepId::new("pay").unwrap();
        let hold = Hold::new(HoldReason::Failures, "it\u{1b}broke", Time(0));
        let view = view(&base, Time(1), Some(&step), &hold);
        assert_eq!(view.ends_by, ["user:ana", "group:finance"]);
        assert_eq!(view.suggested.as_deref(), Some("retry"));
        assert_eq!(view.message, "it\\u{1b}broke");
        let commands: Vec<_> = view.answers.iter().map(|a| a.command.as_str()).collect();
        let task = &base.task;
        assert_eq!(commands[0], format!("standfast answer {task}/pay retry"));
        assert_eq!(commands.len(), 3);
    }

    #[test]
    fn a_hold_of_an_effect_names_it_and_suggests_neither_answer() {
        let (base, step) = (base(), StepId::new("pay").unwrap());
        for (name, named) in [(MAIN_EFFECT, ""), ("mail", " --effect mail")] {
            let key = format!("K/pay/{name}/1");
            let effect = HeldEffect { name: name.to_owned(), key, request_sha256: None };
            let hold = Hold::new(HoldReason::UncertainEffect, "sent or not", Time(0));
            let view = view(&base, Time(1), Some(&step), &Hold { effect: Some(effect), ..hold });
            let effect = view.effect.unwrap();
            assert_eq!((effect.name.as_str(), view.suggested), (name, None));
            assert_eq!(effect.key, format!("K/pay/{name}/1"));
            let commands = view.answers.iter().map(|answer| answer.command.as_str());
            let start = format!("standfast answer {}/pay", base.task);
            let expected = [
                format!("{start} happened{named} --receipt '{{…}}'"),
                format!("{start} not_happened{named}"),
                format!("{start} stop"),
            ];
            assert_eq!(commands.collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn a_timer_ends_by_itself_and_suggests_nothing() {
        let hold = Hold { due: Some(Time(1)), ..Hold::new(HoldReason::Timer, "", Time(0)) };
        let view = view(&base(), Time(0), None, &hold);
        assert_eq!(view.ends_by[0], "the timer");
        assert_eq!((view.suggested, view.then.as_deref()), (None, Some("go_on")));
    }

    #[test]
    fn a_pause_stops_the_clock_of_a_wait_for_a_span_and_moves_its_end() {
        let (mut base, step) = (base(), StepId::new("nap").unwrap());
        let for_a_span = Hold {
            due: Some(Time(60_000)),
            paused_ms: Some(0),
            ..Hold::new(HoldReason::Timer, "waits until 1970-01-01T00:01:00.000Z", Time(0))
        };
        let until = Hold { paused_ms: None, ..for_a_span.clone() };
        base.gate.paused_at = Some(Time(20_000));
        let paused = view(&base, Time(30_000), Some(&step), &for_a_span);
        assert_eq!((paused.deadline, paused.then), (None, None));
        assert_eq!(paused.message, format!("{PAUSED_CLOCK}; 40 s are left"));
        assert_eq!(paused.ends_by[0], "the timer, once the task is resumed");
        let fixed = view(&base, Time(30_000), Some(&step), &until);
        assert_eq!(fixed.deadline.as_deref(), Some("1970-01-01T00:01:00.000Z"));

        (base.gate.paused_at, base.gate.paused_ms) = (None, 15_000);
        let resumed = view(&base, Time(40_000), Some(&step), &for_a_span);
        assert_eq!(resumed.deadline.as_deref(), Some("1970-01-01T00:01:15.000Z"));
        assert_eq!(resumed.message, "waits until 1970-01-01T00:01:15.000Z");
    }
}
