//! Effects as readers see them: recorded by workers, listed, explained, settled by people.

use serde_json::{Value, json};
use standfast_domain::decide::Speaker;
use standfast_domain::ids::{Principal, StepId, TaskId, WorkerId};
use standfast_domain::record::{EffectClass, NotLanded};
use standfast_domain::time::Span;
use standfast_domain::view::Attempt;
use standfast_engine::effects::{EffectAsk, Intended};
use standfast_engine::tokens::Role;

use super::{JSON, World, chain, request};

/// An attempt of the claimed step, as its worker names it.
struct Worker<'a> {
    world: &'a World,
    task: TaskId,
    at: Attempt,
}

impl<'a> Worker<'a> {
    fn of(world: &'a World, claim: &Value) -> Self {
        let number = |name: &str| u32::try_from(claim[name].as_u64().unwrap()).unwrap();
        let at = Attempt {
            step: StepId::new(claim["step"].as_str().unwrap()).unwrap(),
            attempt: number("attempt"),
            epoch: number("epoch"),
            worker: WorkerId::new("w").unwrap(),
        };
        Self { world, task: TaskId::parse(claim["task"].as_str().unwrap()).unwrap(), at }
    }

    async fn intend(&self, name: &str, class: EffectClass, stored: Option<Value>) -> Intended {
        let ask = EffectAsk {
            name: name.to_owned(),
            class,
            request: stored,
            window: Span::from_secs(10),
            request_timeout: Span::from_secs(30),
            target: Some("https://pay.example".to_owned()),
            says: Some("120.00 EUR to \u{1b}bob".to_owned()),
        };
        let claims = self.world.api.claims();
        claims.intend(&self.task, self.at.clone(), ask, Principal::local()).await.unwrap()
    }

    fn speaker(&self, name: &str) -> Speaker {
        let Attempt { step, attempt, epoch, worker } = self.at.clone();
        Speaker { step, name: name.to_owned(), attempt, epoch, worker }
    }

    async fn confirm(&self, name: &str, receipt: Value) {
        let (claims, by) = (self.world.api.claims(), self.speaker(name));
        claims.confirm_effect(&self.task, by, receipt, Principal::local()).await.unwrap();
    }

    async fn retract(&self, name: &str, how: NotLanded) {
        let (claims, by) = (self.world.api.claims(), self.speaker(name));
        claims.retract_effect(&self.task, by, how, Principal::local()).await.unwrap();
    }
}

/// Gives a plan of steps that declare one irreversible effect each.
fn paying(steps: &[&str]) -> Value {
    let mut plan = chain(steps);
    for step in plan["steps"].as_array_mut().unwrap() {
        step["effect"] = json!({"class": "irreversible", "says": "120.00 EUR to bob"});
        step["with"] = json!({"amount": 120});
    }
    plan
}

async fn effects(world: &World, task: &str) -> Vec<Value> {
    let page = world.get(&format!("/v1/tasks/{task}/effects")).await;
    assert_eq!(page.status, 200, "{}", page.json());
    page.json()["effects"].as_array().unwrap().clone()
}

#[tokio::test]
async fn an_uncertain_effect_is_listed_explained_and_settled() {
    let world = World::open().await;
    let task = world.submit(&paying(&["pay", "mail"])).await;
    assert_eq!(effects(&world, &task).await, Vec::<Value>::new());
    let claim = world.claim().await;
    let worker = Worker::of(&world, &claim);
    worker.intend("main", EffectClass::Irreversible, None).await;
    let listed = effects(&world, &task).await;
    assert_eq!((&listed[0]["standing"], &listed[0]["answers"]), (&json!("in_flight"), &json!([])));
    let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
    assert_eq!(explain["open"]["in_flight"], json!(["pay"]));
    assert_eq!(explain["open"]["staged"], json!(["mail"]));

    let outcome = json!({"status": "failed", "class": "retryable", "message": "no answer"});
    assert_eq!(world.complete(&claim, outcome).await.status, 200);
    let listed = effects(&world, &task).await;
    let key = format!("{task}/pay/main/1");
    assert_eq!((&listed[0]["standing"], &listed[0]["key"]), (&json!("uncertain"), &json!(key)));
    assert_eq!(listed[0]["request"]["value"], json!({"amount": 120}));
    assert_eq!(listed[0]["says"], "120.00 EUR to \\u{1b}bob");
    let start = format!("standfast answer {task}/pay");
    let command = |n: usize| listed[0]["answers"][n]["command"].as_str().unwrap();
    assert_eq!(command(0), format!("{start} happened --receipt '{{…}}'"));
    assert_eq!(command(1), format!("{start} not_happened"));
    let not_yet = listed[0]["answers"][1]["effect"].as_str().unwrap();
    assert!(not_yet.contains("; taken from "), "the request may be under way: {not_yet}");

    let view = world.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!(view["holds"][0]["effect"], json!({"name": "main", "key": key}));
    let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
    assert_eq!(explain["open"]["uncertain"], json!(["pay"]));
    assert_eq!(explain["stop_now"]["to_settle"], json!(["pay"]));
    let why = explain["why"]["text"].as_array().unwrap();
    assert!(why[0].as_str().unwrap().starts_with("no scheduler lives"), "{why:?}");
    assert_eq!(explain["why"]["unattended"], "no_scheduler");
    let line = |n: usize| why[n + 1].as_str().unwrap().to_owned();
    assert!(line(1).starts_with("The attempt ended") && line(1).contains("no answer"), "{why:?}");
    assert!(line(3).contains(&format!("Look for key {key}")), "{why:?}");
    assert!(line(4).contains(&format!("{start} happened --receipt '{{…}}'")), "{why:?}");

    let path = format!("/v1/tasks/{task}/steps/pay/answers");
    let answer = json!({"answer": "happened", "receipt": {"id": "ch_5"}});
    assert_eq!(world.post(&path, &answer).await.status, 200);
    let listed = effects(&world, &task).await;
    assert_eq!(listed[0]["standing"], "landed");
    assert_eq!(listed[0]["receipt"]["value"], json!({"id": "ch_5"}));
    let explain = world.get(&format!("/v1/tasks/{task}/explain")).await.json();
    assert_eq!(explain["landed"]["effects"][0]["receipt"], json!({"id": "ch_5"}));
    let line = explain["landed"]["text"][0].as_str().unwrap();
    assert!(line.starts_with("pay: ") && line.contains(r#"receipt {"id":"ch_5"}"#), "{line}");
    assert_eq!(explain["stop_now"]["stays"], json!(["pay"]));
    let events = world.get(&format!("/v1/tasks/{task}/events")).await.json();
    let events = events["events"].as_array().unwrap();
    let intended = events.iter().find(|event| event["type"] == "effect_intended").unwrap();
    assert_eq!(intended["data"]["class"], "irreversible");
    assert_eq!(intended["data"]["request_timeout_ms"], 30_000);
}

#[tokio::test]
async fn pages_give_every_effect_once_also_within_a_step() {
    let world = World::open().await;
    let task = world.submit(&paying(&["a", "b", "c"])).await;
    let mut expected = Vec::new();
    for step in ["a", "b", "c"] {
        let claim = world.claim().await;
        let worker = Worker::of(&world, &claim);
        for (n, class) in EffectClass::ALL.into_iter().enumerate().filter(|(n, _)| *n > 0) {
            let name = format!("e{n}");
            worker.intend(&name, class, Some(json!({"n": n}))).await;
            match n {
                1 => worker.retract(&name, NotLanded::Refused).await,
                _ => worker.confirm(&name, json!({"step": step, "n": n})).await,
            }
            expected.push(format!("{step}/{name}"));
        }
        world.complete(&claim, json!({"status": "succeeded"})).await;
    }
    for limit in [1, 2, 4, 200] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/tasks/{task}/effects?limit={limit}{cursor}");
            let page = world.get(&path).await.json();
            let effects = page["effects"].as_array().unwrap();
            assert!(effects.len() <= limit, "{page}");
            let name = |effect: &Value| {
                format!("{}/{}", effect["step"].as_str().unwrap(), effect["name"].as_str().unwrap())
            };
            seen.extend(effects.iter().map(name));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, expected, "{limit} a page");
    }
    let listed = effects(&world, &task).await;
    assert_eq!(
        (&listed[0]["standing"], &listed[0]["how"]),
        (&json!("not_landed"), &json!("refused"))
    );
    assert_eq!(listed[1]["receipt"]["value"], json!({"step": "a", "n": 2}));
    assert_eq!(listed[1]["request"]["value"], json!({"n": 2}));
    let cursor = world.get(&format!("/v1/tasks/{task}/effects?limit=1")).await.json();
    let cursor = cursor["next_cursor"].as_str().unwrap();
    let steps = format!("/v1/tasks/{task}/steps?cursor={cursor}");
    assert_eq!(world.get(&steps).await.problem(), "bad_cursor");
}

#[tokio::test]
async fn a_receipt_too_large_for_a_record_is_given_by_reference() {
    let world = World::open().await;
    let task = world.submit(&paying(&["a"])).await;
    let claim = world.claim().await;
    let worker = Worker::of(&world, &claim);
    worker.intend("main", EffectClass::Irreversible, None).await;
    worker.confirm("main", json!("x".repeat(300 * 1024))).await;
    let listed = effects(&world, &task).await;
    let receipt = &listed[0]["receipt"];
    assert_eq!((&receipt["value"], &receipt["blob"]["bytes"]), (&Value::Null, &json!(307_202)));
    assert_eq!(receipt["blob"]["sha256"].as_str().unwrap().len(), 64);
}

#[tokio::test]
async fn several_uncertain_effects_of_a_step_are_told_apart_in_the_commands() {
    let world = World::open().await;
    let task = world.submit(&paying(&["pay"])).await;
    let claim = world.claim().await;
    let worker = Worker::of(&world, &claim);
    for name in ["main", "mail"] {
        worker.intend(name, EffectClass::Irreversible, None).await;
    }
    world.complete(&claim, json!({"status": "failed", "class": "timeout", "message": "m"})).await;
    let listed = effects(&world, &task).await;
    for (n, name) in ["mail", "main"].into_iter().enumerate() {
        let command = listed[n]["answers"][1]["command"].as_str().unwrap();
        assert_eq!(command, format!("standfast answer {task}/pay not_happened --effect {name}"));
    }
}

#[tokio::test]
async fn nothing_is_promised_to_be_sent_once_the_task_was_stopped() {
    let world = World::open().await;
    let task = world.submit(&paying(&["pay"])).await;
    let claim = world.claim().await;
    let worker = Worker::of(&world, &claim);
    worker.intend("main", EffectClass::Irreversible, None).await;
    world.complete(&claim, json!({"status": "failed", "class": "timeout", "message": "m"})).await;
    let path = format!("/v1/tasks/{task}");
    let sends = "sends the stored request";
    let plan = world.get(&format!("{path}/stop-plan")).await.json().to_string();
    assert!(plan.contains(sends), "{plan}");
    world.post(&format!("{path}/stop"), &json!({"mode": "halt"})).await;
    let settlement = world.get(&format!("{path}/settlement")).await.json().to_string();
    assert!(settlement.contains("not_happened") && !settlement.contains(sends), "{settlement}");
}

#[tokio::test]
async fn effects_are_for_those_who_may_see_the_task() {
    let world = World::open().await;
    let ana = world.token(Role::Publisher, "user:ana").await;
    let ben = world.token(Role::Publisher, "user:ben").await;
    let send = |method: &'static str, path: String, token: &str, body: String| {
        let token = format!("Bearer {token}");
        let headers = [JSON, ("authorization", token.as_str())];
        world.send(request(method, &path, &headers, body))
    };
    let plan = paying(&["a"]).to_string();
    let task = send("POST", "/v1/tasks".into(), &ana, plan).await.json();
    let path = format!("/v1/tasks/{}/effects", task["id"].as_str().unwrap());
    assert_eq!(send("GET", path.clone(), &ana, String::new()).await.status, 200);
    assert_eq!(send("GET", path.clone(), &ben, String::new()).await.problem(), "not_found");
    assert_eq!(world.get(&path).await.problem(), "unauthorized");
}
