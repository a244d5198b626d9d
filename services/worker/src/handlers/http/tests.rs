//! `http` against small servers of the tests' own.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::super::testing::{NOW, described, effect, failed, job, now, succeeded};
use super::super::{Effect, MaySend};
use super::*;

/// A server that gives each request's first line and headers to a function.
struct Server {
    base: String,
    asked: Arc<Mutex<Vec<String>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    async fn new(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (list, answer) = (Arc::clone(&asked), Arc::new(answer));
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (list, answer) = (Arc::clone(&list), Arc::clone(&answer));
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let head = String::from_utf8(head).unwrap();
                    let path = head.split(' ').nth(1).unwrap().to_owned();
                    list.lock().unwrap().push(head);
                    let _ = stream.write_all(&answer(&path)).await;
                });
            }
        });
        Self { base, asked, _serving: AbortOnDropHandle::new(serving) }
    }

    async fn fixed(status: &str, headers: &str, body: &[u8]) -> Self {
        let whole = whole(status, headers, body);
        Self::new(move |_| whole.clone()).await
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn whole(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

async fn run_with(allow_private: bool, input: Value) -> Report {
    let directory = tempfile::tempdir().unwrap();
    Http::new(allow_private).unwrap().run(job(directory.path(), input)).await
}

async fn run(input: Value) -> Report {
    run_with(true, input).await
}

#[test]
fn a_receipt_that_a_person_gives_must_look_like_an_answer() {
    let http = Http::new(false).unwrap();
    for receipt in [json!({"status": 201, "body": {"id": "p-7"}}), json!({"status": 204})] {
        assert_eq!(http.check_receipt(&receipt), Ok(()), "{receipt}");
    }
    for receipt in [json!({"id": "p-7"}), json!("p-7"), json!({"status": "201"})] {
        let why = http.check_receipt(&receipt).unwrap_err();
        assert!(why.contains("\"status\": 201"), "{receipt}: {why}");
    }
}

#[tokio::test]
async fn json_is_parsed() {
    let headers = "Content-Type: application/problem+json; charset=utf-8\r\nX-A: 1\r\nx-a: 2\r\n\
                   Set-Cookie: id=1\r\n";
    let server = Server::fixed("200", headers, br#"{"a":[1]}"#).await;
    let url = format!("{}/x?q=1", server.base);
    let output = succeeded(run(json!({ "url": url, "query": { "b": "c d" } })).await).output;
    assert_eq!(output["status"], 200);
    assert_eq!(output["url"], format!("{}/x", server.base));
    assert_eq!(output["body"], json!({ "a": [1] }));
    assert_eq!(output["headers"]["x-a"], "1, 2");
    assert!(output["headers"].get("set-cookie").is_none());
    assert!(server.asked()[0].starts_with("GET /x?q=1&b=c+d HTTP/1.1\r\n"));
}

#[tokio::test]
async fn other_bodies_are_text_or_base64() {
    let json = "content-type: application/json\r\n";
    let cases: [(&str, &[u8], &str, &str); 4] = [
        ("", b"{}", "body", "{}"),
        (json, b"{\"a\":1,\"a\":2}", "body", "{\"a\":1,\"a\":2}"),
        (json, b"99999999999999999999", "body", "99999999999999999999"),
        ("", b"\xff\x00", "body_base64", "/wA="),
    ];
    for (headers, body, name, expected) in cases {
        let server = Server::fixed("200", headers, body).await;
        let output = succeeded(run(json!({ "url": server.base })).await).output;
        assert_eq!(output[name], expected);
    }
}

#[tokio::test]
async fn head_asks_without_a_body() {
    let server = Server::fixed("200", "x-b: 3\r\n", b"").await;
    let output = succeeded(run(json!({ "url": server.base, "method": "HEAD" })).await).output;
    assert_eq!((&output["body"], &output["headers"]["x-b"]), (&Value::Null, &json!("3")));
    assert!(server.asked()[0].starts_with("HEAD / "));
}

async fn send(input: Value, effect: Arc<Effect>) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let job = Job { effect: Some(effect), ..job(directory.path(), input) };
    Http::new(true).unwrap().run(job).await
}

#[tokio::test]
async fn other_methods_are_refused_before_anything_is_sent() {
    let server = Server::fixed("200", "", b"").await;
    for method in ["OPTIONS", "CONNECT", "get"] {
        let input = json!({ "url": server.base, "method": method });
        failed(run(input).await, Class::Permanent, "expected one of `GET`, `HEAD`");
    }
    assert_eq!(server.asked(), [""; 0]);
}

#[test]
fn what_a_method_changes_follows_from_it() {
    let http = Http::new(false).unwrap();
    for (input, class) in [
        (json!({}), EffectClass::None),
        (json!({ "method": "HEAD" }), EffectClass::None),
        (json!({ "method": "PUT" }), EffectClass::Idempotent),
        (json!({ "method": "DELETE" }), EffectClass::Idempotent),
        (json!({ "method": "POST" }), EffectClass::Irreversible),
        (json!({ "method": "PATCH" }), EffectClass::Irreversible),
    ] {
        assert_eq!(http.effect(&input), Ok(class), "{input}");
    }
    http.effect(&json!({ "method": "${{ input.x }}" })).unwrap_err();
}

#[tokio::test]
async fn a_write_asks_once_and_carries_its_key_and_body() {
    let server = Server::fixed("201", "", br#""made""#).await;
    let (effect, told) = effect(EffectClass::Irreversible, now);
    let input = json!({ "url": server.base, "method": "POST", "body": { "a": [1] } });
    let success = succeeded(send(input, effect.clone()).await);
    assert_eq!(success.output["status"], 201);
    assert_eq!((told.asked.load(SeqCst), effect.may_have_been_sent()), (1, true));
    let asked = &server.asked()[0];
    assert!(asked.starts_with("POST / "), "{asked}");
    for header in
        ["idempotency-key: t1/pay/main/1", "content-type: application/json", "content-length: 9"]
    {
        assert!(asked.contains(header), "expected `{header}` in {asked}");
    }
}

#[tokio::test]
async fn nothing_is_sent_unless_the_gate_lets_it() {
    let server = Server::fixed("200", "", b"").await;
    let input = json!({ "url": server.base, "method": "POST" });
    let kept = || MaySend::Kept(json!({ "id": 7 }));
    let success = succeeded(send(input.clone(), effect(EffectClass::Irreversible, kept).0).await);
    assert_eq!((success.output, success.kept), (json!({ "id": 7 }), true));
    let late = || MaySend::Before(NOW);
    let report = send(input.clone(), effect(EffectClass::Irreversible, late).0).await;
    let failure = failed(report, Class::Retryable, "may not be sent any more");
    assert_eq!(failure.sent, Sent::Not);
    let over = || MaySend::Ended(Failure::new(Class::Cancelled, "over"));
    failed(send(input, effect(EffectClass::Irreversible, over).0).await, Class::Cancelled, "over");
    assert_eq!(server.asked(), [""; 0]);
}

#[tokio::test]
async fn a_failure_says_what_it_knows_of_the_effect() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let mut cases = vec![(nobody, Sent::Not)];
    let mut servers = Vec::new();
    for (status, sent) in [
        ("302", Sent::Unknown),
        ("307", Sent::Refused),
        ("400", Sent::Refused),
        ("409", Sent::Refused),
        ("429", Sent::Refused),
        ("500", Sent::Unknown),
        ("501", Sent::Refused),
        ("503", Sent::Unknown),
    ] {
        let server = Server::fixed(status, "location: /x\r\n", b"").await;
        cases.push((server.base.clone(), sent));
        servers.push(server);
    }
    let silent = Server::new(|_| Vec::new()).await; // takes the request and breaks off
    cases.push((silent.base.clone(), Sent::Unknown));
    for (url, sent) in cases {
        let input = json!({ "url": url, "method": "POST", "body": "x" });
        match send(input, effect(EffectClass::Irreversible, now).0).await {
            Report::Failed(failure) => assert_eq!(failure.sent, sent, "{failure:?}"),
            Report::Succeeded(success) => panic!("expected a failure, found {success:?}"),
        }
    }
}

#[tokio::test]
async fn a_write_under_way_is_not_given_up_when_told_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let job = job(directory.path(), json!({}));
    let cancel = job.cancel.clone();
    let server = Server::new(move |_| {
        cancel.cancel(); // the request is here: now its attempt is told to end
        whole("200", "", b"paid")
    })
    .await;
    let input = json!({ "url": server.base, "method": "POST" });
    let job = Job { input, effect: Some(effect(EffectClass::Irreversible, now).0), ..job };
    let success = succeeded(Http::new(true).unwrap().run(job).await);
    assert_eq!(success.output["body"], "paid");
}

#[tokio::test]
async fn secrets_are_sent_and_masked() {
    let server = Server::new(|path| {
        let echo = format!("x-echo: {path}\r\n");
        whole("500", &echo, format!("you sent {path} hunter2-hunter2").as_bytes())
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    let input = json!({
        "url": format!("{}/${{{{ secrets.PIN }}}}", server.base),
        "headers": { "Authorization": "Bearer ${{ secrets.TOKEN }}" },
        "query": { "k": "${{ secrets.TOKEN }}" },
    });
    let job = job(directory.path(), input);
    let log = job.log.clone();
    let failure =
        failed(Http::new(true).unwrap().run(job).await, Class::Retryable, "/*** answered 500");
    let asked = &server.asked()[0];
    assert!(asked.starts_with("GET /8471-2233?k=hunter2-hunter2 "), "{asked}");
    assert!(asked.contains("authorization: Bearer hunter2-hunter2\r\n"), "{asked}");
    let all = format!("{failure:?}{:?}", log.snapshot());
    assert!(!all.contains("hunter2") && !all.contains("8471"), "{all}");
    assert!(all.contains("standfast: GET"), "{all}");
}

#[tokio::test]
async fn statuses_have_their_class() {
    let pause = "retry-after: 7\r\n";
    let date = "date: Thu, 01 Jan 1970 00:00:01 GMT\r\n\
                retry-after: Thu, 01 Jan 1970 00:00:10 GMT\r\n";
    let cases = [
        ("429", pause, Class::RateLimited, Some(7)),
        ("429", date, Class::RateLimited, Some(9)),
        ("429", "", Class::RateLimited, None),
        ("503", pause, Class::RateLimited, Some(7)),
        ("503", date, Class::RateLimited, Some(9)),
        ("503", "", Class::Retryable, None),
        ("500", pause, Class::Retryable, None),
        ("408", "", Class::Retryable, None),
        ("404", "", Class::Permanent, None),
        ("304", "", Class::Permanent, None),
    ];
    for (status, headers, class, seconds) in cases {
        let body: &[u8] = if status == "304" { b"" } else { b"why" };
        let server = Server::fixed(status, headers, body).await;
        let part = format!("answered {status}");
        let failure = failed(run(json!({ "url": server.base })).await, class, &part);
        assert_eq!(failure.retry_after, seconds.map(Duration::from_secs), "{status}");
        let output = failure.output.unwrap();
        assert_eq!(output["status"].to_string(), status);
        assert_eq!(output["body"], String::from_utf8_lossy(body).as_ref());
    }
}

#[tokio::test]
async fn other_statuses_can_be_expected() {
    let server = Server::fixed("404", "", b"none").await;
    for expected in [json!([404]), json!(["4xx", 200])] {
        let input = json!({ "url": server.base, "expect_status": expected });
        assert_eq!(succeeded(run(input).await).output["body"], "none");
    }
    let server = Server::fixed("302", "location: /x\r\n", b"").await;
    let input = json!({ "url": server.base, "expect_status": [302] });
    assert_eq!(succeeded(run(input).await).output["headers"]["location"], "/x");
}

#[tokio::test]
async fn too_large_an_answer_is_refused() {
    let server = Server::fixed("200", "", &[b'x'; 1001]).await;
    let input = json!({ "url": server.base, "response_limit": 1000 });
    failed(run(input).await, Class::Permanent, "more than 1000 bytes, the limit");
    let input = json!({ "url": server.base, "response_limit": 1001 });
    succeeded(run(input).await);
    let server = Server::fixed("500", "", &vec![b'x'; 200_000]).await;
    let failure = failed(run(json!({ "url": server.base })).await, Class::Retryable, "500");
    let body = failure.output.unwrap()["body"].as_str().unwrap().len();
    assert!(body <= crate::handlers::FAILURE_TEXT_BYTES_MAX);
}

#[tokio::test]
async fn no_connection_no_host_and_a_broken_answer_are_retryable() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    failed(run(json!({ "url": url })).await, Class::Retryable, &url);
    let input = json!({ "url": "http://no-such-host.invalid/?q=private" });
    let failure = failed(run(input).await, Class::Retryable, "no-such-host.invalid");
    assert!(!failure.message.contains("private"));
    let broken = b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nabc".to_vec();
    let server = Server::new(move |_| broken.clone()).await;
    failed(run(json!({ "url": server.base })).await, Class::Retryable, "broke off");
}

#[tokio::test]
async fn redirects_are_followed_up_to_the_limit() {
    let server = Server::new(|path| match path.trim_start_matches('/').parse::<u32>() {
        Ok(left @ 1..) => whole("302", &format!("location: /{}\r\n", left - 1), b""),
        Ok(0) | Err(_) => whole("200", "", b"there"),
    })
    .await;
    let ask = |from: u32, limit: u32| {
        run(json!({ "url": format!("{}/{from}", server.base), "follow_redirects": limit }))
    };
    assert_eq!(succeeded(ask(5, 5).await).output["url"], format!("{}/0", server.base));
    failed(ask(6, 5).await, Class::Permanent, "more than 5 redirects");
    failed(ask(2, 1).await, Class::Permanent, "more than 1 redirects");
    failed(ask(1, 0).await, Class::Permanent, "answered 302");
}

#[tokio::test]
async fn redirects_in_a_circle_are_told() {
    let server = Server::new(|path| {
        let next = if path == "/a" { "/b" } else { "/a#x" };
        whole("301", &format!("location: {next}\r\n"), b"")
    })
    .await;
    let input = json!({ "url": format!("{}/a", server.base) });
    failed(run(input).await, Class::Permanent, "in a circle, back to");
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn credentials_stay_with_their_origin() {
    let other = Server::fixed("200", "", b"").await;
    let away = format!("location: {}/\r\n", other.base);
    let first = Server::new(move |path| {
        let to = if path == "/1" { "location: /2\r\n" } else { &away };
        whole("307", to, b"")
    })
    .await;
    let input = json!({
        "url": format!("{}/1", first.base),
        "headers": { "Authorization": "a", "Cookie": "b", "X-Key": "${{ secrets.PIN }}",
                     "X-Plain": "c" },
    });
    succeeded(run(input).await);
    let names = ["authorization:", "cookie:", "x-key:", "x-plain:"];
    for asked in first.asked() {
        assert!(names.iter().all(|name| asked.contains(name)), "{asked}");
    }
    let asked = &other.asked()[0];
    assert!(names[..3].iter().all(|name| !asked.contains(name)), "{asked}");
    assert!(asked.contains("x-plain: c"));
}

#[tokio::test]
async fn redirects_may_not_leave_http_or_carry_a_password() {
    for (location, part) in [
        ("file:///etc/passwd", "scheme `file`"),
        ("ftp://example.com/", "scheme `ftp`"),
        ("http://a:b@example.com/", "user and password"),
        ("http://[", "redirects wrongly"),
    ] {
        let server = Server::fixed("302", &format!("location: {location}\r\n"), b"").await;
        failed(run(json!({ "url": server.base })).await, Class::Permanent, part);
    }
}

#[tokio::test]
async fn every_way_to_write_an_inner_address_is_refused() {
    let server = Server::fixed("200", "", b"inside").await;
    let port = server.base.rsplit(':').next().unwrap();
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "localhost",
        "LOCALHOST",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "169.254.169.254",
        "10.1.2.3",
        "%31%32%37.0.0.1",
        "127。0。0。1",
        "[fe80::1]",
        "[fd00::1]",
        "100.64.0.1",
        "192.168.0.1",
    ] {
        let input = json!({ "url": format!("http://{host}:{port}/") });
        failed(run_with(false, input).await, Class::Permanent, "allow_private_addresses");
    }
    assert_eq!(server.asked(), [""; 0]);
}

#[test]
fn every_hop_is_judged_by_the_address_it_names() {
    for (url, allowed) in [
        ("http://169.254.169.254/latest", false),
        ("http://[::ffff:127.0.0.1]/", false),
        ("http://2130706433/", false),
        ("http://1.1.1.1/", true),
        ("http://[2606:4700:4700::1111]/", true),
        ("http://example.com/", true),
    ] {
        let judged = request::judge_literal(&Url::parse(url).unwrap());
        assert_eq!(judged.is_ok(), allowed, "{url}");
    }
}

#[tokio::test]
async fn time_and_cancellation_end_a_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let mut late = job(directory.path(), json!({ "url": url }));
    late.deadline = Duration::from_millis(50);
    let http = Http::new(true).unwrap();
    failed(http.run(late).await, Class::Timeout, "its time of 50ms");
    let ended = job(directory.path(), json!({ "url": url }));
    let cancel = ended.cancel.clone();
    let running = tokio::spawn(async move { http.run(ended).await });
    listener.accept().await.unwrap();
    cancel.cancel();
    failed(running.await.unwrap(), Class::Cancelled, "cancelled");
}

#[test]
fn wrong_inputs_are_refused_by_pointer() {
    let url = "http://example.com/";
    let cases = [
        (json!({}), "", "`url` is missing"),
        (json!({ "url": 1 }), "/url", "expected a string"),
        (json!({ "url": "example.com" }), "/url", "not a URL"),
        (json!({ "url": "file:///etc/passwd" }), "/url", "scheme `file`"),
        (json!({ "url": "http://a@b.c/" }), "/url", "user and password"),
        (json!({ "url": url, "bdoy": "x" }), "/bdoy", "unknown field `bdoy`"),
        (json!({ "url": url, "body": "x" }), "/body", "GET has no body"),
        (json!({ "url": url, "method": "TRACE" }), "/method", "expected one of `GET`"),
        (json!({ "url": url, "method": 1 }), "/method", "expected one of `GET`"),
        (
            json!({ "url": url, "method": "POST", "follow_redirects": 1 }),
            "/follow_redirects",
            "from 0 to 0",
        ),
        (json!({ "url": url, "headers": { "a b": "x" } }), "/headers/a b", "not a header name"),
        (json!({ "url": url, "headers": { "Host": "x" } }), "/headers/Host", "cannot be set"),
        (json!({ "url": url, "headers": { "x": "a\nb" } }), "/headers/x", "one line"),
        (json!({ "url": url, "query": { "x": 1 } }), "/query/x", "expected a string"),
        (json!({ "url": url, "expect_status": 200 }), "/expect_status", "expected a list"),
        (json!({ "url": url, "expect_status": [99] }), "/expect_status", "200 to 599"),
        (json!({ "url": url, "expect_status": ["xx"] }), "/expect_status", "`2xx`"),
        (json!({ "url": url, "response_limit": 0 }), "/response_limit", "from 1 to 67108864"),
        (json!({ "url": url, "follow_redirects": 6 }), "/follow_redirects", "from 0 to 5"),
    ];
    let http = Http::new(false).unwrap();
    for (input, pointer, part) in cases {
        let faults = http.check(&input);
        assert_eq!(faults.len(), 1, "{input}: {faults:?}");
        assert_eq!(faults[0].pointer, pointer, "{input}");
        assert!(faults[0].message.contains(part), "{input}: {faults:?}");
    }
    let template = "${{ input.x }}";
    let names = [
        "url",
        "method",
        "headers",
        "query",
        "expect_status",
        "response_limit",
        "follow_redirects",
    ];
    let all = names.into_iter().map(|name| (name.to_owned(), template.into())).collect();
    assert_eq!(http.check(&Value::Object(all)), []);
}

#[test]
fn every_field_has_its_row_in_the_page_of_handlers() {
    described("http", &FIELDS);
}
