//! Words for people: times, spans, sizes, lists; and text from outside made safe to show.

use standfast_domain::time::{Span, Time};

/// Names that a line lists before it says how many more there are.
const NAMED_MAX: usize = 8;

/// Makes text from outside safe for a terminal and a log: control characters, those that
/// change the direction of text, and line ends become visible or spaces.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(' '),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                shown.extend(c.escape_unicode());
            }
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown.trim_end().to_owned()
}

/// Makes one line of at most `chars_max` characters.
pub(crate) fn line(text: &str, chars_max: usize) -> String {
    let text = plain(text);
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Writes a span as people say it: two units at most.
pub(crate) fn span(span: Span) -> String {
    let millis = span.0;
    let (seconds, minutes, hours) = (millis / 1_000, millis / 60_000, millis / 3_600_000);
    match millis {
        0..10_000 => format!("{}.{} s", seconds, millis % 1_000 / 100),
        10_000..60_000 => format!("{seconds} s"),
        60_000..3_600_000 => format!("{minutes} min"),
        3_600_000..172_800_000 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} days", hours / 24),
    }
}

/// Writes a moment near `now`: the time of the day in UTC, with the date on other days.
pub(crate) fn clock(at: Time, now: Time) -> String {
    let (text, today) = (at.rfc3339(), now.rfc3339());
    let (Some(day), Some(time)) = (text.get(..10), text.get(11..19)) else { return text };
    match today.get(..10) == Some(day) {
        true => format!("{time}Z"),
        false => format!("{day} {time}Z"),
    }
}

/// Writes bytes.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1_024 {
        return format!("{bytes} B");
    }
    let (mut whole, mut rest, mut unit) = (bytes / 1_024, bytes % 1_024, 0);
    while whole >= 1_024 && unit + 1 < UNITS.len() {
        (rest, whole, unit) = (whole % 1_024, whole / 1_024, unit + 1);
    }
    match whole {
        0..10 => format!("{whole}.{} {}", rest * 10 / 1_024, UNITS[unit]),
        _ => format!("{whole} {}", UNITS[unit]),
    }
}

/// Writes micro-dollars in cents, rounded up so that no cost looks free.
pub(crate) fn money(usd_micros: u64) -> String {
    let cents = usd_micros.div_ceil(10_000);
    format!("${}.{:02}", cents / 100, cents % 100)
}

/// Writes a count with its noun.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Lists names; of many, the first, and how many more there are.
pub(crate) fn names<T: AsRef<str>>(names: &[T]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<&str> = names.iter().take(NAMED_MAX).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_cannot_move_the_cursor() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\r"), "a\\u{1b}[2Jb c\\r");
        assert_eq!(plain("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(line("abcdef", 3), "abc…");
        assert_eq!(line("äöü", 3), "äöü");
    }

    #[test]
    fn spans_and_sizes_are_as_people_say_them() {
        for (millis, text) in [
            (120, "0.1 s"),
            (9_999, "9.9 s"),
            (59_000, "59 s"),
            (720_000, "12 min"),
            (3_700_000, "1 h 1 min"),
            (900_000_000, "10 days"),
        ] {
            assert_eq!(span(Span(millis)), text);
        }
        for (number, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_900, "1.8 KiB"),
            (86_016, "84 KiB"),
            (5 << 20, "5.0 MiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        assert_eq!(
            (money(0), money(1), money(120_000)),
            ("$0.00".into(), "$0.01".into(), "$0.12".into())
        );
    }

    #[test]
    fn a_day_is_named_unless_it_is_today() {
        let now = Time::parse_rfc3339("2026-11-29T14:14:11Z").unwrap();
        let at = Time::parse_rfc3339("2026-11-29T14:02:11Z").unwrap();
        assert_eq!(clock(at, now), "14:02:11Z");
        assert_eq!(clock(at, now.after(Span::from_secs(86_400))), "2026-11-29 14:02:11Z");
    }

    #[test]
    fn long_lists_are_cut() {
        let ten: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(names(&ten), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(names::<String>(&[]), "none");
    }
}
