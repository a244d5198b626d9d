//! The ways in from outside: the api over a socket, and `submit` messages to the intake, each
//! used as a client of the SDK uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use standfast_api::admin::Admin;
use standfast_api::auth::Access;
use standfast_api::{Api, Crew, Parts, Settings, serve};
use standfast_domain::ceiling::Ceiling;
use standfast_domain::ids::TaskId;
use standfast_engine::claims::CLAIM_LENGTH;
use standfast_engine::submission::RETENTION_DEFAULT;
use standfast_engine::tokens::{Identity, Tokens, sha256_hex};
use standfast_scheduler::{Intake, IntakeGauges};
use standfast_sdk::{AmqpPublisher, Client};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::site::Site;
use crate::system::{Door, Entrance, SystemError};

/// Connections that publish: one has one message unconfirmed at a time, so a service that
/// publishes much has several.
const PUBLISHERS: usize = 8;
/// How long a call is repeated: an api that does not answer gives no figure.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where `submit` messages go.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// The broker's address.
    pub url: String,
    /// The exchange's name.
    pub name: String,
}

/// An open way in.
pub struct Front {
    way: Way,
    shutdown: CancellationToken,
    /// What serves it in this process; nothing where other processes do.
    serving: Option<JoinHandle<()>>,
}

enum Way {
    Http(Client),
    Amqp { publishers: Vec<AmqpPublisher>, next: AtomicUsize },
}

impl Front {
    /// Uses an api that serves already.
    pub fn http(url: &str, token: &str) -> Result<Self, SystemError> {
        let client = Client::new(url, token)?.patience(PATIENCE);
        Ok(Self { way: Way::Http(client), shutdown: CancellationToken::new(), serving: None })
    }

    /// Uses an exchange whose messages are taken in already.
    pub fn amqp(exchange: &Exchange) -> Result<Self, SystemError> {
        let publisher = |_| Ok(AmqpPublisher::new(&exchange.url)?.exchange(&exchange.name));
        let publishers = (0..PUBLISHERS).map(publisher).collect::<Result<_, SystemError>>()?;
        let way = Way::Amqp { publishers, next: AtomicUsize::new(0) };
        Ok(Self { way, shutdown: CancellationToken::new(), serving: None })
    }

    /// Opens one before an installation of this process.
    pub(crate) async fn of(site: &Site, door: Door) -> Result<Self, SystemError> {
        match door {
            Door::Http => Self::api_of(site).await,
            Door::Amqp => Self::intake_of(site),
        }
    }

    /// Serves the api on a loopback port.
    async fn api_of(site: &Site) -> Result<Self, SystemError> {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(unreached)?;
        let url = format!("http://{}", listener.local_addr().map_err(unreached)?);
        let identity = Identity::local();
        let access = Access::Fixed { token_sha256: sha256_hex(&token), identity };
        let settings = Settings {
            crew: Crew::Processes,
            access,
            plan_dir_allowed: false,
            public_hosts: Vec::new(),
            retention: RETENTION_DEFAULT,
            claim_length: CLAIM_LENGTH,
        };
        let parts = Parts {
            claims: site.claims().clone(),
            registry: site.registry().clone(),
            tokens: Arc::new(Tokens::new(site.engine().clone())),
            handlers: Arc::new(site.handlers().clone()),
            admin: Admin::default(),
            settings,
        };
        let front = Self::http(&url, &token)?;
        let api = Api::new(parts, front.shutdown.clone());
        let serving = tokio::spawn(async move {
            // A fault here leaves submissions without an answer, which they report.
            let _ = serve(listener, api).await;
        });
        Ok(Self { serving: Some(serving), ..front })
    }

    /// Takes messages in, as a scheduler does.
    fn intake_of(site: &Site) -> Result<Self, SystemError> {
        let front = Self::amqp(site.exchange().ok_or(SystemError::NoBroker)?)?;
        let intake = Intake {
            engine: site.engine().clone(),
            tokens: Arc::new(Tokens::new(site.engine().clone())),
            registry: site.registry().clone(),
            handlers: Arc::new(site.handlers().clone()),
            retention: RETENTION_DEFAULT,
            // Its tasks run in a queue of their own, which no user may name unless granted.
            ungranted: Some(Arc::new(Ceiling::default())),
            gauges: Arc::new(IntakeGauges::default()),
        };
        let serving = tokio::spawn(intake.run(front.shutdown.clone()));
        Ok(Self { serving: Some(serving), ..front })
    }

    /// Closes it.
    pub async fn close(self) {
        drop(self.way); // an open connection would be waited for
        self.shutdown.cancel();
        if let Some(serving) = self.serving {
            let _ = serving.await; // a panic there was reported by the runtime
        }
    }
}

#[async_trait]
impl Entrance for Front {
    async fn submit(&self, plan: &Value) -> Result<TaskId, SystemError> {
        let submitted = match &self.way {
            Way::Http(client) => client.submit(plan.clone()).await?,
            Way::Amqp { publishers, next } => {
                let turn = next.fetch_add(1, Ordering::Relaxed) % publishers.len();
                publishers[turn].submit(plan.clone()).await?
            }
        };
        TaskId::parse(&submitted.id).map_err(|fault| SystemError::Unreached(fault.to_string()))
    }
}

fn unreached(error: std::io::Error) -> SystemError {
    SystemError::Unreached(error.to_string())
}
