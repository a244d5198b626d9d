//! What RabbitMQ promises beyond the port: its topology, its returns, the rejected queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use standfast_brokers::rabbitmq::{
    Pass, Pick, REASON_HEADER, ROUTING_KEY_HEADER, RabbitBroker, RabbitSettings, RejectedMessage,
    SENDER_HEADER,
};
use standfast_engine::ports::{Broker, BrokerError, Destination, Message, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::rig::{
    BOUND, Rabbit, Raw, Rig, connect, id_of_next, message, other, publish_one, run, steps, take,
    until, url, work,
};

macro_rules! case {
    ($name:ident, |$rabbit:ident| $body:block) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let rig = Rig::rabbit().await;
            let Rig::Rabbit($rabbit) = &rig else { unreachable!("it was made so") };
            run(&rig, async { $body }).await;
        }
    };
}

case!(a_queue_with_other_arguments_is_named_and_left_alone, |rabbit| {
    let raw = rabbit.raw().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(5_000));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let name = rabbit.steps(&work());
    raw.channel.queue_declare(name.as_str().into(), options, arguments.clone()).await.unwrap();
    // Which of two differences is named depends on the broker's version.
    let expected = [("x-message-ttl", "none", "5000"), ("x-queue-type", "quorum", "classic")].map(
        |(argument, wanted, found)| {
            BrokerError::Topology(format!(
                "the queue `{name}` exists with another `{argument}`: wanted {wanted}, found \
                 {found}; delete it when it is empty, or set another prefix"
            ))
        },
    );
    let declared = rabbit.broker.declare(&work()).await.unwrap_err();
    assert!(expected.contains(&declared), "{declared}");
    let subscribed = rabbit.broker.subscribe(Source::Steps(work()), 1).await.err();
    assert_eq!(subscribed, Some(declared));
    // It stands as before, and the others work.
    raw.channel.queue_declare(name.as_str().into(), options, arguments).await.unwrap();
    rabbit.broker.declare(&other()).await.unwrap();
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_over_a_foreign_exchange_fails_with_its_name() {
    let rabbit = Rabbit::at(&url()).await;
    let foreign = format!("{}-f", rabbit.prefix);
    let raw = rabbit.raw().await;
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let kind = ExchangeKind::Topic;
    let name = foreign.as_str();
    raw.channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await.unwrap();
    let settings = RabbitSettings::parse(&url()).unwrap().with_prefix(name).unwrap();
    let fault = RabbitBroker::connect(settings, Some(BOUND)).await.err();
    raw.channel.exchange_delete(name.into(), Default::default()).await.unwrap();
    rabbit.clean().await;
    let Some(BrokerError::Topology(text)) = fault else { panic!("{fault:?}") };
    let start =
        format!("the exchange `{name}` exists with another `type`: wanted direct, found topic");
    assert!(text.starts_with(&start), "{text}");
}

case!(two_thousand_interleaved_messages_are_never_swapped, |rabbit| {
    rabbit.broker.declare(&work()).await.unwrap();
    let gone = Destination::Reply(format!("{}.gone", rabbit.prefix));
    let messages: Vec<Message> = (0..2_000)
        .map(|number| match number % 2 {
            0 => message(Destination::Steps(work()), format!("m{number}")),
            _ => message(gone.clone(), format!("m{number}")),
        })
        .collect();
    let check = |number: usize, answer: &Result<(), BrokerError>| match number % 2 {
        0 => assert_eq!(answer, &Ok(()), "message {number} has a queue"),
        _ => assert!(matches!(answer, Err(BrokerError::Refused(_))), "{number}: {answer:?}"),
    };
    // In one call, and each by a call of its own at the same time.
    for (number, answer) in rabbit.broker.publish(messages.clone(), BOUND).await.iter().enumerate()
    {
        check(number, answer);
    }
    let calls = messages.into_iter().map(|message| publish_one(&rabbit.broker, message, BOUND));
    for (number, answer) in join_all(calls).await.iter().enumerate() {
        check(number, answer);
    }
    until("exactly the routable ones are there", BOUND, || async {
        rabbit.broker.depth(&work()).await.unwrap().ready == 2_000
    })
    .await;
});

case!(a_queue_deleted_behind_our_back_is_declared_and_filled, |rabbit| {
    rabbit.broker.declare(&work()).await.unwrap();
    rabbit.raw().await.delete_queue(&rabbit.steps(&work())).await;
    for answer in rabbit.broker.publish(steps(0..20), BOUND).await {
        answer.unwrap();
    }
    assert!(rabbit.broker.counters().returned >= 20);
    let mut subscription = rabbit.broker.subscribe(Source::Steps(work()), 20).await.unwrap();
    assert_eq!(take(&mut subscription, 20).await.len(), 20);
});

case!(what_others_submit_arrives_with_its_properties, |rabbit| {
    let raw = rabbit.raw().await;
    submit(&raw, rabbit, "k1").await;
    let mut intake = rabbit.broker.subscribe(Source::Intake, 1).await.unwrap();
    let (id, delivery) = id_of_next(&mut intake).await;
    assert_eq!((id.as_str(), delivery.routing_key.as_str()), ("k1", "submit"));
    assert_eq!(delivery.reply_to.as_deref(), Some("answers"));
    assert_eq!(delivery.user_id.as_deref(), Some("guest"));
    assert_eq!(delivery.headers, [("attempts".to_owned(), "LongInt(3)".to_owned())]);
    assert!(delivery.acker.ack().await);
});

case!(a_dead_submission_is_among_the_rejected, |rabbit| {
    submit(&rabbit.raw().await, rabbit, "k1").await;
    let mut intake = rabbit.broker.subscribe(Source::Intake, 1).await.unwrap();
    let (_, delivery) = id_of_next(&mut intake).await;
    assert!(delivery.acker.dead_letter().await);
    until("it is rejected", BOUND, || async {
        !rabbit.broker.rejected_list(10).await.unwrap().is_empty()
    })
    .await;
    let rejected = rabbit.broker.rejected_list(10).await.unwrap();
    assert_eq!(rejected[0].routing_key.as_deref(), Some("submit"));
    assert_eq!(rejected[0].reason.as_deref(), Some("rejected"));
    assert!(rejected[0].at.is_some(), "the broker says when it died");
    let pass = rabbit.broker.rejected_requeue(&Pick::One("k1".to_owned())).await;
    assert_eq!(pass, Ok(done(1)));
    let (id, delivery) = id_of_next(&mut intake).await;
    assert_eq!(id, "k1");
    let left: Vec<&str> = delivery.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(left, ["attempts"], "what the rejection added is gone");
    assert!(delivery.acker.ack().await);
});

/// A pass that leaves nothing behind.
fn done(done: usize) -> Pass {
    Pass { done, ..Pass::default() }
}

case!(rejected_messages_are_listed_requeued_and_dropped, |rabbit| {
    let broker = &rabbit.broker;
    for number in 0..5 {
        let mut rejected = message(Destination::Rejected, format!("k{number}"));
        rejected.headers = vec![
            (REASON_HEADER.to_owned(), format!(r#"{{"type":"t{number}"}}"#)),
            (ROUTING_KEY_HEADER.to_owned(), "submit".to_owned()),
        ];
        let proof = (SENDER_HEADER.to_owned(), "ab user:ana".to_owned());
        rejected.headers.extend((number < 4).then_some(proof));
        publish_one(broker, rejected, BOUND).await.unwrap();
    }
    for _ in 0..3 {
        until("all five are listed, and stay", BOUND, || async {
            let list = broker.rejected_list(100).await.unwrap();
            let ids = list.iter().filter_map(|message| message.message_id.as_deref());
            ids.eq(["k0", "k1", "k2", "k3", "k4"])
        })
        .await;
    }
    let list = broker.rejected_list(2).await.unwrap();
    assert_eq!(list.len(), 2, "no more than the limit");
    assert_eq!(list[0].reason.as_deref(), Some(r#"{"type":"t0"}"#));
    until("all five are counted", BOUND, || async { broker.rejected_count().await == Ok(5) }).await;
    assert_eq!(broker.rejected_drop(&Pick::One("k3".to_owned())).await, Ok(done(1)));
    assert_eq!(broker.rejected_drop(&Pick::One("k3".to_owned())).await, Ok(done(0)));
    let pass = broker.rejected_requeue(&Pick::All).await.unwrap();
    assert_eq!((pass.done, pass.stay.len()), (3, 1));
    assert!(pass.stay[0].contains("`k4` does not prove who sent it"), "{pass:?}");
    let mut intake = broker.subscribe(Source::Intake, 10).await.unwrap();
    let mut again = take(&mut intake, 3).await;
    again.sort();
    assert_eq!(again, ["k0", "k1", "k2"], "the others go all the same");
    until("the one without a sender is back", BOUND, || async {
        let list = broker.rejected_list(100).await.unwrap();
        list.iter().filter_map(|message| message.message_id.as_deref()).eq(["k4"])
    })
    .await;
    // One without an id goes by its body.
    let name = broker.rejected_list(1).await.unwrap()[0].name();
    assert_eq!(name, "k4");
    assert_eq!(broker.rejected_drop(&Pick::One(name)).await, Ok(done(1)));
    for id in ["k5", "none"] {
        publish_one(broker, message(Destination::Rejected, id), BOUND).await.unwrap();
    }
    until("both are listed", BOUND, || async { broker.rejected_count().await == Ok(2) }).await;
    let names: Vec<String> =
        broker.rejected_list(2).await.unwrap().iter().map(RejectedMessage::name).collect();
    assert!(names[0] == "k5" && names[1].starts_with("sha256:"), "{names:?}");
    // The other has the same body, and an id of its own.
    assert_eq!(broker.rejected_drop(&Pick::One(names[1].clone())).await, Ok(done(1)));
    assert_eq!(broker.rejected_drop(&Pick::One("k5".to_owned())).await, Ok(done(1)));
    assert_eq!(broker.rejected_list(100).await, Ok(Vec::new()));
    assert_eq!(broker.rejected_count().await, Ok(0));
});

case!(messages_are_persistent_and_say_what_they_are, |rabbit| {
    rabbit.broker.declare(&work()).await.unwrap();
    publish_one(&rabbit.broker, steps(0..1).remove(0), BOUND).await.unwrap();
    let raw = rabbit.raw().await;
    let name = rabbit.steps(&work());
    let get = raw.channel.basic_get(name.into(), BasicGetOptions { no_ack: true });
    let found = get.await.unwrap().expect("the message is there");
    assert_eq!(*found.properties.delivery_mode(), Some(2));
    assert_eq!(found.properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(found.properties.app_id().as_ref().unwrap().as_str(), "standfast");
});

case!(a_second_process_shares_the_topology, |rabbit| {
    let second = connect(&rabbit.url, &rabbit.prefix).await;
    second.declare(&work()).await.unwrap();
    publish_one(&rabbit.broker, steps(0..1).remove(0), BOUND).await.unwrap();
    let mut subscription = second.subscribe(Source::Steps(work()), 1).await.unwrap();
    assert_eq!(take(&mut subscription, 1).await, ["m0"]);
    second.close().await;
    until("the second one's consumer is gone", BOUND, || async {
        rabbit.broker.depth(&work()).await.unwrap().consumers == 0
    })
    .await;
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_a_broker_says_why() {
    let wait = Duration::from_secs(3);
    let _reachable = Raw::at(&url()).await;
    let place = url().split('@').nth(1).unwrap().to_owned();
    let cases = [
        (format!("amqp://nobody:wrong@{place}"), "refuses user `nobody`"),
        ("amqp://no-such-host.invalid/".to_owned(), "the host `no-such-host.invalid` is unknown"),
        ("amqp://127.0.0.1:1/".to_owned(), "refused"),
    ];
    for (url, words) in cases {
        let settings = RabbitSettings::parse(&url).unwrap();
        let Err(BrokerError::Unavailable(text)) = RabbitBroker::connect(settings, Some(wait)).await
        else {
            panic!("{url} is refused");
        };
        assert!(text.contains(words), "{url}: {text}");
        assert!(!text.contains("wrong"), "the password is not shown: {text}");
    }
}

/// Counts the threads of the AMQP library in this process.
fn library_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("lapin-io-loop")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tries_of_a_broker_that_only_listens_do_not_pile_up() {
    let before = library_threads();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("amqp://{}/", listener.local_addr().unwrap());
    let (accepted, tries) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // As a frozen broker does: the connection is there, and nothing is said.
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept() {
            held.push(stream);
            if accepted.send(()).is_err() {
                return;
            }
        }
    });
    let broker = RabbitBroker::connect(RabbitSettings::parse(&url).unwrap(), None).await.unwrap();
    let mut made = 0;
    until("a second try of both connections", BOUND * 2, || {
        made += tries.try_iter().count();
        let enough = made >= 4;
        async move { enough }
    })
    .await;
    assert!(library_threads() <= before + 2, "only the first tries may be left");
    drop(broker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_does_not_wait_subscribes_later() {
    let settings = RabbitSettings::parse("amqp://127.0.0.1:1/").unwrap();
    let broker = RabbitBroker::connect(settings, None).await.unwrap();
    let health = broker.health().await;
    assert!(!health.connected, "{health:?}");
    let subscription = broker.subscribe(Source::Intake, 1).await.unwrap();
    assert!(!subscription.subscribed());
    let bound = Duration::from_millis(200);
    let answer = publish_one(&broker, steps(0..1).remove(0), bound).await;
    assert!(matches!(answer, Err(BrokerError::Unavailable(_))), "{answer:?}");
}

async fn submit(raw: &Raw, rabbit: &Rabbit, id: &str) {
    let mut headers = FieldTable::default();
    headers.insert("attempts".into(), AMQPValue::LongInt(3));
    let properties = BasicProperties::default()
        .with_message_id(id.into())
        .with_reply_to("answers".into())
        .with_user_id("guest".into())
        .with_delivery_mode(2)
        .with_headers(headers);
    let exchange = rabbit.broker.settings().names().exchange();
    let options = BasicPublishOptions::default();
    let publish =
        raw.channel.basic_publish(exchange.into(), "submit".into(), options, b"{}", properties);
    publish.await.unwrap().await.unwrap();
}

case!(a_start_whose_connection_breaks_is_gone_on_with, |rabbit| {
    let mut through = reqwest::Url::parse(&rabbit.url).unwrap();
    let place = format!("{}:{}", through.host_str().unwrap(), through.port().unwrap_or(5672));
    let port = relay(place, rabbit.broker.settings().names().dead_steps()).await;
    through.set_host(Some("127.0.0.1")).unwrap();
    through.set_port(Some(port)).unwrap();
    let settings = RabbitSettings::parse(through.as_str()).unwrap();
    let settings = settings.with_prefix(&rabbit.prefix).unwrap();
    RabbitBroker::connect(settings, Some(4 * BOUND)).await.unwrap();
});

/// Passes connections on to the broker, and cuts the first one that names `word`. Gives its port.
async fn relay(broker: String, word: String) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let left = Arc::new(AtomicBool::new(true));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (broker, word, left) = (broker.clone(), word.clone(), left.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(broker).await.unwrap();
                let (mut from_client, mut from_server) = ([0; 4096], [0; 4096]);
                loop {
                    tokio::select! {
                        read = client.read(&mut from_client) => {
                            let bytes = &from_client[..read.unwrap_or(0)];
                            let named = bytes.windows(word.len()).any(|at| at == word.as_bytes());
                            let cut = named && left.swap(false, Ordering::SeqCst);
                            if cut || bytes.is_empty() || server.write_all(bytes).await.is_err() {
                                return;
                            }
                        }
                        read = server.read(&mut from_server) => {
                            let bytes = &from_server[..read.unwrap_or(0)];
                            if bytes.is_empty() || client.write_all(bytes).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            });
        }
    });
    port
}
