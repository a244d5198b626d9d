//! An attempt's log between the handler that writes it and the task that sends it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use standfast_protocol::limits::LOG_BYTES_MAX;
use tokio::sync::Notify;

/// Bytes kept while they cannot be sent: a handler that writes without end must not fill the
/// memory of a worker that is cut off.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// Text that waits to be sent, and how much was sent before it.
#[derive(Debug, Default)]
pub(crate) struct LogBuffer {
    state: Mutex<State>,
    written: Notify,
    sending: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    text: String,
    sent_bytes: u64,
    dropped_bytes: usize,
}

impl LogBuffer {
    /// Adds a line. Beyond what is kept, lines are dropped and counted.
    pub(crate) fn push_line(&self, line: &str) {
        let mut state = self.lock();
        if state.text.len() + line.len() >= KEPT_BYTES_MAX {
            state.dropped_bytes += line.len() + 1;
            return;
        }
        state.note_dropped();
        state.text.push_str(line);
        state.text.push('\n');
        drop(state);
        self.written.notify_one();
    }

    /// Gives the next text to send and the offset it belongs at; nothing when all is sent.
    pub(crate) fn next(&self) -> Option<(u64, Bytes)> {
        let mut state = self.lock();
        if state.text.is_empty() {
            state.note_dropped();
        }
        let end = state.text.floor_char_boundary(LOG_BYTES_MAX);
        let chunk = Bytes::copy_from_slice(&state.text.as_bytes()[..end]);
        (!chunk.is_empty()).then_some((state.sent_bytes, chunk))
    }

    /// Lets go of text that was taken by the server.
    pub(crate) fn sent(&self, bytes: usize) {
        let mut state = self.lock();
        state.text.drain(..bytes);
        state.sent_bytes += bytes as u64;
    }

    /// Takes the right to send: two senders would let go of the same text twice.
    pub(crate) async fn sender(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.sending.lock().await
    }

    /// Waits until something is written.
    pub(crate) async fn written(&self) {
        self.written.notified().await;
    }

    /// Gives all that was not sent.
    pub(crate) fn text(&self) -> String {
        self.lock().text.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.dropped_bytes);
        if dropped > 0 {
            self.text.push_str(&format!("[{dropped} bytes of log dropped]\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_offsets_add_up() {
        let buffer = LogBuffer::default();
        buffer.push_line(&"ä".repeat(LOG_BYTES_MAX));
        let mut sum = 0;
        while let Some((offset, chunk)) = buffer.next() {
            assert_eq!(offset, sum);
            assert!(std::str::from_utf8(&chunk).is_ok());
            buffer.sent(chunk.len());
            sum += chunk.len() as u64;
        }
        assert_eq!(sum, 2 * LOG_BYTES_MAX as u64 + 1);
    }

    #[test]
    fn a_full_buffer_drops_and_says_so() {
        let buffer = LogBuffer::default();
        buffer.push_line(&"x".repeat(KEPT_BYTES_MAX - 10));
        buffer.push_line(&"y".repeat(99));
        assert!(!buffer.text().contains('y'));
        buffer.sent(KEPT_BYTES_MAX - 9);
        let (_, note) = buffer.next().unwrap();
        assert_eq!(&note[..], b"[100 bytes of log dropped]\n");
    }
}
