//! One bare expression.

use std::sync::Arc;

use serde_json::Value;

use crate::evaluate::{Meter, evaluate};
use crate::item::Item;
use crate::node::Program;
use crate::parser;
use crate::{Context, Fault, References};

/// A parsed and checked expression. It is cheap to clone, and parsing the same text again finds
/// it in a cache.
#[derive(Clone, Debug)]
pub struct Expression {
    program: Arc<Program>,
}

impl Expression {
    /// Parses an expression written bare, as in `if` and `complete_when`.
    ///
    /// # Errors
    ///
    /// Faults over everything that can be told without values: syntax, limits, unknown names and
    /// functions, wrong numbers of arguments, computed names, secrets.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Ok(Self { program: parser::program(text)? })
    }

    /// Returns what the expression refers to.
    pub fn references(&self) -> &References {
        &self.program.references
    }

    /// Evaluates to JSON, with maps in key order.
    ///
    /// # Errors
    ///
    /// Faults over types, missing fields, arithmetic, a spent budget or a result too large.
    pub fn evaluate(&self, context: &Context) -> Result<Value, Fault> {
        self.item(context, &mut Meter::full())?.into_json()
    }

    /// Evaluates a condition.
    ///
    /// # Errors
    ///
    /// As [`Self::evaluate`], and over a result that is not a bool.
    pub fn evaluate_bool(&self, context: &Context) -> Result<bool, Fault> {
        match self.item(context, &mut Meter::full())? {
            Item::Bool(value) => Ok(value),
            other => Err(Fault::new(format!("expected a bool, found {}", other.type_name()))),
        }
    }

    pub(crate) fn item<'a>(
        &'a self,
        context: &'a Context,
        meter: &mut Meter,
    ) -> Result<Item<'a>, Fault> {
        evaluate(&self.program, context, meter)
    }
}
