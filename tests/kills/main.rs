//! What a fleet of processes goes through with its broker: restarts, freezes, alarms, deleted
//! and full queues, one that cannot be served, a consumer that the broker loses patience with,
//! messages that are no good.
//!
//! Each test has a RabbitMQ node, a Redis and processes of its own, and lets one trouble follow
//! another, because a node takes seconds to start.
#![allow(clippy::unwrap_used)]

mod late_result;
mod long_steps;
mod messages;
mod outages;
mod standstill;
mod stopped;
mod unserved;
