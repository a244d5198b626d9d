//! The operators, functions and macros that `cel`'s tree may call, by their names in it.

use cel::common::ast::operators;

use crate::Fault;
use crate::node::{Function, LoopKind, Operator};

const KNOWN_FUNCTIONS: &str = "has, size, string, int, uint, double, contains, startsWith, \
     endsWith, matches, trim, split, join, all, exists, exists_one, map, filter";

pub(crate) fn binary(name: &str) -> Option<Operator> {
    Some(match name {
        operators::ADD => Operator::Add,
        operators::SUBSTRACT => Operator::Subtract,
        operators::MULTIPLY => Operator::Multiply,
        operators::DIVIDE => Operator::Divide,
        operators::MODULO => Operator::Remainder,
        operators::EQUALS => Operator::Equal,
        operators::NOT_EQUALS => Operator::NotEqual,
        operators::LESS => Operator::Less,
        operators::LESS_EQUALS => Operator::LessOrEqual,
        operators::GREATER => Operator::Greater,
        operators::GREATER_EQUALS => Operator::GreaterOrEqual,
        operators::IN => Operator::In,
        _ => return None,
    })
}

pub(crate) fn loop_kind(name: &str) -> Option<LoopKind> {
    Some(match name {
        operators::ALL => LoopKind::All,
        operators::EXISTS => LoopKind::Exists,
        operators::EXISTS_ONE => LoopKind::ExistsOne,
        operators::MAP => LoopKind::Map,
        operators::FILTER => LoopKind::Filter,
        _ => return None,
    })
}

pub(crate) fn global_function(name: &str, arguments: usize) -> Result<Function, Fault> {
    let function = match name {
        "size" => Function::Size,
        "string" => Function::String,
        "int" => Function::Int,
        "uint" => Function::UInt,
        "double" => Function::Double,
        _ => return Err(unknown_function(name)),
    };
    expect_arguments(name, arguments, &[1])?;
    Ok(function)
}

pub(crate) fn member_function(name: &str, arguments: usize) -> Result<Function, Fault> {
    let (function, accepted): (Function, &[usize]) = match name {
        "size" => (Function::Size, &[0]),
        "contains" => (Function::Contains, &[1]),
        "startsWith" => (Function::StartsWith, &[1]),
        "endsWith" => (Function::EndsWith, &[1]),
        "trim" => (Function::Trim, &[0]),
        "split" => (Function::Split, &[1]),
        "join" => (Function::Join, &[0, 1]),
        _ => return Err(unknown_function(name)),
    };
    expect_arguments(name, arguments, accepted)?;
    Ok(function)
}

pub(crate) fn expect_arguments(name: &str, count: usize, accepted: &[usize]) -> Result<(), Fault> {
    if accepted.contains(&count) {
        return Ok(());
    }
    let accepted: Vec<_> = accepted.iter().map(ToString::to_string).collect();
    let expected = accepted.join(" or ");
    Err(Fault::new(format!("{name}() has {count} arguments, expected {expected}")))
}

fn unknown_function(name: &str) -> Fault {
    Fault::new(format!("unknown function `{name}` here, expected one of {KNOWN_FUNCTIONS}"))
}
