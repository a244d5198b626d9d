//! The shipped examples, run as a newcomer would run them, in an embedded installation.
#![allow(clippy::unwrap_used)]

mod code_fix;
mod fetch_report;
mod plans;
mod release_notes;
mod support;
