//! A whole installation in this process, over one folder: the redb store, queues in memory and
//! an api on a loopback port that only the folder's owner can use.
//!
//! ```text
//! DIR/standfast.redb   the records        DIR/blobs      large outputs, artifacts, logs
//! DIR/standfast.lock   held while open    DIR/attempts   folders of running attempts
//! DIR/endpoint         where to ask       DIR/artifacts  what `run` left for people
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use standfast_api::admin::Admin;
use standfast_api::auth::Access;
use standfast_api::{Crew, serve};
use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::ids::{Queue, WorkerId};
use standfast_engine::claims::CLAIM_LENGTH;
use standfast_engine::ports::Ids;
use standfast_engine::time::SystemIds;
use standfast_engine::tokens::{Identity, sha256_hex};
use standfast_scheduler::{Scheduler, end_all_claims, forget_schedulers, publish_ready};
use standfast_stores::redb::{OpenError, RedbStore};
use standfast_worker::handlers::exec::reap_orphans;
use standfast_worker::{EnvironmentSecrets, Worker};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::endpoint::{self, Endpoint, Written};
use super::parts::Parts;
use super::processes::{AdminArgs, serve_admin};
use super::retain::RetainArgs;
use super::stores;
use super::watch::Watched;
use crate::failure::Failure;

/// How long to wait for the process that holds the folder: a command is done within a moment,
/// and a process that begins to work answers within one.
const HELD_MAX: Duration = Duration::from_secs(10);
/// The pause between two tries.
const HELD_PAUSE: Duration = Duration::from_millis(100);
/// How long attempts go on after the first Ctrl-C: none of it, for they are handed back at no
/// charge and a person waits.
const GRACE: Duration = Duration::ZERO;

/// How to work on a folder.
#[derive(Args, Clone, Copy, Debug)]
pub struct Work {
    /// Attempts that run at a time
    #[arg(long, env = "STANDFAST_CONCURRENCY", value_name = "N", hide_env_values = true)]
    #[arg(default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub concurrency: u16,
    /// Let `http` steps reach loopback and private addresses
    #[arg(long, env = "STANDFAST_ALLOW_PRIVATE_ADDRESSES", hide_env_values = true)]
    pub allow_private_addresses: bool,
    /// How long an ended task is kept.
    #[command(flatten)]
    pub retain: RetainArgs,
    /// Where operators ask.
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// An installation in this process.
pub struct Embedded {
    endpoint: Endpoint,
    written: Written,
    shutdown: CancellationToken,
    hurry: CancellationToken,
    /// The worker first: what it hands back, the others still see.
    tasks: Vec<JoinHandle<()>>,
}

impl Embedded {
    /// Gives where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Stops taking work, hands back what runs, and ends. The folder is free once the process
    /// has ended.
    pub async fn close(self) {
        self.hurry.cancel();
        self.shutdown.cancel();
        for task in self.tasks {
            // A panic there was reported by the runtime.
            let _ = task.await;
        }
        drop(self.written);
    }
}

/// Says whether a folder holds state.
pub fn exists(data: &Path) -> bool {
    data.join("standfast.redb").exists()
}

/// Opens a folder for one command: its api alone, nobody works.
pub async fn open(data: &Path) -> Result<Embedded, Failure> {
    let store = patiently(data).await?;
    start(data, store, None, None).await
}

/// Opens a folder and works on it; `public` is where others may ask besides the folder's owner.
pub async fn work(
    data: &Path,
    work: Work,
    public: Option<TcpListener>,
) -> Result<Embedded, Failure> {
    let store = patiently(data).await?;
    start(data, store, Some(work), public).await
}

/// Opens a folder and works on it, or joins the process that does already.
pub async fn work_or_join(data: &Path, how: Work) -> Result<(Endpoint, Option<Embedded>), Failure> {
    if let Some(endpoint) = endpoint::answering(data).await.filter(|endpoint| endpoint.works) {
        let pid = endpoint.pid;
        crate::look::note(&format!("process {pid} works on {}; it runs there", data.display()));
        return Ok((endpoint, None));
    }
    let embedded = work(data, how, None).await?;
    Ok((embedded.endpoint.clone(), Some(embedded)))
}

/// Opens the folder's store, waiting a while for another command that holds it.
async fn patiently(data: &Path) -> Result<RedbStore, Failure> {
    let began = tokio::time::Instant::now();
    loop {
        let folder = data.to_owned();
        match stores::try_folder(folder).await? {
            Ok(store) => return Ok(store),
            Err(OpenError::Held(path)) => {
                let holder = endpoint::answering(data).await;
                let stays = holder.as_ref().is_some_and(|holder| holder.works);
                if stays || began.elapsed() >= HELD_MAX {
                    return Err(held(OpenError::Held(path), holder));
                }
                tokio::time::sleep(HELD_PAUSE).await;
            }
            Err(error) => return Err(stores::not_opened(error)),
        }
    }
}

/// Says who holds the folder, where that process can be asked.
fn held(error: OpenError, holder: Option<Endpoint>) -> Failure {
    let failure = stores::not_opened(error);
    match holder {
        Some(holder) => failure.and(format!("it is process {}, at {}", holder.pid, holder.url)),
        None => failure,
    }
}

async fn start(
    data: &Path,
    store: RedbStore,
    work: Option<Work>,
    public: Option<TcpListener>,
) -> Result<Embedded, Failure> {
    let data = std::path::absolute(data)
        .map_err(|error| Failure::new(format!("failed to find {}: {error}", data.display())))?;
    let blobs = data.join("blobs").display().to_string();
    let allow_private = work.is_some_and(|work| work.allow_private_addresses);
    let broker = Arc::new(InProcessBroker::new());
    let mut parts = Parts::start(Arc::new(store), broker, &blobs, allow_private).await?;
    parts.crew = Crew::Folder { works: work.is_some() };
    let (shutdown, hurry) = (CancellationToken::new(), CancellationToken::new());
    let (mut tasks, mut admin) = (Vec::new(), Admin::default());
    if let Some(work) = work {
        parts.retention = work.retain.retain;
        reap_orphans(&parts.installation.id);
        // The folder's lock proves that no earlier worker or scheduler lives.
        end_all_claims(&parts.engine).await.map_err(stores::failure)?;
        forget_schedulers(&parts.engine).await.map_err(stores::failure)?;
        // The queues of an earlier process went with it; what is ready stands in the store.
        publish_ready(&parts.engine).await.map_err(stores::failure)?;
        let mut watched = Watched::of(&parts.engine, &parts.tokens);
        tasks.push(start_worker(&data, &parts, work, &shutdown, &hurry, &mut watched)?);
        tasks.push(start_scheduler(&parts, &shutdown, &mut watched));
        admin = watched.admin();
        if let Some(address) = work.admin.admin_addr {
            tasks.push(serve_admin(address, admin.clone(), &shutdown).await?);
        }
    }
    if let Some(listener) = public {
        let access = Access::Tokens { open_if_none: true };
        tasks.push(start_api(listener, &parts, access, &admin, &shutdown));
    }
    let listening = |error| Failure::new(format!("failed to listen on 127.0.0.1: {error}"));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(listening)?;
    let endpoint = Endpoint {
        url: format!("http://{}", listener.local_addr().map_err(listening)?),
        token: secret(),
        pid: std::process::id(),
        works: work.is_some(),
    };
    let access =
        Access::Fixed { token_sha256: sha256_hex(&endpoint.token), identity: Identity::local() };
    tasks.push(start_api(listener, &parts, access, &admin, &shutdown));
    let written = endpoint::write(&data, &endpoint).map_err(|error| {
        Failure::new(format!("failed to write {}/endpoint: {error}", data.display()))
    })?;
    Ok(Embedded { endpoint, written, shutdown, hurry, tasks })
}

fn start_api(
    listener: TcpListener,
    parts: &Parts,
    access: Access,
    admin: &Admin,
    shutdown: &CancellationToken,
) -> JoinHandle<()> {
    let api = parts.api(access, true, admin.clone(), shutdown.clone());
    tokio::spawn(async move {
        if let Err(error) = serve(listener, api).await {
            tracing::error!(%error, "the api ended");
        }
    })
}

fn start_worker(
    data: &Path,
    parts: &Parts,
    work: Work,
    shutdown: &CancellationToken,
    hurry: &CancellationToken,
    watched: &mut Watched,
) -> Result<JoinHandle<()>, Failure> {
    let queue = Queue::new("default").map_err(|fault| Failure::new(fault.to_string()))?;
    let settings = standfast_worker::Settings {
        worker: process_id("w"),
        queues: vec![queue],
        concurrency: work.concurrency,
        stay: 0,
        grace: GRACE,
        claim_length: CLAIM_LENGTH,
        attempts: data.join("attempts"),
        secrets: Arc::new(EnvironmentSecrets::default()),
    };
    let (claims, registry) = (parts.claims.clone(), parts.registry.clone());
    let worker = Worker::new(settings, claims, registry, parts.handlers.clone());
    let worker = worker.following_queues();
    watched.worker = Some(worker.gauges());
    let (shutdown, hurry) = (shutdown.clone(), hurry.clone());
    Ok(tokio::spawn(async move {
        if let Err(error) = worker.run(shutdown, hurry).await {
            tracing::error!(%error, "the worker ended");
        }
    }))
}

fn start_scheduler(
    parts: &Parts,
    shutdown: &CancellationToken,
    watched: &mut Watched,
) -> JoinHandle<()> {
    let settings = standfast_scheduler::Settings::new(process_id("s"));
    let scheduler = Scheduler::new(parts.engine.clone(), parts.blobs.clone(), settings);
    watched.scheduler = Some(scheduler.gauges());
    tokio::spawn(scheduler.run(shutdown.clone()))
}

/// Makes an id that no process had before.
pub fn process_id(kind: &str) -> WorkerId {
    WorkerId::random(kind, SystemIds.random()).expect("letters, digits and a dash are a name")
}

/// Makes a secret of 244 random bits.
fn secret() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use standfast_engine::submission::RETENTION_DEFAULT;
    use standfast_protocol::tasks::SubmitRequest;

    use super::*;
    use crate::connect;
    use crate::exit::Exit;
    use crate::look::samples::pipe;
    use crate::progress::{Screen, Watch, follow};

    #[tokio::test(flavor = "multi_thread")]
    async fn every_queue_that_a_plan_names_is_served_whatever_the_room() {
        let dir = tempfile::tempdir().unwrap();
        let work_with = Work {
            concurrency: 1,
            allow_private_addresses: false,
            retain: RetainArgs { retain: RETENTION_DEFAULT },
            admin: AdminArgs { admin_addr: None },
        };
        let own = work(&dir.path().join("state"), work_with, None).await.unwrap();
        let connection = connect::to(own.endpoint(), None, None).unwrap();
        let step = |queue: &str| {
            let with = json!({"command": ["true"]});
            json!({"id": queue, "uses": "exec", "queue": queue, "with": with})
        };
        let plan =
            json!({"kind": "k", "steps": [step("default"), step("research"), step("night")]});
        let request = SubmitRequest { plan, plan_dir: None };
        let task = connection.client.submit_keyed(&request, "key").await.unwrap().id;
        let watch = Watch {
            client: &connection.client,
            task: &task,
            fresh: true,
            wait_for_people: false,
            look: pipe(),
        };
        let ended = follow(&watch, &Screen::Quiet).await.unwrap();
        assert_eq!(ended.exit, Exit::Completed);
        let ready = reqwest::get(format!("{}/readyz", own.endpoint().url)).await.unwrap();
        let (status, text) = (ready.status(), ready.text().await.unwrap());
        assert!(status.is_success(), "{text}");
        for check in ["store", "write", "broker", "worker", "scheduler"] {
            assert!(text.contains(check), "{check} is missing in {text}");
        }
        assert!(text.contains(r#""durability":"full""#), "{text}");
        own.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_command_opens_the_folder_and_others_find_it() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("state");
        assert!(!exists(&data));
        let own = open(&data).await.unwrap();
        assert!(exists(&data));
        let found = endpoint::answering(&data).await.expect("the api answers");
        assert_eq!(&found, own.endpoint());
        let connection = connect::to(&found, None, None).unwrap();
        let page = connection.client.list(&Default::default()).await.unwrap();
        assert!(page.tasks.is_empty());
        own.close().await;
        assert_eq!(endpoint::answering(&data).await, None);
    }
}
