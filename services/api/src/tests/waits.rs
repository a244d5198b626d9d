//! Requests that wait while the right they came with ends.

use axum::http::Request;
use serde_json::{Value, json};
use standfast_domain::ids::Principal;
use standfast_engine::tokens::Role;

use super::history::Reading;
use super::{Answer, JSON, World, chain, request};

/// An owner whose requests wait, and an admin who takes the right away and then lets something
/// happen.
struct Scene {
    world: World,
    admin: String,
    owner: String,
    owners_token: String,
    task: String,
}

/// How the right ends.
#[derive(Clone, Copy, Debug)]
enum End {
    TokenRevoked,
    HandedOver,
}

const ENDS: [(End, u16); 2] = [(End::TokenRevoked, 401), (End::HandedOver, 404)];

impl Scene {
    async fn set() -> Self {
        let world = World::open().await;
        let admin = world.token(Role::Admin, "user:ana").await;
        let principal = Principal::new("user:owner").unwrap();
        let made = world.api.tokens().create(Role::Publisher, &principal, "test").await.unwrap();
        let (owner, owners_token) = (made.secret.clone(), made.id);
        let mut scene = Self { world, admin, owner, owners_token, task: String::new() };
        // Whoever has submitted a task may see it for ever, so another one has.
        let mut plan = chain(&["a"]);
        plan["owner"] = json!("user:owner");
        let made = scene.send("POST", "/v1/tasks", &scene.admin, plan).await;
        assert_eq!(made.status, 201, "{}", made.json());
        made.json()["id"].as_str().unwrap().clone_into(&mut scene.task);
        scene
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        secret: &str,
        body: &str,
    ) -> Request<axum::body::Body> {
        let token = format!("Bearer {secret}");
        request(method, path, &[JSON, ("authorization", &token)], body.to_owned())
    }

    async fn send(&self, method: &str, path: &str, secret: &str, body: Value) -> Answer {
        self.world.send(self.request(method, path, secret, &body.to_string())).await
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/tasks/{}/{rest}", self.task)
    }

    async fn end_the_right(&self, end: End) {
        match end {
            End::TokenRevoked => {
                assert!(self.world.api.tokens().revoke(&self.owners_token).await.unwrap());
            }
            End::HandedOver => {
                let body = json!({"to": "user:ben"});
                let answer = self.send("POST", &self.path("hand-over"), &self.admin, body).await;
                assert_eq!(answer.status, 200, "{}", answer.json());
            }
        }
    }

    /// Gives the cursor behind all events so far.
    async fn behind_all(&self) -> String {
        let page = self.send("GET", &self.path("events?limit=200"), &self.admin, Value::Null).await;
        page.json()["next"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn what_waits_for_events_gets_none_once_its_right_has_ended() {
    for (end, status) in ENDS {
        let scene = Scene::set().await;
        let path = scene.path(&format!("events?wait_ms=30000&after={}", scene.behind_all().await));
        let end_then_stop = async {
            scene.end_the_right(end).await;
            let stop = json!({"mode": "halt"});
            scene.send("POST", &scene.path("stop"), &scene.admin, stop).await
        };
        let (waited, stopped) =
            tokio::join!(scene.send("GET", &path, &scene.owner, Value::Null), end_then_stop);
        assert_eq!(stopped.status, 200, "{end:?}");
        assert_eq!(waited.status.as_u16(), status, "{end:?}: {}", waited.json());
        assert_eq!(waited.json()["events"], Value::Null);
    }
}

#[tokio::test]
async fn a_stream_of_events_ends_with_the_right_to_it() {
    for (end, _) in ENDS {
        let scene = Scene::set().await;
        let token = format!("Bearer {}", scene.owner);
        let headers = [("authorization", token.as_str())];
        let mut reading = Reading::begin_with(&scene.world, &scene.task, &headers).await;
        while reading.next().await.unwrap().1 != "step_ready" {}
        scene.end_the_right(end).await;
        scene.send("POST", &scene.path("stop"), &scene.admin, json!({"mode": "halt"})).await;
        assert_eq!(reading.next().await, None, "{end:?}");
    }
}

#[tokio::test]
async fn what_waits_for_a_log_gets_none_of_it_once_its_right_has_ended() {
    for (end, status) in ENDS {
        let scene = Scene::set().await;
        let ask = json!({"worker": "w", "queue": "default", "handlers": ["echo"]});
        let claim = scene.send("POST", "/v1/claims", &scene.admin, ask).await.json();
        assert_eq!(claim["task"], scene.task.as_str());
        let log = scene.path("steps/a/log?wait_ms=30000");
        let end_then_write = async {
            scene.end_the_right(end).await;
            let query = "worker=w&attempt=1&epoch=1&offset=0";
            let path = format!("/v1/claims/{}/a/log?{query}", scene.task);
            let token = format!("Bearer {}", scene.admin);
            let headers = [("content-type", "text/plain"), ("authorization", token.as_str())];
            scene.world.send(request("POST", &path, &headers, "a secret of the new owner")).await
        };
        let (waited, written) =
            tokio::join!(scene.send("GET", &log, &scene.owner, Value::Null), end_then_write);
        assert_eq!(written.status, 200, "{end:?}: {}", written.json());
        assert_eq!(waited.status.as_u16(), status, "{end:?}: {}", waited.json());
        assert_eq!(waited.json()["text"], Value::Null);
    }
}
