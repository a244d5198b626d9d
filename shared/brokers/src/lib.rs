//! Moves messages: RabbitMQ between processes, or queues within one.
//!
//! Both implement the engine's port `Broker` and are held to one conformance suite. What is
//! absent: no rule about tasks or steps lives here. Messages only wake; what is ready stands in
//! the store, so a message that is lost or comes twice is never more than a delay.

pub mod in_process;
mod limits;
pub mod rabbitmq;

pub use limits::BODY_BYTES_MAX;
pub use limits::SHORT_BYTES_MAX;
