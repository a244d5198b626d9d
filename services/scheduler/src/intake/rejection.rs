//! The copy that is kept of what cannot be accepted.

use standfast_domain::time::Time;
use standfast_engine::ports::{Delivery, Destination, Message};
use standfast_engine::seals::Sealed;
use standfast_protocol::amqp::{
    PROBLEM_HEADER, REJECTED_AT_HEADER, ROUTING_KEY_HEADER, SENDER_HEADER, TOKEN_HEADER,
};
use standfast_protocol::problem::Problem;

/// Bytes of the problem beside a rejected message: all headers go into one frame, which RabbitMQ
/// limits to 128 KiB, and those that the message came with are kept too.
const PROBLEM_BYTES_MAX: usize = 32 * 1024;
/// Bytes of the headers that a rejected message keeps of those it came with: with the problem and
/// the ids they fit one frame. Of more, those that do not fit are left out.
const KEPT_HEADERS_BYTES_MAX: usize = 64 * 1024;
/// Bytes that a header has on the wire besides name and value, at most.
const HEADER_BYTES: usize = 8;
/// Gives the id that a message has among the rejected ones.
pub(super) fn message_id(delivery: &Delivery) -> &str {
    delivery.message_id.as_deref().unwrap_or("none")
}

/// Names what a seal is for.
pub(super) fn sealed(delivery: &Delivery) -> Sealed<'_> {
    let routing_key = &delivery.routing_key;
    Sealed { message_id: message_id(delivery), routing_key, body: &delivery.body }
}

/// Makes the rejected copy; tokens are left out, and headers that would leave the problem no
/// room.
pub(super) fn rejection(
    delivery: &Delivery,
    problem: &Problem,
    at: Time,
    seal: Option<String>,
) -> Message {
    let own = [TOKEN_HEADER, PROBLEM_HEADER, REJECTED_AT_HEADER, ROUTING_KEY_HEADER, SENDER_HEADER];
    let mut room = KEPT_HEADERS_BYTES_MAX;
    let mut headers = Vec::new();
    for (name, value) in &delivery.headers {
        let bytes = name.len() + value.len() + HEADER_BYTES;
        if !own.contains(&name.as_str()) && bytes <= room {
            room -= bytes;
            headers.push((name.clone(), value.clone()));
        }
    }
    headers.push((PROBLEM_HEADER.to_owned(), problem_header(problem)));
    headers.push((REJECTED_AT_HEADER.to_owned(), at.rfc3339()));
    headers.push((ROUTING_KEY_HEADER.to_owned(), delivery.routing_key.clone()));
    headers.extend(seal.map(|seal| (SENDER_HEADER.to_owned(), seal)));
    Message {
        destination: Destination::Rejected,
        message_id: message_id(delivery).to_owned(),
        correlation_id: delivery.correlation_id.clone(),
        headers,
        body: delivery.body.clone(),
    }
}

/// Writes a problem so that it fits a header: with as many of its faults as there is room for.
fn problem_header(problem: &Problem) -> String {
    let mut shown = problem.clone();
    loop {
        let text = serde_json::to_string(&shown).expect("plain data");
        if text.len() <= PROBLEM_BYTES_MAX || shown.errors.is_empty() {
            return text;
        }
        shown.errors.truncate(shown.errors.len() / 2);
    }
}
