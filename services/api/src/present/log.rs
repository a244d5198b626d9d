//! Attempt logs: a page of one, and what an append makes of it.

use standfast_domain::record::AttemptLog;
use standfast_protocol::limits::LOG_BYTES_MAX;

/// Bytes kept of a log's beginning, beside its attempt.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Bytes kept of a log's end.
const TAIL_BYTES_MAX: usize = 32 * 1024;

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub text: String,
    pub offset: u64,
    pub next: u64,
}

/// Says how many bytes an attempt has written.
pub(crate) fn total(log: &AttemptLog) -> u64 {
    tail_from(log) + log.tail.len() as u64
}

/// Says where the part between head and tail that is not kept inline begins and ends.
pub(crate) fn gap(log: &AttemptLog) -> (u64, u64) {
    (log.head.len() as u64, tail_from(log))
}

fn tail_from(log: &AttemptLog) -> u64 {
    log.head.len() as u64 + log.omitted
}

/// Gives the text from `offset` on, as far as one page and one piece reach. What lies in the
/// gap is passed over.
pub(crate) fn part(log: &AttemptLog, offset: u64) -> Part {
    let (head_end, tail_from) = gap(log);
    let (text, begins) = if offset < head_end { (&log.head, 0) } else { (&log.tail, tail_from) };
    let from = offset.max(begins);
    let skip = usize::try_from(from - begins).unwrap_or(usize::MAX).min(text.len());
    let start = text.ceil_char_boundary(skip);
    let end = text.floor_char_boundary((start + LOG_BYTES_MAX).min(text.len()));
    let at = (begins + start as u64).min(total(log));
    Part { text: text[start..end].to_owned(), offset: at, next: at + (end - start) as u64 }
}

/// Appends text that begins at `offset`; what the log has already is not taken again. Text
/// beyond a hole is refused with the offset at which the log ends.
pub(crate) fn append(mut log: AttemptLog, offset: u64, text: &str) -> Result<AttemptLog, u64> {
    let total = total(&log);
    let known = total.checked_sub(offset).ok_or(total)?;
    let known = usize::try_from(known).unwrap_or(usize::MAX).min(text.len());
    let mut rest = &text[text.ceil_char_boundary(known)..];
    if log.tail.is_empty() && log.omitted == 0 {
        let room = HEAD_BYTES_MAX.saturating_sub(log.head.len());
        let (head, tail) = rest.split_at(rest.floor_char_boundary(room.min(rest.len())));
        log.head.push_str(head);
        rest = tail;
    }
    log.tail.push_str(rest);
    if log.tail.len() > TAIL_BYTES_MAX {
        let cut = log.tail.ceil_char_boundary(log.tail.len() - TAIL_BYTES_MAX);
        log.tail.drain(..cut);
        log.omitted += cut as u64;
    }
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(head: &str, omitted: u64, tail: &str) -> AttemptLog {
        AttemptLog { head: head.into(), tail: tail.into(), omitted, ..AttemptLog::default() }
    }

    #[test]
    fn a_page_reads_head_then_tail_and_shows_the_gap() {
        let log = log("abc", 4, "xyz");
        for (offset, text, from, next) in [
            (0, "abc", 0, 3),
            (2, "c", 2, 3),
            (3, "xyz", 7, 10),
            (8, "yz", 8, 10),
            (10, "", 10, 10),
            (99, "", 10, 10),
        ] {
            let found = part(&log, offset);
            assert_eq!(found, Part { text: text.into(), offset: from, next }, "at {offset}");
        }
    }

    #[test]
    fn a_page_begins_and_ends_between_characters() {
        let found = part(&log("äb", 0, ""), 1);
        assert_eq!((found.text.as_str(), found.offset), ("b", 2));
    }

    #[test]
    fn an_append_may_be_repeated_but_leaves_no_hole() {
        let first = append(AttemptLog::default(), 0, "one\n").unwrap();
        assert_eq!(append(first.clone(), 0, "one\n").unwrap(), first);
        assert_eq!(append(first.clone(), 2, "e\ntwo\n").unwrap().head, "one\ntwo\n");
        assert_eq!(append(first, 9, "x"), Err(4));
    }

    #[test]
    fn a_long_log_keeps_its_ends_and_its_count() {
        let mut long = AttemptLog::default();
        let line = "ä".repeat(500);
        for _ in 0..200 {
            let at = total(&long);
            long = append(long, at, &line).unwrap();
        }
        assert_eq!(total(&long), 200_000);
        assert!(long.head.len() <= HEAD_BYTES_MAX && long.tail.len() <= TAIL_BYTES_MAX);
        assert!(long.omitted > 0);
    }
}
