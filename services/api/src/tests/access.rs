//! Who may ask for what: tokens, hosts, origins, rights.

use serde_json::json;
use standfast_domain::ids::Principal;
use standfast_engine::tokens::{Identity, Role, sha256_hex};

use super::{JSON, World, chain, request};
use crate::admin::Admin;
use crate::auth::Access;

fn bearer(secret: &str) -> String {
    format!("Bearer {secret}")
}

#[tokio::test]
async fn once_there_is_a_token_every_route_needs_one() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a"])).await;
    world.token(Role::Admin, "user:ana").await;
    for (path, item) in crate::document()["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let path = path.replace("{id}", &task).replace("{task}", &task);
            let path = path.replace("{step}", "a").replace("{name}", "x");
            let query = if path.contains("events") { "?token=x" } else { "" };
            let method = method.to_uppercase();
            let answer =
                world.send(request(&method, &format!("{path}{query}"), &[JSON], "{}")).await;
            let open = ["/healthz", "/readyz", "/openapi.json"].contains(&path.as_str());
            let expected = if open { 200 } else { 401 };
            assert_eq!(answer.status.as_u16(), expected, "{method} {path}");
        }
    }
    for wrong in ["Bearer sf_wrong", "Bearer ", "Basic eDp5", "x"] {
        let answer = world.send(request("GET", "/v1/tasks", &[("authorization", wrong)], "")).await;
        assert_eq!(answer.status, 401, "{wrong}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
}

#[tokio::test]
async fn an_open_api_answers_only_to_loopback_names_and_its_own_pages() {
    let world = World::open().await;
    let plan = chain(&["a"]).to_string();
    for (host, status) in
        [("localhost:8080", 201), ("[::1]:8080", 201), ("evil.example", 421), ("10.0.0.1", 421)]
    {
        let answer =
            world.send(request("POST", "/v1/tasks", &[JSON, ("host", host)], plan.clone()));
        assert_eq!(answer.await.status.as_u16(), status, "{host}");
    }
    for (origin, status) in
        [("http://127.0.0.1:8080", 201), ("https://evil.example", 403), ("null", 403)]
    {
        let headers = [JSON, ("origin", origin)];
        let answer = world.send(request("POST", "/v1/tasks", &headers, plan.clone())).await;
        assert_eq!(answer.status.as_u16(), status, "{origin}");
        assert!(!answer.headers.contains_key("access-control-allow-origin"));
    }
}

#[tokio::test]
async fn named_hosts_are_served_and_others_are_not() {
    let access = Access::Tokens { open_if_none: false };
    let hosts = vec!["tasks.example".to_owned()];
    let world = World::with(access, hosts, Admin::default()).await;
    let secret = bearer(&world.token(Role::Admin, "user:ana").await);
    for (host, status) in
        [("tasks.example", 200), ("TASKS.example:443", 200), ("127.0.0.1", 200), ("x.example", 421)]
    {
        let headers = [("authorization", secret.as_str()), ("host", host)];
        let answer = world.send(request("GET", "/v1/tasks", &headers, "")).await;
        assert_eq!(answer.status.as_u16(), status, "{host}");
    }
}

#[tokio::test]
async fn a_fixed_token_is_the_only_one() {
    let identity = Identity::local();
    let access = Access::Fixed { token_sha256: sha256_hex("secret"), identity };
    let world = World::with(access, Vec::new(), Admin::default()).await;
    for (token, status) in [("Bearer secret", 200), ("bearer secret", 200), ("Bearer other", 401)] {
        let answer = world.send(request("GET", "/v1/tasks", &[("authorization", token)], "")).await;
        assert_eq!(answer.status.as_u16(), status, "{token}");
    }
    assert_eq!(world.get("/v1/tasks").await.status, 401);
}

#[tokio::test]
async fn rights_are_those_of_the_task() {
    let world = World::open().await;
    let owner = bearer(&world.token(Role::Publisher, "user:owner").await);
    let viewer = bearer(&world.token(Role::Publisher, "user:viewer").await);
    let stranger = bearer(&world.token(Role::Publisher, "user:stranger").await);
    let worker = bearer(&world.token(Role::Worker, "worker:w").await);
    let mut plan = chain(&["a"]);
    plan["viewers"] = json!(["user:viewer"]);
    let send = |method: &'static str, path: String, token: &str, body: String| {
        let headers = [JSON, ("authorization", token)];
        world.send(request(method, &path, &headers, body))
    };
    let made = send("POST", "/v1/tasks".into(), &owner, plan.to_string()).await;
    assert_eq!(made.status, 201, "{}", made.json());
    let task = made.json()["id"].as_str().unwrap().to_owned();
    let halt = json!({"mode": "halt"}).to_string();
    for (who, sees, stops) in
        [(&viewer, 200, 403), (&stranger, 404, 404), (&worker, 404, 404), (&owner, 200, 200)]
    {
        let seen = send("GET", format!("/v1/tasks/{task}"), who, String::new()).await;
        let stopped = send("POST", format!("/v1/tasks/{task}/stop"), who, halt.clone()).await;
        assert_eq!((seen.status.as_u16(), stopped.status.as_u16()), (sees, stops));
        if stops == 403 {
            assert!(stopped.json()["detail"].as_str().unwrap().contains("user:owner"));
        }
    }
    let list = send("GET", "/v1/tasks".into(), &stranger, String::new()).await;
    assert_eq!(list.json()["tasks"], json!([]));
    plan["owner"] = json!("user:viewer");
    let named = send("POST", "/v1/tasks".into(), &owner, plan.to_string()).await;
    assert_eq!(named.status, 403);
    let work = json!({"worker": "w", "queue": "default", "handlers": []}).to_string();
    assert_eq!(send("POST", "/v1/claims".into(), &owner, work.clone()).await.status, 403);
    assert_eq!(send("POST", "/v1/claims".into(), &worker, work).await.status, 204);
    let mine = send("POST", "/v1/tasks".into(), &worker, chain(&["a"]).to_string()).await;
    assert_eq!(mine.status, 403);
}

#[tokio::test]
async fn of_two_first_tokens_one_is_made_and_a_revoked_one_is_none() {
    let world = World::open().await;
    let tokens = world.api.tokens();
    let who = Principal::local();
    let (one, two) = tokio::join!(
        tokens.create_first(Role::Admin, &who),
        tokens.create_first(Role::Admin, &who)
    );
    let made: Vec<_> = [one.unwrap(), two.unwrap()].into_iter().flatten().collect();
    assert_eq!(made.len(), 1);
    assert_eq!((made[0].secret.len(), &made[0].secret[..3]), (46, "sf_"));
    assert!(!format!("{:?}", made[0]).contains(&made[0].secret));
    let found = tokens.authenticate(&made[0].secret).await.unwrap().unwrap();
    assert_eq!((&found.principal, found.is_admin()), (&who, true));
    let listed = tokens.list().await.unwrap();
    assert_eq!((listed.len(), &listed[0].id), (1, &made[0].id));
    assert!(tokens.revoke(&made[0].id).await.unwrap());
    assert!(!tokens.revoke(&made[0].id).await.unwrap());
    assert_eq!(tokens.authenticate(&made[0].secret).await.unwrap(), None);
    assert!(tokens.any().await.unwrap(), "revoking the last token opens nothing");
    assert_eq!(world.get("/v1/tasks").await.status, 401);
    assert!(tokens.create_first(Role::Admin, &who).await.unwrap().is_some());
}

#[tokio::test]
async fn no_reading_changes_anything() {
    let world = World::open().await;
    let task = world.submit(&chain(&["a", "b"])).await;
    let claim = world.claim().await;
    world.complete(&claim, json!({"status": "succeeded", "output": 1})).await;
    world.claim().await;
    let before = world.store.written();
    for (path, item) in crate::document()["paths"].as_object().unwrap() {
        if item.get("get").is_none() {
            continue;
        }
        let path = path.replace("{id}", &task).replace("{task}", &task);
        let path = path.replace("{step}", "b").replace("{name}", "x");
        let query = match path.contains("/control") {
            true => "?worker=w&attempt=1&epoch=1",
            false => "",
        };
        for method in ["GET", "HEAD"] {
            let answer = world.send(request(method, &format!("{path}{query}"), &[], "")).await;
            assert!(answer.status.as_u16() < 500, "{method} {path}: {}", answer.status);
            assert_eq!(world.store.written(), before, "{method} {path} has written");
        }
    }
}
