//! Points in time and spans, in whole milliseconds, with checked arithmetic.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest timer, retention and deadline: ten years of 366 days.
pub const SPAN_MAX: Span = Span::from_secs(10 * 366 * 24 * 60 * 60);

/// Units of a span, from large to small, in milliseconds.
const UNITS: [(u64, &str); 5] =
    [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];

/// A point in time: milliseconds since 1970-01-01T00:00:00Z, by the store's clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Time(pub i64);

impl Time {
    /// Adds a span; stops at the end of time rather than wrap.
    pub fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// Gives the span since `earlier`, zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Span {
        Span(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Writes RFC 3339 in UTC with milliseconds.
    pub fn rfc3339(self) -> String {
        let nanos = i128::from(self.0) * 1_000_000;
        let Ok(at) = time::OffsetDateTime::from_unix_timestamp_nanos(nanos) else {
            return format!("{} ms", self.0);
        };
        format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            at.millisecond()
        )
    }

    /// Reads RFC 3339 with any offset, such as `2026-11-29T16:20:00+01:00`.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let format = &time::format_description::well_known::Rfc3339;
        let at = time::OffsetDateTime::parse(text, format).ok()?;
        i64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok().map(Self)
    }
}

/// A span in milliseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Span {
    /// Makes a span of milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Makes a span of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000))
    }

    /// Gives the span for local sleeps.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }

    /// Reads `250ms`, `30s`, `10m`, `48h`, `7d`, or several of them from large to small
    /// such as `1h30m`. Whole numbers only; at most [`SPAN_MAX`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut sum: u64 = 0;
        let mut last = u64::MAX;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number: u64 = rest.get(..digits)?.parse().ok()?;
            rest = &rest[digits..];
            let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (unit, _) = UNITS.into_iter().find(|(_, name)| *name == &rest[..letters])?;
            rest = &rest[letters..];
            if unit >= last {
                return None;
            }
            last = unit;
            sum = sum.checked_add(number.checked_mul(unit)?)?;
        }
        let span = Self(sum);
        (!text.is_empty() && span <= SPAN_MAX).then_some(span)
    }
}

impl fmt::Display for Span {
    /// Writes it as [`Span::parse`] reads it, in as few units as tell it exactly.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for (unit, name) in UNITS {
            if rest / unit > 0 {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        if self.0 == 0 { f.write_str("0s") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_as_people_write_them() {
        for (text, millis) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("1h30m", 5_400_000),
            ("3660d", SPAN_MAX.0),
        ] {
            assert_eq!(Span::parse(text), Some(Span(millis)), "{text}");
            assert_eq!(Span(millis).to_string(), text);
        }
        for text in
            ["", "10", "-1s", "1.5s", "s", "1x", "30m1h", "1s1s", "3661d", "99999999999999999999s"]
        {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_read_and_write_rfc_3339() {
        let at = Time::parse_rfc3339("2026-11-29T16:20:00.5+14:00").unwrap();
        assert_eq!(at.rfc3339(), "2026-11-29T02:20:00.500Z");
        assert_eq!(Time::parse_rfc3339("2026-11-29"), None);
        assert_eq!(Time(i64::MAX).after(Span(5)), Time(i64::MAX));
    }
}
