//! What becomes of single messages.

use async_trait::async_trait;
use serde_json::json;
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::record::EffectClass;
use standfast_engine::ports::Acker;
use standfast_engine::submission::RETENTION_DEFAULT;
use standfast_engine::time::{SystemClock, SystemIds};
use standfast_stores::redb::RedbStore;

use super::*;

/// Knows the handler `echo`.
struct Echo;

impl Handlers for Echo {
    fn check(&self, handler: &str, _: &Value) -> Option<Vec<(String, String)>> {
        (handler == "echo").then(Vec::new)
    }

    fn effect_class(&self, _: &str, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }
}

/// Is not asked in these tests.
struct Unasked;

#[async_trait]
impl Acker for Unasked {
    async fn ack(self: Box<Self>) -> bool {
        true
    }

    async fn dead_letter(self: Box<Self>) -> bool {
        true
    }
}

struct World {
    intake: Intake,
    broker: Arc<InProcessBroker>,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open(dir.path()).unwrap());
    let broker = Arc::new(InProcessBroker::new());
    let clock = Arc::new(SystemClock::default());
    let engine = Engine::start(store, broker.clone(), clock, Arc::new(SystemIds));
    let intake = Intake {
        tokens: Arc::new(Tokens::new(engine.clone())),
        registry: Arc::new(Registry::new(engine.clone())),
        handlers: Arc::new(Echo),
        retention: RETENTION_DEFAULT,
        gauges: Arc::default(),
        engine,
    };
    World { intake, broker, _dir: dir }
}

/// A submission by `user:ana`, for an owner.
fn delivery(owner: &str, token: Option<&str>) -> Delivery {
    let plan = json!({"kind": "k", "owner": owner, "steps": [{"id": "a", "uses": "echo"}]});
    let headers = token.map(|token| (TOKEN_HEADER.to_owned(), token.to_owned()));
    Delivery {
        body: Bytes::from(plan.to_string()),
        routing_key: SUBMIT.to_owned(),
        message_id: Some("m1".to_owned()),
        correlation_id: None,
        reply_to: None,
        user_id: Some("ana".to_owned()),
        headers: headers.into_iter().collect(),
        acker: Box::new(Unasked),
    }
}

#[tokio::test]
async fn only_an_admin_submits_for_another_owner() {
    let World { intake, broker, _dir } = world();
    let bea = Principal::new("user:bea").unwrap();
    for (role, taken) in [(Role::Publisher, false), (Role::Admin, true)] {
        let token = intake.tokens.create(role, &bea, "test").await.unwrap().secret;
        let reply = intake.accept(&delivery("user:cleo", Some(&token))).await.unwrap();
        assert_eq!(matches!(reply, SubmitReply::Submitted(_)), taken, "{role:?}: {reply:?}");
    }
    let own = intake.accept(&delivery("user:ana", None)).await.unwrap();
    assert!(matches!(own, SubmitReply::Submitted(_)), "{own:?}");
    let other = delivery("user:cleo", None);
    let reply = intake.accept(&other).await.unwrap();
    let SubmitReply::Problem(problem) = &reply else { panic!("{reply:?}") };
    assert_eq!(problem.known(), Some(ProblemKind::Forbidden));
    let mut kept = false;
    for _ in 0..2 {
        // The second try, after a reply that found no broker, keeps no second copy.
        intake.finish(&other, &reply, &mut kept).await.unwrap();
    }
    let rejected = broker.take_rejected();
    let [rejected] = &rejected[..] else { panic!("{rejected:?}") };
    assert!(rejected.headers.iter().any(|(name, _)| name == PROBLEM_HEADER));
    let key = (ROUTING_KEY_HEADER.to_owned(), SUBMIT.to_owned());
    assert!(rejected.headers.contains(&key));
}

#[tokio::test]
async fn a_repeated_submission_hears_where_its_task_stands() {
    let World { intake, _dir, .. } = world();
    let SubmitReply::Submitted(first) = intake.accept(&delivery("user:ana", None)).await.unwrap()
    else {
        panic!("not accepted")
    };
    assert_eq!((first.created, first.state), (true, TaskState::Queued));
    let task = TaskId::parse(&first.id).unwrap();
    let stop = standfast_domain::decide::Command::Stop { reason: None };
    intake.engine.execute(&task, stop, Principal::system(), Vec::new()).await.unwrap();
    let SubmitReply::Submitted(again) = intake.accept(&delivery("user:ana", None)).await.unwrap()
    else {
        panic!("not accepted")
    };
    assert!(!again.created && again.id == first.id);
    assert!(matches!(again.state, TaskState::Cancelling | TaskState::Cancelled), "{again:?}");
}
