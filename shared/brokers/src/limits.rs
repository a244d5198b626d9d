//! What a message may be, the same for every broker, so that work which runs embedded also
//! runs on RabbitMQ.

use standfast_engine::ports::{BrokerError, Destination, Message};

/// Bytes of a name in AMQP 0-9-1 (a short string carries its length in one byte): queue names,
/// routing keys, message ids, correlation ids and header names.
pub const SHORT_BYTES_MAX: usize = 255;

/// Bytes of a body: the smallest default limit of the brokers in use (16 MiB from RabbitMQ
/// 4.0 on). Anything larger belongs in the blobs and travels by reference.
pub const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Refuses what AMQP cannot carry, naming the field. What is put aside as rejected may be of any
/// size: it has come through the same broker.
pub(crate) fn check_message(message: &Message) -> Result<(), BrokerError> {
    check_short("message id", &message.message_id)?;
    if let Some(id) = &message.correlation_id {
        check_short("correlation id", id)?;
    }
    if let Destination::Reply(queue) = &message.destination {
        check_short("reply queue", queue)?;
    }
    for (name, _) in &message.headers {
        check_short("header name", name)?;
    }
    let came_in = message.destination == Destination::Rejected;
    if message.body.len() > BODY_BYTES_MAX && !came_in {
        return Err(BrokerError::Refused(format!(
            "the body has {} bytes, at most {BODY_BYTES_MAX} fit a message; store it as a blob",
            message.body.len()
        )));
    }
    Ok(())
}

/// Refuses a text that does not fit an AMQP short string.
pub(crate) fn check_short(what: &str, text: &str) -> Result<(), BrokerError> {
    if text.len() <= SHORT_BYTES_MAX {
        return Ok(());
    }
    Err(BrokerError::Refused(format!(
        "the {what} has {} bytes, at most {SHORT_BYTES_MAX} are allowed",
        text.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_is_measured_in_bytes() {
        assert!(check_short("message id", &"é".repeat(127)).is_ok());
        let refusal = check_short("message id", &"é".repeat(128)).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "publish: the message id has 256 bytes, at most 255 are allowed"
        );
    }
}
