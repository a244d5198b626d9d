//! Workers and apis that die anywhere on an effect's way. What has come to the outside world is
//! counted there; a person is asked only where nobody else could know, and looks there too.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use futures::StreamExt;
use serde_json::{Value, json};
use standfast_protocol::holds::AnswerRequest;
use standfast_protocol::tasks::TaskState;
use standfast_tests::binary::Running;
use standfast_tests::outside::{Outside, header};
use standfast_tests::processes::Installation;
use standfast_tests::services::amqp_url;
use standfast_tests::wait;

use crate::doomed;

/// How long a claim lasts here: short, and longer than a busy machine keeps a worker waiting.
const CLAIM: &str = "5s";
/// Workers at a time: most of them wait for claims and requests to be over.
const AT_ONCE: usize = 18;

/// One death on an effect's way.
#[derive(Clone, Copy, Debug)]
struct Case {
    point: &'static str,
    uses: &'static str,
    class: &'static str,
    /// How often the outside world is sent it in all, with what a person lets be sent.
    sent: usize,
    /// True if nobody but a person can say whether it has happened.
    asked: bool,
}

const fn case(
    uses: &'static str,
    class: &'static str,
    point: &'static str,
    sent: usize,
    asked: bool,
) -> Case {
    Case { point, uses, class, sent, asked }
}

/// An irreversible one is sent once, whatever happens. That it was not sent is proven only while
/// there is no intent.
const IRREVERSIBLE: [Case; 13] = [
    case("http", "irreversible", "intent.before", 1, false),
    case("http", "irreversible", "intent.stored", 1, true),
    case("http", "irreversible", "send.before", 1, true),
    case("http", "irreversible", "send.sent", 1, true),
    case("http", "irreversible", "send.answered", 1, true),
    case("http", "irreversible", "complete.before", 1, true),
    case("http", "irreversible", "complete.stored", 1, false),
    case("exec", "irreversible", "intent.before", 1, false),
    case("exec", "irreversible", "intent.stored", 1, true),
    case("exec", "irreversible", "send.before", 1, true),
    case("exec", "irreversible", "send.sent", 1, true),
    case("exec", "irreversible", "send.answered", 1, true),
    case("exec", "irreversible", "complete.stored", 1, false),
];

/// All others need nobody: what may be repeated is, and what can be asked about is asked about.
const OTHERS: [Case; 17] = [
    case("http", "none", "send.before", 1, false),
    case("http", "none", "send.sent", 2, false),
    case("http", "none", "send.answered", 2, false),
    case("http", "idempotent", "send.before", 1, false),
    case("http", "idempotent", "send.sent", 2, false),
    case("http", "idempotent", "send.answered", 2, false),
    case("http", "idempotent", "complete.stored", 1, false),
    case("exec", "idempotent", "send.before", 1, false),
    case("exec", "idempotent", "send.answered", 2, false),
    case("http", "checkable", "intent.before", 1, false),
    case("http", "checkable", "intent.stored", 1, false),
    case("http", "checkable", "send.before", 1, false),
    case("http", "checkable", "send.sent", 1, false),
    case("http", "checkable", "send.answered", 1, false),
    case("http", "checkable", "complete.before", 1, false),
    case("exec", "checkable", "send.before", 1, false),
    case("exec", "checkable", "send.answered", 1, false),
];

impl Case {
    fn name(&self) -> String {
        format!("{}-{}-{}", self.uses, self.class, self.point)
    }
}

/// The world outside: a server, and a file in which programs write what they have done.
struct World {
    server: Outside,
    file: PathBuf,
}

impl World {
    /// Opens it. `GET` of a path that was ordered before says so; of others that it was not,
    /// except under `/none`, where nothing is ordered.
    async fn open(file: PathBuf) -> Self {
        let ordered = Mutex::new(BTreeSet::new());
        let server = Outside::new(move |head, _| {
            let mut words = head.split(' ').map(str::to_owned);
            let (method, path) = (words.next(), words.next().unwrap_or_default());
            let mut ordered = ordered.lock().unwrap_or_else(PoisonError::into_inner);
            match method.as_deref() {
                Some("GET") if !path.contains("none") && !ordered.contains(&path) => Some(404),
                Some("GET") => Some(200),
                _ => {
                    ordered.insert(path);
                    Some(201)
                }
            }
        });
        Self { server: server.await, file }
    }

    /// Gives the keys of what was sent under a name, in order.
    fn sent(&self, name: &str, method: &str) -> Vec<String> {
        let start = format!("{method} /{name} ");
        let all = self.server.all();
        let asked = all.iter().filter(|head| head.starts_with(&start));
        let asked = asked.map(|head| header(head, "idempotency-key").unwrap_or("").to_owned());
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let written = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        asked.chain(written.map(str::to_owned)).collect()
    }

    fn plan(&self, case: &Case) -> Value {
        let name = case.name();
        let url = format!("{}/{name}", self.server.url);
        let file = self.file.display();
        let done = format!("echo {name} $STANDFAST_EFFECT_KEY >> {file}");
        let found = format!("grep -q '^{name} ' {file}");
        let (with, check) = match case.uses {
            "http" => (
                json!({ "url": url, "method": method(case.class) }),
                json!({ "uses": "http", "with": { "url": url } }),
            ),
            _ => (
                json!({ "command": ["sh", "-c", done] }),
                json!({ "uses": "exec", "with": { "command": ["sh", "-c", found] } }),
            ),
        };
        let mut effect = json!({ "class": case.class });
        if case.class == "checkable" {
            effect["check"] = check;
        }
        json!({ "kind": "order", "steps": [
            { "id": "only", "uses": case.uses, "queue": name, "with": with, "effect": effect,
              "timeout": { "attempt": "10s" }, "retry": { "max_attempts": 5, "backoff": "0s" } },
        ]})
    }
}

fn method(class: &str) -> &'static str {
    match class {
        "none" => "GET",
        "idempotent" => "PUT",
        _ => "POST",
    }
}

/// Waits for a task's end; a person who is asked looks whether it was `sent`. True if one was.
async fn ended(own: &Installation, task: &str, sent: impl Fn() -> bool) -> bool {
    let (client, mut asked) = (own.client(), false);
    let view = wait::within(2 * wait::PATIENCE, &format!("the end of {task}"), async || {
        let view = client.get(task).await.ok()?;
        let held = view.holds.iter().find(|hold| hold.reason == "uncertain_effect");
        if let Some(hold) = held {
            asked = true;
            let effect = hold.effect.as_ref().map(|effect| effect.name.clone());
            let request = match sent() {
                true => AnswerRequest {
                    receipt: Some(json!({ "status": 200, "seen": 1 })),
                    effect,
                    ..AnswerRequest::new("happened")
                },
                false => AnswerRequest { effect, ..AnswerRequest::new("not_happened") },
            };
            // Refused for as long as what was sent may still be under way.
            let _ = client.answer(task, hold.step.as_deref(), &request).await;
        }
        view.state.is_ended().then_some(view)
    })
    .await;
    assert_eq!(view.state, TaskState::Completed, "{task}: {:?}", view.failure);
    let report = client.verify(task).await.unwrap();
    assert!(report.ok, "{task}: {:?}", report.fault);
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_is_what_its_class_promises_wherever_its_worker_dies() {
    // The slow ones first: a check waits until the request before it must be over.
    let cases: Vec<&Case> = OTHERS.iter().rev().chain(&IRREVERSIBLE).collect();
    let mut own = Installation::start_synced(&amqp_url(), CLAIM).await;
    own.queues = cases.iter().map(|case| case.name()).collect();
    let world = World::open(own.path().join("orders")).await;
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let (own, world) = (&own, &world);
    let running = cases.into_iter().map(|case| dies(own, world, *case));
    futures::stream::iter(running).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// Lets a worker die on the way of an effect, and another go on.
async fn dies(own: &Installation, world: &World, case: Case) {
    let name = case.name();
    let arguments = ["worker", "--queue", &name, "--allow-private-addresses"];
    let mut worker = doomed::start(own, &arguments, case.point, 1);
    let task = own.client().submit(world.plan(&case)).await.unwrap().id;
    doomed::death(&mut worker, &name).await;
    let _heir = Running::start(own.command(&arguments), &own.path().join("heir.log"));
    let sent = || world.sent(&name, method(case.class));
    let asked = ended(own, &task, || !sent().is_empty()).await;
    let keys = sent();
    assert_eq!((keys.len(), asked), (case.sent, case.asked), "{name}");
    if case.class != "none" {
        let expected = format!("{task}/only/main/1");
        assert!(keys.iter().all(|key| *key == expected), "{name}: {keys:?}");
    }
}

/// Starts a worker of the SDK that dies at a place, or lives if there is none.
fn outside(own: &Installation, token: &str, queue: &str, die: Option<&str>) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_standfast-test-worker"));
    command.env("STANDFAST_URL", own.url()).env("STANDFAST_TOKEN", token).env("QUEUE", queue);
    command.envs(die.map(|place| ("DIE", place)));
    Running::start(command, &own.path().join("outside.log"))
}

/// Submits an order of the workers outside as soon as they are known.
async fn order(own: &Installation, world: &World, name: &str, queue: &str, class: &str) -> String {
    let with = json!({ "url": format!("{}/{name}", world.server.url), "class": class });
    let plan = json!({ "kind": "order", "steps": [
        { "id": "only", "uses": "pay", "queue": queue, "with": with,
          "retry": { "max_attempts": 5, "backoff": "0s" } },
    ]});
    let client = own.client();
    wait::until("the workers outside to be known", async || {
        client.submit(plan.clone()).await.ok().map(|submitted| submitted.id)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_outside_that_dies_in_its_effect_keeps_what_its_class_promises() {
    let own = Installation::start_synced(&amqp_url(), CLAIM).await;
    let world = World::open(own.path().join("orders")).await;
    let token = own.make_token("worker", "worker:outside");
    let _api = own.api().await;
    let _scheduler = own.process(&["scheduler"]);
    let (own, world, token) = (&own, &world, token.as_str());
    let cases = [
        ("irreversible", "before", 1, true),
        ("irreversible", "sent", 1, true),
        ("irreversible", "answered", 1, true),
        ("idempotent", "sent", 2, false),
        ("checkable", "before", 1, false),
        ("checkable", "answered", 1, false),
    ];
    let running = cases.map(|(class, place, sent, asked)| async move {
        let name = format!("{class}-{place}");
        let mut worker = outside(own, token, &name, Some(place));
        let task = order(own, world, &name, &name, class).await;
        doomed::death(&mut worker, &name).await;
        let _heir = outside(own, token, &name, None);
        let seen = || world.sent(&name, "POST");
        let was_asked = ended(own, &task, || !seen().is_empty()).await;
        assert_eq!((seen().len(), was_asked), (sent, asked), "{name}");
        let expected = format!("{task}/only/pay/1");
        assert!(seen().iter().all(|key| *key == expected), "{name}: {:?}", seen());
    });
    futures::future::join_all(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_that_dies_at_an_intent_or_a_receipt_leaves_nothing_in_doubt() {
    let own = Installation::start_synced(&amqp_url(), "30s").await;
    let world = World::open(own.path().join("orders")).await;
    let token = own.make_token("worker", "worker:outside");
    let _scheduler = own.process(&["scheduler"]);
    let _worker = outside(&own, &token, "outside", None);
    for point in ["intent.before", "intent.stored", "receipt.before", "receipt.stored"] {
        let mut api = doomed::start(&own, &["api"], point, 1);
        let task = order(&own, &world, point, "outside", "irreversible").await;
        doomed::death(&mut api, point).await;
        let _heir = own.api().await;
        let asked = ended(&own, &task, || panic!("{point}: nobody is to be asked")).await;
        assert_eq!((world.sent(point, "POST").len(), asked), (1, false), "{point}");
    }
}
