//! The log of one attempt: bounded in memory, readable while it grows, free of secrets.
//!
//! ```text
//!  stdout ─┐ lines, masked        ┌─ head: the first bytes
//!  stderr ─┼──────────────────────┼─ tail: the last bytes   (between them: dropped)
//!  notes  ─┘                      └─ spool: a file, the first bytes up to its own limit
//! ```

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::secrets::Masker;

/// Bytes of a line that is shown without waiting for its end, so that endless lines neither
/// fill the memory nor stay unseen.
const LINE_BYTES_MAX: usize = 16 * 1024;
/// Bytes that an unfinished line may hold back because a secret may lie across its cut.
const HELD_BYTES_MAX: usize = 1024 * 1024;
/// Stands before what Standfast itself says in a log.
const NOTE_MARK: &str = "standfast: ";

/// How much of a log is kept where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLimits {
    /// Bytes kept of the beginning, inline.
    pub head_bytes_max: usize,
    /// Bytes kept of the end, inline.
    pub tail_bytes_max: usize,
    /// Bytes that the spool file may have.
    pub spool_bytes_max: u64,
}

impl Default for LogLimits {
    /// A log that fits inline beside its attempt, and a file that one blob can take.
    fn default() -> Self {
        Self {
            head_bytes_max: 32 * 1024,
            tail_bytes_max: 32 * 1024,
            spool_bytes_max: 16 * 1024 * 1024,
        }
    }
}

/// Where a piece of the log comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSource {
    /// The standard output of a process.
    Stdout,
    /// The standard error of a process.
    Stderr,
}

/// What is kept of a log at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSnapshot {
    /// The beginning.
    pub head: String,
    /// Bytes between head and tail that are not kept inline.
    pub dropped_bytes: u64,
    /// The end; empty while everything fits into the head.
    pub tail: String,
    /// Bytes of the whole log.
    pub total_bytes: u64,
    /// The spool file, if there is one and nothing went wrong with it.
    pub spool: Option<PathBuf>,
    /// Bytes in the spool file; fewer than `total_bytes` if it reached its limit.
    pub spooled_bytes: u64,
}

/// A part of a log, for a reader who follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPiece {
    /// Where the text begins; later than asked for if what was there is no longer kept.
    pub from: u64,
    /// The text.
    pub text: String,
    /// Where to go on.
    pub next: u64,
}

/// Takes an attempt's log. Clones write to the same log.
#[derive(Clone)]
pub struct LogSink {
    log: Arc<Mutex<Log>>,
    total: Arc<watch::Sender<u64>>,
}

impl LogSink {
    /// Makes an empty log; with a path, its beginning is also written to a file there, which is
    /// made with the first line. A file that cannot be made or written costs the spool, never
    /// the attempt.
    pub fn new(limits: LogLimits, spool: Option<&Path>) -> Self {
        let spool = spool.map(|path| Spool { file: None, path: path.to_owned(), bytes: 0 });
        let log = Log {
            limits,
            masker: Masker::default(),
            unfinished: [Vec::new(), Vec::new()],
            head: String::new(),
            tail: VecDeque::new(),
            total: 0,
            spool,
        };
        Self { log: Arc::new(Mutex::new(log)), total: Arc::new(watch::Sender::new(0)) }
    }

    /// Hides secrets in everything written from now on.
    pub fn hide(&self, masker: Masker) {
        self.lock().masker = masker;
    }

    /// Takes bytes of a process as they come; they are shown by the line.
    pub fn write(&self, source: LogSource, bytes: &[u8]) {
        let mut log = self.lock();
        log.write(source, bytes);
        self.tell(&log);
    }

    /// Takes note that a source has ended: its last line needs no line end.
    pub fn end(&self, source: LogSource) {
        let mut log = self.lock();
        log.end(source);
        self.tell(&log);
    }

    /// Adds what Standfast or a handler itself has to say.
    pub fn note(&self, text: &str) {
        let mut log = self.lock();
        let masked = log.masker.text(text);
        for line in masked.lines() {
            log.append(&format!("{NOTE_MARK}{line}\n"));
        }
        self.tell(&log);
    }

    /// Gives what is kept at this moment.
    pub fn snapshot(&self) -> LogSnapshot {
        let log = self.lock();
        LogSnapshot {
            head: log.head.clone(),
            dropped_bytes: log.tail_from() - log.head.len() as u64,
            tail: log.tail_text(0),
            total_bytes: log.total,
            spool: log
                .spool
                .as_ref()
                .filter(|spool| spool.exists())
                .map(|spool| spool.path.clone()),
            spooled_bytes: log.spool.as_ref().map_or(0, |spool| spool.bytes),
        }
    }

    /// True while nothing was written.
    pub fn is_empty(&self) -> bool {
        self.lock().total == 0
    }

    /// True once there is a spool file.
    pub fn is_spooled(&self) -> bool {
        self.lock().spool.as_ref().is_some_and(Spool::exists)
    }

    /// Gives what follows a position; positions are bytes of the whole log.
    pub fn read(&self, from: u64) -> LogPiece {
        self.lock().read(from)
    }

    /// Gives a watch on the log's length, for readers who wait for more.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.total.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        // A log stays usable whatever happened to one of its writers.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, log: &Log) {
        self.total.send_if_modified(|total| std::mem::replace(total, log.total) != log.total);
    }
}

struct Log {
    limits: LogLimits,
    masker: Masker,
    /// The begun lines of stdout and stderr.
    unfinished: [Vec<u8>; 2],
    head: String,
    tail: VecDeque<u8>,
    total: u64,
    spool: Option<Spool>,
}

struct Spool {
    /// Made with the first line.
    file: Option<File>,
    path: PathBuf,
    bytes: u64,
}

impl Spool {
    fn exists(&self) -> bool {
        self.file.is_some()
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => empty.insert(File::create(&self.path)?),
        };
        file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn slot(source: LogSource) -> usize {
    match source {
        LogSource::Stdout => 0,
        LogSource::Stderr => 1,
    }
}

impl Log {
    fn write(&mut self, source: LogSource, bytes: &[u8]) {
        let mut pending = std::mem::take(&mut self.unfinished[slot(source)]);
        // What is pending holds no line end, so only the new bytes are searched.
        let (whole, begun) =
            bytes.split_at(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        pending.extend_from_slice(whole);
        if !whole.is_empty() {
            let lines = self.masker.text(&String::from_utf8_lossy(&pending));
            self.append(&lines);
            pending.clear();
        }
        pending.extend_from_slice(begun);
        if pending.len() > LINE_BYTES_MAX {
            pending = self.cut_line(pending);
        }
        self.unfinished[slot(source)] = pending;
    }

    /// Shows as much of a long line as is safe; gives back the rest.
    fn cut_line(&mut self, pending: Vec<u8>) -> Vec<u8> {
        let text = String::from_utf8_lossy(&pending[..whole_characters(&pending)]);
        let begun = &pending[whole_characters(&pending)..];
        let mut cut = self.masker.cut(&text);
        if cut == 0 && text.len() > HELD_BYTES_MAX {
            cut = text.len();
        }
        let masked = self.masker.text(&text[..cut]);
        self.append(&masked);
        [&text.as_bytes()[cut..], begun].concat()
    }

    fn end(&mut self, source: LogSource) {
        let pending = std::mem::take(&mut self.unfinished[slot(source)]);
        if !pending.is_empty() {
            let line = self.masker.text(&String::from_utf8_lossy(&pending));
            self.append(&format!("{line}\n"));
        }
    }

    fn append(&mut self, text: &str) {
        let head_only = self.total == self.head.len() as u64;
        self.total += text.len() as u64;
        if let Some(spool) = &mut self.spool {
            let left = self.limits.spool_bytes_max.saturating_sub(spool.bytes);
            let end = text.floor_char_boundary(usize::try_from(left).unwrap_or(usize::MAX));
            if let Err(error) = spool.write(&text.as_bytes()[..end]) {
                tracing::warn!(path = %spool.path.display(), %error, "failed to write a log");
                let _ = std::fs::remove_file(&spool.path); // half a log is none
                self.spool = None;
            }
        }
        let mut rest = text;
        if head_only {
            let room = self.limits.head_bytes_max.saturating_sub(self.head.len());
            let (now, later) = text.split_at(text.floor_char_boundary(room));
            self.head.push_str(now);
            rest = later;
        }
        let kept = rest.ceil_char_boundary(rest.len().saturating_sub(self.limits.tail_bytes_max));
        if kept > 0 {
            self.tail.clear();
        }
        self.tail.extend(&rest.as_bytes()[kept..]);
        let over = self.tail.len().saturating_sub(self.limits.tail_bytes_max);
        self.tail.drain(..over);
        // A character that lost its first bytes goes with them.
        while self.tail.front().is_some_and(|byte| is_continuation(*byte)) {
            self.tail.pop_front();
        }
    }

    fn tail_from(&self) -> u64 {
        self.total - self.tail.len() as u64
    }

    fn tail_text(&self, skip: usize) -> String {
        let bytes: Vec<u8> = self.tail.iter().skip(skip).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn read(&self, from: u64) -> LogPiece {
        let head_end = self.head.len() as u64;
        if from < head_end {
            let start = self.head.floor_char_boundary(usize::try_from(from).unwrap_or(0));
            let whole = self.tail_from() == head_end;
            let tail = if whole { self.tail_text(0) } else { String::new() };
            let next = if whole { self.total } else { head_end };
            return LogPiece {
                from: start as u64,
                text: self.head[start..].to_owned() + &tail,
                next,
            };
        }
        let from = from.clamp(self.tail_from(), self.total);
        let skip = usize::try_from(from - self.tail_from()).unwrap_or(usize::MAX);
        LogPiece { from, text: self.tail_text(skip), next: self.total }
    }
}

/// Gives how many bytes end with a whole character; faulty bytes count as characters.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(&bytes[bytes.len().saturating_sub(3)..]) {
        Ok(_) => bytes.len(),
        Err(_) => (1..=3.min(bytes.len()))
            .map(|back| bytes.len() - back)
            .find(|at| !is_continuation(bytes[*at]))
            .filter(|at| needs(bytes[*at]) > bytes.len() - at)
            .unwrap_or(bytes.len()),
    }
}

/// Gives how many bytes the character has that begins with this one.
fn needs(first: u8) -> usize {
    match first {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        0x00..=0xc1 | 0xf5..=0xff => 1,
    }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> LogLimits {
        LogLimits { head_bytes_max: 10, tail_bytes_max: 10, spool_bytes_max: 16 }
    }

    fn written(limits: LogLimits, chunks: &[&str]) -> LogSink {
        let log = LogSink::new(limits, None);
        chunks.iter().for_each(|chunk| log.write(LogSource::Stdout, chunk.as_bytes()));
        log
    }

    #[test]
    fn head_and_tail_are_kept_and_the_rest_is_counted() {
        let log = written(small(), &["0123456789abcdef\n", "the end is\n", "near\n"]);
        let snapshot = log.snapshot();
        assert_eq!(snapshot.head, "0123456789");
        assert_eq!(snapshot.tail, "d is\nnear\n");
        assert_eq!(snapshot.total_bytes, 33);
        assert_eq!(snapshot.dropped_bytes, 13);
    }

    #[test]
    fn a_small_log_is_whole() {
        let log = written(small(), &["abc\n", "0123456789ab\n"]);
        let snapshot = log.snapshot();
        assert_eq!(snapshot.head + &snapshot.tail, "abc\n0123456789ab\n");
        assert_eq!(snapshot.dropped_bytes, 0);
    }

    #[test]
    fn a_follower_sees_every_byte_once_unless_it_was_dropped() {
        let log = written(small(), &["abc\n"]);
        let first = log.read(0);
        assert_eq!((first.text.as_str(), first.next), ("abc\n", 4));
        log.write(LogSource::Stderr, b"defghijk\n");
        let second = log.read(first.next);
        assert_eq!((second.text.as_str(), second.from, second.next), ("defghijk\n", 4, 13));
        log.write(LogSource::Stdout, b"0123456789012345678\n");
        let third = log.read(second.next);
        assert_eq!((third.from, third.text.as_str(), third.next), (23, "012345678\n", 33));
        assert_eq!(log.read(33).text, "");
        assert_eq!(log.read(99).next, 33);
    }

    #[test]
    fn sources_do_not_break_into_each_others_lines() {
        let log = LogSink::new(LogLimits::default(), None);
        log.write(LogSource::Stdout, b"out ");
        log.write(LogSource::Stderr, b"err\n");
        log.note("two\nlines");
        log.write(LogSource::Stdout, b"goes on");
        log.end(LogSource::Stdout);
        let expected = "err\nstandfast: two\nstandfast: lines\nout goes on\n";
        assert_eq!(log.snapshot().head, expected);
    }

    #[test]
    fn secrets_are_hidden_even_across_chunks_and_in_endless_lines() {
        let log = LogSink::new(LogLimits { head_bytes_max: 1 << 20, ..small() }, None);
        log.hide(Masker::new(["s3cret".to_owned()]));
        log.write(LogSource::Stdout, b"a s3c");
        log.write(LogSource::Stdout, b"ret b\n");
        log.note("note s3cret");
        for _ in 0..40_000 {
            log.write(LogSource::Stderr, b"s3cret");
        }
        log.end(LogSource::Stderr);
        let snapshot = log.snapshot();
        assert!(snapshot.head.starts_with("a *** b\nstandfast: note ***\n***"));
        assert!(!snapshot.head.contains("cret") && !snapshot.head.contains("s3"));
    }

    #[test]
    fn characters_stay_whole_and_faulty_bytes_are_replaced() {
        let limits = LogLimits { head_bytes_max: 1 << 20, ..small() };
        let log = LogSink::new(limits, None);
        let text = "ü€😀".repeat(10_000);
        text.as_bytes().chunks(7).for_each(|chunk| log.write(LogSource::Stdout, chunk));
        log.write(LogSource::Stdout, b"\xff\n");
        assert_eq!(log.snapshot().head, text + "\u{fffd}\n");
        let cut = written(small(), &["€€€€€€€€€€€€\n"]).snapshot();
        assert_eq!((cut.head.as_str(), cut.tail.as_str()), ("€€€", "€€€\n"));
    }

    #[test]
    fn the_spool_holds_the_beginning_up_to_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = LogSink::new(small(), Some(&path));
        log.write(LogSource::Stdout, b"0123456789\n0123456789\n");
        let snapshot = log.snapshot();
        assert_eq!(snapshot.spool.as_deref(), Some(path.as_path()));
        assert_eq!(snapshot.spooled_bytes, 16);
        assert_eq!(std::fs::read(path).unwrap(), b"0123456789\n01234");
        let none = LogSink::new(small(), Some(&directory.path().join("no/such/log")));
        none.note("still works");
        assert_eq!(none.snapshot().spool, None);
    }

    #[tokio::test]
    async fn a_reader_is_woken_by_more() {
        let log = LogSink::new(LogLimits::default(), None);
        let mut watch = log.watch();
        let writer = log.clone();
        tokio::spawn(async move { writer.note("hello") });
        watch.changed().await.unwrap();
        assert_eq!(log.read(0).text, "standfast: hello\n");
    }
}
