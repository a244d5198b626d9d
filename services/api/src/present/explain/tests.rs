//! What a person sees, line by line.

use standfast_domain::hold::{Hold, HoldReason};
use standfast_domain::ids::{HandlerName, Queue};
use standfast_domain::plan::{Retry, StepPlan, Timeouts, Uses};
use standfast_domain::record::{Dependent, Status, StepState as Stored};

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
        templated: false,
    };
    (id(name), definition)
}

fn lines(status: Status, edit: impl FnOnce(&mut Survey)) -> String {
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
    let live = Live { number: 2, step: id("pay"), state, claim: None, finally: false };
    let mut survey = Survey::of(base, vec![live]);
    survey.now = Time(720_000);
    edit(&mut survey);
    let definitions = BTreeMap::from([definition("pay", &["mail"]), definition("mail", &[])]);
    let facts = Facts {
        survey: &survey,
        definitions: &definitions,
        artifacts: &[],
        pending: &[id("pay"), id("mail")],
        workers: &[],
    };
    explain(&facts).lines().join("\n").replace(survey.base.task.as_str(), "TASK")
}

#[test]
fn a_held_step_shows_its_answers() {
    let hold = Hold::new(HoldReason::Failures, "exit code 1", Time(0));
    insta::assert_snapshot!(lines(Status::Held { hold }, |_| {}), @r"
    refund TASK · blocked: failures since 00:00:00Z (12 min) · owner user:ana
    1 Stands    step 2 of 4 `pay`; 1 succeeded, 1 held, 2 pending · 0 attempts, $0.00
    2 Why       `pay` is held: failures: exit code 1
                user:ana or group:finance can end it. No deadline.
                > standfast answer TASK/pay retry  (runs `pay` again, with all its attempts)
                  standfast answer TASK/pay skip   (leaves `pay` out and goes on with what needs it)
                  standfast answer TASK/pay stop   (stops the whole task: halt)
    3 Next      retry: pay, mail · skip: mail
                finally: tidy
    4 Landed    no artifacts; what handlers changed elsewhere stands in their logs
    5 Open      staged: none · in flight: none · uncertain: none
    6 Stop now  halt: nothing more starts; told to end: none · will not happen: pay, mail
                what succeeded stays, with its artifacts
                then finally: tidy
                standfast stop TASK --mode halt
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
    4 Landed    no artifacts; what handlers changed elsewhere stands in their logs
    5 Open      staged: none · in flight: none · uncertain: none
    6 Stop now  halt: nothing more starts; told to end: none · will not happen: pay, mail
                what succeeded stays, with its artifacts
                then finally: tidy
                standfast stop TASK --mode halt
    ");
}
