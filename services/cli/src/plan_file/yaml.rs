//! YAML, read strictly into JSON values.
//!
//! YAML has more than JSON: what JSON cannot carry is refused by name and place instead of
//! being bent. Anchors, aliases and merge keys are resolved; timestamps are text, as in JSON;
//! only `true` and `false` are truth values, so that `on: no` stays what it says.
//!
//! The reader underneath gives numbers beyond a double as text and integers beyond 64 bits as
//! rounded numbers. So each scalar is read with its place, and where one of these may have
//! happened, the source itself is looked at.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Budget, Options, Spanned};
use standfast_domain::json::DEPTH_MAX;
use standfast_domain::plan::Fault;
use standfast_domain::plan::faults::join;

/// Nodes within one another that are read at all; a few more than a plan may have, so that a
/// plan slightly too deep is told with its place.
const DEPTH_READ_MAX: usize = DEPTH_MAX + 8;

/// Why a text is no plan in YAML.
#[derive(Debug, PartialEq)]
pub enum Unreadable {
    /// It is not YAML, or repeats a key; with line and column.
    Syntax(String),
    /// It is YAML that JSON cannot carry.
    Values(Vec<Fault>),
}

/// Reads one YAML document.
pub fn read(text: &str) -> Result<Value, Unreadable> {
    if let Some(fault) = forbidden(text) {
        return Err(Unreadable::Syntax(fault));
    }
    let budget = Budget { max_depth: DEPTH_READ_MAX, ..Budget::default() };
    let options = Options {
        budget: Some(budget),
        strict_booleans: true,
        with_snippet: false,
        ..Options::default()
    };
    let read = serde_saphyr::from_str_with_options::<Spanned<Node>>(text, options);
    let node = read.map_err(|error| Unreadable::Syntax(sentence(&error)))?;
    let mut values = Values { lines: text.lines().collect(), faults: Vec::new() };
    let value = values.value(node, "");
    if values.faults.is_empty() { Ok(value) } else { Err(Unreadable::Values(values.faults)) }
}

/// Finds a control character that YAML forbids; the reader underneath would take a NUL for the
/// end of the text and drop what follows.
fn forbidden(text: &str) -> Option<String> {
    let bad =
        |letter: char| letter.is_control() && !matches!(letter, '\t' | '\n' | '\r' | '\u{85}');
    let at = text.find(bad)?;
    let line = text[..at].matches('\n').count() + 1;
    let column = text[..at].chars().rev().take_while(|&letter| letter != '\n').count() + 1;
    let code = u32::from(text[at..].chars().next()?);
    Some(format!("control character U+{code:04X} at line {line}, column {column}"))
}

fn sentence(error: &serde_saphyr::Error) -> String {
    let message = match error {
        serde_saphyr::Error::Budget { .. } => {
            "it nests or repeats itself beyond what is read".to_owned()
        }
        other => other.to_string(),
    };
    match error.location() {
        Some(place) if !message.contains("line ") => {
            format!("{message} at line {}, column {}", place.line(), place.column())
        }
        _ => message,
    }
}

/// A YAML node before it is known to fit into JSON.
#[derive(Debug)]
enum Node {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Spanned<Node>>),
    Map(Vec<(Spanned<Node>, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a YAML node")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        // Not finite: the place decides what is said about it.
        Ok(Number::from_f64(value).map_or(Node::Text(value.to_string()), Node::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Node::Map(map))
    }
}

/// Turns nodes into values and gathers what does not fit.
struct Values<'a> {
    lines: Vec<&'a str>,
    faults: Vec<Fault>,
}

impl Values<'_> {
    fn value(&mut self, node: Spanned<Node>, pointer: &str) -> Value {
        let (line, column) = (node.defined.line(), node.defined.column());
        let plain = || plain_scalar(&self.lines, line, column);
        match node.value {
            Node::Null => Value::Null,
            Node::Bool(value) => Value::Bool(value),
            Node::Number(number) => {
                if number.is_f64() && plain().is_some_and(is_integer) {
                    self.fault(pointer, "an integer beyond 64 bits", line, column);
                }
                Value::Number(number)
            }
            Node::Text(text) => {
                let special = matches!(text.as_str(), ".nan" | ".inf" | "-.inf");
                if special && plain().is_some() {
                    let found =
                        "a number that JSON cannot carry (not a number, or beyond a double)";
                    self.fault(pointer, found, line, column);
                }
                Value::String(text)
            }
            Node::List(items) => {
                let items = items.into_iter().enumerate();
                let value = |(at, item)| self.value(item, &join(pointer, &format!("{at}")));
                Value::Array(items.map(value).collect())
            }
            Node::Map(entries) => self.object(entries, pointer),
        }
    }

    fn object(&mut self, entries: Vec<(Spanned<Node>, Spanned<Node>)>, pointer: &str) -> Value {
        let mut map = Map::new();
        for (key, item) in entries {
            let (line, column) = (key.defined.line(), key.defined.column());
            let Node::Text(name) = key.value else {
                let found = "a key that is not text; quote it";
                self.fault(pointer, found, line, column);
                continue;
            };
            let value = self.value(item, &join(pointer, &name));
            map.insert(name, value);
        }
        Value::Object(map)
    }

    fn fault(&mut self, pointer: &str, found: &str, line: u64, column: u64) {
        let message = format!("found {found}, at line {line}, column {column}");
        self.faults.push(Fault { pointer: pointer.to_owned(), message });
    }
}

/// Gives the source of a scalar that is written without quotes or block, as far as its line
/// goes. Columns count characters.
fn plain_scalar<'a>(lines: &[&'a str], line: u64, column: u64) -> Option<&'a str> {
    let line = lines.get(usize::try_from(line).ok()?.checked_sub(1)?)?;
    let skipped = usize::try_from(column).ok()?.checked_sub(1)?;
    let (start, first) = line.char_indices().nth(skipped)?;
    // Behind a tag or an anchor stands what it belongs to; neither is looked through here.
    let plain = !matches!(first, '"' | '\'' | '|' | '>' | '!' | '&');
    plain.then(|| &line[start..])
}

/// Says whether a plain scalar is an integer in one of YAML's forms.
fn is_integer(source: &str) -> bool {
    let end = source.find([',', ']', '}', ' ', '#', ':']).unwrap_or(source.len());
    let digits = source[..end].trim_start_matches(['-', '+']);
    let has_form = |prefix: &str| digits.starts_with(prefix);
    let based = has_form("0x") || has_form("0o") || has_form("0b");
    let decimal = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    based || (decimal && !digits.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(text: &str) -> Vec<(String, String)> {
        match read(text) {
            Err(Unreadable::Values(faults)) => {
                faults.into_iter().map(|fault| (fault.pointer, fault.message)).collect()
            }
            other => panic!("{text}: {other:?}"),
        }
    }

    fn syntax(text: &str) -> String {
        match read(text) {
            Err(Unreadable::Syntax(message)) => message,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn values_keep_their_types() {
        let text = "a: 1\nb: -2\nc: 1.5\nd: yes\ne: true\nf: ~\ng: '7'\nh: 2026-11-29\n\
                    i: [x, {y: z}]\nj: |\n  two\n  lines\nk: 18446744073709551615\nl: 1:30\n";
        let expected = json!({
            "a": 1, "b": -2, "c": 1.5, "d": "yes", "e": true, "f": null, "g": "7",
            "h": "2026-11-29", "i": ["x", {"y": "z"}], "j": "two\nlines\n",
            "k": 18446744073709551615u64, "l": "1:30",
        });
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn templates_are_text() {
        let text = "command: [git, \"${{ plan.dir }}\"]\nif: steps.a.output == \"x\"\n";
        let expected =
            json!({"command": ["git", "${{ plan.dir }}"], "if": "steps.a.output == \"x\""});
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn anchors_aliases_and_merges_are_resolved() {
        let text = "base: &base {retry: {max_attempts: 3}, queue: q}\n\
                    step: {<<: *base, queue: r}\nalso: *base\n";
        let read = read(text).unwrap();
        assert_eq!(read["step"], json!({"retry": {"max_attempts": 3}, "queue": "r"}));
        assert_eq!(read["also"], read["base"]);
    }

    #[test]
    fn numbers_that_json_cannot_carry_are_refused_with_their_place() {
        let text = "a: .nan\nb: [1, 1e400, -.inf]\nc: 99999999999999999999\nd: '.nan'\ne: 1e3\n";
        let found = faults(text);
        let places: Vec<&str> = found.iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert_eq!(places, ["/a", "/b/1", "/b/2", "/c"]);
        assert!(found[1].1.ends_with("at line 2, column 8"), "{}", found[1].1);
        assert!(found[3].1.contains("beyond 64 bits"), "{}", found[3].1);
    }

    #[test]
    fn keys_that_are_not_text_are_refused() {
        assert_eq!(faults("a: {1: x}\n")[0].0, "/a");
        assert!(faults("true: x\n")[0].1.contains("not text"));
        assert!(faults("? [a]\n: x\n")[0].1.contains("not text"));
        assert_eq!(read("'1': x\n"), Ok(json!({"1": "x"})));
    }

    #[test]
    fn faults_of_syntax_have_line_and_column() {
        for (text, line) in [("a: [1\n", "line 2"), ("a: 1\nb: 2\na: 3\n", "line 3")] {
            let message = syntax(text);
            assert!(message.contains(line) && message.contains("column"), "{message}");
        }
        assert!(syntax("a: 1\n---\nb: 2\n").contains("document"));
        assert!(syntax("a: *nowhere\n").contains("line 1"));
        assert_eq!(syntax("a: 1\nb: \0c: 2\n"), "control character U+0000 at line 2, column 4");
    }

    #[test]
    fn bombs_and_abysses_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let inner = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
        }
        assert!(!syntax(&bomb).is_empty());
        let abyss = syntax(&"[".repeat(100_000));
        assert!(abyss.contains("recursion limit"), "{abyss}");
        let deep = format!("{}x", "- ".repeat(DEPTH_READ_MAX + 1));
        assert!(syntax(&deep).contains("nests"), "{}", syntax(&deep));
    }
}
