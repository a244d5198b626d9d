//! What becomes of `stop` messages.

use super::*;

/// A stop by `user:NAME`.
fn stop(by: &str, body: &Value) -> Delivery {
    Delivery {
        body: Bytes::from(body.to_string()),
        routing_key: STOP.to_owned(),
        message_id: None,
        user_id: Some(by.to_owned()),
        ..delivery("user:ana", None)
    }
}

#[tokio::test]
async fn a_stop_over_amqp_is_answered_and_twice_is_once() {
    let World { intake, dir: _dir, .. } = world();
    assert!(is_promised(&intake.accept(&delivery("user:ana", None)).await.unwrap()));
    let task = TaskId::keyed(&Principal::new("user:ana").unwrap(), "m1").to_string();
    for (mode, holds) in [(None, "halt"), (Some("drain"), "halt")] {
        let mut body = json!({ "task": task, "reason": "wrong order" });
        if let Some(mode) = mode {
            body["mode"] = json!(mode);
        }
        let reply = direct(intake.accept(&stop("ana", &body)).await.unwrap());
        let SubmitReply::Stopped(stopped) = &reply else { panic!("{reply:?}") };
        assert_eq!((&stopped.id, stopped.stop.mode.as_str()), (&task, holds));
        assert_eq!(stopped.stop.by, "user:ana");
        assert_eq!(outcome(&reply), "stopped");
    }
}

#[tokio::test]
async fn a_stop_that_cannot_be_taken_is_told_why() {
    let World { intake, dir: _dir, .. } = world();
    assert!(is_promised(&intake.accept(&delivery("user:ana", None)).await.unwrap()));
    let task = TaskId::keyed(&Principal::new("user:ana").unwrap(), "m1").to_string();
    for (by, body, kind) in [
        ("ana", json!({ "task": "t00-0000000000000" }), ProblemKind::NotFound),
        ("ana", json!({ "task": "x" }), ProblemKind::NotFound),
        ("ben", json!({ "task": task }), ProblemKind::NotFound),
        ("ana", json!({ "task": task, "mode": "kill" }), ProblemKind::InvalidRequest),
        ("ana", json!({ "task": task, "how": 1 }), ProblemKind::InvalidRequest),
        ("ana", json!({ "task": task, "reason": "x".repeat(2000) }), ProblemKind::InvalidRequest),
    ] {
        let reply = direct(intake.accept(&stop(by, &body)).await.unwrap());
        let SubmitReply::Problem(problem) = &reply else { panic!("{reply:?}") };
        assert_eq!(problem.known(), Some(kind), "{by} {body}: {problem}");
    }
    let task = TaskId::parse(&task).unwrap();
    assert_eq!(intake.state(&task).await.unwrap(), TaskState::Queued);
}
