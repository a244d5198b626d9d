//! Arithmetic, comparison and membership. Arithmetic does not mix types; comparison puts all
//! numbers on one line, exactly.

use std::cmp::Ordering;

use crate::Fault;
use crate::evaluate::Meter;
use crate::item::{Item, List, Object};
use crate::node::Operator;

/// 2^63 and 2^64, exactly: the first doubles beyond `i64` and `u64`.
const I64_END: f64 = 9_223_372_036_854_775_808.0;
const U64_END: f64 = 18_446_744_073_709_551_616.0;

pub(crate) fn binary<'a>(
    operator: Operator,
    left: Item<'a>,
    right: Item<'a>,
    meter: &mut Meter,
) -> Result<Item<'a>, Fault> {
    match operator {
        Operator::Add => add(left, right, meter),
        Operator::Subtract | Operator::Multiply | Operator::Divide | Operator::Remainder => {
            arithmetic(operator, &left, &right)
        }
        Operator::Equal => Ok(Item::Bool(equal(&left, &right, meter)?)),
        Operator::NotEqual => Ok(Item::Bool(!equal(&left, &right, meter)?)),
        Operator::Less => compared(operator, &left, &right, meter, Ordering::is_lt),
        Operator::LessOrEqual => compared(operator, &left, &right, meter, Ordering::is_le),
        Operator::Greater => compared(operator, &left, &right, meter, Ordering::is_gt),
        Operator::GreaterOrEqual => compared(operator, &left, &right, meter, Ordering::is_ge),
        Operator::In => contains(&left, &right, meter).map(Item::Bool),
    }
}

pub(crate) fn negate(operand: Item<'_>) -> Result<Item<'_>, Fault> {
    match operand {
        Item::Int(value) => match value.checked_neg() {
            Some(value) => Ok(Item::Int(value)),
            None => Err(Fault::new(format!("-({value}) overflows int"))),
        },
        Item::Double(value) => Ok(Item::Double(-value)),
        other => Err(Fault::new(format!("- expects a number, found {}", other.type_name()))),
    }
}

/// A double, or a fault if it is infinite or no number.
pub(crate) fn finite<'a>(value: f64, of: &str) -> Result<Item<'a>, Fault> {
    if value.is_finite() {
        return Ok(Item::Double(value));
    }
    Err(Fault::new(format!("{of} gives no finite number")))
}

fn add<'a>(left: Item<'a>, right: Item<'a>, meter: &mut Meter) -> Result<Item<'a>, Fault> {
    match (&left, &right) {
        (Item::Text(left), Item::Text(right)) => {
            meter.charge_bytes(left.len() + right.len())?;
            Ok(Item::text(format!("{}{}", &**left, &**right)))
        }
        (Item::List(left), Item::List(right)) => {
            meter.charge((left.len() + right.len()) as u64)?;
            Ok(Item::list(left.iter().chain(right.iter()).collect()))
        }
        _ => arithmetic(Operator::Add, &left, &right),
    }
}

fn arithmetic<'a>(
    operator: Operator,
    left: &Item<'_>,
    right: &Item<'_>,
) -> Result<Item<'a>, Fault> {
    let sign = operator.sign();
    let zero = matches!(right, Item::Int(0) | Item::UInt(0));
    let by_zero = zero && matches!(operator, Operator::Divide | Operator::Remainder);
    match (left, right) {
        (Item::Int(_), Item::Int(_)) | (Item::UInt(_), Item::UInt(_)) if by_zero => {
            Err(Fault::new(format!("{sign} by zero")))
        }
        (Item::Int(left), Item::Int(right)) => match int(operator, *left, *right) {
            Some(value) => Ok(Item::Int(value)),
            None => Err(Fault::new(format!("{left} {sign} {right} overflows int"))),
        },
        (Item::UInt(left), Item::UInt(right)) => match uint(operator, *left, *right) {
            Some(value) => Ok(Item::UInt(value)),
            None => Err(Fault::new(format!("{left} {sign} {right} overflows uint"))),
        },
        (Item::Double(left), Item::Double(right)) => match double(operator, *left, *right) {
            Some(value) => finite(value, sign),
            None => Err(Fault::new(format!("{sign} is not for double"))),
        },
        _ => Err(mismatch(operator, left, right)),
    }
}

fn int(operator: Operator, left: i64, right: i64) -> Option<i64> {
    match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide => left.checked_div(right),
        Operator::Remainder => left.checked_rem(right),
        _ => None,
    }
}

fn uint(operator: Operator, left: u64, right: u64) -> Option<u64> {
    match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::Divide => left.checked_div(right),
        Operator::Remainder => left.checked_rem(right),
        _ => None,
    }
}

fn double(operator: Operator, left: f64, right: f64) -> Option<f64> {
    match operator {
        Operator::Add => Some(left + right),
        Operator::Subtract => Some(left - right),
        Operator::Multiply => Some(left * right),
        Operator::Divide => Some(left / right),
        _ => None,
    }
}

fn mismatch(operator: Operator, left: &Item<'_>, right: &Item<'_>) -> Fault {
    let (sign, left, right) = (operator.sign(), left.type_name(), right.type_name());
    let number = |name: &str| matches!(name, "int" | "uint" | "double");
    let advice = if left != right && number(left) && number(right) {
        ", convert one with int(), uint() or double()"
    } else if left != right && operator == Operator::Add {
        ", convert one with string()"
    } else {
        ""
    };
    Fault::new(format!("{left} {sign} {right} is not defined{advice}"))
}

fn compared<'a>(
    operator: Operator,
    left: &Item<'_>,
    right: &Item<'_>,
    meter: &mut Meter,
    holds: fn(Ordering) -> bool,
) -> Result<Item<'a>, Fault> {
    let order = match (left, right) {
        (Item::Text(left), Item::Text(right)) => {
            meter.charge_bytes(left.len().min(right.len()))?;
            Some(left.cmp(right))
        }
        (Item::Bool(left), Item::Bool(right)) => Some(left.cmp(right)),
        _ => numbers(left, right),
    };
    match order {
        Some(order) => Ok(Item::Bool(holds(order))),
        None => Err(mismatch(operator, left, right)),
    }
}

/// The order of two numbers of whichever types; `None` if one is no number.
fn numbers(left: &Item<'_>, right: &Item<'_>) -> Option<Ordering> {
    match (left, right) {
        (Item::Double(left), Item::Double(right)) => left.partial_cmp(right),
        (Item::Double(left), _) => Some(against_double(integer(right)?, *left).reverse()),
        (_, Item::Double(right)) => Some(against_double(integer(left)?, *right)),
        _ => Some(integer(left)?.cmp(&integer(right)?)),
    }
}

fn integer(item: &Item<'_>) -> Option<i128> {
    match item {
        Item::Int(value) => Some(i128::from(*value)),
        Item::UInt(value) => Some(i128::from(*value)),
        _ => None,
    }
}

/// Exact where a conversion of the integer to a double would round.
fn against_double(left: i128, right: f64) -> Ordering {
    if right >= U64_END {
        return Ordering::Less;
    }
    if right < -I64_END {
        return Ordering::Greater;
    }
    let floor = right.floor();
    // In range now, and whole, so the cast is exact.
    left.cmp(&(floor as i128)).then(if right > floor { Ordering::Less } else { Ordering::Equal })
}

pub(crate) fn equal(left: &Item<'_>, right: &Item<'_>, meter: &mut Meter) -> Result<bool, Fault> {
    meter.charge(1)?;
    match (left, right) {
        (Item::Null, Item::Null) => Ok(true),
        (Item::Bool(left), Item::Bool(right)) => Ok(left == right),
        (Item::Text(left), Item::Text(right)) => {
            meter.charge_bytes(left.len().min(right.len()))?;
            Ok(**left == **right)
        }
        (Item::List(left), Item::List(right)) => equal_lists(left, right, meter),
        (Item::Map(left), Item::Map(right)) => equal_maps(left, right, meter),
        _ => Ok(numbers(left, right) == Some(Ordering::Equal)),
    }
}

fn equal_lists(left: &List<'_>, right: &List<'_>, meter: &mut Meter) -> Result<bool, Fault> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.iter().zip(right.iter()) {
        if !equal(&left, &right, meter)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_maps(left: &Object<'_>, right: &Object<'_>, meter: &mut Meter) -> Result<bool, Fault> {
    if left.len() != right.len() {
        return Ok(false);
    }
    meter.charge(left.len() as u64)?;
    for key in left.keys() {
        meter.charge_bytes(key.len())?;
        match (left.get(&key), right.get(&key)) {
            (Some(left), Some(right)) if equal(&left, &right, meter)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn contains(item: &Item<'_>, within: &Item<'_>, meter: &mut Meter) -> Result<bool, Fault> {
    match (item, within) {
        (_, Item::List(list)) => {
            for element in list.iter() {
                if equal(item, &element, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Item::Text(key), Item::Map(object)) => {
            meter.charge_bytes(key.len())?;
            Ok(object.get(key).is_some())
        }
        // CEL has such keys too, but no map of ours does.
        (Item::Bool(_) | Item::Int(_) | Item::UInt(_) | Item::Double(_), Item::Map(_)) => Ok(false),
        _ => Err(mismatch(Operator::In, item, within)),
    }
}
