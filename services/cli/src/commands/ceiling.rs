//! A token's ceiling as it is typed: a file, and single parts that come on top of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use standfast_domain::ceiling::{Ceiling, Naming};
use standfast_domain::ids::{HandlerName, Queue};
use standfast_domain::record::EffectClass;
use standfast_domain::time::Span;

use crate::failure::Failure;
use crate::plan_file;

/// What the principal may not go beyond.
#[derive(Args, Clone, Debug, Default)]
pub struct CeilingArgs {
    /// File of a ceiling, YAML or JSON: handlers, queues, effects, limits (max_attempts,
    /// attempt_timeout, retention), owners, approvers, operators, viewers. What it leaves out
    /// stays open
    #[arg(long = "ceiling", value_name = "FILE")]
    file: Option<PathBuf>,
    /// The only handlers of its plans, or of its workers
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = handler)]
    ceiling_handlers: Option<Vec<HandlerName>>,
    /// The only queues of its plans, or of its workers
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = queue)]
    ceiling_queues: Option<Vec<Queue>>,
    /// The only classes of effects of its plans, or of its workers
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = class)]
    ceiling_effects: Option<Vec<EffectClass>>,
    /// The most attempts of a step
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ceiling_attempts: Option<u32>,
    /// The longest attempt
    #[arg(long, value_name = "SPAN", value_parser = span)]
    ceiling_attempt_timeout: Option<Span>,
    /// Owners that its plans may name besides itself and its groups, and to whom it may hand
    /// tasks over: user:ana, group:*, or *
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = naming)]
    ceiling_owners: Option<Vec<Naming>>,
}

/// Reads the file of a ceiling.
pub fn of_file(path: &Path) -> Result<Ceiling, Failure> {
    let value = plan_file::read_value(path)?;
    serde_json::from_value(value)
        .map_err(|error| Failure::usage(format!("failed to read {}: {error}", path.display())))
}

impl CeilingArgs {
    /// Reads the file, if there is one, and puts the parts that were typed in its place.
    pub fn read(self) -> Result<Ceiling, Failure> {
        let mut ceiling = match &self.file {
            Some(path) => of_file(path)?,
            None => Ceiling::default(),
        };
        put(&mut ceiling.handlers, self.ceiling_handlers);
        put(&mut ceiling.queues, self.ceiling_queues);
        put(&mut ceiling.effects, self.ceiling_effects);
        put(&mut ceiling.owners, self.ceiling_owners);
        let limits = &mut ceiling.limits;
        limits.max_attempts = self.ceiling_attempts.or(limits.max_attempts);
        limits.attempt_timeout = self.ceiling_attempt_timeout.or(limits.attempt_timeout);
        Ok(ceiling)
    }
}

fn put<T: Ord>(place: &mut Option<BTreeSet<T>>, typed: Option<Vec<T>>) {
    if let Some(typed) = typed {
        *place = Some(typed.into_iter().collect());
    }
}

fn handler(text: &str) -> Result<HandlerName, String> {
    HandlerName::new(text).map_err(|fault| fault.to_string())
}

fn queue(text: &str) -> Result<Queue, String> {
    Queue::new(text).map_err(|fault| fault.to_string())
}

fn class(text: &str) -> Result<EffectClass, String> {
    EffectClass::parse(text)
        .ok_or_else(|| "expected `none`, `idempotent`, `checkable` or `irreversible`".to_owned())
}

fn span(text: &str) -> Result<Span, String> {
    Span::parse(text).ok_or_else(|| "expected a span such as `30m` or `2h`".to_owned())
}

fn naming(text: &str) -> Result<Naming, String> {
    Naming::new(text).map_err(|fault| fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_takes_the_place_of_what_the_file_says() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ceiling.yaml");
        let text = "handlers: [http, exec]\neffects: [none]\nlimits: { attempt_timeout: 1h }\n";
        std::fs::write(&file, text).unwrap();
        let typed = CeilingArgs {
            file: Some(file.clone()),
            ceiling_handlers: Some(vec![HandlerName::new("http").unwrap()]),
            ceiling_attempts: Some(2),
            ..CeilingArgs::default()
        };
        let read = serde_json::to_value(typed.read().unwrap()).unwrap();
        let expected = serde_json::json!({
            "handlers": ["http"], "effects": ["none"],
            "limits": {"max_attempts": 2, "attempt_timeout": "1h"},
        });
        assert_eq!(read, expected);
        std::fs::write(&file, "handler: [http]\n").unwrap();
        let wrong = CeilingArgs { file: Some(file), ..CeilingArgs::default() }.read().unwrap_err();
        assert!(wrong.to_lines().join(" ").contains("handler"), "{:?}", wrong.to_lines());
    }
}
