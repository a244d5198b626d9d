//! Regular expressions of `matches()`: literal, checked when parsed, run by `cel`'s function.
//!
//! `cel` compiles the pattern at every call, with the `regex` crate's own limit of 10 MiB. The
//! engine is linear in the text, so what needs a bound is the size of the compiled pattern. It is
//! estimated from the text: each character weighs one, each class about as many states as a
//! Unicode class has, times the counted repetitions.

use std::sync::LazyLock;

use cel::Env;
use cel::common::functions::Function;
use cel::common::types::{CelBool, CelString};
use cel::common::value::CowVal;

use crate::Fault;
use crate::limits::{
    DEPTH_MAX, PATTERN_BYTES_MAX, PATTERN_CLASS_WEIGHT, PATTERN_WEIGHT_MAX, RESULT_BYTES_MAX,
};
use crate::parser::without_panic;

/// Units that compiling the smallest pattern costs, measured against a node's visit.
const COMPILE_COST: u64 = 500;

/// Units of compiling for each unit of weight.
const COST_PER_WEIGHT: u64 = 50;

/// Steps of the automaton for one unit when searching.
const STEPS_PER_COST: u64 = 8;

static ENV: LazyLock<Env> = LazyLock::new(Env::stdlib);

#[derive(Debug)]
pub(crate) struct Pattern {
    text: String,
    weight: u64,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(Fault::new(format!(
                "pattern of matches() has {} bytes, expected at most {PATTERN_BYTES_MAX}",
                text.len()
            )));
        }
        if text.matches('(').count() > DEPTH_MAX {
            let rule = format!("pattern of matches() has more than {DEPTH_MAX} groups");
            return Err(Fault::new(rule));
        }
        let weight = weigh(text);
        if weight > PATTERN_WEIGHT_MAX {
            return Err(Fault::new(
                "pattern of matches() is too large once its counted repetitions are written out",
            ));
        }
        let pattern = Self { text: text.to_owned(), weight };
        pattern.is_match("")?;
        Ok(pattern)
    }

    /// What matching this text costs, in units of the budget.
    pub(crate) fn cost(&self, text: &str) -> u64 {
        let steps = self.weight.saturating_mul(text.len() as u64);
        COMPILE_COST + self.weight * COST_PER_WEIGHT + steps / STEPS_PER_COST
    }

    pub(crate) fn is_match(&self, text: &str) -> Result<bool, Fault> {
        debug_assert!(text.len() <= 64 * RESULT_BYTES_MAX, "outputs are bounded by the engine");
        without_panic(|| {
            let arguments = || vec![argument(text), argument(&self.text)];
            let function: Function = ENV
                .find_overload("matches", &arguments())
                .ok_or_else(|| Fault::new("matches() is missing from the cel library"))?;
            match function(arguments()) {
                Ok(answer) => Ok(answer.downcast_ref::<CelBool>().is_some_and(|b| *b.inner())),
                Err(error) => Err(Fault::new(first_line(&error.to_string()))),
            }
        })
    }
}

fn argument(text: &str) -> CowVal<'_, '_> {
    CowVal::owned(CelString::from(text))
}

/// The last line of a regex error says what is wrong; those before it draw the place.
fn first_line(error: &str) -> String {
    let reason = error.lines().last().unwrap_or(error).trim();
    format!("pattern of matches() is not a regular expression: {reason}")
}

/// A count after a group multiplies all before it: more than is true, and never less.
fn weigh(pattern: &str) -> u64 {
    let mut sum = 1_u64;
    let mut last = 1_u64;
    let mut rest = pattern.chars();
    while let Some(character) = rest.next() {
        let weight = match character {
            '{' => {
                let more = last.saturating_mul(largest_count(rest.as_str()) - 1);
                sum = sum.saturating_add(more);
                last = last.saturating_add(more);
                continue;
            }
            // What is inside a bracket is one atom for a count after it.
            '[' => {
                let inside = bracket(rest.as_str());
                rest = rest.as_str()[inside.len()..].chars();
                inside.matches('\\').count() as u64 * PATTERN_CLASS_WEIGHT
                    + inside.len() as u64
                    + 10
            }
            '\\' => class_weight(rest.next()),
            '.' => 10,
            _ => 1,
        };
        sum = sum.saturating_add(weight);
        last = if character == ')' { sum } else { weight };
    }
    sum
}

fn bracket(after: &str) -> &str {
    let end = after.char_indices().skip(1).find(|(_, character)| *character == ']');
    &after[..end.map_or(after.len(), |(end, _)| end)]
}

fn class_weight(letter: Option<char>) -> u64 {
    match letter {
        Some('d') => PATTERN_CLASS_WEIGHT / 8,
        Some('w' | 'W' | 'D' | 's' | 'S' | 'p' | 'P' | 'b' | 'B') => PATTERN_CLASS_WEIGHT,
        _ => 1,
    }
}

/// The larger of the numbers in `{n,m}`; one if these are no numbers.
fn largest_count(after_brace: &str) -> u64 {
    let inside = after_brace.split('}').next().unwrap_or_default();
    let numbers = inside.split(',').filter_map(|number| number.trim().parse::<u64>().ok());
    numbers.max().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_anywhere_in_the_text() {
        let pattern = Pattern::parse("v[0-9]+$").expect("it is a pattern");
        assert_eq!(pattern.is_match("release v12"), Ok(true));
        assert_eq!(pattern.is_match("v12-rc"), Ok(false));
        let date = Pattern::parse(r"^\d{4}-\d{2}-\d{2}T\w+[A-Za-z0-9._-]{0,63}$");
        assert!(date.expect("it is a pattern").is_match("2026-11-29Tx").is_ok());
    }

    #[test]
    fn heavy_and_broken_patterns_are_refused_when_parsed() {
        for (pattern, part) in [
            ("(a", "not a regular expression"),
            ("(a{1000}){1000}", "counted repetitions"),
            (r"\w{100}", "counted repetitions"),
            (r"([\pL\pN]x){9}", "counted repetitions"),
            (r"(\w\w){3}\w{6}", "counted repetitions"),
            (&"(".repeat(13), "groups"),
            (&"a".repeat(257), "257 bytes"),
        ] {
            let message = Pattern::parse(pattern).expect_err(pattern).message;
            assert!(message.contains(part), "{message}");
        }
    }
}
