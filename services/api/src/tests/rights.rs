//! Every route against everyone: who gets through, who is told which right is missing, and for
//! whom the task does not exist.
//!
//! A new route fails here until it has its line.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use standfast_domain::ceiling::Ceiling;
use standfast_domain::ids::{HandlerName, Principal, TaskId};
use standfast_domain::time::Span;
use standfast_engine::tokens::{Grant, Identity, Role, sha256_hex};

use super::{Answer, JSON, World, chain, request};
use crate::admin::Admin;
use crate::auth::{Access, Caller, still_sees};

/// What everyone gets. `ok`: the right is there, whatever else the request lacks; `403`: the
/// right is missing and is named; `404`: as if there were no such task; `-`: the part means
/// nothing to this route; `*`: no token is needed.
///
/// The first five are the people of the task, by name and as members of a group: owner, operator,
/// approver, viewer, submitter. The last four are nobody to the task, with a token of one role:
/// admin, publisher, participant, worker.
const TABLE: &str = "
own ope app vie sub adm pub par wor
-   -   -   -   -   ok  ok  403 403 POST /v1/tasks
-   -   -   -   -   ok  ok  ok  403 GET  /v1/tasks
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/explain
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/steps
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/steps/{step}
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/steps/{step}/log
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/effects
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/artifacts
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/artifacts/{step}/{name}
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/events
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/verify
ok  ok  403 403 403 ok  404 404 404 POST /v1/tasks/{id}/answers
ok  ok  403 403 403 ok  404 404 404 POST /v1/tasks/{id}/steps/{step}/answers
ok  ok  403 403 403 ok  404 404 404 POST /v1/tasks/{id}/pause
ok  ok  403 403 403 ok  404 404 404 POST /v1/tasks/{id}/resume
ok  ok  403 403 403 ok  404 404 404 POST /v1/tasks/{id}/steps/{step}/attempts/{attempt}/stop
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/stop-plan
ok  ok  403 403 403 ok  404 404 404 POST /v1/tasks/{id}/stop
ok  ok  ok  ok  ok  ok  404 404 404 GET  /v1/tasks/{id}/settlement
-   -   -   -   -   ok  ok  ok  403 POST /v1/stops/count
-   -   -   -   -   ok  ok  ok  403 POST /v1/stops
ok  403 403 403 403 ok  404 404 404 POST /v1/tasks/{id}/hand-over
-   -   -   -   -   ok  403 403 ok  POST /v1/workers
-   -   -   -   -   ok  403 403 ok  POST /v1/claims
403 403 403 403 403 ok  403 403 ok  POST /v1/claims/{task}/{step}/heartbeat
403 403 403 403 403 ok  403 403 ok  GET  /v1/claims/{task}/{step}/control
403 403 403 403 403 ok  403 403 ok  POST /v1/claims/{task}/{step}/complete
403 403 403 403 403 ok  403 403 ok  POST /v1/claims/{task}/{step}/hand-back
403 403 403 403 403 ok  403 403 ok  POST /v1/claims/{task}/{step}/effects/{name}
403 403 403 403 403 ok  403 403 ok  POST /v1/claims/{task}/{step}/effects/{name}/receipt
403 403 403 403 403 ok  403 403 ok  POST /v1/claims/{task}/{step}/effects/{name}/not-landed
403 403 403 403 403 ok  403 403 ok  POST /v1/claims/{task}/{step}/log
403 403 403 403 403 ok  403 403 ok  PUT  /v1/claims/{task}/{step}/artifacts/{name}
-   -   -   -   -   ok  ok  ok  ok  GET  /v1/plan-schema.json
-   -   -   -   -   ok  403 403 403 GET  /metrics
-   -   -   -   -   *   *   *   *   GET  /openapi.json
-   -   -   -   -   *   *   *   *   GET  /healthz
-   -   -   -   -   *   *   *   *   GET  /readyz
";

struct Row {
    method: &'static str,
    path: &'static str,
    cells: Vec<(&'static str, &'static str)>,
}

impl Row {
    fn cell(&self, person: &Person) -> &'static str {
        let own = |(column, _): &&(&str, &str)| person.column.starts_with(*column);
        self.cells.iter().find(own).expect("everyone has a column").1
    }
}

fn rows() -> Vec<Row> {
    let mut lines = TABLE.lines().filter(|line| !line.trim().is_empty());
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    let row = |line: &'static str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), head.len() + 2, "{line}");
        let (cells, route) = words.split_at(head.len());
        let cells = head.iter().copied().zip(cells.iter().copied()).collect();
        Row { method: route[0], path: route[1], cells }
    };
    lines.map(row).collect()
}

/// Someone with a token.
struct Person {
    column: &'static str,
    secret: String,
    /// The task to which it has its part; nothing for those who are nobody to any.
    task: Option<usize>,
}

/// Three tasks: whose people are named one by one, whose people are groups, and others'.
struct Cast {
    world: World,
    tasks: [String; 3],
    owners: [&'static str; 3],
    people: Vec<Person>,
    expired: String,
    revoked: String,
}

const PARTS: [&str; 4] = ["owner", "operator", "approver", "viewer"];

fn who(text: &str) -> Principal {
    Principal::new(text).unwrap()
}

async fn grant(world: &World, grant: Grant) -> String {
    assert_eq!(grant.faults(), []);
    world.api.tokens().grant(grant).await.unwrap().secret
}

async fn send(world: &World, row: (&str, &str), secret: Option<&str>, body: &Value) -> Answer {
    let bearer = secret.map(|secret| format!("Bearer {secret}"));
    let mut headers = vec![JSON];
    headers.extend(bearer.as_ref().map(|value| ("authorization", value.as_str())));
    world.send(request(row.0, row.1, &headers, body.to_string())).await
}

async fn submitted(world: &World, secret: &str, plan: &Value) -> String {
    let made = send(world, ("POST", "/v1/tasks"), Some(secret), plan).await;
    assert_eq!(made.status, 201, "{}", made.json());
    made.json()["id"].as_str().unwrap().to_owned()
}

impl Cast {
    async fn gather() -> Self {
        let world = World::open().await;
        let admin = grant(&world, Grant::new(who("user:admin"), Role::Admin)).await;
        let mut people = vec![Person { column: "admin", secret: admin.clone(), task: None }];
        // Whoever submits for others needs a ceiling that lets it name them.
        let owners = Some(["user:owner", "group:owner"].map(|n| n.to_owned().try_into().unwrap()));
        let ceiling = Ceiling { owners: owners.map(BTreeSet::from), ..Ceiling::default() };
        let submitter = Grant { ceiling, ..Grant::new(who("user:submitter"), Role::Publisher) };
        let submitter = grant(&world, submitter).await;
        let plan = |kind: &str| {
            let mut plan = chain(&["a"]);
            plan["owner"] = json!(format!("{kind}:owner"));
            for part in &PARTS[1..] {
                plan[format!("{part}s")] = json!([format!("{kind}:{part}")]);
            }
            plan
        };
        let one = submitted(&world, &submitter, &plan("user")).await;
        let two = submitted(&world, &submitter, &plan("group")).await;
        let others = submitted(&world, &admin, &chain(&["a"])).await;
        for task in [0, 1] {
            people.push(Person {
                column: "submitter",
                secret: submitter.clone(),
                task: Some(task),
            });
        }
        for part in PARTS {
            let by_name = Grant::new(who(&format!("user:{part}")), Role::Publisher);
            let secret = grant(&world, by_name).await;
            people.push(Person { column: part, secret, task: Some(0) });
            let member = Grant::new(who(&format!("user:one-of-{part}s")), Role::Participant);
            let groups = [who(&format!("group:{part}"))].into();
            let secret = grant(&world, Grant { groups, ..member }).await;
            people.push(Person { column: part, secret, task: Some(1) });
        }
        for role in [Role::Publisher, Role::Participant, Role::Worker] {
            let secret = grant(&world, Grant::new(who("user:stranger"), role)).await;
            people.push(Person { column: role.as_str(), secret, task: None });
        }
        let brief = Grant::new(who("user:owner"), Role::Admin);
        let expired = grant(&world, Grant { expires: Some(Span(1)), ..brief.clone() }).await;
        while world.api.tokens().authenticate(&expired).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        let issued = world.api.tokens().grant(brief).await.unwrap();
        assert!(world.api.tokens().revoke(&issued.id).await.unwrap());
        let tasks = [one, two, others];
        let owners = ["user:owner", "group:owner", "user:admin"];
        Self { world, tasks, owners, people, expired, revoked: issued.secret }
    }

    /// Asks a route about one of the tasks, or an unknown one.
    async fn ask(&self, row: &Row, secret: Option<&str>, task: Option<usize>) -> Answer {
        let unknown = TaskId::random([9; 16]).to_string();
        let id = task.map_or(unknown, |at| self.tasks[at].clone());
        let path = row.path.replace("{id}", &id).replace("{task}", &id);
        let path = path.replace("{step}", "a").replace("{name}", "x").replace("{attempt}", "1");
        let path = match path.ends_with("/log") && row.method == "POST" || row.method == "PUT" {
            true => format!("{path}?worker=w&attempt=1&epoch=1&offset=0"),
            false => path,
        };
        let body = match row.path.rsplit('/').next() {
            // To who owns it already, so that no line changes what the next one finds.
            Some("hand-over") => json!({"to": task.map_or("user:owner", |at| self.owners[at])}),
            _ => json!({}),
        };
        send(&self.world, (row.method, &path), secret, &body).await
    }
}

/// Says what an answer amounts to.
fn verdict(answer: &Answer, task: Option<&str>) -> &'static str {
    let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
    match answer.status.as_u16() {
        401 => "401",
        403 => "403",
        404 if task.is_some_and(|task| detail == format!("failed to find task {task}")) => "404",
        _ => "ok",
    }
}

#[test]
fn every_route_has_its_line() {
    let listed: BTreeSet<(String, String)> =
        rows().iter().map(|row| (row.method.to_owned(), row.path.to_owned())).collect();
    let document = crate::document();
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            described.insert((method.to_uppercase(), path.clone()));
        }
    }
    assert_eq!(listed, described, "TABLE and the OpenAPI document name the same routes");
    // What is served is described: a route counts once for each of its methods.
    let served = include_str!("../routes.rs");
    let routes = served.split(".route(").skip(1).map(|rest| rest.split(".fallback(").next());
    let methods = ["get(", "post(", "put(", "delete(", "patch("];
    let count: usize = routes
        .flatten()
        .map(|route| methods.iter().map(|method| route.matches(method).count()).sum::<usize>())
        .sum();
    assert_eq!(count, described.len(), "routes.rs and the OpenAPI document name the same routes");
}

#[tokio::test]
async fn everyone_gets_from_every_route_what_the_table_says() {
    let cast = Cast::gather().await;
    let mut wrong = Vec::new();
    for row in rows() {
        for person in &cast.people {
            let cell = row.cell(person);
            let expected = if cell == "*" { "ok" } else { cell };
            if expected == "-" {
                continue;
            }
            let tasks = person.task.map_or(vec![0, 1], |task| vec![task]);
            for task in tasks {
                let answer = cast.ask(&row, Some(&person.secret), Some(task)).await;
                let found = verdict(&answer, Some(&cast.tasks[task]));
                let named =
                    answer.json()["detail"].as_str().unwrap_or_default().contains("right `");
                if found != expected || (found == "403" && !named) {
                    let place = format!("{} {} by {}", row.method, row.path, person.column);
                    let body = answer.json();
                    wrong.push(format!("{place} on task {task}: {found}, not {expected}: {body}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn to_strangers_no_task_exists_and_no_dead_token_opens_anything() {
    let cast = Cast::gather().await;
    for row in rows() {
        let of_a_task = row.path.contains("{id}");
        for person in cast.people.iter().filter(|person| person.column != "admin" && of_a_task) {
            let foreign = cast.ask(&row, Some(&person.secret), Some(2)).await;
            let unknown = cast.ask(&row, Some(&person.secret), None).await;
            assert_eq!((foreign.status.as_u16(), unknown.status.as_u16()), (404, 404));
            let id = TaskId::random([9; 16]);
            let text = |answer: &Answer| String::from_utf8(answer.body.to_vec()).unwrap();
            let same = text(&foreign).replace(&cast.tasks[2], id.as_str());
            assert_eq!(same, text(&unknown), "{} {}", row.method, row.path);
        }
        let open = row.cells.iter().any(|(_, cell)| *cell == "*");
        for secret in [None, Some(cast.expired.as_str()), Some(cast.revoked.as_str())] {
            let answer = cast.ask(&row, secret, Some(0)).await;
            let expected = if open { "ok" } else { "401" };
            assert_eq!(verdict(&answer, None), expected, "{} {}", row.method, row.path);
        }
    }
}

#[tokio::test]
async fn a_list_holds_what_one_may_see_page_by_page() {
    let world = World::open().await;
    let admin = grant(&world, Grant::new(who("user:admin"), Role::Admin)).await;
    let mut visible = Vec::new();
    for n in 0..90 {
        let mut plan = chain(&["a"]);
        match n % 9 {
            0 => plan["viewers"] = json!(["user:ben"]),
            1 => plan["operators"] = json!(["group:night", "user:ben"]),
            2 => plan["approvers"] = json!(["group:other"]),
            _ => {}
        }
        let id = submitted(&world, &admin, &plan).await;
        if n % 9 < 2 {
            visible.push(id);
        }
    }
    visible.reverse();
    let ben = Grant::new(who("user:ben"), Role::Participant);
    let groups = [who("group:night"), who("group:empty")].into();
    let ben = grant(&world, Grant { groups, ..ben }).await;
    let own = submitted(
        &world,
        &admin,
        &json!({"owner": "user:ben", "kind": "own",
        "steps": [{"id": "a", "uses": "echo"}]}),
    )
    .await;
    visible.insert(0, own.clone());
    for (filter, expected) in [("", visible), ("&kind=own", vec![own]), ("&state=failed", vec![])] {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/tasks?limit=4{filter}{cursor}");
            let page = send(&world, ("GET", &path), Some(&ben), &Value::Null).await;
            assert_eq!(page.status, 200, "{}", page.json());
            let page = page.json();
            let tasks = page["tasks"].as_array().unwrap();
            found.extend(tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(found, expected, "{filter}");
    }
}

#[tokio::test]
async fn a_task_changes_hands_and_so_do_its_rights() {
    let cast = Cast::gather().await;
    let task = &cast.tasks[0];
    let path = format!("/v1/tasks/{task}/hand-over");
    let secret = |column: &str| {
        let of = |person: &&Person| person.column == column && person.task.is_none_or(|t| t == 0);
        cast.people.iter().find(of).unwrap().secret.as_str()
    };
    let hand = |by: &str, to: &str| {
        let (secret, body) = (secret(by).to_owned(), json!({"to": to, "reason": "holidays"}));
        let (world, path) = (&cast.world, path.clone());
        async move { send(world, ("POST", &path), Some(&secret), &body).await }
    };
    for wrong in ["ben", "service:standfast", ""] {
        assert_eq!(hand("owner", wrong).await.status, 422, "{wrong}");
    }
    let handed = hand("owner", "user:viewer").await;
    assert_eq!((handed.status.as_u16(), &handed.json()["owner"]), (200, &json!("user:viewer")));
    assert_eq!(hand("owner", "user:owner").await.status, 404, "it is no longer the owner's");
    assert_eq!(hand("viewer", "user:viewer").await.status, 200, "twice is once");
    let events = send(
        &cast.world,
        ("GET", &format!("/v1/tasks/{task}/events")),
        Some(secret("viewer")),
        &Value::Null,
    )
    .await
    .json();
    let of_hand = |event: &&Value| event["type"] == "handed_over";
    let handed: Vec<&Value> = events["events"].as_array().unwrap().iter().filter(of_hand).collect();
    assert_eq!(handed.len(), 1, "{events}");
    assert_eq!(handed[0]["actor"], "user:owner");
    let expected = json!({"from": "user:owner", "to": "user:viewer", "reason": "holidays"});
    assert_eq!(handed[0]["data"], expected);
    for (owner, count) in [("user:owner", 0), ("user:viewer", 1)] {
        let path = format!("/v1/tasks?owner={owner}");
        let list = send(&cast.world, ("GET", &path), Some(secret("admin")), &Value::Null).await;
        assert_eq!(list.json()["tasks"].as_array().unwrap().len(), count, "{owner}");
    }
    let verified = format!("/v1/tasks/{task}/verify");
    let verified = send(&cast.world, ("GET", &verified), Some(secret("viewer")), &Value::Null);
    assert_eq!(verified.await.json()["ok"], true);
    // The submitter's ceiling names owners: it may hand its own tasks to those alone.
    let own = submitted(&cast.world, secret("submitter"), &chain(&["a"])).await;
    let path = format!("/v1/tasks/{own}/hand-over");
    for (to, status) in [("user:eve", 403), ("user:owner", 200)] {
        let body = json!({"to": to});
        let answer = send(&cast.world, ("POST", &path), Some(secret("submitter")), &body).await;
        assert_eq!(answer.status.as_u16(), status, "{to}");
    }
}

#[tokio::test]
async fn a_plan_beyond_its_submitters_ceiling_is_refused_with_every_place() {
    let world = World::open().await;
    let handlers = Some([HandlerName::new("other").unwrap()].into());
    let ceiling = Ceiling { handlers, ..Ceiling::default() };
    let bound = Grant { ceiling, ..Grant::new(who("user:bound"), Role::Publisher) };
    let bound = grant(&world, bound).await;
    let mut plan = chain(&["a", "b"]);
    plan["owner"] = json!("user:boss");
    let refused = send(&world, ("POST", "/v1/tasks"), Some(&bound), &plan).await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (403, "forbidden"));
    let places = |answer: &Answer| {
        let errors = answer.json()["errors"].clone();
        let each = errors.as_array().unwrap().iter();
        each.map(|fault| fault["pointer"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(places(&refused), ["/owner", "/steps/0/uses", "/steps/1/uses"]);
    plan["gaol"] = json!("typo");
    let faulty = send(&world, ("POST", "/v1/tasks"), Some(&bound), &plan).await;
    assert_eq!((faulty.status.as_u16(), faulty.problem().as_str()), (422, "invalid_plan"));
    assert_eq!(places(&faulty), ["/gaol", "/owner", "/steps/0/uses", "/steps/1/uses"]);
}

#[tokio::test]
async fn a_worker_works_within_its_ceiling() {
    let world = World::open().await;
    let admin = grant(&world, Grant::new(who("user:admin"), Role::Admin)).await;
    let task = submitted(&world, &admin, &chain(&["a"])).await;
    let queues = Some([standfast_domain::ids::Queue::new("night").unwrap()].into());
    let ceiling = Ceiling { queues, ..Ceiling::default() };
    let bound = Grant { ceiling, ..Grant::new(who("worker:night"), Role::Worker) };
    let bound = grant(&world, bound).await;
    let ask = |queue: &str| json!({"worker": "w", "queue": queue, "handlers": ["echo"]});
    let refused = send(&world, ("POST", "/v1/claims"), Some(&bound), &ask("default")).await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.json()["errors"][0]["pointer"], "/queue");
    let announce = json!({"worker": "w", "queues": ["night", "default"], "handlers": []});
    let refused = send(&world, ("POST", "/v1/workers"), Some(&bound), &announce).await;
    assert_eq!(refused.json()["errors"][0]["pointer"], "/queues/1");
    let mut named = ask("night");
    named["step"] = json!({"task": task, "step": "a", "epoch": 1, "attempt": 1});
    let none = send(&world, ("POST", "/v1/claims"), Some(&bound), &named).await;
    assert_eq!(none.status, 204, "a step of another queue is not to be had by naming it");
    let free = grant(&world, Grant::new(who("worker:free"), Role::Worker)).await;
    let claimed = send(&world, ("POST", "/v1/claims"), Some(&free), &named).await;
    assert_eq!(claimed.status, 200, "{}", claimed.json());
}

#[tokio::test]
async fn what_an_attempt_cost_is_told_late_by_whom_it_was_claimed_and_once() {
    let world = World::open().await;
    let admin = grant(&world, Grant::new(who("user:admin"), Role::Admin)).await;
    let own = grant(&world, Grant::new(who("worker:own"), Role::Worker)).await;
    let other = grant(&world, Grant::new(who("worker:other"), Role::Worker)).await;
    let task = submitted(&world, &admin, &chain(&["a"])).await;
    let ask = json!({"worker": "w", "queue": "default", "handlers": ["echo"]});
    let claim = send(&world, ("POST", "/v1/claims"), Some(&own), &ask).await.json();
    let stop = format!("/v1/tasks/{task}/steps/a/attempts/1/stop");
    assert_eq!(send(&world, ("POST", &stop), Some(&admin), &json!({})).await.status, 200);
    let next = send(&world, ("POST", "/v1/claims"), Some(&other), &ask).await.json();
    assert_eq!((&claim["attempt"], &next["attempt"]), (&json!(1), &json!(2)));
    let path = format!("/v1/claims/{task}/a/complete");
    let tell = async |secret: &str, epoch: u32| {
        let outcome = json!({"status": "succeeded", "output": 1, "cost_usd_micros": 70});
        let body = json!({"worker": "w", "attempt": 1, "epoch": epoch, "outcome": outcome});
        let told = send(&world, ("POST", &path), Some(secret), &body).await;
        assert_eq!(told.problem(), "fenced", "its outcome is not used");
        let path = format!("/v1/tasks/{task}");
        let task = send(&world, ("GET", &path), Some(&admin), &Value::Null).await;
        task.json()["cost_usd_micros"].as_u64().unwrap()
    };
    assert_eq!(tell(&other, 1).await, 0, "another worker's cost is not its to tell");
    assert_eq!(tell(&admin, 1).await, 0);
    assert_eq!(tell(&own, 2).await, 0, "it ran in another epoch");
    assert_eq!(tell(&own, 1).await, 70, "although another holds the step by now");
    assert_eq!(tell(&own, 1).await, 70, "and once");
}

#[tokio::test]
async fn a_workers_id_is_its_principals_while_it_is_announced() {
    let world = World::open().await;
    let admin = grant(&world, Grant::new(who("user:admin"), Role::Admin)).await;
    let own = grant(&world, Grant::new(who("worker:own"), Role::Worker)).await;
    let other = grant(&world, Grant::new(who("worker:other"), Role::Worker)).await;
    let say = async |secret: &str, leaving: bool| {
        let body = json!({"worker": "w", "queues": ["default"], "handlers": [{"name": "echo"}],
            "leaving": leaving});
        let told = send(&world, ("POST", "/v1/workers"), Some(secret), &body).await;
        (told.status.as_u16(), world.announced().await)
    };
    assert_eq!(say(&own, false).await, (200, vec![who("worker:own")]));
    assert_eq!(say(&other, true).await, (403, vec![who("worker:own")]));
    assert_eq!(say(&other, false).await, (403, vec![who("worker:own")]));
    assert_eq!(say(&own, false).await, (200, vec![who("worker:own")]));
    assert_eq!(say(&own, true).await, (200, vec![]));
    assert_eq!(say(&own, true).await, (200, vec![]), "twice is once");
    assert_eq!(say(&other, false).await, (200, vec![who("worker:other")]));
    assert_eq!(say(&admin, true).await, (200, vec![]));
}

#[tokio::test]
async fn the_person_of_the_embedded_mode_acts_for_another_and_nobody_else_does() {
    let access = Access::Fixed { token_sha256: sha256_hex("secret"), identity: Identity::local() };
    let world = World::with(access, Vec::new(), Admin::default()).await;
    let send = |acting: &'static str, method: &'static str, path: String, body: Value| {
        let headers = [JSON, ("authorization", "Bearer secret"), ("standfast-as", acting)];
        world.send(request(method, &path, &headers, body.to_string()))
    };
    let made = send("user:ben", "POST", "/v1/tasks".to_owned(), chain(&["a"])).await.json();
    let task = made["id"].as_str().unwrap();
    let seen = send("user:ana", "GET", format!("/v1/tasks/{task}"), Value::Null).await.json();
    assert_eq!(seen["owner"], "user:ben");
    let events = send("user:ana", "GET", format!("/v1/tasks/{task}/events"), Value::Null).await;
    assert_eq!(events.json()["events"][0]["actor"], "user:ben");
    for wrong in ["ben", "group:all", "service:standfast"] {
        let answer = send(wrong, "GET", "/v1/tasks".to_owned(), Value::Null).await;
        assert_eq!(answer.status, 422, "{wrong}");
    }
    let shared = World::open().await;
    let open = shared.send(request("GET", "/v1/tasks", &[("standfast-as", "user:ben")], "")).await;
    assert_eq!(open.status, 403);
    let admin = grant(&shared, Grant::new(who("user:admin"), Role::Admin)).await;
    let bearer = format!("Bearer {admin}");
    let headers = [("authorization", bearer.as_str()), ("standfast-as", "user:ben")];
    assert_eq!(shared.send(request("GET", "/v1/tasks", &headers, "")).await.status, 403);
}

#[tokio::test]
async fn what_goes_on_for_long_ends_with_its_token_and_with_its_right() {
    let cast = Cast::gather().await;
    let tokens = cast.world.api.tokens();
    let task = TaskId::parse(&cast.tasks[0]).unwrap();
    let issued = tokens.grant(Grant::new(who("user:viewer"), Role::Publisher)).await.unwrap();
    let standfast_engine::tokens::Known::Valid(credential) =
        tokens.know(&issued.secret).await.unwrap()
    else {
        panic!("it was just made");
    };
    let identity = Identity { ceiling: Arc::default(), ..credential.identity.clone() };
    let caller = Caller { identity, credential: Some(credential) };
    let other = TaskId::parse(&cast.tasks[2]).unwrap();
    let sees = async |task: &TaskId| still_sees(&cast.world.api, &caller, task).await.unwrap();
    assert_eq!((sees(&task).await, sees(&other).await), (true, false));
    tokens.revoke(&issued.id).await.unwrap();
    assert!(!sees(&task).await);
}

#[tokio::test]
async fn refusals_are_counted_by_the_right_that_was_missing() {
    let cast = Cast::gather().await;
    let find = |column: &str| cast.people.iter().find(|person| person.column == column).unwrap();
    let stop = rows().into_iter().find(|row| row.path == "/v1/tasks/{id}/stop").unwrap();
    let count = |right: &str| {
        let counts = cast.world.api.tokens().refusals().counts().read();
        counts.get(right).copied().unwrap_or(0)
    };
    let before = (count("stop"), count("view"), count("token"));
    cast.ask(&stop, Some(&find("viewer").secret), Some(0)).await;
    cast.ask(&stop, Some(&find("publisher").secret), Some(0)).await;
    cast.ask(&stop, None, Some(0)).await;
    let after = (count("stop"), count("view"), count("token"));
    assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1));
    cast.ask(&stop, Some(&find("publisher").secret), None).await;
    assert_eq!(count("view"), after.1, "what is not there was hidden from nobody");
}
