//! What a program needs to use Standfast: a [`Client`] over HTTP, an [`AmqpPublisher`], and a
//! [`Worker`] that runs the program's own handlers.
//!
//! There is no rule of the task system in here: what may happen is decided by the server, and
//! this crate asks, repeats and reports. It depends on the wire types alone.
//!
//! # A worker
//!
//! ```no_run
//! use standfast_sdk::{Context, Error, Worker};
//!
//! #[derive(serde::Deserialize)]
//! struct Shout {
//!     text: String,
//! }
//!
//! #[derive(serde::Serialize)]
//! struct Shouted {
//!     text: String,
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Error> {
//!     let token = std::env::var("STANDFAST_TOKEN").unwrap_or_default();
//!     Worker::connect("http://127.0.0.1:8080", token)?
//!         .queue("default")
//!         .concurrency(4)
//!         .handler("shout", |_: Context, input: Shout| async move {
//!             Ok(Shouted { text: input.text.to_uppercase() })
//!         })
//!         .run()
//!         .await
//! }
//! ```
//!
//! # Changes to the outside world
//!
//! An attempt may die at any moment, also between sending a request and hearing its answer.
//! [`Context::effect`] stores what is about to be sent before it is sent and the answer after
//! it, so that no later attempt sends it again, and so that what nobody knows is said to be
//! uncertain rather than repeated. The class of the effect says what a later attempt may do; it
//! has no default.
//!
//! # A client
//!
//! ```no_run
//! # async fn example() -> Result<(), standfast_sdk::Error> {
//! let client = standfast_sdk::Client::new("http://127.0.0.1:8080", "a token")?;
//! let plan = serde_json::json!({
//!     "kind": "greeting",
//!     "goal": "Greet loudly",
//!     "steps": [{"id": "hello", "uses": "shout", "with": {"text": "hello"}}],
//! });
//! let task = client.submit(plan).await?;
//! let ended = client.wait(&task.id).await?;
//! # let _ = ended;
//! # Ok(())
//! # }
//! ```

mod client;
mod error;
mod events;

mod amqp;
mod publisher;

mod handler;
mod worker;

pub mod testing;

mod backoff;
mod checked_bytes;
mod http;
mod sse;

pub use standfast_protocol as protocol;
pub use standfast_protocol::effects::EffectClass;

pub use crate::client::Client;
pub use crate::error::Error;
pub use crate::events::EventStream;
pub use crate::handler::HandlerError;
pub use crate::publisher::AmqpPublisher;
pub use crate::worker::Context;
pub use crate::worker::Effect;
pub use crate::worker::SendError;
pub use crate::worker::Worker;
