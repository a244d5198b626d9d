//! An api over a world, on a port of its own, and a client that reads answers whole.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use standfast_api::admin::Admin;
use standfast_api::auth::Access;
use standfast_api::{Api, Crew, Parts, Settings};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::Home;
use standfast_domain::ids::{Partition, Principal};
use standfast_engine::Engine;
use standfast_engine::submission::RETENTION_DEFAULT;
use standfast_engine::tokens::{Role, Tokens};
use standfast_tests::embedded::World;
use standfast_tests::services::Place;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An api that listens.
pub struct Server {
    pub address: SocketAddr,
    client: reqwest::Client,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Gives the places that a problem names.
    pub fn pointers(&self) -> Vec<String> {
        let errors = self.json()["errors"].as_array().cloned().unwrap_or_default();
        errors.iter().map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
    }

    /// Gives the id of the task that was submitted.
    pub fn task(&self) -> String {
        assert!(matches!(self.status, 200 | 201), "{self:?}");
        self.json()["id"].as_str().unwrap().to_owned()
    }
}

impl Server {
    /// Serves a world on a free port.
    pub async fn start(world: &World) -> Self {
        let settings = Settings {
            crew: Crew::Processes,
            access: Access::Tokens { open_if_none: true },
            plan_dir_allowed: true,
            claim_length: standfast_engine::claims::CLAIM_LENGTH,
            public_hosts: Vec::new(),
            retention: RETENTION_DEFAULT,
        };
        let parts = Parts {
            claims: world.claims.clone(),
            registry: world.registry.clone(),
            tokens: Arc::new(Tokens::new(world.engine.clone())),
            handlers: Arc::new(world.handlers.clone()),
            admin: Admin::default(),
            settings,
        };
        let shutdown = CancellationToken::new();
        let api = Api::new(parts, shutdown.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving =
            tokio::spawn(async move { standfast_api::serve(listener, api).await.unwrap() });
        Self { address, client: reqwest::Client::new(), shutdown, serving }
    }

    /// Ends it, its streams and its connections.
    pub async fn stop(self) {
        drop(self.client);
        self.shutdown.cancel();
        self.serving.await.unwrap();
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &[u8])],
        body: Vec<u8>,
    ) -> Answer {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("http://{}{path}", self.address));
        for (name, value) in headers {
            let value = reqwest::header::HeaderValue::from_bytes(value).unwrap();
            request = request.header(*name, value);
        }
        let response = request.body(body).send().await.unwrap();
        let status = response.status().as_u16();
        Answer { status, text: response.text().await.unwrap() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Vec::new()).await
    }

    /// Posts JSON as it is written.
    pub async fn post(&self, path: &str, body: impl Into<String>) -> Answer {
        let headers = [(CONTENT_TYPE.as_str(), &b"application/json"[..])];
        self.send("POST", path, &headers, body.into().into_bytes()).await
    }

    pub async fn submit(&self, plan: &Value) -> Answer {
        self.post("/v1/tasks", plan.to_string()).await
    }

    /// Claims the next step of the default queue for worker `outside`.
    pub async fn claim(&self) -> Value {
        let body = json!({"worker": "outside", "queue": "default", "handlers": ["exec"],
                          "wait_ms": 10_000});
        let answer = self.post("/v1/claims", body.to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    /// Ends a claimed attempt; the outcome is sent as it is written.
    pub async fn complete(&self, claim: &Value, outcome: &str) -> Answer {
        let path = claim_path(claim, "complete");
        let (attempt, epoch) = (&claim["attempt"], &claim["epoch"]);
        let head = format!(r#""worker":"outside","attempt":{attempt},"epoch":{epoch}"#);
        self.post(&path, format!(r#"{{{head},"outcome":{outcome}}}"#)).await
    }
}

/// Gives the path of a call about a claim.
pub fn claim_path(claim: &Value, call: &str) -> String {
    let (task, step) = (claim["task"].as_str().unwrap(), claim["step"].as_str().unwrap());
    format!("/v1/claims/{task}/{step}/{call}")
}

/// Makes a token.
pub async fn token(engine: &Engine, role: Role, name: &str) -> String {
    let principal = Principal::new(name).unwrap();
    Tokens::new(engine.clone()).create(role, &principal, "test").await.unwrap().secret
}

/// Gives a step that runs a program; the steps it needs come first.
pub fn step(id: &str, needs: &[&str], script: &str) -> Value {
    json!({"id": id, "uses": "exec", "needs": needs, "retry": {"max_attempts": 1},
           "with": {"command": ["sh", "-c", script]}})
}

/// Gives a plan of steps.
pub fn plan(steps: Vec<Value>) -> Value {
    json!({"kind": "test", "steps": steps})
}

/// Opens a world over one file.
pub async fn embedded() -> (tempfile::TempDir, World) {
    let directory = tempfile::tempdir().unwrap();
    let world = World::open(directory.path()).await;
    (directory, world)
}

/// Opens a world over Redis, with queues in the process; the place is to be cleaned.
pub async fn over_redis() -> (Place, tempfile::TempDir, World) {
    let (place, directory) = (Place::new(), tempfile::tempdir().unwrap());
    let broker = Arc::new(InProcessBroker::new());
    let world = World::over(place.store().await, broker, directory.path()).await;
    (place, directory, world)
}

/// Counts the entries of an index over all partitions.
pub async fn count(engine: &Engine, index: &str) -> u64 {
    let homes = Partition::all().map(|partition| (Home::Partition(partition), index.to_owned()));
    let counts = engine.store().counts(&homes.collect::<Vec<_>>()).await.unwrap();
    counts.into_iter().sum()
}
