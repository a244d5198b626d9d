//! A stream of events that breaks off at any moment, over restarts and other processes, is
//! still every event once, in order.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::json;
use standfast_brokers::in_process::InProcessBroker;
use standfast_tests::binary::Draw;
use standfast_tests::embedded::World;

use crate::support::{Server, over_redis, plan, step};

/// What a client of a stream knows.
#[derive(Default)]
struct Client {
    seen: Vec<String>,
    kinds: Vec<String>,
    ended: usize,
}

impl Client {
    /// Reads up to `most` further events and breaks off; stops at the end of the stream.
    async fn read(&mut self, server: &Server, task: &str, most: usize) {
        let url = format!("http://{}/v1/tasks/{task}/events", server.address);
        let mut request = reqwest::Client::new().get(url).header("accept", "text/event-stream");
        if let Some(last) = self.seen.last() {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let mut pieces = response.bytes_stream();
        let (mut text, mut count) = (String::new(), 0);
        while count < most {
            let Some(Ok(piece)) = pieces.next().await else { return };
            text.push_str(std::str::from_utf8(&piece).unwrap());
            while let Some(end) = text.find("\n\n") {
                let message: String = text.drain(..end + 2).collect();
                if count < most && self.take(&message) {
                    count += 1;
                }
            }
        }
    }

    /// Takes a message; true for an event.
    fn take(&mut self, message: &str) -> bool {
        let field = |name: &str| {
            let found = message.lines().find_map(|line| line.strip_prefix(name));
            found.map(|text| text.trim().to_owned())
        };
        match (field("id:"), field("event:")) {
            (Some(id), Some(kind)) => {
                self.seen.push(id);
                self.kinds.push(kind);
                true
            }
            (None, Some(kind)) if kind == "ended" => {
                self.ended += 1;
                false
            }
            _ => false,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_ten_times_over_three_servers_gives_each_event_once() {
    let (place, directory, mut world) = over_redis().await;
    let server = Server::start(&world).await;
    let names: Vec<String> = (0..60).map(|n| format!("s{n}")).collect();
    let steps = names.iter().enumerate().map(|(n, name)| match n {
        0 => step(name, &[], "true"),
        _ => step(name, &[&names[n - 1]], "true"),
    });
    let plan = plan(steps.collect());
    let task = server.submit(&plan).await.task();
    let mut client = Client::default();
    let mut draw = Draw::new();
    client.read(&server, &task, 0).await;
    client.read(&server, &task, 0).await;
    world.work(&["default"], 4);
    world.schedule();
    for _ in 0..4 {
        client.read(&server, &task, 1 + draw.below(8) as usize).await;
    }
    let address = server.address;
    let broken = tokio::spawn({
        let url = format!("http://{address}/v1/tasks/{task}/events");
        let request = reqwest::Client::new().get(url).header("accept", "text/event-stream");
        let open = request.send().await.unwrap();
        async move { open.bytes().await }
    });
    server.stop().await;
    let _ = broken.await.unwrap();
    // At another address: its former one may be taken by then, by any connection that goes out.
    let server = Server::start(&world).await;
    for _ in 0..2 {
        client.read(&server, &task, 1 + draw.below(8) as usize).await;
    }
    let broker = Arc::new(InProcessBroker::new());
    let beside = World::over(place.store().await, broker, directory.path()).await;
    let other = Server::start(&beside).await;
    for _ in 0..2 {
        client.read(&other, &task, 1 + draw.below(8) as usize).await;
    }
    client.read(&other, &task, usize::MAX).await;
    let expected: Vec<String> = (1..=client.seen.len()).map(|n| format!("{task}:{n}")).collect();
    assert_eq!(client.seen, expected);
    let ends = client.kinds.iter().filter(|kind| *kind == "task_ended").count();
    assert_eq!((ends, client.ended), (1, 1));
    assert!(client.seen.len() >= 2 * names.len(), "{} events", client.seen.len());
    let page = other.get(&format!("/v1/tasks/{task}")).await.json();
    assert_eq!(page["state"], json!("completed"));
    // Coming back with the last id tells the end again, and no event twice.
    let before = client.seen.len();
    client.read(&server, &task, usize::MAX).await;
    assert_eq!((client.seen.len(), client.ended), (before, 2));
    server.stop().await;
    other.stop().await;
    world.close().await;
    place.clean(&[]).await;
}

#[test]
fn a_quiet_stream_speaks_often_enough_for_proxies() {
    let silence = standfast_protocol::events::SSE_SILENCE_MS_MAX;
    assert!(silence <= 30_000, "{silence}");
}
