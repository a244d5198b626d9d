//! What both sides run on, private servers or a folder, and what those have counted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use standfast_bench::{Exchange, Site, Sites, queue};
use standfast_brokers::in_process::InProcessBroker;
use standfast_brokers::rabbitmq::{RabbitBroker, RabbitSettings};
use standfast_stores::redb::RedbStore;
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::private_rabbit::PrivateRabbit;
use standfast_tests::private_redis::PrivateRedis;
use standfast_tests::wait::until;

use crate::options::{Options, Persistence};

/// Gives RabbitMQ's own counters, all that it knows of one name in one number.
const OVERVIEW: &str = "lists:flatten([io_lib:format(\"~s=~b \", [K, V]) || \
     {_, M} <- maps:to_list(rabbit_global_counters:overview()), {K, V} <- maps:to_list(M)]).";

/// Where an installation keeps everything.
pub enum Ground {
    /// Two servers.
    Services(Servers),
    /// A folder, another one for each installation.
    Folder,
}

/// A Redis of this run's own, and a RabbitMQ.
pub struct Servers {
    pub redis: PrivateRedis,
    pub rabbit: Arc<Rabbit>,
}

/// A RabbitMQ, of this run's own or not.
pub struct Rabbit {
    pub url: String,
    pid: Option<u32>,
    own: Option<PrivateRabbit>,
}

/// What is to be removed when an installation has ended.
pub struct Left(Option<Arc<RabbitBroker>>);

/// Counts that only rise, by name.
pub type Counts = BTreeMap<String, u64>;

impl Rabbit {
    /// Takes the one that was named, or starts one.
    pub async fn open(options: &Options) -> Self {
        if let Some(url) = &options.amqp {
            return Self { url: url.clone(), pid: options.amqp_pid, own: None };
        }
        let own = PrivateRabbit::start(&[]).await;
        Self { url: own.url(), pid: Some(own.pid()), own: Some(own) }
    }

    /// Gives how many messages came in, were confirmed, delivered, acknowledged and so on, as
    /// RabbitMQ counts them; nothing of one that is not this run's own.
    pub async fn messages(&self) -> Counts {
        let mut counts = Counts::new();
        let Some(own) = &self.own else { return counts };
        let text = own.control(&["eval", OVERVIEW]).await;
        for word in text.trim().trim_matches('"').split_whitespace() {
            let Some((name, count)) = word.split_once('=') else { continue };
            let Some(name) = name.strip_suffix("_total") else { continue };
            *counts.entry(name.to_owned()).or_default() += count.parse::<u64>().unwrap_or(0);
        }
        counts
    }

    /// Gives its process, where that is known.
    pub fn process(&self) -> Option<(&'static str, u32)> {
        self.pid.map(|pid| ("rabbitmq", pid))
    }
}

impl Servers {
    /// Starts a Redis beside a RabbitMQ that runs already.
    pub async fn open(rabbit: Arc<Rabbit>, persistence: Persistence) -> Self {
        Self { redis: PrivateRedis::start(persistence.arguments()).await, rabbit }
    }

    /// Empties Redis and its file: no run pays for what another has left, be it by a rewrite of
    /// the file that falls into it.
    pub async fn empty(&self) {
        // Without its file it drops a rewrite that is under way; with it, it begins anew.
        let kept = self.redis.command(&["INFO", "persistence"]).await.contains("aof_enabled:1");
        self.redis.command(&["CONFIG", "SET", "appendonly", "no"]).await;
        self.redis.command(&["FLUSHALL", "SYNC"]).await;
        let again = if kept { "yes" } else { "no" };
        self.redis.command(&["CONFIG", "SET", "appendonly", again]).await;
        self.rewritten().await;
    }

    /// Waits until Redis does not rewrite its file: for seconds that takes a core of two.
    pub async fn rewritten(&self) {
        let rewritten = async || {
            let text = self.redis.command(&["INFO", "persistence"]).await;
            let at_rest = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
            at_rest.iter().all(|word| text.contains(word)).then_some(())
        };
        until("Redis to have rewritten its file", rewritten).await;
    }

    /// Gives how often each command of Redis has run.
    pub async fn commands(&self) -> Counts {
        commands(&self.redis).await
    }
}

/// Gives how often each command of a Redis has run, those within scripts included.
pub async fn commands(redis: &PrivateRedis) -> Counts {
    let text = redis.command(&["INFO", "commandstats"]).await;
    let one = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    text.lines().filter_map(one).filter(|(name, _)| name != "info").collect()
}

/// Gives what has been counted since, for each of so many units.
pub fn each(before: &Counts, after: &Counts, units: u64) -> BTreeMap<String, f64> {
    let units = units.max(1) as f64;
    let more = |(name, count): (&String, &u64)| {
        let more = count - before.get(name).copied().unwrap_or(0);
        (more > 0).then(|| (name.clone(), more as f64 / units))
    };
    after.iter().filter_map(more).collect()
}

impl Ground {
    /// Starts an installation under a name of its own.
    pub async fn site(&self, folder: &Path, how: &Sites) -> anyhow::Result<(Site, Left)> {
        let Self::Services(servers) = self else {
            let data = folder.to_owned();
            let store = tokio::task::spawn_blocking(move || RedbStore::open(&data)).await??;
            let broker = Arc::new(InProcessBroker::new());
            return Ok((Site::start(Arc::new(store), broker, folder, how).await?, Left(None)));
        };
        let id = uuid::Uuid::new_v4().simple().to_string();
        let prefix = format!("bench-{}", &id[..12]);
        let options =
            RedisOptions { prefix: prefix.clone(), ..RedisOptions::new(servers.redis.url()) };
        let store = Arc::new(RedisStore::connect(&options).await?);
        let url = &servers.rabbit.url;
        let settings = RabbitSettings::parse(url)?.with_prefix(&prefix)?;
        let exchange = Exchange { url: url.clone(), name: settings.names().exchange() };
        let broker = RabbitBroker::connect(settings, Some(Duration::from_secs(10))).await?;
        let broker = Arc::new(broker);
        let how = Sites { exchange: Some(exchange), ..how.clone() };
        let site = Site::start(store, broker.clone(), folder, &how).await?;
        Ok((site, Left(Some(broker))))
    }

    /// Gives the servers, if there are any.
    pub fn servers(&self) -> Option<&Servers> {
        match self {
            Self::Services(servers) => Some(servers),
            Self::Folder => None,
        }
    }

    /// Gives the processes that take part.
    pub fn processes(&self) -> Vec<(&'static str, u32)> {
        let redis = self.servers().map(|servers| ("redis", servers.redis.pid()));
        let rabbit = self.servers().and_then(|servers| servers.rabbit.process());
        [Some(("client", std::process::id())), redis, rabbit].into_iter().flatten().collect()
    }
}

impl Left {
    /// Removes the queues and exchanges; keys go with the Redis that was made for them.
    pub async fn clear(self) -> anyhow::Result<()> {
        if let Self(Some(broker)) = self {
            broker.remove_all(&[queue()]).await?;
        }
        Ok(())
    }
}
