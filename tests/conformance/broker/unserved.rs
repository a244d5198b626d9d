//! Quorum queues that the broker can no longer serve: step queues are declared anew, all others
//! are left to a person, and neither costs the others their connection again and again.

use std::time::Duration;

use standfast_brokers::rabbitmq::RabbitBroker;
use standfast_engine::ports::{Broker, BrokerError, Destination, Source, Subscription};
use standfast_tests::private_rabbit::PrivateRabbit;

use crate::rig::{
    BOUND, Rabbit, connect, id_of_next, message, other, publish_one, take, until, work,
};

/// Refusals over ten seconds, with pauses that grow to ten.
const RENEWED: Duration = Duration::from_secs(60);
/// Three silences of twenty seconds, and a deletion that the server does not answer.
const RENEWED_FROM_SILENCE: Duration = Duration::from_secs(110);

async fn subscribe(broker: &RabbitBroker, source: Source) -> Box<dyn Subscription> {
    broker.subscribe(source, 5).await.unwrap()
}

async fn faults(broker: &RabbitBroker) -> String {
    broker.health().await.faults.join("\n")
}

/// Publishes one message and takes it through one of two subscriptions to the queue `work`.
async fn passes(rabbit: &Rabbit, subscriptions: &mut [Box<dyn Subscription>; 2], id: &str) {
    let published = publish_one(&rabbit.broker, message(Destination::Steps(work()), id), BOUND);
    published.await.unwrap();
    let [one, two] = subscriptions;
    let (found, delivery) = tokio::select! {
        found = id_of_next(one) => found,
        found = id_of_next(two) => found,
    };
    assert_eq!(found, id);
    assert!(delivery.acker.ack().await);
}

/// Two processes take from a queue whose server is lost, and from one that is well. The lost one
/// is declared anew, the other keeps its consumers meanwhile, and a restart of the broker, which
/// RabbitMQ 3.10 remembers the lost server over, brings the fault not back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_queue_without_its_server_is_declared_anew_beside_one_that_is_well() {
    let node = PrivateRabbit::start(&[]).await;
    let rabbit = Rabbit::at(&node.url()).await;
    let second = connect(&rabbit.url, &rabbit.prefix).await;
    let well = subscribe(&rabbit.broker, Source::Steps(other())).await;
    let mut lost = [
        subscribe(&rabbit.broker, Source::Steps(work())).await,
        subscribe(&second, Source::Steps(work())).await,
    ];
    passes(&rabbit, &mut lost, "before").await;
    node.lose_servers(&[&rabbit.steps(&work())]).await;
    let name = rabbit.steps(&work());
    until("health names the queue and the fault", RENEWED, || async {
        let faults = faults(&rabbit.broker).await;
        faults.contains(&name) && faults.contains("INTERNAL_ERROR") && faults.contains("anew")
    })
    .await;
    let reconnections = rabbit.broker.counters().reconnections;
    until("all are subscribed", RENEWED, || async {
        well.subscribed() && lost.iter().all(|subscription| subscription.subscribed())
    })
    .await;
    let done = || rabbit.broker.counters().renewals + second.counters().renewals;
    assert!((1..=2).contains(&done()), "declared anew by whoever notices: {}", done());
    // The first refusal may be noticed before the connection that it cost is made again, and
    // that for publishing may come back later than the other.
    let more = rabbit.broker.counters().reconnections - reconnections;
    assert!(more <= 2, "the others kept their connection: {more} more");
    passes(&rabbit, &mut lost, "after").await;
    assert_eq!(faults(&rabbit.broker).await, "");

    let before = (done(), rabbit.broker.counters().resubscriptions);
    node.control(&["stop_app"]).await;
    node.control(&["start_app"]).await;
    until("all are subscribed after a restart", RENEWED, || async {
        let again = rabbit.broker.counters().resubscriptions >= before.1 + 2;
        again && lost.iter().all(|subscription| subscription.subscribed())
    })
    .await;
    assert_eq!(done(), before.0, "it is well for good");
    passes(&rabbit, &mut lost, "restarted").await;
}

/// The server is there and says nothing; that is told from a broker that says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_queue_whose_server_hangs_is_declared_anew() {
    let node = PrivateRabbit::start(&[]).await;
    let rabbit = Rabbit::at(&node.url()).await;
    let mut subscription = subscribe(&rabbit.broker, Source::Steps(work())).await;
    node.hang_server(&rabbit.steps(&work())).await;
    node.control(&["close_all_connections", "drill"]).await;
    until("the loss is noticed", BOUND, || async { !subscription.subscribed() }).await;
    let message = || message(Destination::Steps(work()), "m");
    let unanswered = publish_one(&rabbit.broker, message(), Duration::from_secs(2)).await;
    assert!(matches!(unanswered, Err(BrokerError::Unavailable(_))), "{unanswered:?}");
    until("subscribed again", RENEWED_FROM_SILENCE, || async { subscription.subscribed() }).await;
    assert_eq!(rabbit.broker.counters().renewals, 1);
    publish_one(&rabbit.broker, message(), BOUND).await.unwrap();
    assert_eq!(take(&mut subscription, 1).await, ["m"]);
}

/// What people sent may be in the intake: it is not touched before a person says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intake_without_its_server_is_named_and_left_to_a_person() {
    let node = PrivateRabbit::start(&[]).await;
    let rabbit = Rabbit::at(&node.url()).await;
    let intake = subscribe(&rabbit.broker, Source::Intake).await;
    let steps = subscribe(&rabbit.broker, Source::Steps(work())).await;
    let name = rabbit.broker.settings().names().intake();
    // Both at once: as soon as the step queue is given up, so would the intake be.
    node.lose_servers(&[&name, &rabbit.steps(&work())]).await;
    until("the step queue is declared anew", RENEWED, || async { steps.subscribed() }).await;
    let command = format!("rabbitmqctl delete_queue {name}");
    until("health says what to run", BOUND, || async {
        faults(&rabbit.broker).await.contains(&command)
    })
    .await;
    assert!(!intake.subscribed());
    assert_eq!(rabbit.broker.counters().renewals, 1, "of the step queue alone");
    node.control(&["delete_queue", &name]).await;
    until("the intake is declared and consumed", RENEWED, || async { intake.subscribed() }).await;
    assert_eq!(faults(&rabbit.broker).await, "");
}
