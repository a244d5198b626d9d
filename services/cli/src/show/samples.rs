//! Wire values for the tests of what is shown.

use serde_json::json;
use standfast_protocol::artifacts::ArtifactView;
use standfast_protocol::explain::{
    Explain, ExplainedTask, Landed, Next, Open, Stands, StopNow, Why,
};
use standfast_protocol::holds::{AnswerView, HeldEffectView, HoldClass, HoldView};
use standfast_protocol::steps::{StepState, StepView};
use standfast_protocol::task_effects::{EffectStanding, EffectView, Exchange};
use standfast_protocol::tasks::{FailureView, StepCounts, TaskState, TaskView};

/// A task that changed twelve minutes ago.
pub fn task(id: &str, state: TaskState) -> TaskView {
    TaskView {
        id: id.to_owned(),
        kind: "release-notes".to_owned(),
        goal: "Release notes of the last 20 commits, published after a person has read them"
            .to_owned(),
        state,
        stalled: false,
        waiting_for: None,
        owner: "user:local".to_owned(),
        operators: Vec::new(),
        approvers: Vec::new(),
        viewers: Vec::new(),
        labels: Default::default(),
        created_at: "2026-11-29T13:00:00.000Z".to_owned(),
        changed_at: "2026-11-29T14:02:11.000Z".to_owned(),
        ended_at: None,
        steps: StepCounts { total: 6, succeeded: 3, pending: 3, ..StepCounts::default() },
        attempts: 4,
        cost_usd_micros: 120_000,
        holds: Vec::new(),
        deadline: None,
        checkpoint: None,
        pause: None,
        stop: None,
        failure: None,
    }
}

/// A step whose attempt, if it had one, took 120 ms.
pub fn step(id: &str, state: StepState) -> StepView {
    let begun = !matches!(state, StepState::Pending | StepState::Ready);
    let ended = matches!(state, StepState::Succeeded | StepState::Failed | StepState::Cancelled);
    StepView {
        id: id.to_owned(),
        uses: "exec".to_owned(),
        queue: "default".to_owned(),
        state,
        round: 1,
        attempt: u32::from(begun),
        charged: u32::from(begun),
        attempts_max: Some(3),
        needs: Vec::new(),
        since: "2026-11-29T14:14:10.620Z".to_owned(),
        started_at: begun.then(|| "2026-11-29T14:14:10.500Z".to_owned()),
        ended_at: ended.then(|| "2026-11-29T14:14:10.620Z".to_owned()),
        attempt_ended_at: None,
        retry_at: None,
        worker: None,
        waiting_for: None,
        stalled: false,
        summary: None,
        failure: None,
        hold: None,
        artifacts: Vec::new(),
        cost_usd_micros: 0,
        output: None,
        finally: false,
    }
}

/// A hold that a person must end.
pub fn hold(step: &str, reason: &str) -> HoldView {
    let answer = |word: &str, effect: &str| AnswerView {
        answer: word.to_owned(),
        command: format!("standfast answer t2c-81hx0q0000000/{step} {word}"),
        effect: effect.to_owned(),
    };
    HoldView {
        step: Some(step.to_owned()),
        reason: reason.to_owned(),
        class: HoldClass::Blocked,
        message: "3 attempts failed".to_owned(),
        since: "2026-11-29T14:02:11.000Z".to_owned(),
        deadline: Some("2026-11-30T16:20:00.000Z".to_owned()),
        then: Some("fail".to_owned()),
        ends_by: vec!["user:ana".to_owned(), "group:finance".to_owned()],
        answers: vec![answer("skip", "goes on without it"), answer("retry", "tries it again")],
        effect: None,
        suggested: Some("retry".to_owned()),
    }
}

/// A hold for an effect of which nobody knows whether it has happened.
pub fn uncertain(step: &str) -> HoldView {
    let key = format!("t2c-81hx0q0000000/{step}/main/1");
    HoldView {
        message: format!("120.00 EUR to bob: no answer kept. Look for key {key}"),
        deadline: None,
        then: None,
        answers: effect(step, EffectStanding::Uncertain).answers,
        effect: Some(HeldEffectView { name: "main".to_owned(), key }),
        suggested: None,
        ..hold(step, "uncertain_effect")
    }
}

/// An effect of twelve minutes ago.
pub fn effect(step: &str, standing: EffectStanding) -> EffectView {
    let answer = |word: &str, rest: &str, effect: &str| AnswerView {
        answer: word.to_owned(),
        command: format!("standfast answer t2c-81hx0q0000000/{step} {word}{rest}"),
        effect: effect.to_owned(),
    };
    let answers = vec![
        answer("happened", " --receipt '{…}'", "takes it as done"),
        answer("not_happened", "", "sends the stored request, under the same key"),
    ];
    let value = |value| Some(Exchange { value: Some(value), blob: None });
    EffectView {
        step: step.to_owned(),
        name: "main".to_owned(),
        class: "irreversible".to_owned(),
        generation: 1,
        key: format!("t2c-81hx0q0000000/{step}/main/1"),
        standing,
        how: (standing == EffectStanding::NotLanded).then(|| "refused".to_owned()),
        since: "2026-11-29T14:02:11.000Z".to_owned(),
        intended_at: "2026-11-29T14:01:40.000Z".to_owned(),
        send_before: "2026-11-29T14:01:50.000Z".to_owned(),
        undone_at: None,
        settled_by: "2026-11-29T14:02:20.000Z".to_owned(),
        worker: "w-9d".to_owned(),
        attempt: 1,
        target: Some("https://pay.example/refunds".to_owned()),
        says: Some("120.00 EUR to bob".to_owned()),
        request_sha256: "9f31".repeat(16),
        request: value(json!({"method": "POST", "url": "https://pay.example/refunds"})),
        receipt: match standing {
            EffectStanding::Landed => value(json!({"id": "h_55"})),
            EffectStanding::InFlight | EffectStanding::Uncertain | EffectStanding::NotLanded => {
                None
            }
        },
        answers: if standing == EffectStanding::Uncertain { answers } else { Vec::new() },
    }
}

/// A failure of a class.
pub fn failure(class: &str, message: &str) -> FailureView {
    FailureView {
        step: None,
        class: class.to_owned(),
        message: message.to_owned(),
        at: "2026-11-29T14:02:11.000Z".to_owned(),
    }
}

/// An artifact of a size.
pub fn artifact(step: &str, name: &str, bytes: u64) -> ArtifactView {
    ArtifactView {
        step: step.to_owned(),
        name: name.to_owned(),
        bytes,
        sha256: "9f31".repeat(16),
        url: format!("/v1/tasks/t/artifacts/{step}/{name}"),
    }
}

/// A refund that is blocked.
pub fn explain() -> Explain {
    let lines = |text: &[&str]| text.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    Explain {
        task: ExplainedTask {
            id: "t2c-81hx0q0000000".into(),
            kind: "refund".into(),
            goal: "Refund order 17".into(),
            owner: "user:ana".into(),
            at: "2026-11-29T14:14:11.000Z".into(),
            text: lines(&[
                "refund t2c-81hx0q0000000 · blocked: failures since 14:02:11 (12 min) · \
                           owner user:ana",
            ]),
        },
        stands: Stands {
            state: TaskState::Blocked,
            since: "2026-11-29T14:02:11.000Z".into(),
            stalled: false,
            current: Vec::new(),
            steps: StepCounts { total: 6, succeeded: 3, held: 1, pending: 2, ..Default::default() },
            attempts: 4,
            cost_usd_micros: 120_000,
            limit_usd_micros: Some(2_000_000),
            checkpoint: None,
            stop: None,
            text: lines(&[
                "step 4 of 6 `pay`; 3 succeeded, 1 held, 2 pending · 4 attempts, $0.12 \
                           of $2.00",
            ]),
        },
        why: Why {
            unattended: None,
            holds: vec![hold("pay", "failures")],
            waiting: Vec::new(),
            text: lines(&[
                "attempt 3 of `pay` failed 14:02:11: connection refused (retryable); no attempt \
                 is left. user:ana or group:finance can end it; one of:",
                "  standfast answer t2c-81hx0q0000000/pay retry    (three attempts more)",
                "  standfast answer t2c-81hx0q0000000/pay skip     (goes on without it)",
            ]),
        },
        next: Next {
            steps: Vec::new(),
            at: None,
            text: lines(&["retry: pay, mail, close · skip: mail, close"]),
        },
        landed: Landed {
            effects: Vec::new(),
            artifacts: Vec::new(),
            text: lines(&["case.pdf 84 KiB"]),
        },
        open: Open {
            staged: Vec::new(),
            in_flight: Vec::new(),
            uncertain: Vec::new(),
            text: lines(&["nothing"]),
        },
        stop_now: StopNow {
            told_to_end: Vec::new(),
            will_not_happen: lines(&["pay", "mail", "close"]),
            stays: Vec::new(),
            to_settle: Vec::new(),
            modes: Vec::new(),
            finally: Vec::new(),
            command: Some("standfast stop t2c-81hx0q0000000 --mode halt".into()),
            text: lines(&[
                "halt: nothing more is sent; pay, mail and close will not happen",
                "standfast stop t2c-81hx0q0000000 --mode halt",
            ]),
        },
    }
}
