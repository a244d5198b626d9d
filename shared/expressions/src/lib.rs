//! Parses and evaluates the CEL of plans: bare conditions (`if`, `complete_when`) and templates
//! between `${{ }}` inside the JSON of a step's `with`. It says what an expression refers to, so
//! that a plan is checked when it is submitted, and it evaluates against values it is given. What
//! is absent: tasks, steps' states, storage, time, randomness, secrets' values and files. It
//! imports nothing of ours, and it is the only crate that names `cel`.
//!
//! # How it works
//!
//! `cel` parses; nothing else of it runs, but for one regular expression function. Its tree is
//! checked and lowered into a tree of our own, whose evaluator is total:
//!
//! ```text
//! text -> scan (size, depth, links) -> cel's parser, on one thread with a deep stack
//!      -> lower (names, functions, arities, depth: every fault by name) -> Program, cached
//! Program + Context -> evaluate (a budget, no stack to overflow, maps in key order) -> JSON
//! ```
//!
//! `cel`'s own interpreter has no cost limit, iterates maps in an order that varies and copies
//! its context for each evaluation; ours charges a [`limits::COST_MAX`] budget for every node
//! visited and every byte copied or compared. A test runs both over generated expressions and
//! holds them to the same answers.
//!
//! # The language
//!
//! ```text
//! expression = or [ "?" or ":" expression ]
//! or         = and { "||" and }          and    = relation { "&&" relation }
//! relation   = sum { ("<" | "<=" | ">" | ">=" | "==" | "!=" | "in") sum }
//! sum        = term { ("+" | "-") term } term   = unary { ("*" | "/" | "%") unary }
//! unary      = { "!" } member | { "-" } member
//! member     = primary { "." name | "." name "(" [ list ] ")" | "[" expression "]" }
//! primary    = root | variable | name "(" [ list ] ")" | "(" expression ")"
//!            | "[" [ list ] "]" | "{" [ expression ":" expression { "," … } ] "}" | literal
//! literal    = null | true | false | 12 | 0x1f | 12u | 1.5 | "text" | 'text' | r"raw" | """…"""
//! root       = "input" | "failure" | "effect" | "plan.dir"
//!            | "steps." ID ("." | …) | "steps[" text "]" then ".status" or ".output"
//!            | "artifacts[" text "]" then ".bytes" or ".sha256"
//! template   = { text | "${{" expression "}}" | "${{ secrets.NAME }}" }
//! ```
//!
//! Functions: `has(a.b)`, `size(x)`, `string(x)`, `int(x)`, `uint(x)`, `double(x)`;
//! `x.size()`, `s.contains(t)`, `s.startsWith(t)`, `s.endsWith(t)`, `s.matches("literal")`,
//! `s.trim()`, `s.split(t)`, `list.join()`, `list.join(t)`; the macros `all`, `exists`,
//! `exists_one`, `map` (with and without a filter) and `filter`, nested at most
//! [`limits::LOOPS_DEEP_MAX`] deep. Anything else is a fault when the plan is submitted.
//!
//! # Decisions
//!
//! - **Types.** JSON integers are `int` when they fit `i64`, else `uint`; other numbers are
//!   `double`. Arithmetic does not mix types, as in CEL (`input.n * 1.5` is a fault for an
//!   integer: write `double(input.n)`); comparisons do, exactly. Overflow, division by zero and
//!   a `double` that is not finite are faults where they occur.
//! - **Absent types.** Bytes, timestamps, durations, optionals, messages and `type()` are refused
//!   when parsed, so that no result is outside JSON. Keys of maps are strings.
//! - **Maps** iterate, print and come out in key order, whatever order they came in.
//! - **Text.** In a template with anything around it, a string is taken as it is, numbers and
//!   bools as `string()` gives them, lists and maps as compact JSON. `null` is a fault: an empty
//!   text in its place turns `rm -rf ${{ input.dir }}/x` into another command.
//! - **Errors in `&&`, `||`, `all`, `exists`** are absorbed if another operand decides the
//!   answer, as CEL prescribes. A spent budget is never absorbed.
//! - **Missing fields** are faults; `has()` asks first, also of `steps.X.output`,
//!   `artifacts["STEP/NAME"].bytes` and `plan.dir`.
//! - **Secrets** stay the text `${{ secrets.NAME }}`. A value that would bring such a text into a
//!   result (a web page in a step's output, say) is refused, or it could name any secret it
//!   likes and have the worker send it. What [`resolve`] returns is final: never resolve it again.
//! - **A literal `${{`** is written `${{ "${{" }}`. Comments (`//`) are refused.

pub mod limits;

mod evaluate;
mod expression;
mod functions;
mod item;
mod lower;
mod names;
mod node;
mod operators;
mod parser;
mod patterns;
mod places;
mod scan;
mod template;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

pub use crate::expression::Expression;
pub use crate::template::Template;
pub use crate::values::find_faults_and_references;
pub use crate::values::has_templates;
pub use crate::values::resolve;

/// What an expression or template refers to, by literal names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    /// Ids of all steps named, whichever field is read.
    pub steps: BTreeSet<String>,
    /// Ids of the steps whose `output` is read or asked for with `has()`.
    pub outputs: BTreeSet<String>,
    /// Keys of artifacts, each `STEP/NAME`.
    pub artifacts: BTreeSet<String>,
    /// Whether `input` is read.
    pub input: bool,
    /// Whether `plan.dir` is read.
    pub plan_dir: bool,
    /// Whether `failure` is read.
    pub failure: bool,
    /// Whether `effect` is read.
    pub effect: bool,
    /// Names of secrets; only templates have them.
    pub secrets: BTreeSet<String>,
}

impl References {
    /// Adds all that `other` refers to.
    pub fn merge(&mut self, other: &References) {
        self.steps.extend(other.steps.iter().cloned());
        self.outputs.extend(other.outputs.iter().cloned());
        self.artifacts.extend(other.artifacts.iter().cloned());
        self.secrets.extend(other.secrets.iter().cloned());
        self.input |= other.input;
        self.plan_dir |= other.plan_dir;
        self.failure |= other.failure;
        self.effect |= other.effect;
    }
}

/// The values an expression is evaluated against. The caller fills in what the expression's
/// [`References`] name; more does no harm and costs nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// The task's input.
    pub input: Value,
    /// Steps by id.
    pub steps: BTreeMap<String, StepView>,
    /// Artifacts by `STEP/NAME`.
    pub artifacts: BTreeMap<String, ArtifactView>,
    /// The plan file's folder, where there is one.
    pub plan_dir: Option<String>,
    /// The failure that opened this round; `None` reads as `null`.
    pub failure: Option<Value>,
    /// The effect that is to be undone; `None` where nothing is.
    pub effect: Option<Value>,
}

/// What expressions see of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepView {
    /// The step's state, as the API spells it.
    pub status: String,
    /// The output kept inline; `None` if the step has none (yet).
    pub output: Option<Value>,
    /// Whether the output is kept as a blob, in which case reading it is a fault.
    pub output_is_reference: bool,
}

/// What expressions see of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArtifactView {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of its content, in lower case hexadecimal.
    pub sha256: String,
}

/// Why a text is not an expression or a template, or why it has no value: lower case, no full
/// stop, naming what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// The sentence for a person.
    pub message: String,
}

impl Fault {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
