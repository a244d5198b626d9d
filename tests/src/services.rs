//! Redis and RabbitMQ as the tests use them: the addresses, and a name of one's own in each.

use std::sync::Arc;
use std::time::Duration;

use standfast_brokers::rabbitmq::{RabbitBroker, RabbitSettings};
use standfast_stores::redis::{RedisOptions, RedisStore};

/// Gives Redis's address.
pub fn redis_url() -> String {
    std::env::var("STANDFAST_TEST_REDIS").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned())
}

/// Gives RabbitMQ's address.
pub fn amqp_url() -> String {
    std::env::var("STANDFAST_TEST_AMQP")
        .unwrap_or_else(|_| "amqp://guest:guest@127.0.0.1:5672/%2f".to_owned())
}

/// Keys and queues of one test; removed when dropped by [`Place::clean`].
pub struct Place {
    pub prefix: String,
}

impl Place {
    pub fn new() -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        Self { prefix: format!("test-{}", &id[..12]) }
    }

    pub async fn store(&self) -> Arc<RedisStore> {
        let options =
            RedisOptions { prefix: self.prefix.clone(), ..RedisOptions::new(redis_url()) };
        let store = RedisStore::connect(&options).await;
        Arc::new(store.unwrap_or_else(|error| {
            panic!("these tests need a Redis at {} (STANDFAST_TEST_REDIS): {error}", redis_url())
        }))
    }

    pub async fn broker(&self) -> Arc<RabbitBroker> {
        let settings = RabbitSettings::parse(&amqp_url()).unwrap();
        let settings = settings.with_prefix(&self.prefix).unwrap();
        let broker = RabbitBroker::connect(settings, Some(Duration::from_secs(10))).await;
        Arc::new(broker.unwrap_or_else(|error| {
            panic!("these tests need a RabbitMQ at the STANDFAST_TEST_AMQP address: {error}")
        }))
    }

    /// Removes the keys and queues.
    pub async fn clean(&self, queues: &[&str]) {
        let client = redis::Client::open(redis_url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut cursor = 0u64;
        loop {
            let (next, keys): (u64, Vec<String>) = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(format!("{{{}:*", self.prefix))
                .arg("COUNT")
                .arg(1000)
                .query_async(&mut connection)
                .await
                .unwrap();
            if !keys.is_empty() {
                let _: () =
                    redis::cmd("UNLINK").arg(keys).query_async(&mut connection).await.unwrap();
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let connection =
            lapin::Connection::connect(&amqp_url(), lapin::ConnectionProperties::default())
                .await
                .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let names = ["intake", "rejected", "dead.steps"].iter().map(|name| (*name).to_owned());
        let steps = queues.iter().map(|queue| format!("steps.{queue}"));
        for name in names.chain(steps) {
            let name = format!("{}.{name}", self.prefix);
            let _ = channel.queue_delete(name.as_str().into(), Default::default()).await;
        }
        for suffix in ["", ".dead", ".control"] {
            let name = format!("{}{suffix}", self.prefix);
            let _ = channel.exchange_delete(name.as_str().into(), Default::default()).await;
        }
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}
