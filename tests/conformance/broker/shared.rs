//! What every broker promises.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use standfast_engine::ports::{BrokerError, Destination, Source};
use tokio::time::timeout;

use crate::rig::{
    BOUND, Rig, id_of_next, message, next, nothing_comes, publish_one, steps, take, until, work,
};

fn source() -> Source {
    Source::Steps(work())
}

pub async fn what_is_published_arrives_whole(rig: &Rig) {
    rig.broker().declare(&work()).await.unwrap();
    let mut sent = message(Destination::Steps(work()), "m1");
    sent.correlation_id = Some("c1".to_owned());
    sent.headers = vec![("traceparent".to_owned(), "00-ab-cd-01".to_owned())];
    rig.publish(vec![sent.clone()]).await;
    let mut subscription = rig.subscribe(source(), 1).await;
    let delivery = next(&mut subscription).await;
    assert_eq!(delivery.message_id.as_deref(), Some("m1"));
    assert_eq!(delivery.correlation_id.as_deref(), Some("c1"));
    assert_eq!(delivery.headers, sent.headers);
    assert_eq!(delivery.body, sent.body);
    assert!(delivery.routing_key.ends_with(".steps.work"), "{}", delivery.routing_key);
    assert!(delivery.acker.ack().await);
}

pub async fn one_consumer_sees_a_queue_in_order(rig: &Rig) {
    rig.broker().declare(&work()).await.unwrap();
    rig.publish(steps(0..2_000)).await;
    let mut subscription = rig.subscribe(source(), 50).await;
    let expected: Vec<String> = (0..2_000).map(|number| format!("m{number}")).collect();
    assert_eq!(take(&mut subscription, 2_000).await, expected);
}

pub async fn no_more_than_the_prefetch_is_under_way(rig: &Rig) {
    let mut subscription = rig.subscribe(source(), 2).await;
    rig.publish(steps(0..4)).await;
    let (_, first) = id_of_next(&mut subscription).await;
    let (_, second) = id_of_next(&mut subscription).await;
    nothing_comes(&mut subscription).await;
    assert!(first.acker.ack().await);
    let (id, third) = id_of_next(&mut subscription).await;
    assert_eq!(id, "m2");
    nothing_comes(&mut subscription).await;
    assert!(second.acker.ack().await);
    assert!(third.acker.ack().await);
    assert_eq!(take(&mut subscription, 1).await, ["m3"]);
}

pub async fn deliveries_may_be_ended_in_any_order(rig: &Rig) {
    let mut subscription = rig.subscribe(source(), 8).await;
    rig.publish(steps(0..16)).await;
    for order in [[1, 0, 3, 5, 2, 4, 7, 6], [7, 3, 0, 2, 1, 6, 4, 5]] {
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(Some(next(&mut subscription).await.acker));
        }
        for place in order {
            let acker = held[place].take().unwrap();
            // One of them dies; the others are acked around it.
            assert!(if place == 3 { acker.dead_letter().await } else { acker.ack().await });
        }
    }
    rig.publish(steps(16..17)).await;
    assert_eq!(take(&mut subscription, 1).await, ["m16"], "nothing came a second time");
}

pub async fn closing_hands_back_what_is_not_acknowledged(rig: &Rig) {
    let mut first = rig.subscribe(source(), 3).await;
    rig.publish(steps(0..3)).await;
    let (_, held) = id_of_next(&mut first).await;
    let (_, also_held) = id_of_next(&mut first).await;
    first.close().await;
    assert!(!held.acker.ack().await, "an acknowledgement after the end does not count");
    assert!(!also_held.acker.dead_letter().await, "nor does a dead letter");
    let mut second = rig.subscribe(source(), 3).await;
    assert_eq!(take(&mut second, 3).await, ["m0", "m1", "m2"]);
}

pub async fn dropping_hands_back_what_is_not_acknowledged(rig: &Rig) {
    let mut first = rig.subscribe(source(), 3).await;
    rig.publish(steps(0..3)).await;
    let _held = next(&mut first).await;
    drop(first);
    let mut second = rig.subscribe(source(), 3).await;
    assert_eq!(take(&mut second, 3).await, ["m0", "m1", "m2"]);
}

pub async fn one_that_ceases_gives_back_what_it_has_not_given_and_can_end_the_rest(rig: &Rig) {
    let mut first = rig.subscribe(source(), 3).await;
    rig.publish(steps(0..4)).await;
    let (_, held) = id_of_next(&mut first).await;
    let given_back = first.cease().await;
    assert!(given_back <= 2, "{given_back} of the two that it may have had");
    assert!(!first.subscribed());
    assert!(timeout(BOUND, first.next()).await.expect("an end in time").is_none());
    let mut second = rig.subscribe(source(), 10).await;
    let mut others = take(&mut second, 3).await;
    others.sort();
    assert_eq!(others, ["m1", "m2", "m3"]);
    assert!(held.acker.ack().await, "what it has given can still be ended");
    first.close().await;
    nothing_comes(&mut second).await;
    let broker = rig.broker();
    until("one consumer", BOUND, || async { broker.depth(&work()).await.unwrap().consumers == 1 })
        .await;
}

pub async fn a_dead_letter_goes_to_the_dead_steps(rig: &Rig) {
    let mut subscription = rig.subscribe(source(), 1).await;
    let mut dead = rig.subscribe(Source::DeadSteps, 1).await;
    rig.publish(steps(0..2)).await;
    assert!(next(&mut subscription).await.acker.dead_letter().await);
    let (id, delivery) = id_of_next(&mut dead).await;
    assert_eq!(id, "m0");
    let header = |name: &str| {
        delivery.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    };
    assert_eq!(header("x-first-death-reason"), Some("rejected"));
    assert!(header("x-first-death-queue").unwrap().ends_with(".steps.work"));
    assert!(delivery.acker.ack().await);
    assert_eq!(take(&mut subscription, 1).await, ["m1"]);
}

pub async fn depth_counts_messages_and_consumers(rig: &Rig) {
    let broker = rig.broker();
    let empty = broker.depth(&work()).await.unwrap();
    assert_eq!((empty.ready, empty.consumers), (0, 0), "a queue nobody declared");
    broker.declare(&work()).await.unwrap();
    broker.declare(&work()).await.unwrap();
    rig.publish(steps(0..3)).await;
    until("three messages are ready", BOUND, || async {
        broker.depth(&work()).await.unwrap().ready == 3
    })
    .await;
    let mut subscription = rig.subscribe(source(), 10).await;
    until("one consumer", BOUND, || async { broker.depth(&work()).await.unwrap().consumers == 1 })
        .await;
    take(&mut subscription, 3).await;
    until("nothing is left", BOUND, || async { broker.depth(&work()).await.unwrap().ready == 0 })
        .await;
    subscription.close().await;
    until("no consumer", BOUND, || async { broker.depth(&work()).await.unwrap().consumers == 0 })
        .await;
}

pub async fn competing_consumers_share_without_overlap(rig: &Rig) {
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(rig.subscribe(source(), 1).await);
    }
    rig.publish(steps(0..3)).await;
    let held = join_all(consumers.iter_mut().map(id_of_next)).await;
    let ids: BTreeSet<&str> = held.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, BTreeSet::from(["m0", "m1", "m2"]), "one each");
    for (_, delivery) in held {
        assert!(delivery.acker.ack().await);
    }
}

pub async fn a_reply_needs_a_queue(rig: &Rig) {
    let reply = |name: &str| message(Destination::Reply(name.to_owned()), "r1");
    let broker = rig.broker();
    let refused = publish_one(broker, reply("standfast-nobody-reads-this"), BOUND).await;
    assert!(matches!(refused, Err(BrokerError::Refused(_))), "{refused:?}");
    let name = rig.open_reply().await;
    publish_one(broker, reply(&name), BOUND).await.unwrap();
}

pub async fn a_thousand_publishers_at_once_are_all_confirmed(rig: &Rig) {
    let broker = rig.broker();
    broker.declare(&work()).await.unwrap();
    let calls = steps(0..1_000).into_iter().map(|message| publish_one(broker, message, BOUND));
    let answers = join_all(calls).await;
    assert!(answers.iter().all(Result::is_ok), "{:?}", answers.iter().find(|a| a.is_err()));
    let mut subscription = rig.subscribe(source(), 100).await;
    let ids: BTreeSet<String> = take(&mut subscription, 1_000).await.into_iter().collect();
    assert_eq!(ids.len(), 1_000);
}

pub async fn names_of_255_bytes_pass_and_256_are_refused(rig: &Rig) {
    let broker = rig.broker();
    broker.declare(&work()).await.unwrap();
    let long = "é".repeat(127) + "a";
    let mut whole = message(Destination::Steps(work()), long.clone());
    whole.correlation_id = Some(long.clone());
    whole.headers = vec![(long.clone(), "x".repeat(1_000))];
    publish_one(broker, whole.clone(), BOUND).await.unwrap();
    let mut subscription = rig.subscribe(source(), 1).await;
    let delivery = next(&mut subscription).await;
    assert_eq!(delivery.message_id.as_deref(), Some(long.as_str()));
    assert_eq!(delivery.headers, whole.headers);
    assert!(delivery.acker.ack().await);

    let longer = "é".repeat(128);
    let mut faults = vec![whole.clone(); 4];
    faults[0].message_id.clone_from(&longer);
    faults[1].correlation_id = Some(longer.clone());
    faults[2].headers[0].0.clone_from(&longer);
    faults[3].destination = Destination::Reply(longer);
    faults.push(message(Destination::Steps(work()), "good"));
    let answers = broker.publish(faults, BOUND).await;
    for answer in &answers[..4] {
        let refused = matches!(answer, Err(BrokerError::Refused(text)) if text.contains("256"));
        assert!(refused, "{answer:?}");
    }
    assert_eq!(answers[4], Ok(()), "a good message beside refused ones goes through");
    assert_eq!(take(&mut subscription, 1).await, ["good"]);
}

pub async fn a_cancelled_wait_loses_nothing(rig: &Rig) {
    let mut subscription = rig.subscribe(source(), 10).await;
    for number in 0..20 {
        assert!(timeout(Duration::from_millis(1), subscription.next()).await.is_err());
        rig.publish(steps(number..number + 1)).await;
        assert_eq!(take(&mut subscription, 1).await, [format!("m{number}")]);
    }
}

pub async fn a_closed_subscription_ends(rig: &Rig) {
    let mut subscription = rig.subscribe(source(), 1).await;
    rig.publish(steps(0..1)).await;
    subscription.close().await;
    assert!(!subscription.subscribed());
    let end = timeout(BOUND, subscription.next()).await.expect("an end in time");
    assert!(end.is_none(), "nothing comes after the end");
}

fn control(listener: &str) -> Source {
    Source::Control { listener: listener.to_owned() }
}

fn word(number: usize) -> Bytes {
    Bytes::from(format!(r#"{{"task":"t{number}"}}"#))
}

pub async fn what_is_told_reaches_all_who_listen(rig: &Rig) {
    let mut first = rig.subscribe(control("w-1"), 10).await;
    let mut second = rig.subscribe(control("w-2"), 10).await;
    let mut steps_of_work = rig.subscribe(source(), 10).await;
    for number in 0..3 {
        rig.broker().tell(word(number));
    }
    for listener in [&mut first, &mut second] {
        for number in 0..3 {
            let delivery = next(listener).await;
            assert_eq!(delivery.body, word(number));
            assert!(delivery.acker.ack().await);
        }
        nothing_comes(listener).await;
    }
    nothing_comes(&mut steps_of_work).await;
}

pub async fn who_does_not_listen_any_more_costs_nothing(rig: &Rig) {
    let mut first = rig.subscribe(control("w-1"), 1).await;
    let mut second = rig.subscribe(control("w-2"), 1).await;
    first.close().await;
    rig.broker().tell(word(1));
    let delivery = next(&mut second).await;
    assert_eq!(delivery.body, word(1));
    let mut first = rig.subscribe(control("w-1"), 1).await;
    nothing_comes(&mut first).await;
    rig.broker().tell(word(2));
    assert_eq!(next(&mut first).await.body, word(2));
    drop(delivery);
}

pub async fn a_flood_of_words_ends_and_the_newest_is_heard(rig: &Rig) {
    let mut listener = rig.subscribe(control("w-1"), 100).await;
    let mut slow = rig.subscribe(control("w-2"), 1).await;
    for number in 0..30_000 {
        rig.broker().tell(word(number));
    }
    // Some of the flood was dropped on its way; what is said after it is not.
    let heard_last = async {
        loop {
            rig.broker().tell(word(99_999));
            for _ in 0..1_000 {
                let Ok(delivery) = timeout(Duration::from_millis(200), listener.next()).await
                else {
                    break;
                };
                let delivery = delivery.unwrap();
                let last = delivery.body == word(99_999);
                assert!(delivery.acker.ack().await);
                if last {
                    return;
                }
            }
        }
    };
    timeout(Duration::from_secs(60), heard_last).await.expect("the newest is heard");
    let held = next(&mut slow).await; // one that reads nothing keeps nobody else waiting
    assert!(held.acker.ack().await);
    rig.publish(steps(0..10)).await;
}

pub async fn health_is_connected_and_without_fault(rig: &Rig) {
    let health = rig.broker().health().await;
    assert!(health.connected && health.blocked.is_none(), "{health:?}");
    assert_eq!(health.faults, Vec::<String>::new());
    if let Rig::Rabbit(_) = rig {
        let version = health.product.strip_prefix("RabbitMQ ").unwrap_or_default();
        assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{}", health.product);
    }
}
