//! Asks a broker for its product and version.
//!
//! The client library reads them at log-in and keeps them to itself, so this opens a connection
//! of its own, reads the greeting (`connection.start`, which comes before any log-in) and leaves.

use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use lapin::tcp::AMQPUriTcpExt;
use lapin::types::parsing::parse_field_table;
use lapin::types::{AMQPValue, FieldTable};
use tokio::time::timeout;

use super::settings::RabbitSettings;

/// Longest wait for the greeting.
const BOUND: Duration = Duration::from_secs(2);
/// What a client says first: AMQP 0-9-1.
const HELLO: &[u8; 8] = b"AMQP\x00\x00\x09\x01";
/// Type, channel and length stand before a frame's payload.
const FRAME_HEAD_BYTES: usize = 7;
/// Class, method and the protocol's version stand before the server's properties.
const START_HEAD_BYTES: usize = 6;
/// A greeting has some 500 bytes; anything far beyond is not one.
const GREETING_BYTES_MAX: usize = 64 * 1024;

/// The last answer, and the connection during which it was asked.
#[derive(Default)]
pub(crate) struct Product {
    pub(crate) generation: u64,
    pub(crate) text: String,
}

/// Gives, for example, `RabbitMQ 3.10.8`; none if the broker does not say.
pub(crate) async fn ask(settings: &RabbitSettings) -> Option<String> {
    let greeting = timeout(BOUND, greeting(settings)).await.ok()?.ok()?;
    let (_, properties) = parse_field_table(greeting.get(START_HEAD_BYTES..)?).ok()?;
    let product = text(&properties, "product")?;
    Some(match text(&properties, "version") {
        Some(version) => format!("{product} {version}"),
        None => product,
    })
}

/// Reads the payload of the broker's greeting.
pub(crate) async fn greeting(settings: &RabbitSettings) -> std::io::Result<Vec<u8>> {
    let runtime = lapin::runtime::default_runtime().map_err(std::io::Error::other)?;
    let mut stream = settings.uri.connect_async(&runtime).await?;
    stream.write_all(HELLO).await?;
    stream.flush().await?;
    let mut head = [0; FRAME_HEAD_BYTES];
    stream.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
    if length > GREETING_BYTES_MAX {
        return Err(std::io::Error::other("not a greeting"));
    }
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await?;
    Ok(payload)
}

fn text(properties: &FieldTable, name: &str) -> Option<String> {
    match properties.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}
