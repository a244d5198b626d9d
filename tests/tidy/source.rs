//! Just enough reading of Rust text to count lines and find words in code.
//!
//! There is no parser here. Comments, strings and characters are blanked, and
//! what is left is code in which a brace is a brace and a word is a word. That
//! holds for all text that `rustfmt` accepts; macros that build functions out of
//! pieces are the one thing it does not see.

use std::ops::Range;

/// A function with a body: where it starts and how many lines of code it has.
pub struct Function {
    /// The name after `fn`.
    pub name: String,
    /// The line of `fn`, counted from 1.
    pub line: usize,
    /// Lines inside the braces, without blank lines and lines of comment only.
    pub code_lines: usize,
}

/// Returns the text with comments blanked and the insides of strings and
/// characters filled with quotes, byte for byte as long and with the same lines.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (end, fill) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => (line_comment_end(bytes, at), b' '),
            b'/' if bytes[at..].starts_with(b"/*") => (block_comment_end(bytes, at), b' '),
            b'"' => (string_end(bytes, at), b'"'),
            b'r' | b'b' | b'c' if !continues_word(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => (end, b'"'),
                None => (at + 1, bytes[at]),
            },
            b'\'' => match character_end(bytes, at) {
                Some(end) => (end, b'"'),
                None => (at + 1, b'\''),
            },
            other => (at + 1, other),
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = fill;
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Finds every function that has a body, nested ones too.
pub fn functions(code: &str) -> Vec<Function> {
    words(code, "fn").filter_map(|at| function_at(code, at)).collect()
}

/// Finds the line ranges (from 0, end excluded) of `#[cfg(test)] mod … { … }`.
pub fn test_modules(code: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (at, attribute) in code.match_indices("#[cfg(test)]") {
        let rest = code[at + attribute.len()..].trim_start();
        if !rest.starts_with("mod ") && !rest.starts_with("pub mod ") {
            continue;
        }
        if let Some(body) = body_after(code, at + attribute.len()) {
            found.push(line_of(code, at) - 1..line_of(code, body.end));
        }
    }
    found
}

/// Finds where `word` stands as a word of its own.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let goes_on = bytes.get(at + word.len()).is_some_and(|&after| is_word(after));
        !(continues_word(bytes, at) || goes_on && word.ends_with(word_character))
    })
}

/// The line of a byte, counted from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count() + 1
}

fn word_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn is_word(byte: u8) -> bool {
    word_character(char::from(byte))
}

fn continues_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn function_at(code: &str, at: usize) -> Option<Function> {
    let name: String =
        code[at + 2..].trim_start().chars().take_while(|c| word_character(*c)).collect();
    if name.is_empty() {
        return None; // a function pointer's type
    }
    let body = body_after(code, at)?;
    let inside = &code[body.start + 1..body.end - 1];
    let code_lines = inside.lines().filter(|line| !line.trim().is_empty()).count();
    Some(Function { name, line: line_of(code, at), code_lines })
}

/// The braces that follow `from`, unless a `;` ends the item before them.
fn body_after(code: &str, from: usize) -> Option<Range<usize>> {
    let bytes = code.as_bytes();
    let mut brackets = 0_i32;
    let mut start = from;
    loop {
        match bytes.get(start)? {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b';' if brackets == 0 => return None,
            b'{' if brackets == 0 => break,
            _ => {}
        }
        start += 1;
    }
    let mut braces = 0_i32;
    for (offset, byte) in bytes[start..].iter().enumerate() {
        match byte {
            b'{' => braces += 1,
            b'}' => braces -= 1,
            _ => {}
        }
        if braces == 0 {
            return Some(start..start + offset + 1);
        }
    }
    None
}

fn line_comment_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0;
    let mut end = at;
    while end < bytes.len() {
        if bytes[end..].starts_with(b"/*") {
            depth += 1;
            end += 2;
        } else if bytes[end..].starts_with(b"*/") {
            depth -= 1;
            end += 2;
            if depth == 0 {
                return end;
            }
        } else {
            end += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut end = at + 1;
    while end < bytes.len() {
        match bytes[end] {
            b'\\' => end += 2,
            b'"' => return end + 1,
            _ => end += 1,
        }
    }
    bytes.len()
}

/// `r"…"`, `r#"…"#`, `br"…"`, `cr"…"`; nothing for a word that starts likewise.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let prefix = usize::from(matches!(bytes[at], b'b' | b'c'));
    if bytes.get(at + prefix) != Some(&b'r') {
        return None;
    }
    let hashes = bytes[at + prefix + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let open = at + prefix + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let inside = &bytes[open + 1..];
    let length = inside.windows(close.len()).position(|window| window == close)?;
    Some(open + 1 + length + close.len())
}

/// `'x'` and `'\n'`; nothing for a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        let rest = bytes.get(at + 3..)?;
        return rest.iter().position(|&byte| byte == b'\'').map(|length| at + 3 + length + 1);
    }
    let text = std::str::from_utf8(bytes.get(at + 1..bytes.len().min(at + 5))?);
    let character = match text {
        Ok(text) => text.chars().next()?,
        Err(cut) => {
            let valid = &bytes[at + 1..at + 1 + cut.valid_up_to()];
            std::str::from_utf8(valid).ok()?.chars().next()?
        }
    };
    let end = at + 1 + character.len_utf8();
    (bytes.get(end) == Some(&b'\'')).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_strings_comments_and_characters_are_not_code() {
        let text =
            "fn a<'x>() {\n    // }\n    let _ = (\"}\", '}', '\\'', r#\"}\"}\"#); /* } */\n}\n";
        let found = functions(&code_only(text));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].line, found[0].code_lines), ("a", 1, 1));
    }

    #[test]
    fn what_is_blanked_keeps_its_length_and_its_lines() {
        let text = "let é = 'é'; // ü\nlet b = b'\\x41'; /* a\n b */ \"c\nd\"";
        let code = code_only(text);
        assert_eq!((code.len(), code.lines().count()), (text.len(), text.lines().count()));
    }

    #[test]
    fn a_declaration_without_a_body_is_no_function() {
        let code = "trait T { fn a(&self, b: [u8; 4]); fn b(&self) -> fn(u8) { x } }";
        let names: Vec<String> = functions(code).into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["b"]);
    }

    #[test]
    fn a_test_module_is_found_with_its_lines() {
        let code = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n";
        let lines: Vec<(usize, usize)> =
            test_modules(code).into_iter().map(|found| (found.start, found.end)).collect();
        assert_eq!(lines, [(2, 6)]);
    }
}
