//! Plans from a few numbers.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;
use standfast_domain::ceiling::Ceiling;
use standfast_domain::decide::{Addition, Submission};
use standfast_domain::ids::{HandlerName, Kind, Principal, Queue, StepId};
use standfast_domain::plan::{
    Deadline, DeadlineThen, EffectPlan, OnFailure, Plan, Retry, StepPlan, Timeouts, UndoPlan, Uses,
    When, graph,
};
use standfast_domain::record::EffectClass;
use standfast_domain::time::Span;

/// A step's name.
pub fn id(text: &str) -> StepId {
    StepId::new(text).expect("a test names steps rightly")
}

/// A step that a handler runs once, with nothing special.
pub fn step(name: &str, needs: &[&str]) -> StepPlan {
    StepPlan {
        id: id(name),
        uses: Uses::Handler(HandlerName::new("exec").expect("a name")),
        queue: Queue::new("default").expect("a name"),
        needs: needs.iter().map(|need| id(need)).collect(),
        condition: None,
        with: json!({}),
        timeout: Timeouts::default(),
        retry: Retry { max_attempts: 1, ..Retry::default() },
        artifact: None,
        checkpoint: None,
        on_failure: None,
        effect: None,
        undo: None,
    }
}

/// The same step with one declared effect.
pub fn effect(class: EffectClass, plan: StepPlan) -> StepPlan {
    let effect = EffectPlan { class, target: None, says: None, check: None };
    StepPlan { effect: Some(effect), ..plan }
}

/// The same step, whose effects can be undone.
pub fn undo(plan: StepPlan) -> StepPlan {
    let undo = UndoPlan {
        uses: HandlerName::new("exec").expect("a name"),
        queue: None,
        with: json!({}),
        timeout: Timeouts::default(),
        retry: Retry { max_attempts: 1, ..Retry::default() },
        effect: None,
    };
    StepPlan { undo: Some(undo), ..plan }
}

/// A step that redoes an earlier one when it fails.
pub fn redo(name: &str, needs: &[&str], from: &str, max: u32) -> StepPlan {
    let on_failure = Some(OnFailure::Redo { step: id(from), max });
    StepPlan { on_failure, ..step(name, needs) }
}

/// A plan of these steps.
pub fn plan(steps: Vec<StepPlan>, finally: Vec<StepPlan>) -> Plan {
    Plan {
        kind: Kind::new("test").expect("a name"),
        goal: String::new(),
        input: json!({}),
        owner: None,
        viewers: Vec::new(),
        operators: Vec::new(),
        labels: BTreeMap::new(),
        approvers: Vec::new(),
        idempotency_key: None,
        artifacts: Vec::new(),
        deadline: None,
        retention: None,
        complete_when: None,
        steps,
        finally,
    }
}

/// A submission of a plan whose `templated` steps are to be resolved.
pub fn submission(plan: Plan) -> Submission {
    Submission {
        plan,
        sha256: "0".repeat(64),
        plan_dir: None,
        submitted_by: Principal::local(),
        idempotency_key: None,
        ceiling: Ceiling::default(),
        retention: Span::from_secs(60),
        templated: BTreeSet::new(),
        named_in_if: BTreeMap::new(),
        traceparent: None,
        outgoing: BTreeMap::new(),
        written_ahead: false,
    }
}

/// The numbers that one step is made of.
#[derive(Clone, Debug)]
pub struct Draw {
    pub needs: u16,
    pub kind: u8,
    pub on_failure: u8,
    pub from: u8,
    pub attempts: u8,
    pub named: u16,
    pub effect: u8,
}

pub fn draw() -> impl Strategy<Value = Draw> {
    let needs = (any::<u16>(), any::<u16>());
    (needs, any::<u8>(), 0..10u8, any::<u8>(), any::<u8>(), any::<u16>(), any::<u8>()).prop_map(
        |((a, b), kind, on_failure, from, attempts, named, effect)| Draw {
            needs: a & b,
            kind,
            on_failure,
            from,
            attempts,
            named,
            effect,
        },
    )
}

fn on_failure(draw: &Draw, upstream: &BTreeSet<StepId>) -> Option<OnFailure> {
    let from = upstream.iter().nth(usize::from(draw.from) % upstream.len().max(1));
    match (draw.on_failure, from) {
        (0, _) => Some(OnFailure::Fail),
        (1 | 2, _) => Some(OnFailure::Continue),
        (3, _) => Some(OnFailure::Pause),
        (4..=8, Some(from)) => {
            Some(OnFailure::Redo { step: from.clone(), max: 1 + u32::from(draw.attempts % 2) })
        }
        _ => None,
    }
}

/// Makes the steps of a draw, and says which are templated and what their `if`s name.
pub fn steps(draws: &[Draw], prefix: &str) -> (Vec<StepPlan>, Vec<Addition>) {
    let mut steps: Vec<StepPlan> = Vec::new();
    let mut additions = Vec::new();
    for (n, draw) in draws.iter().enumerate() {
        let name = format!("{prefix}{n}");
        let mut new = step(&name, &[]);
        let needed = steps.iter().enumerate().filter(|(i, _)| draw.needs >> (i % 16) & 1 == 1);
        new.needs = needed.map(|(_, need)| need.id.clone()).collect();
        if draw.kind % 8 == 0 {
            new.uses = Uses::Timer;
        }
        if draw.effect % 2 == 1 && new.uses != Uses::Timer {
            let class = EffectClass::ALL[usize::from(draw.effect / 2) % EffectClass::ALL.len()];
            new = effect(class, new);
            if class != EffectClass::None && draw.named % 3 > 0 && prefix != "f" {
                new = undo(new);
                let of = new.undo.as_mut().expect("it was set just now");
                of.effect = new.effect.clone().filter(|_| draw.named % 3 == 1);
                of.retry.max_attempts = 1 + u32::from(draw.attempts % 3);
            }
        }
        new.retry.max_attempts = 1 + u32::from(draw.attempts % 3);
        new.retry.backoff = Span::from_secs(u64::from(draw.attempts / 4 % 3));
        if draw.attempts > 200 {
            new.timeout.total = Some(Span::from_secs(20));
        }
        if draw.kind > 200 {
            new.timeout.queue = Some(Span::from_secs(10));
        }
        if draw.named > 50_000 {
            new.timeout.heartbeat = Some(Span::from_secs(5));
        }
        steps.push(new);
        let upstream = graph::upstream(&steps, &id(&name));
        steps[n].on_failure = on_failure(draw, &upstream);
        let named = steps[n].needs.iter().enumerate();
        let named = named.filter(|(i, _)| draw.named >> (i % 16) & 1 == 1);
        let named_in_if: BTreeSet<StepId> = named.map(|(_, need)| need.clone()).collect();
        let templated = draw.kind % 3 == 1 || !named_in_if.is_empty();
        additions.push(Addition { templated, named_in_if });
    }
    (steps, additions)
}

/// Submissions of up to 12 steps.
pub fn submissions() -> impl Strategy<Value = Submission> {
    let main = prop::collection::vec(draw(), 1..=12);
    let finally = prop::collection::vec(draw(), 0..=2);
    (main, finally, 0..8u8).prop_map(|(main, finally, deadline)| {
        let (steps, of_steps) = self::steps(&main, "s");
        let (mut last, of_last) = self::steps(&finally, "f");
        for step in &mut last {
            step.on_failure = None;
        }
        let then = match deadline {
            0 => Some(DeadlineThen::Pause),
            1 => Some(DeadlineThen::Fail),
            2 => Some(DeadlineThen::Stop),
            _ => None,
        };
        let when = When::In(Span::from_secs(40));
        let mut submission = submission(plan(steps, last));
        submission.plan.deadline = then.map(|then| Deadline { when, then });
        let all = submission.plan.steps.iter().chain(&submission.plan.finally);
        let ids: Vec<StepId> = all.map(|step| step.id.clone()).collect();
        for (id, addition) in ids.into_iter().zip(of_steps.into_iter().chain(of_last)) {
            if addition.templated {
                submission.templated.insert(id.clone());
            }
            submission.named_in_if.insert(id, addition.named_in_if);
        }
        submission
    })
}
