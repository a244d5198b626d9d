//! What a person sees, line by line.

use serde_json::json;
use standfast_domain::commit::CommitId;
use standfast_domain::hold::{HeldEffect, Hold, HoldReason};
use standfast_domain::ids::{HandlerName, Queue, WorkerId};
use standfast_domain::outcome::FailureClass;
use standfast_domain::plan::{Retry, StepPlan, Timeouts, Uses};
use standfast_domain::record::{
    Dependent, Effect, EffectClass, Effects, Ending, Key, LastFailure, MAIN_EFFECT, Part, Payload,
    Phase, Record, Standing, Status, StepState as Stored, StopMode,
};
use standfast_domain::refusal::Halt;
use standfast_domain::stop_plan;
use standfast_domain::view::View;
use standfast_engine::stopping::Planned;

use super::super::effect::{Exchanged, Touched};
use super::super::step::tests::claim;
use super::super::task::tests::base;
use super::*;

fn id(name: &str) -> StepId {
    StepId::new(name).unwrap()
}

fn definition(name: &str, dependents: &[&str]) -> (StepId, Definition) {
    let plan = StepPlan {
        id: id(name),
        uses: Uses::Handler(HandlerName::new("exec").unwrap()),
        queue: Queue::new("default").unwrap(),
        needs: Vec::new(),
        condition: None,
        with: serde_json::Value::Null,
        timeout: Timeouts::default(),
        retry: Retry::default(),
        artifact: None,
        checkpoint: None,
        on_failure: None,
        effect: None,
        undo: None,
    };
    let waiting = dependents
        .iter()
        .map(|name| Dependent { step: id(name), needs: 1, tolerant: false })
        .collect();
    let definition = Definition {
        plan,
        needs_count: 0,
        dependents: waiting,
        dependents_chunks: 0,
        finally: false,
        added_by: None,
        redo: Vec::new(),
        undo_of: None,
        templated: false,
        effects_allowed: None,
    };
    (id(name), definition)
}

fn lines(status: Status, edit: impl FnOnce(&mut Survey)) -> String {
    with_effects(status, Outside::default(), edit)
}

/// An effect of 100 s ago, in flight unless it is edited.
fn effect(step: &str, edit: impl FnOnce(&mut Effect)) -> Seen {
    let mut effect = Effect {
        class: EffectClass::Irreversible,
        generation: 1,
        standing: Standing::InFlight,
        request_sha256: String::new(),
        request_attempt: None,
        attempt: 1,
        principal: None,
        worker: WorkerId::new("w-9d").unwrap(),
        intended_at: Time(620_000),
        send_before: Time(630_000),
        settled_by: Time(660_000),
        repeated: false,
        target: None,
        says: Some("120.00 EUR to bob".to_owned()),
        after_stop: false,
        intended_after_stop: false,
        uncertain_at_stop: None,
    };
    edit(&mut effect);
    let (name, exchanged) = (MAIN_EFFECT.to_owned(), Exchanged::default());
    Seen { step: id(step), name, effect, undone_at: None, answers: Vec::new(), exchanged }
}

/// A hold of the step `pay` for its effect.
fn hold_for(reason: HoldReason) -> Hold {
    let effect = HeldEffect {
        name: MAIN_EFFECT.to_owned(),
        key: "TASK/pay/main/1".to_owned(),
        request_sha256: None,
    };
    Hold { effect: Some(effect), ..Hold::new(reason, "it may have happened", Time(650_000)) }
}

/// The answers that are open while it is not known whether `seen` has happened.
fn uncertain(seen: Seen, over: bool) -> Seen {
    let effects = BTreeMap::from([(seen.name.clone(), seen.effect.clone())]);
    let touched = Touched { step: seen.step.clone(), effects, running: false, over };
    Seen { answers: touched.answers(&base(), Time(720_000), &seen.name, &seen.effect), ..seen }
}

/// What a stop would do to the task `pay`, then `mail`, finally `tidy`, as the engine reads it.
fn stopping(survey: &Survey, outside: &Outside) -> Stopping {
    let (base, live) = (&survey.base, &survey.live[0]);
    let mut view = View::new(base.task.clone());
    let mut load = |key, record| view.load(key, Some(record), Some(CommitId(1)));
    load(Key::Header, Record::Header(base.header.clone()));
    load(Key::Gate, Record::Gate(base.gate.clone()));
    load(Key::Meta, Record::Meta(Box::new(base.meta.clone())));
    let steps = ["reserve", "pay", "mail", "tidy"];
    load(Key::Order(0), Record::Names(steps.map(id).into()));
    for name in steps {
        let seen = outside.open.iter().chain(&outside.landed).filter(|seen| seen.step == id(name));
        let effects: Effects = seen.map(|seen| (seen.name.clone(), seen.effect.clone())).collect();
        let mut state = match name {
            "reserve" => Stored { status: Status::Succeeded { at: Time(0) }, ..Stored::pending(0) },
            "pay" => live.state.clone(),
            _ => Stored::pending(1),
        };
        state.effects = effects.len() as u32;
        let (step, mut definition) = definition(name, &[]);
        definition.finally = name == "tidy";
        load(Key::Step(step.clone()), Record::Step(state));
        load(Key::Effects(step.clone()), Record::Effects(effects));
        load(Key::Definition(step), Record::Definition(Box::new(definition)));
    }
    let claims = steps.map(id).map(Key::Claim);
    claims.into_iter().for_each(|key| view.load(key, None, None));
    let modes = [StopMode::Halt, StopMode::Drain, StopMode::Undo];
    match stop_plan::plans(&view, &modes) {
        Ok(plans) => Stopping::Planned(
            plans.into_iter().map(|(plan, basis)| Planned { plan, basis }).collect(),
        ),
        Err(Halt::Refuse(_)) => Stopping::Decided,
        Err(Halt::Need(keys)) => panic!("not loaded: {keys:?}"),
    }
}

fn with_effects(status: Status, outside: Outside, edit: impl FnOnce(&mut Survey)) -> String {
    let mut base = base();
    base.header.started = true;
    base.header.succeeded = 1;
    base.header.open = 2;
    match &status {
        Status::Held { .. } => base.header.blocked = 1,
        _ => base.header.active = 1,
    }
    base.header.state = base.header.shown();
    let state = Stored { status, ..Stored::pending(0) };
    let live = Live { number: 2, step: id("pay"), state, claim: None, part: Part::Main };
    let mut survey = Survey::of(base, vec![live]);
    survey.now = Time(720_000);
    edit(&mut survey);
    let definitions = BTreeMap::from([definition("pay", &["mail"]), definition("mail", &[])]);
    let staged = [id("mail"), id("pay")];
    let stopping = stopping(&survey, &outside);
    let facts = Facts {
        survey: &survey,
        definitions: &definitions,
        artifacts: &[],
        workers: &[],
        unattended: None,
        staged: match outside.open.is_empty() && outside.landed.is_empty() {
            true => &[],
            false => &staged,
        },
        staged_among: 2,
        outside: &outside,
        stopping: &stopping,
    };
    explain(&facts).lines().join("\n").replace(survey.base.task.as_str(), "TASK")
}

#[test]
fn a_held_step_shows_its_answers() {
    let hold = Hold::new(HoldReason::Failures, "exit code 1", Time(0));
    insta::assert_snapshot!(lines(Status::Held { hold: Box::new(hold) }, |_| {}), @r"
    refund TASK · blocked: failures since 00:00:00Z (12 min) · owner user:ana
    1 Stands    step 2 of 4 `pay`; 1 succeeded, 1 held, 2 pending · 0 attempts, $0.00
    2 Why       `pay` is held: failures: exit code 1
                user:ana or group:finance can end it. No deadline.
                > standfast answer TASK/pay retry  (runs `pay` again, with all its attempts)
                  standfast answer TASK/pay skip   (leaves `pay` out and goes on with what needs it)
                  standfast answer TASK/pay stop   (stops the whole task: halt)
    3 Next      retry: pay, mail · skip: mail
                finally: tidy
    4 Landed    no effects, no artifacts; what handlers changed without declaring it stands in their logs
    5 Open      staged: none · in flight: none · uncertain: none
    6 Stop now  halt: nothing more starts or is sent; told to end: none · will not happen: pay, mail · then finally: tidy
                standfast stop TASK --mode halt --digest 003b5150aa83
    ");
}

#[test]
fn a_ready_step_without_a_worker_says_so() {
    let status = Status::Ready { since: Time(0), queue: Queue::new("default").unwrap() };
    insta::assert_snapshot!(lines(status, |_| {}), @r"
    refund TASK · running since 00:00:00Z (12 min) · owner user:ana
    1 Stands    step 2 of 4 `pay`; 1 succeeded, 1 ready, 2 pending · 0 attempts, $0.00
    2 Why       `pay` has waited 12 min: no_worker, no live worker of queue `default` has handler `exec`
                start one: standfast worker --queue default
    3 Next      then: mail
                finally: tidy
    4 Landed    no effects, no artifacts; what handlers changed without declaring it stands in their logs
    5 Open      staged: none · in flight: none · uncertain: none
    6 Stop now  halt: nothing more starts or is sent; told to end: none · will not happen: pay, mail · then finally: tidy
                standfast stop TASK --mode halt --digest 257ecd34b5b9
    ");
}

#[test]
fn an_uncertain_effect_says_what_to_look_for_and_how_to_answer() {
    let since = Time(650_000);
    let mut pay = effect("pay", |effect| effect.standing = Standing::Uncertain { since });
    let request = json!({"method": "POST", "url": "https://pay.example/refunds?token=x"});
    pay.exchanged.request = Some(Payload::Inline(request));
    let mut reserve = effect("reserve", |effect| {
        let (at, receipt_sha256) = (Time(610_000), String::new());
        effect.standing = Standing::Landed { at, receipt_sha256, output_round: None };
        effect.says = Some("hold the amount".to_owned());
    });
    reserve.exchanged.receipt = Some(Payload::Inline(json!({"id": "h_55"})));
    let outside = Outside { open: vec![uncertain(pay, false)], landed: vec![reserve] };
    let status = Status::Held { hold: Box::new(hold_for(HoldReason::UncertainEffect)) };
    let lines = with_effects(status, outside, |survey| {
        survey.base.header.effects_landed = 1;
        let (class, message) = (FailureClass::Lost, "its worker fell silent".to_owned());
        let failure = LastFailure { class, message, attempt: 1, at: Time(650_000) };
        survey.live[0].state.failure = Some(Box::new(failure));
    });
    insta::assert_snapshot!(lines, @r#"
    refund TASK · blocked: uncertain_effect since 00:10:50Z (1 min) · owner user:ana
    1 Stands    step 2 of 4 `pay`; 1 succeeded, 1 held, 2 pending · 0 attempts, $0.00
    2 Why       POST https://pay.example/refunds may have been sent from 00:10:20Z on (attempt 1, worker w-9d).
                The worker fell silent and lost the attempt at 00:10:50Z, no answer kept.
                Whether it happened (120.00 EUR to bob) cannot be known from here; it is not sent again by itself. No deadline.
                user:ana or group:finance can end it. Look for key TASK/pay/main/1, then one of:
                  standfast answer TASK/pay happened --receipt '{…}'  (takes it as done; `pay` goes on without sending it again)
                  standfast answer TASK/pay not_happened              (takes it as not done; `pay` sends the stored request, under the same key)
    3 Next      happened: mail · not_happened: pay, mail
                finally: tidy
    4 Landed    reserve: hold the amount at 00:10:10Z · receipt {"id":"h_55"}
    5 Open      staged: mail · in flight: none · uncertain: pay
    6 Stop now  halt: nothing more starts or is sent; told to end: none · will not happen: pay, mail · stays: reserve · stays to be settled: pay · then finally: tidy
                standfast stop TASK --mode halt --digest bf40e52faa64
    "#);
}

#[test]
fn a_changed_request_asks_whether_to_keep_or_to_send_too() {
    let pay = effect("pay", |effect| {
        let (at, receipt_sha256) = (Time(610_000), String::new());
        effect.standing = Standing::Landed { at, receipt_sha256, output_round: Some(1) };
    });
    let outside = Outside { open: Vec::new(), landed: vec![pay] };
    let status = Status::Held { hold: Box::new(hold_for(HoldReason::EffectChanged)) };
    let lines = with_effects(status, outside, |survey| survey.base.header.effects_landed = 2);
    insta::assert_snapshot!(lines, @r#"
    refund TASK · blocked: effect_changed since 00:10:50Z (1 min) · owner user:ana
    1 Stands    step 2 of 4 `pay`; 1 succeeded, 1 held, 2 pending · 0 attempts, $0.00
    2 Why       `pay` would now send another request than the one that happened at 00:10:10Z, under key TASK/pay/main/1.
                That was: 120.00 EUR to bob. Nothing is sent by itself. No deadline.
                user:ana or group:finance can end it; one of:
                  standfast answer TASK/pay keep       (`pay` goes on with the receipt of what was sent before)
                  standfast answer TASK/pay send_also  (`pay` sends the changed request too, under a key of its own)
                  standfast answer TASK/pay stop       (stops the whole task: halt)
    3 Next      keep: mail · send_also: pay, mail
                finally: tidy
    4 Landed    pay: 120.00 EUR to bob at 00:10:10Z · its receipt is kept
                and 1 more: standfast effects TASK
    5 Open      staged: mail · in flight: none · uncertain: none
    6 Stop now  halt: nothing more starts or is sent; told to end: none · will not happen: pay, mail · stays: pay · then finally: tidy
                standfast stop TASK --mode halt --digest 44e19f4aee72
    "#);
}

#[test]
fn a_task_that_was_stopped_still_says_what_is_to_be_settled() {
    let since = Time(650_000);
    let pay = effect("pay", |effect| effect.standing = Standing::Uncertain { since });
    let outside = Outside { open: vec![uncertain(pay, true)], landed: Vec::new() };
    let status = Status::Held { hold: Box::new(hold_for(HoldReason::UncertainEffect)) };
    let lines = with_effects(status, outside, |survey| {
        let (ending, at) = (Ending::Cancelled, Time(700_000));
        survey.base.header.phase = Phase::Ended { ending, at };
        survey.base.header.state = survey.base.header.shown();
    });
    insta::assert_snapshot!(lines, @r#"
    refund TASK · cancelled since 00:00:00Z (12 min) · owner user:ana
    1 Stands    4 steps; 1 succeeded, 3 cancelled · 0 attempts, $0.00
    2 Why       it is cancelled and stays so
    3 Next      nothing: it has ended
    4 Landed    no effects, no artifacts; what handlers changed without declaring it stands in their logs
    5 Open      staged: none · in flight: none · uncertain: pay
                pay: 120.00 EUR to bob; look for key TASK/pay/main/1, then:
                  standfast answer TASK/pay happened --receipt '{…}'  (for the record: nothing more is sent)
                  standfast answer TASK/pay not_happened              (for the record: nothing more is sent)
    6 Stop now  nothing: it has ended
                uncertain ones stay to be settled by a person: pay
    "#);
}

fn ready() -> Status {
    Status::Ready { since: Time(0), queue: Queue::new("default").unwrap() }
}

#[test]
fn a_silent_workers_attempt_is_not_said_to_end_in_the_past() {
    let text = lines(ready(), |survey| survey.live[0].claim = Some(claim()));
    let loses = "its worker is silent and loses it once a scheduler has watched it for 30s";
    assert!(text.contains(loses), "{text}");
    assert!(text.contains("then: mail"), "{text}");
}

#[test]
fn what_an_ending_task_does_not_come_to_is_not_next() {
    let text = lines(ready(), |survey| {
        survey.base.header.phase = Phase::Closing { ending: Ending::Cancelled };
        survey.live[0].claim = Some(claim());
    });
    assert!(!text.contains("then: mail") && text.contains("finally: tidy"), "{text}");
}

#[test]
fn a_wait_in_a_paused_task_promises_no_time() {
    let hold = Hold::new(HoldReason::Timer, "waits until then", Time(0));
    let hold = Hold { due: Some(Time(900_000)), paused_ms: Some(0), ..hold };
    let text = lines(Status::Held { hold: Box::new(hold) }, |survey| {
        survey.base.gate.paused_at = Some(Time(600_000));
    });
    let still = "its clock stands still while the task is paused; 5 min are left";
    assert!(text.contains(still), "{text}");
    assert!(!text.contains("Ends by itself") && !text.contains("a clock moves it"), "{text}");
}
