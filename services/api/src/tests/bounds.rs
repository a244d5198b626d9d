//! The work of one page, counted at the store, where nearly all that an index names is not to
//! be seen.

use serde_json::{Value, json};
use standfast_domain::commit::{Commit, CommitId, IndexChange, Scope};
use standfast_domain::hold::HoldReason;
use standfast_domain::ids::{Principal, TaskId};
use standfast_domain::index::{TASKS, held_index, held_member, task_member};
use standfast_domain::time::Time;
use standfast_engine::ports::{BATCH_MAX, Store};
use standfast_engine::tokens::Role;

use super::{World, chain, request};

/// Entries of each index that lead to nothing that the viewer may see.
const ENTRIES: usize = 20_000;
/// Tasks that a page looks at.
const CANDIDATES: usize = 2_000;

fn some_task(number: usize) -> TaskId {
    TaskId::random((number as u128).to_be_bytes())
}

/// Fills indexes with entries of tasks that are not there, over all partitions or in one.
async fn fill(store: &impl Store, spread: bool) {
    let now = store.now().await.unwrap();
    let number: Vec<usize> = (0..ENTRIES).collect();
    for (chunk, numbers) in number.chunks(BATCH_MAX / 3).enumerate() {
        let entry = |index: &str, member| {
            let index = index.to_owned();
            IndexChange { index, member, add: true }
        };
        let indexes = numbers.iter().flat_map(|number| {
            let (task, time) = (some_task(*number), Time(now.0 + *number as i64));
            let held = held_member(Time(*number as i64), &task, None);
            let member = task_member(time, &task);
            let failures = held_index(HoldReason::Failures);
            [entry(TASKS, member.clone()), entry("kind:hidden", member), entry(&failures, held)]
        });
        let commit = Commit {
            id: CommitId(chunk as u64 + 1),
            scope: Scope::Task(some_task(if spread { chunk } else { 0 })),
            guards: Vec::new(),
            writes: Vec::new(),
            first_event: 0,
            events: Vec::new(),
            indexes: indexes.collect(),
            returns: Vec::new(),
        };
        store.commit(&[commit]).await.unwrap();
    }
}

/// A world of one task that `user:ben` sees, and of many entries that lead to none.
async fn crowded(spread: bool) -> (World, String) {
    let world = World::open().await;
    let mut plan = chain(&["a"]);
    plan["viewers"] = json!(["user:ben"]);
    let task = world.submit(&plan).await;
    world.post(&format!("/v1/tasks/{task}/pause"), &json!({})).await;
    fill(&*world.store, spread).await;
    (world, task)
}

/// Walks a list to its end; gives what it found, the pages, and the most that one page read.
async fn walk(world: &World, token: &str, query: &str) -> (Vec<String>, usize) {
    let bearer = format!("Bearer {token}");
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for page in 1.. {
        let before = (world.store.records(), world.store.ranges_read());
        let path = format!("/v1/tasks?{query}{cursor}");
        let headers = [("authorization", bearer.as_str())];
        let answer = world.send(request("GET", &path, &headers, "")).await.json();
        let records = world.store.records() - before.0;
        let ranges = world.store.ranges_read() - before.1;
        assert!(records <= CANDIDATES * 4 + 100, "{query}: page {page} reads {records} records");
        assert!(ranges <= 64 * 14 * 16, "{query}: page {page} reads {ranges} ranges");
        let tasks = answer["tasks"].as_array().unwrap_or_else(|| panic!("{answer}"));
        found.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        match answer["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (found, page),
        }
    }
    unreachable!("the list ends")
}

#[tokio::test]
async fn a_page_reads_so_much_and_no_more_and_the_list_goes_on_to_its_end() {
    for spread in [true, false] {
        let (world, task) = crowded(spread).await;
        let admin = Principal::new("user:admin").unwrap();
        let admin = world.api.tokens().create(Role::Admin, &admin, "test").await.unwrap().secret;
        let ben = world.token(Role::Participant, "user:ben").await;
        let pages = ENTRIES / CANDIDATES;
        for (token, query, found, least, most) in [
            // What one may see stands in indexes of one's own: nothing else is looked at.
            (&ben, "limit=50", vec![task.clone()], 1, 1),
            (&ben, "kind=hidden&limit=50", vec![], 1, 1),
            (&admin, "limit=1", vec![task.clone()], pages, pages + 2),
            (&admin, "kind=hidden&limit=200", vec![], pages, pages + 1),
            (&ben, "waiting=any&limit=1", vec![task.clone()], pages, pages + 2),
            (&admin, "waiting=failures&limit=200", vec![], pages, pages + 1),
        ] {
            let (seen, taken) = walk(&world, token, query).await;
            assert_eq!(seen, found, "{query} {spread}");
            assert!((least..=most).contains(&taken), "{query} {spread}: {taken} pages");
        }
        let body: Value = json!({"filter": {"waiting": "failures"}});
        let bearer = format!("Bearer {admin}");
        let headers = [super::JSON, ("authorization", bearer.as_str())];
        let before = world.store.records();
        let counted =
            world.send(request("POST", "/v1/stops/count", &headers, body.to_string())).await.json();
        assert!(counted["next_cursor"].is_string(), "{counted}");
        let records = world.store.records() - before;
        assert!(records <= CANDIDATES * 4 + 100, "a count's page reads {records} records");
    }
}
