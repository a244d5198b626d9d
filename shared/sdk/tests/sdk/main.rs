//! The SDK against apis that behave in every way, and against a real broker.

// Clippy sees only functions marked as tests as tests, not what they call.
#![allow(clippy::unwrap_used)]

mod client;
mod worker;

mod amqp;
mod attempts;
mod testing;

mod support;
