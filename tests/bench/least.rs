//! The least durable step loop: consume, one script to claim, one to complete, publish the next
//! message with its confirm, acknowledge. It keeps no history, no plan, no rights and no index of
//! what is due: a floor to measure against, not an example to follow.
//!
//! A task begins as durably as it goes on: one script stores it, then its first message is
//! published and confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::StreamExt;
use futures::future::try_join_all;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use redis::aio::MultiplexedConnection;
use redis::{IntoConnectionInfo, Script};
use serde::{Deserialize, Serialize};
use standfast_bench::Sample;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

/// Tasks that are begun at a time.
const SUBMITTERS: usize = 32;
/// The prefetch that suits it best, at least.
const PREFETCH_MIN: u16 = 200;
/// Bytes of an output, as padding.
const PAYLOAD: usize = 400;
/// The longest a run may take.
const PATIENCE: Duration = Duration::from_secs(120);

const SUBMIT: &str = "
redis.call('HSET', KEYS[1], 'plan', ARGV[1], 'status', 'ready')
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[3])
return 1";

const CLAIM: &str = "
local r = redis.call('HMGET', KEYS[1], 'attempt', 'out:' .. ARGV[1])
if r[2] then return 0 end
redis.call('HSET', KEYS[1], 'step', ARGV[1], 'owner', ARGV[2], 'attempt', (r[1] or 0) + 1)
redis.call('ZADD', KEYS[2], ARGV[3] + 30000, ARGV[4])
redis.call('ZREM', KEYS[3], ARGV[4])
return 1";

const COMPLETE: &str = "
local r = redis.call('HMGET', KEYS[1], 'owner', 'version', 'out:' .. ARGV[1])
if r[3] or r[1] ~= ARGV[2] then return 0 end
local version = (r[2] or 0) + 1
redis.call('HSET', KEYS[1], 'out:' .. ARGV[1], ARGV[5], 'version', version, 'owner', '',
  'outbox', ARGV[6])
redis.call('ZREM', KEYS[2], ARGV[4])
if ARGV[7] ~= '' then redis.call('ZADD', KEYS[3], ARGV[3], ARGV[7]) end
redis.call('RPUSH', KEYS[4], 'done ' .. ARGV[1])
return 1";

/// What a message carries.
#[derive(Deserialize, Serialize)]
struct Wake {
    task: String,
    step: usize,
}

/// The loop over a queue and keys of its own.
pub struct Least {
    run: Arc<Run>,
    consuming: Channel,
    consumed: JoinHandle<anyhow::Result<()>>,
    /// Kept open: one to consume by, one to publish by.
    _connections: [Connection; 2],
}

impl Least {
    /// Connects, declares its queue and begins to consume.
    pub async fn open(redis: &str, amqp: &str, in_flight: u16) -> anyhow::Result<Self> {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let info = redis.into_connection_info()?.set_tcp_settings(tcp);
        let client = redis::Client::open(info)?;
        let redis = client.get_multiplexed_async_connection_with_config(&config).await?;
        let name = format!("least-{}", uuid::Uuid::new_v4().simple());
        let (consumer, producer) = (connect(amqp).await?, connect(amqp).await?);
        let consuming = consumer.create_channel().await?;
        let mut arguments = FieldTable::default();
        let kind = AMQPValue::LongString(LongString::from("quorum"));
        arguments.insert("x-queue-type".into(), kind);
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        consuming.queue_declare(name.as_str().into(), durable, arguments).await?;
        let publishing = producer.create_channel().await?;
        publishing.confirm_select(ConfirmSelectOptions::default()).await?;
        let prefetch = in_flight.saturating_mul(2).max(PREFETCH_MIN);
        consuming.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let run = Arc::new(Run {
            redis,
            publishing,
            name,
            slots: Arc::new(Semaphore::new(usize::from(in_flight))),
            length: AtomicUsize::new(1),
            left: AtomicUsize::new(0),
            done: Notify::new(),
            scripts: [SUBMIT, CLAIM, COMPLETE].map(Script::new),
            pad: "x".repeat(PAYLOAD),
            began: Instant::now(),
        });
        let consumed = tokio::spawn(run.clone().consume(consuming.clone()));
        Ok(Self { run, consuming, consumed, _connections: [consumer, producer] })
    }

    /// Runs tasks of so many steps each, submitting while it consumes.
    pub async fn tasks(&self, tasks: usize, length: usize) -> anyhow::Result<Sample> {
        let units = tasks * length;
        self.run.length.store(length, Ordering::Relaxed);
        self.run.left.store(units, Ordering::Relaxed);
        let began = Instant::now();
        let worked = async {
            self.run.submit_all(tasks).await?;
            self.run.done.notified().await;
            anyhow::Ok(began.elapsed())
        };
        let elapsed = tokio::time::timeout(PATIENCE, worked).await.context("it stands still")??;
        Ok(Sample { units: units as u64, elapsed, each: Vec::new() })
    }

    /// Runs one task of one step after the other and takes the time of each.
    pub async fn latency(&self, tasks: usize) -> anyhow::Result<Sample> {
        let mut each = Vec::with_capacity(tasks);
        let began = Instant::now();
        for _ in 0..tasks {
            each.push(self.tasks(1, 1).await?.elapsed);
        }
        Ok(Sample { units: tasks as u64, elapsed: began.elapsed(), each })
    }

    /// Removes its queue; its keys stay with the Redis that was made for it.
    pub async fn close(self) -> anyhow::Result<()> {
        self.consumed.abort();
        let options = QueueDeleteOptions::default();
        self.consuming.queue_delete(self.run.name.as_str().into(), options).await?;
        Ok(())
    }
}

/// What all parts share.
struct Run {
    redis: MultiplexedConnection,
    publishing: Channel,
    name: String,
    slots: Arc<Semaphore>,
    /// Steps of each task.
    length: AtomicUsize,
    /// Steps to go.
    left: AtomicUsize,
    done: Notify,
    scripts: [Script; 3],
    pad: String,
    began: Instant,
}

impl Run {
    async fn submit_all(self: &Arc<Self>, tasks: usize) -> anyhow::Result<()> {
        let next = AtomicUsize::new(0);
        let submitter = || async {
            while next.fetch_add(1, Ordering::Relaxed) < tasks {
                self.submit().await?;
            }
            anyhow::Ok(())
        };
        try_join_all((0..SUBMITTERS.min(tasks)).map(|_| submitter())).await?;
        Ok(())
    }

    async fn submit(&self) -> anyhow::Result<()> {
        let wake = Wake { task: uuid::Uuid::new_v4().simple().to_string(), step: 0 };
        let tag = format!("{}:0", wake.task);
        let mut redis = self.redis.clone();
        let mut call = self.scripts[0].key(self.key(&wake.task));
        call.key(self.key("ready")).arg(&self.pad).arg(self.now()).arg(tag);
        let stored: i64 = call.invoke_async(&mut redis).await?;
        ensure!(stored == 1, "a task was not stored");
        self.publish(&wake).await
    }

    async fn publish(&self, wake: &Wake) -> anyhow::Result<()> {
        let body = serde_json::to_vec(wake)?;
        let properties = BasicProperties::default().with_delivery_mode(2);
        let options = BasicPublishOptions::default();
        let queue = self.name.as_str().into();
        let sent = self.publishing.basic_publish("".into(), queue, options, &body, properties);
        ensure!(sent.await?.await?.is_ack(), "a message was not confirmed");
        Ok(())
    }

    async fn consume(self: Arc<Self>, channel: Channel) -> anyhow::Result<()> {
        let (queue, options) = (self.name.as_str().into(), BasicConsumeOptions::default());
        let mut deliveries =
            channel.basic_consume(queue, "least".into(), options, FieldTable::default()).await?;
        while let Some(delivery) = deliveries.next().await {
            let delivery = delivery?;
            let slot = self.slots.clone().acquire_owned().await?;
            let run = self.clone();
            tokio::spawn(async move {
                // A fault leaves the run without its end, which is reported.
                if let Err(error) = run.step(delivery).await {
                    eprintln!("least loop: {error:#}");
                }
                drop(slot);
            });
        }
        Ok(())
    }

    async fn step(&self, delivery: Delivery) -> anyhow::Result<()> {
        let wake: Wake = serde_json::from_slice(&delivery.data)?;
        let next = Wake { task: wake.task.clone(), step: wake.step + 1 };
        let last = next.step == self.length.load(Ordering::Relaxed);
        let tag = |wake: &Wake| format!("{}:{}", wake.task, wake.step);
        let next_tag = if last { String::new() } else { tag(&next) };
        let mut redis = self.redis.clone();
        let mut call = self.scripts[1].key(self.key(&wake.task));
        call.key(self.key("leases")).key(self.key("ready"));
        call.arg(wake.step).arg("w1").arg(self.now()).arg(tag(&wake));
        let claimed: i64 = call.invoke_async(&mut redis).await?;
        ensure!(claimed == 1, "a step was claimed twice");
        let mut call = self.scripts[2].key(self.key(&wake.task));
        call.key(self.key("leases")).key(self.key("ready"));
        call.key(self.key(&format!("{}:log", wake.task)));
        call.arg(wake.step).arg("w1").arg(self.now()).arg(tag(&wake));
        call.arg(&self.pad).arg(&next_tag).arg(&next_tag);
        let completed: i64 = call.invoke_async(&mut redis).await?;
        ensure!(completed == 1, "a step was completed twice");
        if !last {
            self.publish(&next).await?;
        }
        delivery.ack(BasicAckOptions::default()).await?;
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.name)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

async fn connect(amqp: &str) -> anyhow::Result<Connection> {
    Ok(Connection::connect(amqp, ConnectionProperties::default()).await?)
}
