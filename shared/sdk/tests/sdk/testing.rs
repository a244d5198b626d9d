//! Handlers without a server.

use serde_json::{Value, json};
use standfast_protocol::claims::{FailureClass, Outcome};
use standfast_sdk::testing::{Attempt, run_handler};
use standfast_sdk::{Context, HandlerError};

#[tokio::test]
async fn artifacts_inputs_and_rounds_are_there() {
    let handler = |context: Context, input: Value| async move {
        let draft = context.input_artifact("draft", "a.md").await?;
        context.artifact("b.md", draft.to_ascii_uppercase()).await?;
        context.heartbeat("half");
        Ok(json!({"round": context.round(), "failure": context.failure(), "input": input}))
    };
    let attempt = Attempt::default().input_artifact("draft", "a.md", "text");
    let ended = attempt.round(2, json!({"class": "rejected"})).run(handler, [1]).await;
    let expected = json!({"round": 2, "failure": {"class": "rejected"}, "input": [1]});
    assert_eq!(ended.output(), Some(&expected));
    assert_eq!(ended.artifacts["b.md"], "TEXT");
    assert_eq!(ended.details.as_deref(), Some("half"));
}

#[tokio::test]
async fn errors_and_panics_are_outcomes() {
    let failing = |_: Context, _: Value| async {
        Err::<(), _>(HandlerError::permanent("no").with_output(json!(1)))
    };
    let Outcome::Failed { class, output, .. } = run_handler(failing, ()).await.outcome else {
        panic!("it succeeded")
    };
    assert_eq!((class, output), (FailureClass::Permanent, json!(1)));
    let careless = |_: Context, text: String| async move { Ok(text.parse::<u32>()?) };
    let Outcome::Failed { class, message, .. } = run_handler(careless, "x").await.outcome else {
        panic!("it succeeded")
    };
    assert_eq!(class, FailureClass::Retryable);
    assert_eq!(message, "invalid digit found in string");
}
