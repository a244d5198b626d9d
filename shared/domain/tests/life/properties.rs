//! Whatever plan and whatever order of commands: the rules hold after every commit.

use crate::model::fair::{claim_command, failure, intent, speaker, success};
use crate::model::plans::{self, draw};
use crate::model::world::World;
use proptest::prelude::*;
use standfast_domain::decide::{Addition, Command, Submission, TimerKind};
use standfast_domain::hold::Answer;
use standfast_domain::ids::{Principal, StepId};
use standfast_domain::index::{TIMERS, TimerEntry, WORK};
use standfast_domain::outcome::{FailureClass, Outcome};
use standfast_domain::plan::StepPlan;
use standfast_domain::record::{
    EffectClass, Key, MAIN_EFFECT, NotLanded, Payload, Record, StopMode,
};
use standfast_domain::time::Span;
use standfast_domain::view::Attempt;

/// One thing that somebody does.
#[derive(Clone, Debug)]
struct Deed {
    kind: u8,
    process: usize,
    which: u8,
    how: u8,
    then: Vec<plans::Draw>,
}

fn deed() -> impl Strategy<Value = Deed> {
    let then = prop_oneof![8 => Just(Vec::new()), 1 => prop::collection::vec(draw(), 1..4)];
    (0..49u8, 0..2usize, any::<u8>(), any::<u8>(), then)
        .prop_map(|(kind, process, which, how, then)| Deed { kind, process, which, how, then })
}

/// Everything that was ever seen, to be said again later.
#[derive(Default)]
struct Past {
    attempts: Vec<Attempt>,
    outcomes: Vec<(Attempt, Command)>,
    added: usize,
    intents: Vec<(Attempt, &'static str)>,
    /// What steps have added, to be added by them again.
    thens: Vec<(StepId, Vec<StepPlan>, Vec<Addition>)>,
}

fn pick<T: Clone>(list: &[T], which: u8) -> Option<T> {
    list.get(usize::from(which) % list.len().max(1)).cloned()
}

const CLASSES: [FailureClass; 6] = [
    FailureClass::Retryable,
    FailureClass::Permanent,
    FailureClass::RateLimited,
    FailureClass::Timeout,
    FailureClass::Cancelled,
    FailureClass::Lost,
];

fn completion(past: &mut Past, deed: &Deed, at: Attempt) -> Command {
    let (mut then, mut added) = (Vec::new(), Vec::<Addition>::new());
    if !deed.then.is_empty() {
        past.added += 1;
        (then, added) = plans::steps(&deed.then, &format!("x{}.", past.added));
        past.thens.push((at.step.clone(), then.clone(), added.clone()));
    } else if deed.which.is_multiple_of(2) {
        let own = past.thens.iter().filter(|(step, _, _)| *step == at.step);
        if let Some((_, before, of)) = pick(&own.cloned().collect::<Vec<_>>(), deed.how) {
            (then, added) = (before, of);
        }
    }
    let outcome: Outcome = match deed.how % 10 {
        0..=5 => success(then),
        how => failure(CLASSES[usize::from(how.wrapping_add(deed.which)) % CLASSES.len()]),
    };
    Command::CompleteAttempt { at, outcome: Box::new(outcome), added, cost_usd_micros: 3 }
}

fn command(world: &mut World, past: &mut Past, deed: &Deed) -> Option<Command> {
    let running = world.running();
    let held = world.held();
    let worker = ["w1", "w2", "w3"][usize::from(deed.how % 3)];
    Some(match deed.kind {
        0..=11 => claim_command(pick(&world.ready(), deed.which)?.as_str(), worker),
        12..=21 => completion(past, deed, pick(&running, deed.which)?),
        22 => Command::RenewClaim {
            at: pick(&past.attempts, deed.which)?,
            details: None,
            alive: false,
        },
        23 if deed.how.is_multiple_of(2) => {
            let at = pick(&past.attempts, deed.which)?;
            Command::StopAttempt { step: at.step, attempt: at.attempt, reason: None }
        }
        23 => Command::HandBack { at: pick(&running, deed.which)?, why: "draining".to_owned() },
        24 => completion(past, deed, pick(&past.attempts, deed.which)?),
        25 => pick(&past.outcomes, deed.which)?.1,
        26 | 27 => {
            let at = pick(&running, deed.which)?;
            let proven = deed.how.is_multiple_of(2);
            Command::ExpireClaim { step: at.step, attempt: at.attempt, proven }
        }
        28..=31 => {
            let members = world.store.members(TIMERS);
            let entry = TimerEntry::parse(&pick(&members, deed.which)?)?;
            if entry.kind != TimerKind::Remove && !deed.how.is_multiple_of(3) {
                world.now = world.now.max(entry.due);
            }
            Command::FireTimer { step: entry.step, kind: entry.kind, why: None }
        }
        32..=35 => {
            let answer = [Answer::Retry, Answer::Skip][usize::from(deed.how % 2)];
            let step = Some(pick(&held, deed.which)?.0);
            answered(step, answer)
        }
        36 | 37 => {
            let answers = [Answer::Retry, Answer::Retry, Answer::Skip];
            let answer = answers[usize::from(deed.how % 3)];
            answered(None, answer)
        }
        39..=43 => {
            let at = pick(&running, deed.which).filter(|_| !deed.how.is_multiple_of(16));
            let at = at.or_else(|| pick(&past.attempts, deed.which))?;
            let class = class_of(world, &at);
            let (name, class) = match deed.how % 4 {
                0 => ("also", EffectClass::Idempotent),
                _ => (MAIN_EFFECT, class.filter(|class| class.needs_durable_store())?),
            };
            past.intents.push((at.clone(), name));
            Command::Intend { at, intent: Box::new(intent(name, class)) }
        }
        44 => {
            let (at, name) = pick(&past.intents, deed.which)?;
            let receipt = Payload::Inline(serde_json::json!({ "id": deed.how }));
            Command::ConfirmEffect { by: speaker(&at, name), receipt }
        }
        45 => {
            let (at, name) = pick(&past.intents, deed.which)?;
            Command::RetractEffect { by: speaker(&at, name), how: NotLanded::NotSent }
        }
        46 => {
            let answers = [Answer::Happened, Answer::NotHappened, Answer::Keep, Answer::SendAlso];
            let answer = answers[usize::from(deed.how % 4)];
            answered(Some(pick(&held, deed.which)?.0), answer)
        }
        48 => handed_over(deed),
        38 if deed.how % 4 < 3 => steered(deed),
        38 => Command::HandBack { at: pick(&past.attempts, deed.which)?, why: String::new() },
        _ => claim_command(&format!("s{}", deed.which % 12), worker),
    })
}

fn handed_over(deed: &Deed) -> Command {
    let name = |n: u8| ["user:local", "user:ben"][usize::from(n % 2)];
    let who = |n| Principal::new(name(n)).expect("a principal");
    Command::HandOver { from: who(deed.which), to: who(deed.how), reason: None }
}

fn steered(deed: &Deed) -> Command {
    let reason = None;
    match deed.how % 4 {
        0 => {
            let mode = StopMode::ALL[usize::from(deed.which) % StopMode::ALL.len()];
            Command::Stop { reason, mode }
        }
        1 => Command::Pause { reason },
        _ => Command::Resume { reason },
    }
}

fn answered(step: Option<StepId>, answer: Answer) -> Command {
    Command::Answer { step, answer, note: None, effect: None, receipt: None }
}

fn class_of(world: &mut World, at: &Attempt) -> Option<EffectClass> {
    match world.store.load(&Key::Definition(at.step.clone())).0 {
        Some(Record::Definition(definition)) => Some(definition.plan.effect_class()),
        _ => None,
    }
}

fn live(submission: Submission, seed: u64, room: usize, deeds: &[Deed]) {
    let mut world = World::new(submission, seed, room);
    let mut past = Past::default();
    for part in deeds.chunks(2) {
        let process = part[0].process;
        let mut batch = Vec::new();
        for deed in part {
            if let Some(member) = pick(&world.store.members(WORK), deed.which) {
                world.sweep(process, &member);
            }
            world.now = world.now.after(Span(u64::from(deed.how) * 4));
            batch.extend(command(&mut world, &mut past, deed));
            if deed.process == 0 {
                world.execute(process, &std::mem::take(&mut batch));
            }
            past.attempts.extend(world.running());
        }
        let told = batch.iter().filter_map(|command| match command {
            Command::CompleteAttempt { at, .. } => Some((at.clone(), command.clone())),
            _ => None,
        });
        past.outcomes.extend(told);
        if !batch.is_empty() {
            world.execute(process, &batch);
        }
    }
    world.watch.fold(&world.task, &mut world.store);
    world.drive();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_plan_under_any_schedule_keeps_the_rules_and_ends(
        submission in plans::submissions(),
        seed in any::<u64>(),
        room in prop_oneof![Just(0usize), 1..6usize, Just(250)],
        deeds in prop::collection::vec(deed(), 0..80),
    ) {
        live(submission, seed, room, &deeds);
    }
}
