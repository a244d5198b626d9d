//! What a process tells its operator: checks for `/readyz`, counts and depths for `/metrics`.

mod checks;
mod counts;
mod depths;

use std::sync::Arc;

use prometheus_client::registry::Registry;
use standfast_api::admin::{Admin, Check};
use standfast_brokers::rabbitmq::RabbitBroker;
use standfast_engine::Engine;
use standfast_engine::tokens::Tokens;

use self::checks::{
    BrokerCheck, FaultCount, Pulse, SchedulerCheck, StoreCheck, WorkerCheck, WriteCheck,
};
use self::counts::Counts;
use self::depths::Depths;

/// The parts of a process that can be looked at.
#[derive(Clone)]
pub struct Watched {
    /// The engine, its store and its broker.
    pub engine: Engine,
    /// Who may use it, and who was refused.
    pub tokens: Arc<Tokens>,
    /// The broker once more, for its counts, if it is RabbitMQ.
    pub rabbit: Option<Arc<RabbitBroker>>,
    /// The worker, if the process has one.
    pub worker: Option<Arc<standfast_worker::Gauges>>,
    /// The scheduler, if the process has one.
    pub scheduler: Option<Arc<standfast_scheduler::Gauges>>,
}

impl Watched {
    /// Looks at an engine and its tokens alone.
    pub fn of(engine: &Engine, tokens: &Arc<Tokens>) -> Self {
        let (engine, tokens) = (engine.clone(), tokens.clone());
        Self { engine, tokens, rabbit: None, worker: None, scheduler: None }
    }

    /// Begins to look, and gives what the operator is shown. Depths of queues are the same in
    /// every process; workers, of which there are many, leave them to the others.
    pub fn admin(self) -> Admin {
        let faults = FaultCount::default();
        let pulse = Pulse::start(&self.engine, faults.clone());
        let mut checks: Vec<Arc<dyn Check>> = vec![
            Arc::new(StoreCheck(self.engine.clone())),
            Arc::new(WriteCheck(pulse)),
            Arc::new(BrokerCheck(self.engine.clone())),
        ];
        if let Some(worker) = &self.worker {
            checks.push(Arc::new(WorkerCheck(worker.clone())));
        }
        if let Some(scheduler) = &self.scheduler {
            checks.push(Arc::new(SchedulerCheck(scheduler.clone())));
        }
        let only_worker = self.worker.is_some() && self.scheduler.is_none();
        let (engine, depths) = (self.engine.clone(), Depths(self.engine.clone()));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Counts { watched: self, faults }));
        let admin = match only_worker {
            true => Admin::new(checks, Arc::new(registry), None),
            false => Admin::new(checks, Arc::new(registry), Some(Arc::new(depths))),
        };
        admin.with_durability(&engine)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::{Value, json};
    use standfast_brokers::in_process::InProcessBroker;
    use standfast_domain::ids::{Principal, Queue};
    use standfast_engine::ports::{Broker, Store};
    use standfast_engine::submission::{RETENTION_DEFAULT, Submitted, prepare};
    use standfast_scheduler::{Scheduler, forget_schedulers, publish_ready};
    use standfast_stores::redb::RedbStore;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::wiring::embedded::process_id;
    use crate::wiring::parts::Parts;

    async fn parts(store: &Arc<dyn Store>, broker: &Arc<dyn Broker>, blobs: &Path) -> Parts {
        let blobs = blobs.display().to_string();
        Parts::start(store.clone(), broker.clone(), &blobs, false).await.unwrap()
    }

    fn in_process() -> Arc<dyn Broker> {
        Arc::new(InProcessBroker::new())
    }

    /// Submits a plan of steps that nobody runs.
    async fn submit(parts: &Parts, steps: usize) {
        let step = |n: usize| {
            json!({"id": format!("s{n}"), "uses": "exec", "queue": "q",
                "with": {"command": ["true"]}})
        };
        let steps: Vec<Value> = (0..steps).map(step).collect();
        let submitted = Submitted {
            body: json!({"kind": "k", "steps": steps}),
            plan_dir: None,
            by: Principal::local(),
            key: None,
            traceparent: None,
        };
        let announced = BTreeSet::new();
        let submission = prepare(submitted, RETENTION_DEFAULT, &parts.handlers, &announced);
        parts.engine.submit(submission.unwrap()).await.unwrap();
    }

    /// Asks the operator's endpoints; gives whether it went well, and the text.
    async fn asked(admin: Admin, path: &str) -> (bool, String) {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ended = CancellationToken::new();
        tokio::spawn(standfast_api::admin::serve(listener, admin, ended.clone()));
        let answer = reqwest::get(format!("http://{address}{path}")).await.unwrap();
        let asked = (answer.status().is_success(), answer.text().await.unwrap());
        ended.cancel();
        asked
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn fifty_queued_steps_show_as_fifty() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(RedbStore::open(dir.path()).unwrap());
        let parts = parts(&store, &in_process(), &dir.path().join("blobs")).await;
        submit(&parts, 50).await;
        let (_, text) = asked(Watched::of(&parts.engine, &parts.tokens).admin(), "/metrics").await;
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.contains(&"standfast_queue_ready{queue=\"q\"} 50"), "{text}");
        let age = "standfast_queue_oldest_ready_age_seconds{queue=\"q\"} ";
        assert!(lines.iter().any(|line| line.starts_with(age)), "{text}");
        let name = "standfast_commits_total ";
        let commits = lines.iter().find_map(|line| line.strip_prefix(name));
        assert!(commits.unwrap().parse::<u64>().unwrap() > 0, "{text}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_scheduler_and_a_worker_that_do_not_work_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(RedbStore::open(dir.path()).unwrap());
        let parts = parts(&store, &in_process(), &dir.path().join("blobs")).await;
        let settings = standfast_scheduler::Settings::new(process_id("s"));
        let idle = Scheduler::new(parts.engine.clone(), parts.blobs.clone(), settings);
        let watched = Watched {
            scheduler: Some(idle.gauges()),
            worker: Some(Arc::default()),
            ..Watched::of(&parts.engine, &parts.tokens)
        };
        let (ready, text) = asked(watched.admin(), "/readyz").await;
        assert!(!ready, "{text}");
        assert!(text.contains("worker: not subscribed"), "{text}");
        assert!(text.contains("scheduler: timers were not looked at yet"), "{text}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_start_publishes_what_is_ready_and_forgets_dead_schedulers() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(RedbStore::open(dir.path()).unwrap());
        let blobs = dir.path().join("blobs");
        let before = parts(&store, &in_process(), &blobs).await;
        submit(&before, 3).await;
        let broker = in_process();
        let after = parts(&store, &broker, &blobs).await;
        let queue = Queue::new("q").unwrap();
        assert_eq!(broker.depth(&queue).await.unwrap().ready, 0);
        assert_eq!(publish_ready(&after.engine).await.unwrap(), 3);
        assert_eq!(broker.depth(&queue).await.unwrap().ready, 3);
        let range = standfast_engine::ports::Range {
            home: standfast_domain::commit::Home::Installation,
            index: "schedulers".to_owned(),
            after: String::new(),
            before: None,
            limit: 10,
            reverse: false,
        };
        let dead = standfast_domain::commit::IndexChange {
            index: range.index.clone(),
            member: "s-dead|999999999999999".to_owned(),
            add: true,
        };
        let scope = standfast_domain::commit::Scope::Installation;
        after.engine.change_indexes(scope, vec![dead]).await.unwrap();
        forget_schedulers(&after.engine).await.unwrap();
        assert_eq!(store.ranges(&[range]).await.unwrap(), vec![Vec::<String>::new()]);
    }
}
