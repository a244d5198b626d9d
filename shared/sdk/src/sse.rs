//! Reads Server-Sent Events, as the HTML standard defines them, from chunks of bytes.

use bytes::Bytes;

/// Bytes kept of one message: a message beyond that is not one of ours.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// One message of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// The last `id` seen on the stream, this message's own included.
    pub(crate) id: String,
    /// `event`, or empty.
    pub(crate) event: String,
    /// The `data` lines, joined by line feeds.
    pub(crate) data: String,
}

/// Says that a message passed [`MESSAGE_BYTES_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Splits a stream into messages, however its chunks are cut.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    line: Vec<u8>,
    after_return: bool,
    message: Message,
    has_data: bool,
}

impl Parser {
    /// Takes a chunk and gives the messages that it completes.
    pub(crate) fn push(&mut self, chunk: &Bytes) -> Result<Vec<Message>, TooLong> {
        let mut messages = Vec::new();
        for &byte in chunk {
            let line_feed_of_pair = byte == b'\n' && std::mem::take(&mut self.after_return);
            if line_feed_of_pair {
                continue;
            }
            self.after_return = byte == b'\r';
            if byte == b'\n' || byte == b'\r' {
                messages.extend(self.end_line());
            } else {
                self.line.push(byte);
            }
            if self.line.len() + self.message.data.len() > MESSAGE_BYTES_MAX {
                return Err(TooLong);
            }
        }
        Ok(messages)
    }

    fn end_line(&mut self) -> Option<Message> {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
        if line.is_empty() {
            let has_data = std::mem::take(&mut self.has_data);
            let next = Message { id: self.message.id.clone(), ..Message::default() };
            let message = std::mem::replace(&mut self.message, next);
            return has_data.then_some(message);
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
                self.has_data = true;
            }
            "event" => self.message.event = value.to_owned(),
            "id" if !value.contains('\0') => self.message.id = value.to_owned(),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        ": hello\n\nid: t:1\nevent: a\ndata: {\"x\":\ndata: 1}\n\ndata:2\r\n\r\nid:t:9\n\n";

    fn read(chunk_bytes: usize) -> Vec<Message> {
        let mut parser = Parser::default();
        let chunks = TEXT.as_bytes().chunks(chunk_bytes);
        chunks.flat_map(|chunk| parser.push(&Bytes::copy_from_slice(chunk)).unwrap()).collect()
    }

    #[test]
    fn messages_are_the_same_however_chunks_are_cut() {
        let message = |event: &str, data: &str| Message {
            id: "t:1".to_owned(),
            event: event.to_owned(),
            data: data.to_owned(),
        };
        let expected = [message("a", "{\"x\":\n1}"), message("", "2")];
        for chunk_bytes in 1..TEXT.len() {
            assert_eq!(read(chunk_bytes), expected, "chunks of {chunk_bytes}");
        }
    }

    #[test]
    fn a_message_without_end_is_refused() {
        let mut parser = Parser::default();
        let chunk = Bytes::from(vec![b'x'; MESSAGE_BYTES_MAX + 1]);
        assert_eq!(parser.push(&chunk), Err(TooLong));
    }
}
