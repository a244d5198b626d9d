//! What RabbitMQ goes through, on a node of the tests' own.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use standfast_engine::ports::{Broker, BrokerError, Destination, Source, Subscription};
use standfast_tests::private_rabbit::PrivateRabbit;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

use crate::rig::{BOUND, Rabbit, id_of_next, message, next, publish_one, steps, take, until, work};

/// Within this, everything works again once the broker is back.
const HEALED: Duration = Duration::from_secs(60);

static NODE: Mutex<Option<PrivateRabbit>> = Mutex::const_new(None);

/// Lends the node to one test, started and answering. It is made by the first that needs it and
/// serves all of them, one at a time, since each does it harm.
async fn node() -> MutexGuard<'static, Option<PrivateRabbit>> {
    let mut node = NODE.lock().await;
    match &*node {
        None => *node = Some(PrivateRabbit::start(&[]).await),
        Some(node) if !node.answers().await => node.boot().await,
        Some(_) => {}
    }
    node
}

/// Runs a case with the private node, which no other case has meanwhile, and a prefix.
macro_rules! case {
    ($name:ident, |$rabbit:ident, $node:ident| $body:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let guard = node().await;
            let $node: &PrivateRabbit = guard.as_ref().unwrap();
            let $rabbit = Rabbit::at(&$node.url()).await;
            $body
        }
    };
}

async fn subscribe(rabbit: &Rabbit, prefetch: u16) -> Box<dyn Subscription> {
    rabbit.broker.subscribe(Source::Steps(work()), prefetch).await.unwrap()
}

/// Publishes, with the same id each time, until the broker takes it.
async fn publish_until_taken(rabbit: &Rabbit, number: usize) {
    until("the broker takes messages again", HEALED, || async {
        let message = steps(number..number + 1).remove(0);
        publish_one(&rabbit.broker, message, Duration::from_secs(2)).await.is_ok()
    })
    .await;
}

/// Takes deliveries until `id` comes; earlier ones are repeats of earlier messages.
async fn take_until(subscription: &mut Box<dyn Subscription>, id: &str) {
    let deadline = Instant::now() + HEALED;
    loop {
        assert!(Instant::now() < deadline, "`{id}` comes in time");
        let (found, delivery) = id_of_next(subscription).await;
        delivery.acker.ack().await;
        if found == id {
            return;
        }
    }
}

case!(a_stopped_and_started_broker_gets_its_consumers_back, |rabbit, node| {
    let mut subscription = subscribe(&rabbit, 5).await;
    node.control(&["stop_app"]).await;
    until("the loss is noticed", BOUND, || async { !subscription.subscribed() }).await;
    let refused = publish_one(&rabbit.broker, steps(0..1).remove(0), Duration::from_secs(1)).await;
    assert!(matches!(refused, Err(BrokerError::Unavailable(_))), "{refused:?}");
    let health = rabbit.broker.health().await;
    assert!(!health.connected && !health.faults.is_empty(), "{health:?}");
    node.control(&["start_app"]).await;
    until("subscribed again", HEALED, || async { subscription.subscribed() }).await;
    publish_until_taken(&rabbit, 1).await;
    take_until(&mut subscription, "m1").await;
    let counters = rabbit.broker.counters();
    assert!(counters.resubscriptions >= 1 && counters.reconnections >= 2, "{counters:?}");
    assert_eq!(rabbit.broker.health().await.faults, Vec::<String>::new());
});

case!(connections_closed_over_and_over_come_back, |rabbit, node| {
    let mut subscription = subscribe(&rabbit, 5).await;
    for number in 0..4 {
        node.control(&["close_all_connections", "drill"]).await;
        publish_until_taken(&rabbit, number).await;
        take_until(&mut subscription, &format!("m{number}")).await;
    }
    until("subscribed at the end", HEALED, || async { subscription.subscribed() }).await;
    let consumers = || async { rabbit.broker.depth(&work()).await.is_ok_and(|d| d.consumers == 1) };
    until("exactly one consumer is left", HEALED, consumers).await;
});

case!(a_listener_that_was_cut_off_is_told_to_look_and_hears_again, |rabbit, node| {
    let source = Source::Control { listener: "w-1".to_owned() };
    let mut listener = rabbit.broker.subscribe(source, 10).await.unwrap();
    for round in 0..3 {
        node.control(&["close_all_connections", "drill"]).await;
        // Words until one comes back: those that are said meanwhile are lost, and may be.
        let (word, deadline) = (Bytes::from(format!("{round}")), Instant::now() + HEALED);
        let mut heard: Vec<Bytes> = Vec::new();
        while heard.last() != Some(&word) {
            assert!(Instant::now() < deadline, "the word is heard again: {heard:?}");
            rabbit.broker.tell(word.clone());
            let next = timeout(Duration::from_millis(200), listener.next()).await;
            if let Ok(Some(delivery)) = next {
                delivery.acker.ack().await;
                heard.push(delivery.body);
            }
        }
        let looked = heard.iter().position(Bytes::is_empty);
        assert!(looked.is_some_and(|at| at + 1 < heard.len()), "told to look first: {heard:?}");
    }
    assert_eq!(rabbit.broker.health().await.faults, Vec::<String>::new());
});

case!(a_killed_broker_keeps_what_it_confirmed, |rabbit, node| {
    publish_until_taken(&rabbit, 50).await;
    // The broker writes its directory of queues with a delay: a queue is safe from a kill once
    // its node has been stopped in order. What is tried here is the messages.
    node.control(&["stop_app"]).await;
    node.control(&["start_app"]).await;
    publish_until_taken(&rabbit, 50).await;
    for answer in rabbit.broker.publish(steps(0..50), BOUND).await {
        answer.unwrap();
    }
    let mut subscription = subscribe(&rabbit, 10).await;
    let (_, held) = id_of_next(&mut subscription).await;
    let ready = || async { rabbit.broker.depth(&work()).await.unwrap().ready >= 40 };
    until("the queue holds the messages", BOUND, ready).await;
    node.signal("-9");
    until("the loss is noticed", BOUND, || async { !subscription.subscribed() }).await;
    assert!(!held.acker.ack().await, "an acknowledgement to a dead broker does not count");
    node.boot().await;
    until("subscribed again", HEALED, || async { subscription.subscribed() }).await;
    let mut missing: BTreeSet<String> = (0..50).map(|number| format!("m{number}")).collect();
    while !missing.is_empty() {
        missing.remove(&take(&mut subscription, 1).await[0]);
    }
});

case!(a_deleted_queue_is_declared_and_consumed_again, |rabbit, node| {
    let mut subscription = subscribe(&rabbit, 5).await;
    let before = rabbit.broker.counters().resubscriptions;
    node.control(&["delete_queue", &rabbit.steps(&work())]).await;
    until("subscribed again", Duration::from_secs(10), || async {
        subscription.subscribed() && rabbit.broker.counters().resubscriptions > before
    })
    .await;
    publish_until_taken(&rabbit, 0).await;
    take_until(&mut subscription, "m0").await;
    // The same arguments as ever: a declaration with ours passes.
    rabbit.broker.declare(&work()).await.unwrap();
});

case!(a_queue_deleted_over_and_over_is_not_declared_just_as_often, |rabbit, _node| {
    let subscription = subscribe(&rabbit, 5).await;
    let (raw, name) = (rabbit.raw().await, rabbit.steps(&work()));
    let began = Instant::now();
    let mut deleted = 0;
    while began.elapsed() < Duration::from_secs(4) {
        until("subscribed", HEALED, || async { subscription.subscribed() }).await;
        raw.delete_queue(&name).await;
        until("the loss is noticed", BOUND, || async { !subscription.subscribed() }).await;
        deleted += 1;
    }
    // The pauses grow from a tenth of a second, so few of them fit.
    assert!(deleted <= 8, "declared {deleted} times in {:?}", began.elapsed());
    until("subscribed at the end", HEALED, || async { subscription.subscribed() }).await;
});

case!(a_late_acknowledgement_does_not_count, |rabbit, node| {
    let mut subscription = subscribe(&rabbit, 1).await;
    publish_until_taken(&rabbit, 0).await;
    let late = next(&mut subscription).await;
    node.control(&["close_all_connections", "drill"]).await;
    until("the loss is noticed", BOUND, || async { rabbit.broker.counters().resubscriptions >= 1 })
        .await;
    assert!(!late.acker.ack().await, "the channel of that delivery is gone");
    assert_eq!(take(&mut subscription, 1).await, ["m0"], "and so it comes again");
    assert_eq!(rabbit.broker.counters().acks_lost, 1);
});

case!(an_alarm_bounds_publishing_and_lets_acknowledgements_through, |rabbit, node| {
    let mut subscription = subscribe(&rabbit, 1).await;
    publish_until_taken(&rabbit, 0).await;
    let held = next(&mut subscription).await;
    node.control(&["set_vm_memory_high_watermark", "0.00001"]).await;
    let bound = Duration::from_secs(1);
    let begun = Instant::now();
    let blocked = message(Destination::Steps(work()), "blocked");
    until("the alarm holds publishers", BOUND, || async {
        publish_one(&rabbit.broker, blocked.clone(), bound).await.is_err()
    })
    .await;
    until("health names the alarm", BOUND, || async {
        let health = rabbit.broker.health().await;
        health.blocked.is_some() && !health.connected
    })
    .await;
    for _ in 0..3 {
        let begun = Instant::now();
        let answer = publish_one(&rabbit.broker, blocked.clone(), bound).await;
        assert!(matches!(answer, Err(BrokerError::Unavailable(_))), "{answer:?}");
        assert!(begun.elapsed() < bound * 2, "took {:?}", begun.elapsed());
    }
    let acked = Instant::now();
    assert!(held.acker.ack().await, "acknowledgements have their own connection");
    assert!(acked.elapsed() < Duration::from_secs(5) && begun.elapsed() < HEALED);
    node.control(&["set_vm_memory_high_watermark", "0.4"]).await;
    publish_until_taken(&rabbit, 1).await;
    take_until(&mut subscription, "m1").await;
    assert_eq!(rabbit.broker.health().await.blocked, None);
});

case!(a_frozen_broker_holds_nobody_beyond_the_bound, |rabbit, node| {
    let mut subscription = subscribe(&rabbit, 1).await;
    publish_until_taken(&rabbit, 0).await;
    take_until(&mut subscription, "m0").await;
    node.signal("-STOP");
    let bound = Duration::from_secs(2);
    let begun = Instant::now();
    let answers = rabbit.broker.publish(steps(1..200), bound).await;
    let took = begun.elapsed();
    node.signal("-CONT");
    assert!(took < bound + Duration::from_secs(1), "took {took:?}");
    let lost =
        |answer: &Result<(), BrokerError>| matches!(answer, Err(BrokerError::Unavailable(_)));
    assert!(answers.iter().all(lost), "{:?}", answers.iter().find(|answer| !lost(answer)));
    publish_until_taken(&rabbit, 200).await;
    take_until(&mut subscription, "m200").await;
});
