//! Connects to a broker the way both the publisher and the worker need it.

use std::str::FromStr;
use std::time::Duration;

use lapin::types::ShortString;
use lapin::uri::AMQPUri;
use lapin::{Connection, ConnectionProperties};

use crate::error::Error;

/// Longest wait for a connection, a declaration or a confirm.
pub(crate) const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds between heartbeats when the address names none: a dead peer is known after twice
/// that, where the broker's own value would take two minutes.
const HEARTBEAT_SECS: u16 = 10;

/// Reads the address of a broker.
pub(crate) fn parse_uri(url: &str) -> Result<AMQPUri, Error> {
    // The address may hold a password, so the error does not repeat it.
    let mut uri = AMQPUri::from_str(url)
        .map_err(|error| Error::Setup(format!("use the broker's address: {error}")))?;
    uri.query.heartbeat.get_or_insert(HEARTBEAT_SECS);
    Ok(uri)
}

/// Opens a connection; lapin's own recovery stays off, since it does not bring back channels.
pub(crate) async fn connect(uri: &AMQPUri, name: &str) -> Result<Connection, Error> {
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    in_time("connect", Connection::connect_uri(uri.clone(), properties)).await
}

/// Waits for the broker, but not for ever.
pub(crate) async fn in_time<T>(
    what: &str,
    answer: impl Future<Output = lapin::Result<T>>,
) -> Result<T, Error> {
    match tokio::time::timeout(BROKER_TIMEOUT, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Error::NotPublished(format!("the broker did not answer in time: {what}"))),
    }
}

/// Makes an AMQP short string; one that is too long is an error, never a panic.
pub(crate) fn short(what: &str, text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| {
        Error::Setup(format!("use this {what}: {} bytes, at most 255 fit", text.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_an_error() {
        assert!(short("key", &"k".repeat(255)).is_ok());
        assert!(matches!(short("key", &"k".repeat(256)), Err(Error::Setup(_))));
    }

    #[test]
    fn an_address_gets_a_heartbeat_and_its_password_stays_out_of_errors() {
        assert_eq!(parse_uri("amqp://x").unwrap().query.heartbeat, Some(HEARTBEAT_SECS));
        assert_eq!(parse_uri("amqp://x?heartbeat=3").unwrap().query.heartbeat, Some(3));
        let error = parse_uri("http://ana:secret@x").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }
}
