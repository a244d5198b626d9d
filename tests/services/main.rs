//! The engine, workers and schedulers over the real Redis and RabbitMQ.
#![allow(clippy::unwrap_used)]

mod cost;
mod shared;
