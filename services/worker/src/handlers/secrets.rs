//! Secrets: put in place of their references right before use, and kept out of everything
//! that is stored or shown.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

/// Bytes below which a secret is not masked: shorter ones occur in ordinary text by chance,
/// and masking every `1` or `no` would make logs unreadable without hiding anything.
const MASKED_BYTES_MIN: usize = 4;
/// What stands in place of a secret.
const MASK: &str = "***";

/// Gives the values of secrets, from the worker's environment or files.
///
/// A reference can also come in with data: a fetched page may hold the text
/// `${{ secrets.TOKEN }}`. So what a handler is given must answer only the names that the
/// step's own definition mentions; [`NamedSecrets`] sees to that.
pub trait Secrets: Send + Sync {
    /// Gives the value of one secret.
    fn resolve(&self, name: &str) -> Result<String, SecretFault>;
}

/// Says why a secret has no value here; never holds one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFault {
    /// The worker has no secret of that name.
    #[error("secret `{0}` is not known to this worker")]
    Unknown(String),
    /// The step's definition does not mention the name.
    #[error("secret `{0}` is not named in this step's `with`, so data may not ask for it")]
    NotNamed(String),
    /// The secret is there, but cannot be read.
    #[error("secret `{name}` cannot be read: {why}")]
    Unreadable {
        /// The secret's name.
        name: String,
        /// What stands in the way.
        why: String,
    },
}

/// Gives only the secrets of a list of names.
pub struct NamedSecrets {
    names: BTreeSet<String>,
    all: Arc<dyn Secrets>,
}

impl NamedSecrets {
    /// Takes the names from a step's `with` as its plan has it, before any template.
    pub fn of(definition: &Value, all: Arc<dyn Secrets>) -> Self {
        let mut names = BTreeSet::new();
        each_text(definition, &mut |text| {
            names.extend(references(text).into_iter().map(|reference| reference.name.to_owned()));
        });
        Self { names, all }
    }
}

impl Secrets for NamedSecrets {
    fn resolve(&self, name: &str) -> Result<String, SecretFault> {
        if !self.names.contains(name) {
            return Err(SecretFault::NotNamed(name.to_owned()));
        }
        self.all.resolve(name)
    }
}

/// Puts values in place of references and remembers them for masking.
pub(super) struct Resolver<'a> {
    secrets: &'a dyn Secrets,
    used: Vec<String>,
}

impl<'a> Resolver<'a> {
    /// Starts with nothing resolved.
    pub(super) fn new(secrets: &'a dyn Secrets) -> Self {
        Self { secrets, used: Vec::new() }
    }

    /// Gives a text with its secrets in place, and whether it held any.
    pub(super) fn text(&mut self, text: &str) -> Result<(String, bool), SecretFault> {
        let found = references(text);
        let mut resolved = String::with_capacity(text.len());
        let mut from = 0;
        for reference in &found {
            let value = self.secrets.resolve(reference.name)?;
            resolved.push_str(&text[from..reference.from]);
            resolved.push_str(&value);
            self.used.push(value);
            from = reference.to;
        }
        resolved.push_str(&text[from..]);
        Ok((resolved, !found.is_empty()))
    }

    /// Resolves all texts within a value; keys stay as they are.
    pub(super) fn value(&mut self, value: &Value) -> Result<Value, SecretFault> {
        Ok(match value {
            Value::String(text) => Value::String(self.text(text)?.0),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.value(item)).collect::<Result<_, _>>()?)
            }
            Value::Object(object) => {
                let fields = object.iter().map(|(key, v)| Ok((key.clone(), self.value(v)?)));
                Value::Object(fields.collect::<Result<_, SecretFault>>()?)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        })
    }

    /// Gives what hides all that was resolved.
    pub(super) fn masker(self) -> Masker {
        Masker::new(self.used)
    }
}

/// One `${{ secrets.NAME }}` within a text.
struct Reference<'a> {
    from: usize,
    to: usize,
    name: &'a str,
}

/// Finds all references; other templates are plain text here.
fn references(text: &str) -> Vec<Reference<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(from) = text[at..].find("${{").map(|offset| at + offset) {
        let inner = from + "${{".len();
        let Some(end) = text[inner..].find("}}").map(|offset| inner + offset) else { break };
        let name = text[inner..end].trim().strip_prefix("secrets.").filter(|name| is_name(name));
        // After something else the search goes on right behind its opening, so that an
        // unclosed `${{` in front does not hide a reference.
        at = name.map_or(inner, |_| end + "}}".len());
        found.extend(name.map(|name| Reference { from, to: at, name }));
    }
    found
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

fn each_text(value: &Value, see: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, see)),
        Value::Object(object) => object.values().for_each(|item| each_text(item, see)),
        Value::Null | Value::Bool(_) | Value::Number(_) => (),
    }
}

/// Hides the values of secrets wherever they occur in a text.
///
/// Looks for each value as it is, as JSON and URLs write it, and line by line, because logs
/// are masked by the line. A program that encodes a secret in another way (base64, reversed)
/// is not caught: masking guards against accidents, not against the program itself.
#[derive(Clone, Debug, Default)]
pub struct Masker {
    patterns: Vec<String>,
}

impl Masker {
    /// Makes a masker of values; those below four bytes are left out.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut patterns = BTreeSet::new();
        for value in values {
            let json = Value::String(value.clone()).to_string();
            patterns.insert(json[1..json.len() - 1].to_owned());
            patterns.extend(value.lines().map(|line| line.trim().to_owned()));
            patterns.extend(in_url(&value));
            patterns.insert(value);
        }
        patterns.retain(|pattern| pattern.len() >= MASKED_BYTES_MIN);
        Self { patterns: patterns.into_iter().collect() }
    }

    /// Gives a text without the secrets in it.
    pub fn text(&self, text: &str) -> String {
        let mut masked = String::with_capacity(text.len());
        let mut from = 0;
        for (start, end) in self.spans(text) {
            masked.push_str(&text[from..start]);
            masked.push_str(MASK);
            from = end;
        }
        masked.push_str(&text[from..]);
        masked
    }

    /// Gives a value without the secrets in its texts and keys.
    pub fn value(&self, value: Value) -> Value {
        if self.patterns.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(object) => Value::Object(
                object.into_iter().map(|(key, v)| (self.text(&key), self.value(v))).collect(),
            ),
            Value::Number(number) => {
                let text = number.to_string();
                let hidden = self.patterns.iter().any(|pattern| text.contains(pattern.as_str()));
                if hidden { MASK.into() } else { Value::Number(number) }
            }
            Value::Null | Value::Bool(_) => value,
        }
    }

    /// Gives where an unfinished text may be cut: no secret lies across the place, and none
    /// can be completed across it by what follows.
    pub(super) fn cut(&self, text: &str) -> usize {
        let cut = text.floor_char_boundary(text.len().saturating_sub(self.longest() - 1));
        let across = self.spans(text).into_iter().find(|(start, end)| *start < cut && cut < *end);
        across.map_or(cut, |(start, _)| start)
    }

    /// Gives where a text that lost its beginning may start: behind what could be the end of
    /// a secret that was cut.
    pub(super) fn start(&self, text: &str) -> usize {
        let start = text.ceil_char_boundary((self.longest() - 1).min(text.len()));
        let across = self.spans(text).into_iter().find(|(from, to)| *from < start && start < *to);
        across.map_or(start, |(_, to)| to)
    }

    fn longest(&self) -> usize {
        self.patterns.iter().map(String::len).max().unwrap_or(1)
    }

    /// Gives the places of all secrets in order; those that overlap are one.
    fn spans(&self, text: &str) -> Vec<(usize, usize)> {
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for pattern in &self.patterns {
            let mut own: Option<(usize, usize)> = None;
            let mut at = 0;
            while let Some(start) = text[at..].find(pattern.as_str()).map(|offset| at + offset) {
                let end = start + pattern.len();
                own = match own {
                    Some((first, last)) if start < last => Some((first, end)),
                    Some(done) => {
                        spans.push(done);
                        Some((start, end))
                    }
                    None => Some((start, end)),
                };
                at = text.ceil_char_boundary(start + 1);
            }
            spans.extend(own);
        }
        spans.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(spans.len());
        for (start, end) in spans {
            match merged.last_mut() {
                Some(last) if start < last.1 => last.1 = last.1.max(end),
                Some(_) | None => merged.push((start, end)),
            }
        }
        merged
    }
}

/// Gives the ways a value is written in a URL: in its path and in its query.
fn in_url(value: &str) -> Vec<String> {
    let Ok(mut url) = reqwest::Url::parse("http://host/") else { return Vec::new() };
    url.query_pairs_mut().append_pair("v", value);
    let query = url.query().and_then(|query| query.strip_prefix("v=")).map(str::to_owned);
    url.set_query(None);
    url.set_path(value);
    let path = url.path().trim_start_matches('/').to_owned();
    query.into_iter().chain([path]).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Fixed;
    use super::*;

    fn resolve(text: &str) -> Result<String, SecretFault> {
        let secrets = Fixed::new(&[("TOKEN", "s3cret"), ("K-2", "zwei")]);
        Resolver::new(&*secrets).text(text).map(|(text, _)| text)
    }

    fn mask(values: &[&str], text: &str) -> String {
        Masker::new(values.iter().map(|v| (*v).to_owned())).text(text)
    }

    #[test]
    fn references_are_replaced_and_other_templates_are_not() {
        let cases = [
            ("Bearer ${{ secrets.TOKEN }}", "Bearer s3cret"),
            ("${{secrets.TOKEN}}${{ secrets.K-2 }}", "s3cretzwei"),
            ("${{ input.x }} ${{ secrets.TOKEN }}", "${{ input.x }} s3cret"),
            ("${{ ${{ secrets.TOKEN }}", "${{ s3cret"),
            ("${{ secrets.A.B }} ${{ secrets. }} ${{", "${{ secrets.A.B }} ${{ secrets. }} ${{"),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(resolve("${{ secrets.NO }}"), Err(SecretFault::Unknown("NO".into())));
    }

    #[test]
    fn a_value_is_not_searched_for_further_references() {
        let secrets = Fixed::new(&[("A", "${{ secrets.B }}"), ("B", "bbbb")]);
        let text = Resolver::new(&*secrets).text("${{ secrets.A }}").unwrap().0;
        assert_eq!(text, "${{ secrets.B }}");
    }

    #[test]
    fn data_may_not_ask_for_what_the_plan_does_not_name() {
        let all = Fixed::new(&[("A", "aaaa"), ("B", "bbbb")]);
        let named = NamedSecrets::of(&json!({ "env": { "X": "${{ secrets.A }}" } }), all);
        assert_eq!(named.resolve("A").as_deref(), Ok("aaaa"));
        assert_eq!(named.resolve("B"), Err(SecretFault::NotNamed("B".into())));
    }

    #[test]
    fn masks_hide_values_in_every_usual_writing() {
        let cases: [(&[&str], &str, &str); 8] = [
            (&["s3cret"], "a s3cret b s3cret", "a *** b ***"),
            (&["a\"b\nc d"], r#"{"k":"a\"b\nc d"}"#, r#"{"k":"***"}"#),
            (&["first\nsecond"], "then second came", "then *** came"),
            (&["a b&cd"], "GET /?q=a+b%26cd", "GET /?q=***"),
            (&["a b&cd"], "GET /a%20b&cd", "GET /***"),
            (&["abcdef", "defghi"], "abcdefghi", "***"),
            (&["aaaa"], "aaaaaa", "***"),
            (&["no", "1"], "no 1", "no 1"),
        ];
        for (values, text, expected) in cases {
            assert_eq!(mask(values, text), expected);
        }
    }

    #[test]
    fn masks_reach_keys_texts_and_numbers_of_a_value() {
        let masker = Masker::new(["s3cret".to_owned(), "987654".to_owned()]);
        let value = json!({ "s3cret": [1, "x s3cret", 987_654], "n": null });
        assert_eq!(masker.value(value), json!({ "***": [1, "x ***", "***"], "n": null }));
    }

    #[test]
    fn a_cut_leaves_secrets_whole() {
        let masker = Masker::new(["s3cret".to_owned()]);
        assert_eq!(masker.cut("0123456789"), 5);
        assert_eq!(masker.cut("012s3cret"), 3);
        assert_eq!(masker.cut("0123456s3c"), 5);
        assert_eq!(Masker::default().cut("abc"), 3);
        assert_eq!(masker.start("3cret0123"), 5);
        assert_eq!(masker.start("ret s3cret 123"), 10);
        assert_eq!(Masker::default().start("abc"), 0);
    }
}
