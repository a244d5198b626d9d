//! Faults with their places: JSON Pointers, their order, and how much of them is kept.

use std::cmp::Ordering;

use serde_json::Value;

use super::Fault;

/// Bytes of all faults of one body together: as much as a plan may have itself, so that an
/// answer never grows far beyond what was asked. What is left out is counted.
pub const FAULT_TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Names that one reading compares to find what was meant: enough for twenty unknown names in
/// the largest plan, few enough that a hostile one costs nothing that is felt.
const COMPARISONS_MAX: usize = 200_000;
/// Characters of a found text that an error repeats.
const SHOWN_CHARS: usize = 40;

/// Gives the pointer of `token` within `pointer`, escaped by RFC 6901.
pub fn join(pointer: &str, token: &str) -> String {
    let mut joined = String::with_capacity(pointer.len() + token.len() + 1);
    joined.push_str(pointer);
    push_token(&mut joined, token);
    joined
}

/// Appends `token` to `pointer`, escaped by RFC 6901.
pub(crate) fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    for letter in token.chars() {
        match letter {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

/// Sorts by place, numbers by value: `/steps/2` comes before `/steps/10`.
pub fn sort(faults: &mut [Fault]) {
    faults.sort_by(|a, b| {
        pointer_order(&a.pointer, &b.pointer).then_with(|| a.message.cmp(&b.message))
    });
}

fn pointer_order(a: &str, b: &str) -> Ordering {
    let number = |token: &str| token.parse::<u64>().unwrap_or(u64::MAX);
    let key = |token| (number(token), token);
    a.split('/').map(key).cmp(b.split('/').map(key))
}

/// Gathers the faults of one body.
#[derive(Debug)]
pub(crate) struct Faults {
    list: Vec<Fault>,
    text_bytes: usize,
    left_out: usize,
    comparisons_left: usize,
}

impl Faults {
    /// Makes an empty list.
    pub(crate) fn new() -> Self {
        Self { list: Vec::new(), text_bytes: 0, left_out: 0, comparisons_left: COMPARISONS_MAX }
    }

    /// Adds a fault, or only counts it once [`FAULT_TEXT_BYTES_MAX`] is reached.
    pub(crate) fn push(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        let (pointer, message) = (pointer.into(), message.into());
        let bytes = pointer.len() + message.len();
        if self.left_out > 0 || self.text_bytes + bytes > FAULT_TEXT_BYTES_MAX {
            self.left_out += 1;
            return;
        }
        self.text_bytes += bytes;
        self.list.push(Fault { pointer, message });
    }

    /// Gives the faults in the order in which they were found.
    pub(crate) fn into_found(mut self) -> Vec<Fault> {
        if self.left_out > 0 {
            let message = format!("{} more faults are not listed", self.left_out);
            self.list.push(Fault { pointer: String::new(), message });
        }
        self.list
    }

    /// Gives the faults sorted by place.
    pub(crate) fn into_sorted(self) -> Vec<Fault> {
        let mut list = self.into_found();
        sort(&mut list);
        list
    }

    /// Gives `; did you mean …?` if one of `known` is but a slip away from `word`, else nothing.
    pub(crate) fn suggest<'a>(
        &mut self,
        word: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> String {
        let slips_max = ((word.chars().count() + 1) / 3).min(2);
        let mut best: Option<(usize, &str)> = None;
        for candidate in known {
            if self.comparisons_left == 0 {
                break;
            }
            self.comparisons_left -= 1;
            if candidate.len().abs_diff(word.len()) > slips_max {
                continue;
            }
            let slips = edit_distance(word, candidate);
            if slips <= slips_max && best.is_none_or(|(least, _)| slips < least) {
                best = Some((slips, candidate));
            }
        }
        best.map_or_else(String::new, |(_, meant)| format!("; did you mean `{meant}`?"))
    }
}

/// Counts the letters to insert, remove or replace (Levenshtein), one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Says what a value is, as the end of "expected …, found …".
pub(crate) fn found(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => format!("`{flag}`"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => quoted(text),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Quotes a text, shortened and without control characters.
pub(crate) fn quoted(text: &str) -> String {
    if text.is_empty() {
        return "an empty text".to_owned();
    }
    let mut shown = String::from("`");
    for letter in text.chars().take(SHOWN_CHARS) {
        if letter.is_control() {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    shown.push('`');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(word: &str, known: &[&str]) -> String {
        Faults::new().suggest(word, known.iter().copied())
    }

    #[test]
    fn tokens_are_escaped() {
        assert_eq!(join("/a", "x/y~z"), "/a/x~1y~0z");
        assert_eq!(join("", ""), "/");
    }

    #[test]
    fn numbers_sort_by_value() {
        let at = |pointer: &str| Fault { pointer: pointer.to_owned(), message: String::new() };
        let mut faults = vec![at("/steps/10"), at("/steps/2/id"), at("/steps/2"), at("")];
        sort(&mut faults);
        assert_eq!(faults, [at(""), at("/steps/2"), at("/steps/2/id"), at("/steps/10")]);
    }

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        assert_eq!(meant("nedes", &["id", "needs", "with"]), "; did you mean `needs`?");
        assert_eq!(meant("depends_on", &["id", "needs", "with"]), "");
        assert_eq!(meant("b", &["a"]), "");
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let mut faults = Faults::new();
        for _ in 0..5 {
            faults.push("", "x".repeat(FAULT_TEXT_BYTES_MAX / 2));
        }
        let list = faults.into_found();
        assert_eq!(list.len(), 3);
        assert_eq!(list[2].message, "3 more faults are not listed");
    }

    #[test]
    fn a_found_text_is_shortened_and_printable() {
        assert_eq!(quoted("a\nb"), "`a\\nb`");
        assert_eq!(quoted(&"é".repeat(41)), format!("`{}…`", "é".repeat(40)));
    }
}
