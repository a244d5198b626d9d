//! Times, spans, sizes and money as people read them.

use standfast_domain::time::Time;

use crate::look::Look;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Writes a span: `0.1 s`, `40 s`, `12 min`, `1 h 5 min`, `3 d 4 h`.
pub fn span(ms: u64) -> String {
    let two = |large: u64, unit: &str, small: u64, part: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {part}"),
    };
    match ms {
        0..10_000 => format!("{}.{} s", ms / SECOND, ms % SECOND / 100),
        10_000..MINUTE => format!("{} s", ms / SECOND),
        MINUTE..HOUR => format!("{} min", ms / MINUTE),
        HOUR..DAY => two(ms / HOUR, "h", ms % HOUR / MINUTE, "min"),
        _ => two(ms / DAY, "d", ms % DAY / HOUR, "h"),
    }
}

/// Gives the span between two written times; none if one cannot be read.
pub fn between(from: &str, to: &str) -> Option<u64> {
    Some(Time::parse_rfc3339(to)?.since(Time::parse_rfc3339(from)?).0)
}

/// Says when something was or will be: on a terminal `12 min ago` or `in 5 min`, else the time
/// itself. What cannot be read as a time is shown as it is.
pub fn when(time: &str, look: &Look) -> String {
    let Some(at) = Time::parse_rfc3339(time).filter(|_| look.terminal) else {
        return crate::text::plain(time);
    };
    let (past, ahead) = (look.now.since(at).0, at.since(look.now).0);
    match (past, ahead) {
        (0..SECOND, 0..SECOND) => "now".to_owned(),
        (0, ahead) => format!("in {}", coarse(ahead)),
        (past, _) => format!("{} ago", coarse(past)),
    }
}

/// Says when something was or will be, both ways: `14:02:11 (12 min ago)`, with the date if it
/// is another day. Clock times are UTC and say so.
pub fn when_both(time: &str, look: &Look) -> String {
    let Some(at) = Time::parse_rfc3339(time).filter(|_| look.terminal) else {
        return crate::text::plain(time);
    };
    let (at, today) = (at.rfc3339(), look.now.rfc3339());
    let (date, clock) = at.split_once('T').unwrap_or((&at, ""));
    let clock = clock.get(..8).unwrap_or(clock);
    let same_day = today.starts_with(date);
    let absolute = if same_day { format!("{clock}Z") } else { format!("{date} {clock}Z") };
    format!("{absolute} ({})", when(time, look))
}

/// Spans of distances in time: tenths of seconds tell nothing there.
fn coarse(ms: u64) -> String {
    match ms {
        0..MINUTE => format!("{} s", ms / SECOND),
        MINUTE..HOUR => format!("{} min", ms / MINUTE),
        HOUR..DAY => format!("{} h", ms / HOUR),
        _ => format!("{} d", ms / DAY),
    }
}

/// Writes a size: `512 B`, `1.8 KiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Tenths in whole numbers, so that nothing is rounded up to a unit that is not reached.
    let (mut tenths, mut unit) = (u128::from(count) * 10 / 1024, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// Writes micro-dollars: `$0.00`, `$1.25`, and all digits of what is below a cent.
pub fn dollars(micros: u64) -> String {
    let (whole, part) = (micros / 1_000_000, micros % 1_000_000);
    if part.is_multiple_of(10_000) {
        return format!("${whole}.{:02}", part / 10_000);
    }
    let digits = format!("{part:06}");
    format!("${whole}.{}", digits.trim_end_matches('0'))
}

/// Writes a count with its word: `1 attempt`, `3 attempts`.
pub fn count(number: u64, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::{pipe, terminal};

    #[test]
    fn spans_have_the_unit_that_tells_most() {
        let cases = [
            (0, "0.0 s"),
            (120, "0.1 s"),
            (9_999, "9.9 s"),
            (40_000, "40 s"),
            (12 * MINUTE + 59_000, "12 min"),
            (HOUR, "1 h"),
            (HOUR + 5 * MINUTE, "1 h 5 min"),
            (3 * DAY + 4 * HOUR, "3 d 4 h"),
        ];
        for (ms, text) in cases {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn times_are_told_from_now_on_a_terminal_and_exactly_elsewhere() {
        let time = "2026-11-29T14:02:11.000Z";
        assert_eq!(when(time, &terminal(80)), "12 min ago");
        assert_eq!(when_both(time, &terminal(80)), "14:02:11Z (12 min ago)");
        assert_eq!(when(time, &pipe()), time);
        assert_eq!(when_both(time, &pipe()), time);
        let tomorrow = "2026-11-30T16:20:00.000Z";
        assert_eq!(when_both(tomorrow, &terminal(80)), "2026-11-30 16:20:00Z (in 1 d)");
        assert_eq!(when("2026-11-29T14:14:11.400Z", &terminal(80)), "now");
        assert_eq!(when("soon\u{1b}", &terminal(80)), "soon␛");
    }

    #[test]
    fn sizes_and_money_are_exact_enough() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1_843), "1.7 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1023.9 KiB");
        assert_eq!(bytes(u64::MAX), "16383.9 PiB");
        assert_eq!(dollars(0), "$0.00");
        assert_eq!(dollars(1_250_000), "$1.25");
        assert_eq!(dollars(1_200), "$0.0012");
        assert_eq!(count(1, "attempt"), "1 attempt");
        assert_eq!(count(0, "attempt"), "0 attempts");
    }
}
