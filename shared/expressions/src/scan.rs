//! Looks at the text before `cel`'s parser does: where string literals end, how deep it nests,
//! how long its chains are. It is a lexer, not a parser: it may pass what is not CEL, but never
//! what would be too deep for the parser's stack.

use crate::Fault;
use crate::limits::{DEPTH_MAX, EXPRESSION_BYTES_MAX, LINKS_MAX};

/// Refuses a text that is too long, too deep, too chained or not lexically CEL.
pub(crate) fn check(text: &str) -> Result<(), Fault> {
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(Fault::new(format!(
            "expression has {} bytes, expected at most {EXPRESSION_BYTES_MAX}",
            text.len()
        )));
    }
    if text.trim().is_empty() {
        return Err(Fault::new("expected an expression, found nothing"));
    }
    let mut scan = Scan { ternaries: vec![0], ..Scan::default() };
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        at = match literal_end(bytes, at)? {
            Some(end) => {
                scan.operand();
                end
            }
            None => scan.step(bytes, at)?,
        };
    }
    Ok(())
}

/// The index after the string literal that starts at `at` (prefixes `r` and `b` included), or
/// `None` if none starts there. It agrees with `cel`'s lexer on where a literal ends, so a literal
/// that this lexer would refuse and split into other tokens is a fault.
pub(crate) fn literal_end(bytes: &[u8], at: usize) -> Result<Option<usize>, Fault> {
    let mut quote_at = at;
    let mut raw = false;
    if at == 0 || !is_word(bytes[at - 1]) {
        while quote_at < bytes.len() && quote_at < at + 2 && b"rRbB".contains(&bytes[quote_at]) {
            raw |= b"rR".contains(&bytes[quote_at]);
            quote_at += 1;
        }
    }
    let Some(&quote) = bytes.get(quote_at).filter(|byte| b"\"'".contains(byte)) else {
        return Ok(None);
    };
    let triple = bytes[quote_at..].starts_with(&[quote; 3]);
    let width = if triple { 3 } else { 1 };
    let mut end = quote_at + width;
    while end < bytes.len() {
        if bytes[end..].starts_with(&[quote; 3][..width]) {
            return Ok(Some(end + width));
        }
        end += match bytes[end] {
            b'\n' | b'\r' if !triple => break,
            b'\\' if !raw => escape_length(&bytes[end + 1..]).ok_or_else(|| {
                Fault::new(format!("string literal has an unknown escape at byte {end}"))
            })?,
            _ => 1,
        };
    }
    Err(Fault::new(format!("string literal that starts at byte {at} has no closing quote")))
}

/// Length of an escape sequence with its backslash, from what follows that.
fn escape_length(after: &[u8]) -> Option<usize> {
    let digits = match after.first()? {
        b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`' => {
            return Some(2);
        }
        b'x' | b'X' => 2,
        b'u' => 4,
        b'U' => 8,
        b'0'..=b'3' => {
            let octal = after.get(1..3)?.iter().all(|digit| (b'0'..=b'7').contains(digit));
            return octal.then_some(4);
        }
        _ => return None,
    };
    after.get(1..=digits)?.iter().all(u8::is_ascii_hexdigit).then_some(digits + 2)
}

/// What of the text before matters for the rest of it.
#[derive(Default)]
struct Scan {
    /// For each open group, the ternaries open in it; the first is the text itself.
    ternaries: Vec<usize>,
    /// Length of the run of `!` or `-` before the next operand.
    unary_run: usize,
    /// Whether an operand has just ended, which makes a `-` binary.
    after_operand: bool,
    links: usize,
}

impl Scan {
    fn operand(&mut self) {
        self.unary_run = 0;
        self.after_operand = true;
    }

    /// Takes one token, of which only the length and the nesting matter.
    fn step(&mut self, bytes: &[u8], at: usize) -> Result<usize, Fault> {
        let byte = bytes[at];
        let next = bytes.get(at + 1).copied().unwrap_or(b' ');
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | 0x0c => {}
            b'(' | b'[' | b'{' => {
                self.link()?;
                self.ternaries.push(0);
                self.unary_run = 0;
                self.after_operand = false;
                self.check_depth()?;
            }
            b')' | b']' | b'}' => {
                if self.ternaries.len() == 1 {
                    return Err(unopened(byte, at));
                }
                self.ternaries.pop();
                self.operand();
            }
            b'?' => {
                self.link()?;
                if let Some(count) = self.ternaries.last_mut() {
                    *count += 1;
                }
                self.after_operand = false;
                self.check_depth()?;
            }
            b',' => {
                if let Some(count) = self.ternaries.last_mut() {
                    *count = 0;
                }
                self.after_operand = false;
            }
            b'/' if next == b'/' => {
                return Err(Fault::new("comments are not part of expressions, remove `//`"));
            }
            b'$' => {
                return Err(Fault::new("expected a bare expression, found `$` outside a string"));
            }
            b'-' if !self.after_operand => self.unary()?,
            b'!' if !self.after_operand && next != b'=' => self.unary()?,
            b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'<' | b'>' | b'=' | b'!' | b'&' | b'|' => {
                self.link()?;
                self.after_operand = false;
                let double = (byte == next && b"&|=".contains(&byte)) || next == b'=';
                return Ok(at + if double { 2 } else { 1 });
            }
            _ if is_word(byte) => {
                let end = (at..bytes.len()).find(|i| !is_word(bytes[*i])).unwrap_or(bytes.len());
                let quote_next = bytes.get(end).is_some_and(|byte| b"\"'".contains(byte));
                if byte.is_ascii_digit() && quote_next {
                    return Err(Fault::new("expected an operator between a number and a string"));
                }
                if &bytes[at..end] == b"in" {
                    self.link()?;
                    self.after_operand = false;
                } else {
                    self.operand();
                }
                return Ok(end);
            }
            b':' => self.after_operand = false,
            _ => return Err(unexpected(bytes, at)),
        }
        Ok(at + 1)
    }

    fn unary(&mut self) -> Result<(), Fault> {
        self.unary_run += 1;
        self.link()?;
        self.check_depth()
    }

    fn link(&mut self) -> Result<(), Fault> {
        self.links += 1;
        if self.links <= LINKS_MAX {
            return Ok(());
        }
        Err(Fault::new(format!(
            "expression has more than {LINKS_MAX} operators, accesses and calls, split it up"
        )))
    }

    fn check_depth(&self) -> Result<(), Fault> {
        let groups = self.ternaries.len() - 1;
        let depth = groups + self.ternaries.iter().sum::<usize>() + self.unary_run;
        if depth <= DEPTH_MAX {
            return Ok(());
        }
        Err(Fault::new(format!("expression nests deeper than {DEPTH_MAX} levels")))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn unexpected(bytes: &[u8], at: usize) -> Fault {
    let rest = String::from_utf8_lossy(&bytes[at..]);
    let character = rest.chars().next().unwrap_or_default();
    Fault::new(format!("unexpected character {character:?} at byte {at}"))
}

fn unopened(byte: u8, at: usize) -> Fault {
    Fault::new(format!("`{}` at byte {at} closes nothing", char::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> String {
        format!("{}1{}", "(".repeat(levels), ")".repeat(levels))
    }

    fn fault(text: &str) -> String {
        check(text).expect_err(text).message
    }

    #[test]
    fn twelve_levels_pass_and_thirteen_do_not() {
        assert!(check(&nested(12)).is_ok());
        assert_eq!(fault(&nested(13)), "expression nests deeper than 12 levels");
        assert!(check(&format!("{}true", "!".repeat(12))).is_ok());
        assert!(fault(&format!("{}true", "!".repeat(13))).contains("deeper"));
        assert!(fault(&format!("{}1", "- ".repeat(13))).contains("deeper"));
        assert!(fault(&format!("{}1", "a ? b : ".repeat(13))).contains("deeper"));
        assert!(fault(&format!("{}1", "[".repeat(13))).contains("deeper"));
    }

    #[test]
    fn ternaries_of_different_elements_do_not_add_up() {
        assert!(check(&format!("[{}]", "a?b:c,".repeat(30))).is_ok());
    }

    #[test]
    fn long_chains_are_refused() {
        assert!(fault(&format!("{}a", "a+".repeat(300))).contains("more than 200"));
        assert!(fault(&format!("a{}", ".a".repeat(300))).contains("more than 200"));
        assert!(check(&format!("{}1", "1,".repeat(400))).is_ok());
    }

    #[test]
    fn brackets_within_literals_do_not_count() {
        assert!(check(r#""((((((((((((((((((((""#).is_ok());
        assert!(check(r#"r"\" + '\'((((((((((((((' + '''(((((('((((((((('''"#).is_ok());
    }

    #[test]
    fn what_is_not_lexically_sound_is_refused() {
        assert!(fault("").contains("found nothing"));
        assert!(fault("'a").contains("no closing quote"));
        assert!(fault("'a\\").contains("unknown escape"));
        assert!(fault("1)").contains("closes nothing"));
        assert!(fault("'a\n'").contains("no closing quote"));
        assert!(fault(r"'\q'").contains("unknown escape"));
        assert!(fault(r#"1r"\"(((("#).contains("between a number and a string"));
        assert!(fault("a # b").contains("unexpected character '#'"));
        assert!(fault("größe").contains("unexpected character 'ö'"));
        assert!(fault("1 // one").contains("comments"));
        assert!(fault("${{ 1 }}").contains("bare expression"));
        assert!(fault(&"a".repeat(1025)).contains("1025 bytes"));
    }
}
