//! Strict JSON: what arrives is exactly what is kept, or it is refused by name.
//!
//! Other readers round large integers, keep one of two equal keys, or replace what they cannot
//! hold. A digest or an approval of such a reading would not be one of what its author wrote.

use serde_json::{Map, Number, Value};

use crate::plan::Fault;
use crate::plan::faults::{Faults, push_token, quoted};

/// Bytes of a plan: a plan of 10,000 short steps fits, and is read in milliseconds.
pub const PLAN_BYTES_MAX: usize = 1024 * 1024;
/// Nesting of arrays and objects: far beyond what people write, far below any stack's end.
pub const DEPTH_MAX: usize = 64;
/// Bytes of a step's output kept in its record; larger ones go to the blobs by reference.
pub const OUTPUT_INLINE_BYTES_MAX: usize = 256 * 1024;
/// No limit on depth goes beyond this: reading and dropping a value take stack by depth.
const DEPTH_CAP: usize = 128;

/// What one body may measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the text.
    pub bytes_max: usize,
    /// Arrays and objects within one another; `[]` is 1 deep. Never more than 128 counts.
    pub depth_max: usize,
}

impl Limits {
    /// What a plan may measure.
    pub const PLAN: Self = Self { bytes_max: PLAN_BYTES_MAX, depth_max: DEPTH_MAX };
    /// What an output kept inline may measure.
    pub const OUTPUT_INLINE: Self =
        Self { bytes_max: OUTPUT_INLINE_BYTES_MAX, depth_max: DEPTH_MAX };
}

/// Reads a JSON text (RFC 8259), strictly.
///
/// Refused with a pointer each, all at once: duplicate keys, integers beyond 64 bits, numbers
/// beyond a double, `NaN` and `Infinity`, lone surrogates, unknown escapes and words, too deep
/// nesting. A text that is too long, not UTF-8, or whose brackets, commas and quotes do not
/// match gives the faults up to there and ends with that one. The order is that of the text.
pub fn read(bytes: &[u8], limits: Limits) -> Result<Value, Vec<Fault>> {
    let whole = |message: String| vec![Fault { pointer: String::new(), message }];
    if bytes.len() > limits.bytes_max {
        let (max, len) = (limits.bytes_max, bytes.len());
        return Err(whole(format!("expected at most {max} bytes, found {len}")));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        whole(format!("expected UTF-8, found another byte at offset {}", error.valid_up_to()))
    })?;
    let mut reader = Reader {
        text,
        at: 0,
        path: Vec::new(),
        depth_max: limits.depth_max.min(DEPTH_CAP),
        faults: Faults::new(),
    };
    let value = reader.document().unwrap_or(Value::Null);
    let faults = reader.faults.into_found();
    if faults.is_empty() { Ok(value) } else { Err(faults) }
}

/// Checks a value that was not read from JSON, such as one from YAML.
///
/// The type itself keeps out what JSON cannot carry (NaN, lone surrogates, equal keys, integers
/// beyond 64 bits), so that only its depth is left to check.
pub fn check_value(value: &Value, depth_max: usize) -> Vec<Fault> {
    let mut faults = Faults::new();
    let mut open = vec![(value, String::new(), 1)];
    while let Some((value, pointer, depth)) = open.pop() {
        let inner: Vec<(String, &Value)> = match value {
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => continue,
            Value::Array(items) => {
                items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect()
            }
            Value::Object(map) => map.iter().map(|(key, item)| (key.clone(), item)).collect(),
        };
        if depth > depth_max {
            faults.push(pointer, too_deep(depth_max));
            continue;
        }
        for (token, item) in inner {
            if item.is_array() || item.is_object() {
                open.push((item, crate::plan::faults::join(&pointer, &token), depth + 1));
            }
        }
    }
    faults.into_sorted()
}

fn too_deep(depth_max: usize) -> String {
    format!("expected at most {depth_max} arrays and objects within one another, found more")
}

/// One step of the way from the whole body to a value.
enum Token {
    Key(String),
    Index(usize),
}

/// The text cannot be read further; the fault that says why is recorded.
struct Broken;

/// Reads by recursive descent; `depth_max` bounds the recursion.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    path: Vec<Token>,
    depth_max: usize,
    faults: Faults,
}

impl Reader<'_> {
    fn document(&mut self) -> Result<Value, Broken> {
        let value = self.value()?;
        match self.next_token() {
            None => Ok(value),
            Some(_) => Err(self.broken("the end")),
        }
    }

    fn value(&mut self) -> Result<Value, Broken> {
        match self.next_token() {
            Some(b'{' | b'[') if self.path.len() >= self.depth_max => self.skip(),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(byte) if is_word(byte) => Ok(self.word()),
            Some(_) | None => Err(self.broken("a value")),
        }
    }

    fn object(&mut self) -> Result<Value, Broken> {
        let mut map = Map::new();
        self.at += 1;
        if self.takes(b'}') {
            return Ok(Value::Object(map));
        }
        loop {
            if self.next_token() != Some(b'"') {
                return Err(self.broken("a key in double quotes"));
            }
            let key = self.string()?;
            if !self.takes(b':') {
                return Err(self.broken("`:`"));
            }
            self.path.push(Token::Key(key.clone()));
            if map.contains_key(&key) {
                self.fault(format!("duplicate key {}", quoted(&key)));
            }
            let value = self.value()?;
            self.path.pop();
            map.entry(key).or_insert(value);
            if self.takes(b'}') {
                return Ok(Value::Object(map));
            }
            if !self.takes(b',') {
                return Err(self.broken("`,` or `}`"));
            }
        }
    }

    fn array(&mut self) -> Result<Value, Broken> {
        let mut items = Vec::new();
        self.at += 1;
        if self.takes(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            self.path.push(Token::Index(items.len()));
            let value = self.value()?;
            self.path.pop();
            items.push(value);
            if self.takes(b']') {
                return Ok(Value::Array(items));
            }
            if !self.takes(b',') {
                return Err(self.broken("`,` or `]`"));
            }
        }
    }

    /// Passes over an array or object that is too deep, without recursion.
    fn skip(&mut self) -> Result<Value, Broken> {
        self.fault(too_deep(self.depth_max));
        let (mut open, mut in_string) = (0_usize, false);
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'\\' if in_string => self.at += 1,
                b'"' => in_string = !in_string,
                b'{' | b'[' if !in_string => open += 1,
                b'}' | b']' if !in_string => open -= 1,
                _ => {}
            }
            if open == 0 {
                return Ok(Value::Null);
            }
        }
        self.at = self.text.len();
        Err(self.broken("`]` or `}`"))
    }

    /// Reads `true`, `false`, `null` or a number; anything else is a fault and reads as null.
    fn word(&mut self) -> Value {
        let rest = &self.text[self.at..];
        let len = rest.bytes().position(|byte| !is_word(byte)).unwrap_or(rest.len());
        let word = &rest[..len];
        self.at += len;
        match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            _ => match number(word) {
                Ok(number) => Value::Number(number),
                Err(message) => {
                    self.fault(message);
                    Value::Null
                }
            },
        }
    }

    fn string(&mut self) -> Result<String, Broken> {
        let mut out = String::new();
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let special = |byte: u8| byte == b'"' || byte == b'\\' || byte < 0x20;
            let Some(len) = rest.bytes().position(special) else {
                self.at = self.text.len();
                return Err(self.broken("`\"`"));
            };
            out.push_str(&rest[..len]);
            self.at += len;
            match rest.as_bytes()[len] {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => self.escape(&mut out)?,
                byte => {
                    self.fault(format!("expected `\\u{byte:04x}`, found that byte unescaped"));
                    self.at += 1;
                }
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), Broken> {
        self.at += 1;
        let Some(letter) = self.text[self.at..].chars().next() else {
            return Err(self.broken("an escape"));
        };
        self.at += letter.len_utf8();
        match letter {
            '"' | '\\' | '/' => out.push(letter),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'u' => self.unicode_escape(out),
            other => self.fault(format!("expected an escape of JSON, found `\\{other}`")),
        }
        Ok(())
    }

    /// Reads what follows `\u`; a high surrogate wants its low one right behind.
    fn unicode_escape(&mut self, out: &mut String) {
        let Some(first) = self.hex4() else {
            return self.fault("expected four hex digits after `\\u`".to_owned());
        };
        let mark = self.at;
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            if let Some(second @ 0xdc00..0xe000) = self.hex4() {
                let both = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                out.extend(char::from_u32(both));
                return;
            }
            self.at = mark;
        }
        match char::from_u32(first) {
            Some(letter) => out.push(letter),
            None => self.fault(format!("lone surrogate `\\u{first:04x}`: not a character")),
        }
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Passes over white space.
    fn next_token(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
        self.peek()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let takes = self.next_token() == Some(byte);
        self.at += usize::from(takes);
        takes
    }

    fn fault(&mut self, message: String) {
        let mut pointer = String::new();
        for token in &self.path {
            match token {
                Token::Key(key) => push_token(&mut pointer, key),
                Token::Index(index) => push_token(&mut pointer, &index.to_string()),
            }
        }
        self.faults.push(pointer, message);
    }

    fn broken(&mut self, expected: &str) -> Broken {
        let before = &self.text[..self.at.min(self.text.len())];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
        let found = match self.text[before.len()..].chars().next() {
            Some(letter) => quoted(letter.encode_utf8(&mut [0; 4])),
            None => "the end".to_owned(),
        };
        self.fault(format!("expected {expected}, found {found} at line {line}, column {column}"));
        Broken
    }
}

/// Tells whether a byte belongs to a number or a word, right or wrong ones.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_')
}

/// Reads a number of JSON's grammar into 64 bits: integers exactly, others as a double.
fn number(word: &str) -> Result<Number, String> {
    let bare = word.trim_start_matches(['+', '-']).to_ascii_lowercase();
    if matches!(bare.as_str(), "nan" | "infinity" | "inf") {
        return Err(format!("expected a finite number, found `{word}`: JSON cannot carry it"));
    }
    let Some(integer) = number_form(word) else {
        return Err(format!("expected a value, found {}", quoted(word)));
    };
    if integer && word != "-0" {
        let unsigned = word.parse::<u64>().map(Number::from);
        return unsigned
            .or_else(|_| word.parse::<i64>().map(Number::from))
            .map_err(|_| format!("integer {} does not fit 64 bits", shortened(word)));
    }
    word.parse::<f64>()
        .ok()
        .and_then(Number::from_f64)
        .ok_or_else(|| format!("number {} does not fit a double", shortened(word)))
}

/// Checks the grammar of a number; tells whether it is an integer. `None`: not a number.
fn number_form(word: &str) -> Option<bool> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let mut rest = word.strip_prefix('-').unwrap_or(word);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest.starts_with('0')) {
        return None;
    }
    rest = &rest[whole..];
    let integer = rest.is_empty();
    if let Some(fraction) = rest.strip_prefix('.') {
        let len = digits(fraction);
        if len == 0 {
            return None;
        }
        rest = &fraction[len..];
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let len = digits(unsigned);
        if len == 0 {
            return None;
        }
        rest = &unsigned[len..];
    }
    rest.is_empty().then_some(integer)
}

fn shortened(word: &str) -> String {
    if word.len() <= 40 { word.to_owned() } else { format!("{}…", &word[..40]) }
}

#[cfg(test)]
mod tests;
