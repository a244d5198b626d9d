//! A person who looks at what is blocked, finds out what is true, and answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use standfast_protocol::holds::{AnswerRequest, HoldClass, HoldView};
use standfast_protocol::tasks::{TaskQuery, TaskState};
use standfast_tests::binary::Draw;
use standfast_tests::wait;
use tokio_util::sync::CancellationToken;

use crate::load::Load;

/// The pause between two looks at the list.
const PAUSE: Duration = Duration::from_millis(1_000);

/// Answers until there is nothing more to answer for; gives how often, by reason and answer.
pub async fn answer(
    load: Arc<Load>,
    over: CancellationToken,
    mut draw: Draw,
) -> BTreeMap<String, u64> {
    let mut given = BTreeMap::new();
    while !over.is_cancelled() {
        let mut query = TaskQuery { state: Some(TaskState::Blocked), ..TaskQuery::default() };
        query.limit = Some(200);
        let Ok(page) = load.client(&mut draw).list(&query).await else {
            wait::pass(PAUSE).await;
            continue;
        };
        for task in page.tasks {
            for hold in task.holds.iter().filter(|hold| hold.class == HoldClass::Blocked) {
                let request = answer_to(&load, hold);
                let answered =
                    load.client(&mut draw).answer(&task.id, hold.step.as_deref(), &request).await;
                if answered.is_ok() {
                    let what = format!("{}: {}", hold.reason, request.answer);
                    *given.entry(what).or_default() += 1;
                }
            }
        }
        wait::pass(PAUSE).await;
    }
    given
}

/// Answers by what is true outside. Where nothing is found yet `not_happened` may be refused,
/// since the request may still be under way; then there is another look.
fn answer_to(load: &Load, hold: &HoldView) -> AnswerRequest {
    let Some(effect) = &hold.effect else { return AnswerRequest::new("retry") };
    let named = |answer: &str| AnswerRequest {
        effect: Some(effect.name.clone()),
        ..AnswerRequest::new(answer)
    };
    match (hold.reason.as_str(), load.shop.has_done(&effect.key)) {
        ("effect_changed", _) => AnswerRequest::new("keep"),
        (_, true) => AnswerRequest {
            receipt: Some(json!({ "status": 200, "found": effect.key })),
            ..named("happened")
        },
        (_, false) => named("not_happened"),
    }
}
