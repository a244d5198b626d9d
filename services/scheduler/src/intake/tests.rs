//! What becomes of single messages.

mod envelopes;
mod stops;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::json;
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::ceiling::Ceiling;
use standfast_domain::commit::{Commit, Home, IndexChange, Scope};
use standfast_domain::ids::{Partition, Queue, WorkerId};
use standfast_domain::index::{OUTBOX, entries, outbox_member};
use standfast_domain::record::{EffectClass, Outgoing};
use standfast_domain::time::Time;
use standfast_engine::blobs::Blobs;
use standfast_engine::installation::Installation;
use standfast_engine::outbox::{OUTBOX_MAX, Sent};
use standfast_engine::ports::{
    Acker, BATCH_MAX, Broker, BrokerHealth, Clock, Depth, Range, StoreError, Subscription,
};
use standfast_engine::submission::RETENTION_DEFAULT;
use standfast_engine::time::SystemIds;
use standfast_engine::tokens::Grant;
use standfast_protocol::amqp::{PROBLEM_HEADER, REJECTED_AT_HEADER, ROUTING_KEY_HEADER};
use standfast_stores::redb::RedbStore;
use tokio::sync::Notify;

use super::*;
use crate::{Scheduler, Settings};

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

/// Notes that the message was acknowledged.
#[derive(Default)]
struct Noted(Arc<AtomicBool>);

#[async_trait]
impl Acker for Noted {
    async fn ack(self: Box<Self>) -> bool {
        self.0.store(true, Ordering::SeqCst);
        true
    }

    async fn dead_letter(self: Box<Self>) -> bool {
        true
    }
}

/// A broker within the process that can be away.
#[derive(Default)]
struct Moody {
    inner: InProcessBroker,
    away: AtomicBool,
    published: Notify,
}

#[async_trait]
impl Broker for Moody {
    async fn declare(&self, queue: &Queue) -> Result<(), BrokerError> {
        self.inner.declare(queue).await
    }

    async fn publish(&self, of: Vec<Message>, bound: Duration) -> Vec<Result<(), BrokerError>> {
        match self.away.load(Ordering::SeqCst) {
            true => of.iter().map(|_| Err(BrokerError::Unavailable("away".into()))).collect(),
            false => {
                let results = self.inner.publish(of, bound).await;
                self.published.notify_one();
                results
            }
        }
    }

    fn tell(&self, body: Bytes) {
        self.inner.tell(body);
    }

    async fn subscribe(
        &self,
        source: Source,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        self.inner.subscribe(source, prefetch).await
    }

    async fn depth(&self, queue: &Queue) -> Result<Depth, BrokerError> {
        self.inner.depth(queue).await
    }

    async fn health(&self) -> BrokerHealth {
        self.inner.health().await
    }
}

/// A clock that moves when it is told to, and whose sleeps do not end.
#[derive(Default)]
struct Told(AtomicU64);

#[async_trait]
impl Clock for Told {
    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    async fn sleep(&self, _: Duration) {
        std::future::pending().await
    }
}

struct World {
    intake: Intake,
    broker: Arc<Moody>,
    clock: Arc<Told>,
    dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(RedbStore::open(dir.path()).unwrap());
    let (broker, clock) = (Arc::new(Moody::default()), Arc::new(Told::default()));
    broker.inner.open_reply("replies");
    let engine = Engine::start(store, broker.clone(), clock.clone(), Arc::new(SystemIds));
    let intake = Intake {
        tokens: Arc::new(Tokens::new(engine.clone())),
        registry: Arc::new(Registry::new(engine.clone())),
        handlers: Arc::new(Echo),
        retention: RETENTION_DEFAULT,
        ungranted: Some(Arc::new(Ceiling::of_ungranted_users())),
        gauges: Arc::default(),
        engine,
    };
    World { intake, broker, clock, dir }
}

impl World {
    fn away(&self, away: bool) {
        self.broker.away.store(away, Ordering::SeqCst);
    }

    /// Gives what stands in the outbox.
    async fn outbox(&self) -> Vec<String> {
        let range = |partition| Range {
            home: Home::Partition(partition),
            index: OUTBOX.to_owned(),
            after: String::new(),
            before: None,
            limit: BATCH_MAX,
            reverse: false,
        };
        let ranges: Vec<Range> = Partition::all().map(range).collect();
        self.intake.engine.store().ranges(&ranges).await.unwrap().concat()
    }

    /// Waits until nothing is being sent, and gives the replies that came: id and body.
    async fn replies(&self) -> Vec<(String, SubmitReply)> {
        self.intake.engine.close_outbox(BOUND).await;
        let replies = self.broker.inner.take_replies("replies").into_iter();
        replies.map(|m| (m.message_id, serde_json::from_slice(&m.body).unwrap())).collect()
    }

    async fn sweep(&self) -> Sent {
        self.intake.engine.send_again(&self.outbox().await).await.unwrap()
    }
}

fn is_promised(answer: &Answer) -> bool {
    matches!(answer, Answer::Promised { .. })
}

fn direct(answer: Answer) -> SubmitReply {
    match answer {
        Answer::Direct(reply) => *reply,
        Answer::Promised { .. } => panic!("it was promised"),
    }
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
        acker: Box::new(Noted::default()),
    }
}

#[tokio::test]
async fn only_an_admin_submits_for_another_owner() {
    let World { intake, broker, dir: _dir, .. } = world();
    let bea = Principal::new("user:bea").unwrap();
    for (role, taken) in [(Role::Publisher, false), (Role::Admin, true)] {
        let token = intake.tokens.create(role, &bea, "test").await.unwrap().secret;
        let reply = intake.accept(&delivery("user:cleo", Some(&token))).await.unwrap();
        assert_eq!(is_promised(&reply), taken, "{role:?}: {reply:?}");
    }
    let own = intake.accept(&delivery("user:ana", None)).await.unwrap();
    assert!(is_promised(&own), "{own:?}");
    let other = delivery("user:cleo", None);
    let reply = direct(intake.accept(&other).await.unwrap());
    let SubmitReply::Problem(problem) = &reply else { panic!("{reply:?}") };
    assert_eq!(problem.known(), Some(ProblemKind::Forbidden));
    let mut kept = false;
    for _ in 0..2 {
        // The second try, after a reply that found no broker, keeps no second copy.
        intake.finish(&other, &reply, &mut kept).await.unwrap();
    }
    let rejected = broker.inner.take_rejected();
    let [rejected] = &rejected[..] else { panic!("{rejected:?}") };
    assert!(rejected.headers.iter().any(|(name, _)| name == PROBLEM_HEADER));
    let key = (ROUTING_KEY_HEADER.to_owned(), SUBMIT.to_owned());
    assert!(rejected.headers.contains(&key));
    assert!(rejected.headers.iter().any(|(name, _)| name == REJECTED_AT_HEADER));
}

/// A submission that wants a reply.
fn asking() -> Delivery {
    Delivery { reply_to: Some("replies".to_owned()), ..delivery("user:ana", None) }
}

#[tokio::test]
async fn a_repeated_submission_hears_where_its_task_stands() {
    let world = world();
    let engine = world.intake.engine.clone();
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    let replies = world.replies().await;
    let [(id, SubmitReply::Submitted(first))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((id.as_str(), first.created, first.state), ("reply/m1", true, TaskState::Queued));
    let task = TaskId::parse(&first.id).unwrap();
    let stop = standfast_domain::decide::Command::Stop {
        reason: None,
        mode: standfast_domain::record::StopMode::Halt,
    };
    engine.execute(&task, stop, Principal::system(), Vec::new()).await.unwrap();
    let again = direct(world.intake.accept(&asking()).await.unwrap());
    let SubmitReply::Submitted(again) = again else { panic!("{again:?}") };
    assert!(!again.created && again.id == first.id);
    assert!(matches!(again.state, TaskState::Cancelling | TaskState::Cancelled), "{again:?}");
}

#[tokio::test]
async fn a_reply_that_could_not_be_sent_stands_in_the_outbox_until_it_arrives() {
    let world = world();
    world.away(true);
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    assert!(world.replies().await.is_empty());
    assert_eq!(world.outbox().await.len(), 1);
    assert_eq!(world.sweep().await, Sent { left: 1, ..Sent::default() });
    assert_eq!(world.outbox().await.len(), 1);
    world.away(false);
    assert_eq!(world.sweep().await, Sent { confirmed: 1, ..Sent::default() });
    assert!(world.outbox().await.is_empty());
    let replies = world.replies().await;
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].0, "reply/m1");
    let counts = world.intake.engine.counters().read_outgoing();
    assert_eq!(counts, [1, 2, 0], "confirmed, not confirmed, dropped");
}

#[tokio::test]
async fn a_message_that_comes_again_is_sent_what_was_promised_to_it() {
    let world = world();
    world.away(true);
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    assert!(world.replies().await.is_empty());
    world.away(false);
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    let replies = world.replies().await;
    let [(_, SubmitReply::Submitted(first))] = &replies[..] else { panic!("{replies:?}") };
    assert!(first.created);
    assert!(world.outbox().await.is_empty());
}

#[tokio::test]
async fn a_repeat_with_another_reply_queue_or_correlation_id_is_answered_itself() {
    let world = world();
    world.away(true);
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    let moved = Delivery { reply_to: Some("elsewhere".to_owned()), ..asking() };
    let renamed = Delivery { correlation_id: Some("c2".to_owned()), ..asking() };
    for repeat in [moved, renamed] {
        let reply = direct(world.intake.accept(&repeat).await.unwrap());
        assert!(matches!(reply, SubmitReply::Submitted(accepted) if !accepted.created));
    }
    assert_eq!(world.outbox().await.len(), 1, "the promise to the first stands");
}

#[tokio::test]
async fn what_has_arrived_is_cleared_by_the_next_write_and_needs_none_of_its_own() {
    let world = world();
    let engine = &world.intake.engine;
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    // The clock's sleeps do not end, so only what is written for another reason can clear it.
    for n in 0..1_000 {
        let member = format!("{n}");
        let entry = IndexChange { index: "other".to_owned(), member, add: true };
        engine.change_indexes(Scope::Installation, vec![entry]).await.unwrap();
        if world.outbox().await.is_empty() {
            return;
        }
    }
    panic!("a thousand writes have not cleared it: {:?}", world.outbox().await);
}

#[tokio::test]
async fn a_reply_that_nobody_waits_for_is_dropped_and_counted() {
    let world = world();
    world.broker.inner.close_reply("replies");
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    assert!(world.replies().await.is_empty());
    assert!(world.outbox().await.is_empty());
    assert_eq!(world.intake.engine.counters().read_outgoing(), [0, 0, 1]);
}

#[tokio::test]
async fn a_large_plan_promises_its_reply_with_its_birth() {
    let world = world();
    let steps: Vec<Value> =
        (0..80).map(|n| json!({"id": format!("s{n}"), "uses": "echo"})).collect();
    let body = Bytes::from(json!({"kind": "k", "steps": steps}).to_string());
    assert!(is_promised(&world.intake.accept(&Delivery { body, ..asking() }).await.unwrap()));
    assert_eq!(world.replies().await.len(), 1);
    assert!(world.outbox().await.is_empty());
}

/// Adds or removes as many entries as the outbox may have.
async fn fill(world: &World, add: bool) {
    let task = TaskId::random([1; 16]);
    let change = |n: u64| {
        let member = outbox_member(Time(1), &task, &n.to_string());
        IndexChange { index: OUTBOX.to_owned(), member, add }
    };
    let changes: Vec<IndexChange> = (0..OUTBOX_MAX).map(change).collect();
    for part in changes.chunks(BATCH_MAX) {
        let scope = Scope::Task(task.clone());
        world.intake.engine.change_indexes(scope, part.to_vec()).await.unwrap();
    }
    world.clock.0.fetch_add(2, Ordering::SeqCst); // a count is believed for a second
}

#[tokio::test]
async fn a_full_outbox_keeps_those_waiting_who_have_something_to_send() {
    let world = world();
    fill(&world, true).await;
    let full = world.intake.accept(&asking()).await;
    let Err(EngineError::Store(StoreError::ReadOnly(why))) = full else { panic!("{full:?}") };
    assert!(why.contains("outbox is full: 10000"), "{why}");
    let silent = world.intake.accept(&delivery("user:ana", None)).await.unwrap();
    assert!(is_promised(&silent), "without a reply it is a task like any other");
    fill(&world, false).await;
    let again = Delivery { message_id: Some("m2".to_owned()), ..asking() };
    assert!(is_promised(&world.intake.accept(&again).await.unwrap()));
}

#[tokio::test]
async fn a_message_is_acknowledged_once_its_task_is_stored_and_not_before() {
    let world = world();
    let (acked, ending) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
    ending.cancel(); // so that it is tried once
    for full in [true, false] {
        fill(&world, full).await;
        let acker = Box::new(Noted(acked.clone()));
        world.intake.take(Delivery { acker, ..asking() }, &ending).await;
        assert_eq!(acked.load(Ordering::SeqCst), !full);
    }
}

/// Writes what a process that died had promised some time ago.
async fn promise_of_long_ago(engine: &Engine) {
    let task = TaskId::random([2; 16]);
    let to = Recipient::Reply("replies".to_owned());
    let body =
        serde_json::to_value(SubmitReply::Submitted(accepted(&task, true, TaskState::Queued)));
    let (message_id, correlation_id) = ("reply/late".to_owned(), None);
    let message = OutgoingMessage { to, message_id, correlation_id, body: body.unwrap() };
    let (id, message) = message.entry();
    let long_ago = engine.now().await.unwrap().0 - 11_000;
    let (key, record) = (Key::Outgoing(id), Outgoing { at: Time(long_ago), message });
    let record = Record::Outgoing(record);
    let entries = entries(&task, &key, &record).into_iter();
    let commit = Commit {
        id: engine.commit_id(),
        scope: Scope::Task(task),
        guards: Vec::new(),
        writes: vec![(key.field(), Some(record.encode()))],
        first_event: 0,
        events: Vec::new(),
        indexes: entries.map(|(index, member)| IndexChange { index, member, add: true }).collect(),
        returns: Vec::new(),
    };
    assert!(engine.commit_raw(commit).await.unwrap());
}

#[tokio::test]
async fn a_scheduler_sends_what_a_process_that_died_had_promised() {
    let world = world();
    let engine = world.intake.engine.clone();
    promise_of_long_ago(&engine).await;
    let installation = Installation::open(&engine).await.unwrap();
    let url = world.dir.path().join("blobs").display().to_string();
    let blobs = Blobs::open(&url, &installation.id).await.unwrap();
    let settings = Settings {
        sweeps_every: Duration::from_millis(10),
        ..Settings::new(WorkerId::new("s1").unwrap())
    };
    let scheduler = Scheduler::new(engine, blobs, settings);
    let (gauges, ending) = (scheduler.gauges(), CancellationToken::new());
    let running = tokio::spawn(scheduler.run(ending.clone()));
    let sent = tokio::time::timeout(BOUND, world.broker.published.notified()).await;
    assert!(sent.is_ok(), "nothing was sent within {BOUND:?}");
    ending.cancel();
    running.await.unwrap();
    let ids: Vec<String> = world.replies().await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["reply/late"]);
    assert_eq!(gauges.outgoing_swept.load(Ordering::SeqCst), 1);
    assert!(world.outbox().await.is_empty());
}

#[tokio::test]
async fn what_an_erased_task_has_promised_goes_with_it() {
    let world = world();
    let engine = &world.intake.engine;
    world.away(true);
    assert!(is_promised(&world.intake.accept(&asking()).await.unwrap()));
    assert!(world.replies().await.is_empty());
    let task = TaskId::keyed(&Principal::new("user:ana").unwrap(), "m1");
    while engine.store().erase(&task, BATCH_MAX).await.unwrap() {}
    world.away(false);
    assert_eq!(world.sweep().await, Sent::default());
    assert!(world.outbox().await.is_empty());
    assert!(world.replies().await.is_empty());
}

/// Who owns the task that a message led to.
async fn owner_of(intake: &Intake, submitter: &str) -> Option<String> {
    let task = TaskId::keyed(&Principal::new(submitter).unwrap(), "m1");
    match intake.engine.read(&task, &[Key::Owner]).await.unwrap().remove(&Key::Owner)? {
        Some(Record::Owner(owner)) => Some(owner.owner.to_string()),
        _ => None,
    }
}

fn problem_of(answer: Answer) -> Problem {
    match direct(answer) {
        SubmitReply::Problem(problem) => problem,
        other => panic!("{other:?}"),
    }
}

fn who(text: &str) -> Principal {
    Principal::new(text).unwrap()
}

#[tokio::test]
async fn groups_and_ceilings_bound_what_comes_over_amqp() {
    let World { intake, dir: _dir, .. } = world();
    let ceiling = Ceiling {
        handlers: Some(["other".to_owned().try_into().unwrap()].into()),
        ..Ceiling::default()
    };
    let groups = [who("group:shop")].into();
    let base = Grant { groups, ..Grant::new(who("service:shop"), Role::Publisher) };
    let free = intake.tokens.grant(base.clone()).await.unwrap().secret;
    let taken = intake.accept(&delivery("group:shop", Some(&free))).await.unwrap();
    assert!(is_promised(&taken), "a member may name its group: {taken:?}");
    assert_eq!(owner_of(&intake, "service:shop").await.as_deref(), Some("group:shop"));
    let bound = intake.tokens.grant(Grant { ceiling, ..base.clone() }).await.unwrap().secret;
    let beyond = intake.accept(&delivery("user:boss", Some(&bound))).await.unwrap();
    let problem = problem_of(beyond);
    let places: Vec<&str> = problem.errors.iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!(problem.known(), Some(ProblemKind::Forbidden));
    assert_eq!(places, ["/owner", "/steps/0/uses"]);
    let no_publisher = Grant { roles: [Role::Participant].into(), ..base.clone() };
    let secret = intake.tokens.grant(no_publisher).await.unwrap().secret;
    let refused = intake.accept(&delivery("service:shop", Some(&secret))).await.unwrap();
    assert_eq!(problem_of(refused).known(), Some(ProblemKind::Forbidden));
    let brief = intake.tokens.grant(Grant { expires: Some(Span(1)), ..base }).await.unwrap();
    while intake.tokens.authenticate(&brief.secret).await.unwrap().is_some() {
        intake.engine.store().now().await.unwrap();
        tokio::task::yield_now().await;
    }
    let expired = intake.accept(&delivery("service:shop", Some(&brief.secret))).await.unwrap();
    let expired = problem_of(expired);
    assert_eq!(expired.known(), Some(ProblemKind::Unauthorized));
    assert!(expired.detail.contains("expired"), "{expired}");
}

#[tokio::test]
async fn a_user_of_the_broker_is_whom_it_was_granted_to_be() {
    let World { mut intake, dir: _dir, .. } = world();
    intake.ungranted = None;
    let nobody = problem_of(intake.accept(&delivery("user:ana", None)).await.unwrap());
    assert_eq!(nobody.known(), Some(ProblemKind::Unauthorized));
    assert!(nobody.detail.contains("--amqp-user ana"), "{nobody}");
    let shop = Grant::new(who("service:shop"), Role::Publisher);
    assert!(intake.tokens.grant_amqp("ana", shop.clone()).await.unwrap().is_some());
    assert_eq!(intake.tokens.grant_amqp("ana", shop).await.unwrap(), None, "it is said already");
    let taken = intake.accept(&delivery("service:shop", None)).await.unwrap();
    assert!(is_promised(&taken), "{taken:?}");
    assert_eq!(owner_of(&intake, "service:shop").await.as_deref(), Some("service:shop"));
    let listed = intake.tokens.list().await.unwrap();
    assert_eq!(listed[0].amqp_user(), Some("ana"));
    assert!(intake.tokens.revoke(&listed[0].id).await.unwrap());
    let gone = Delivery { message_id: Some("m2".to_owned()), ..delivery("service:shop", None) };
    let gone = problem_of(intake.accept(&gone).await.unwrap());
    assert_eq!(gone.known(), Some(ProblemKind::Unauthorized));
}

/// Rejects a message and gives it as an operator, `user:op`, sends it again.
async fn sent_again(world: &World, message: &Delivery) -> Delivery {
    let reply = direct(world.intake.accept(message).await.unwrap());
    world.intake.finish(message, &reply, &mut false).await.unwrap();
    let rejected = world.broker.inner.take_rejected().pop().expect("it was rejected");
    let added = [PROBLEM_HEADER, REJECTED_AT_HEADER, ROUTING_KEY_HEADER];
    let kept = |(name, _): &(String, String)| !added.contains(&&**name);
    let headers: Vec<_> = rejected.headers.into_iter().filter(kept).collect();
    assert!(!headers.iter().any(|(name, _)| name == TOKEN_HEADER), "a token is never kept");
    Delivery {
        body: rejected.body,
        message_id: Some(rejected.message_id),
        user_id: Some("op".to_owned()),
        headers,
        ..delivery("user:ana", None)
    }
}

/// Lets `echo` be unknown at first, so that a good plan is rejected.
struct Nothing;

impl Handlers for Nothing {
    fn check(&self, _: &str, _: &Value) -> Option<Vec<(String, String)>> {
        None
    }

    fn effect_class(&self, _: &str, _: &Value) -> Result<EffectClass, String> {
        Ok(EffectClass::None)
    }
}

#[tokio::test]
async fn a_message_that_is_sent_again_keeps_its_sender() {
    let mut world = world();
    world.intake.handlers = Arc::new(Nothing);
    let shop = world.intake.tokens.grant(Grant::new(who("service:shop"), Role::Publisher)).await;
    let shop = shop.unwrap();
    let by_token = sent_again(&world, &delivery("service:shop", Some(&shop.secret))).await;
    let by_user = sent_again(&world, &delivery("user:ana", None)).await;
    world.intake.handlers = Arc::new(Echo);
    for (message, sender) in [(&by_token, "service:shop"), (&by_user, "user:ana")] {
        let taken = world.intake.accept(message).await.unwrap();
        assert!(is_promised(&taken), "{taken:?}");
        assert_eq!(owner_of(&world.intake, sender).await.as_deref(), Some(sender));
    }
    assert_eq!(owner_of(&world.intake, "user:op").await, None);
    let forged = Delivery { message_id: Some("m2".to_owned()), ..by_user };
    let forged = problem_of(world.intake.accept(&forged).await.unwrap());
    assert_eq!(forged.known(), Some(ProblemKind::Unauthorized), "a seal is of one message");
    assert!(world.intake.tokens.revoke(&shop.id).await.unwrap());
    let late = problem_of(world.intake.accept(&by_token).await.unwrap());
    assert_eq!(late.known(), Some(ProblemKind::Unauthorized), "the rights are those of now");
}

#[tokio::test]
async fn a_message_of_nobody_has_no_seal() {
    let world = world();
    let message = Delivery { user_id: None, ..delivery("user:ana", None) };
    let again = sent_again(&world, &message).await;
    assert_eq!(again.headers, []);
    assert_eq!(world.intake.tokens.refusals().counts().read().get("token"), Some(&1));
}
