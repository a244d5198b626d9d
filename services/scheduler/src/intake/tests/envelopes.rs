//! What a submission may have around its plan.

use super::*;

#[tokio::test]
async fn a_message_may_wrap_its_plan_and_may_name_no_folder() {
    let World { intake, dir: _dir, .. } = world();
    let bare = delivery("user:ana", None);
    let plan: Value = serde_json::from_slice(&bare.body).unwrap();
    let wrapped = |more: Value| {
        let mut body = json!({ "plan": plan });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Delivery { body: Bytes::from(body.to_string()), ..delivery("user:ana", None) }
    };
    assert!(is_promised(&intake.accept(&wrapped(json!({}))).await.unwrap()));
    let problem = problem_of(intake.accept(&wrapped(json!({"plan_dir": "/x"}))).await.unwrap());
    let pointers: Vec<&str> = problem.errors.iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!((problem.known(), pointers), (Some(ProblemKind::InvalidRequest), vec!["/plan_dir"]));
    let problem = problem_of(intake.accept(&wrapped(json!({"more": 1}))).await.unwrap());
    assert_eq!(problem.known(), Some(ProblemKind::InvalidRequest));
    assert!(problem.detail.contains("more"));
}
