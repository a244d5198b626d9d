//! An api that dies anywhere on a submission's way: what was answered completes, each key is one
//! task, and what was not answered is there at most once.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use standfast_protocol::tasks::{SubmitRequest, TaskQuery};
use standfast_tests::processes::Installation;
use standfast_tests::wait;

use crate::doomed;

const POINTS: [&str; 3] = ["submit.before", "submit.stored", "submit.woken"];
/// Submissions of a run, all at once.
const KEYS: u64 = 20;
/// Which of them the api dies of.
const NTH: u64 = 7;

fn plan() -> Value {
    json!({ "kind": "small", "steps": [
        { "id": "only", "uses": "exec", "with": { "command": ["true"] } },
    ]})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_dies_at_any_point_loses_no_answered_submission_and_doubles_none() {
    let own = Installation::start("30s").await;
    let _processes = [own.process(&["scheduler"]), own.process(&["worker"])];
    let mut tasks = BTreeSet::new();
    for point in POINTS {
        tasks.extend(dies(&own, point).await);
    }
    let _api = own.api().await;
    let tasks: Vec<String> = tasks.into_iter().collect();
    own.completed(&tasks).await;
    let query = TaskQuery { limit: Some(200), ..TaskQuery::default() };
    let page = own.client().list(&query).await.unwrap();
    let listed: BTreeSet<String> = page.tasks.into_iter().map(|task| task.id).collect();
    assert_eq!(listed, tasks.into_iter().collect::<BTreeSet<_>>());
    assert_eq!(listed.len() as u64, KEYS * POINTS.len() as u64);
}

/// Lets an api die of one of many submissions, and sends all again. Gives their tasks.
async fn dies(own: &Installation, point: &str) -> Vec<String> {
    let request = SubmitRequest { plan: plan(), plan_dir: None };
    let mut api = doomed::start(own, &["api"], point, NTH);
    let url = format!("{}/readyz", own.url());
    wait::until("the doomed api to be ready", async || {
        reqwest::get(&url).await.ok().filter(|answer| answer.status().is_success())
    })
    .await;
    let hasty = own.client().patience(Duration::ZERO);
    let sending = (0..KEYS).map(|n| {
        let (client, request, key) = (hasty.clone(), request.clone(), format!("{point}-{n}"));
        async move { (client.submit_keyed(&request, &key).await.ok().map(|task| task.id), key) }
    });
    let answered = futures::future::join_all(sending).await;
    doomed::death(&mut api, point).await;
    assert!(answered.iter().any(|(task, _)| task.is_none()), "{point}: all were answered");
    let _heir = own.api().await;
    let mut tasks = Vec::new();
    for (before, key) in answered {
        let again = own.client().submit_keyed(&request, &key).await.unwrap();
        if let Some(before) = before {
            assert_eq!((&again.id, again.created), (&before, false), "{key} was answered");
        }
        tasks.push(again.id);
    }
    tasks
}
