//! The Redis and the RabbitMQ that both sides run on: private ones, and what they have counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use standfast_bench::{Site, Sites};
use standfast_brokers::rabbitmq::{RabbitBroker, RabbitSettings};
use standfast_stores::redis::{RedisOptions, RedisStore};
use standfast_tests::private_rabbit::PrivateRabbit;
use standfast_tests::private_redis::PrivateRedis;

use crate::options::{Options, Persistence};

/// Two servers of this run's own.
pub struct Ground {
    pub redis: PrivateRedis,
    pub rabbit: Arc<Rabbit>,
}

/// A RabbitMQ, of this run's own or not.
pub struct Rabbit {
    pub url: String,
    pid: Option<u32>,
    _own: Option<PrivateRabbit>,
}

impl Rabbit {
    /// Takes the one that was named, or starts one.
    pub async fn open(options: &Options) -> Self {
        if let Some(url) = &options.amqp {
            return Self { url: url.clone(), pid: options.amqp_pid, _own: None };
        }
        let own = PrivateRabbit::start(&[]).await;
        Self { url: own.url(), pid: Some(own.pid()), _own: Some(own) }
    }
}

/// A count of the commands that Redis ran, by name.
pub type Commands = BTreeMap<String, u64>;

impl Ground {
    /// Starts a Redis beside a RabbitMQ that runs already.
    pub async fn open(rabbit: Arc<Rabbit>, persistence: Persistence) -> Self {
        Self { redis: PrivateRedis::start(persistence.arguments()).await, rabbit }
    }

    /// Starts an installation under a name of its own; the broker is for removing it.
    pub async fn site(
        &self,
        folder: &std::path::Path,
        how: &Sites,
    ) -> anyhow::Result<(Site, Arc<RabbitBroker>)> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let prefix = format!("bench-{}", &id[..12]);
        let options =
            RedisOptions { prefix: prefix.clone(), ..RedisOptions::new(self.redis.url()) };
        let store = Arc::new(RedisStore::connect(&options).await?);
        let settings = RabbitSettings::parse(&self.rabbit.url)?.with_prefix(&prefix)?;
        let broker = RabbitBroker::connect(settings, Some(Duration::from_secs(10))).await?;
        let broker = Arc::new(broker);
        Ok((Site::start(store, broker.clone(), folder, how).await?, broker))
    }

    /// Gives how often each command of Redis has run.
    pub async fn commands(&self) -> Commands {
        let text = self.redis.command(&["INFO", "commandstats"]).await;
        let one = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
        };
        text.lines().filter_map(one).collect()
    }

    /// Gives the processes that both sides share.
    pub fn processes(&self) -> Vec<(&'static str, u32)> {
        let own = [("redis", self.redis.pid()), ("client", std::process::id())];
        own.into_iter().chain(self.rabbit.pid.map(|pid| ("rabbitmq", pid))).collect()
    }
}
