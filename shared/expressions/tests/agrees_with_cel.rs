//! Our evaluator and `cel`'s own give the same answers, over generated expressions.
//!
//! Where they differ on purpose (integers against doubles beyond 2^53, keys that are not strings)
//! the generator does not go; that we refuse doubles that are not finite, and to add the keys of
//! a map to a list, is allowed for. The order in which `cel` iterates maps varies, so maps here
//! have one key.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{LazyLock, Mutex};
use std::thread;

use proptest::prelude::*;
use serde_json::{Value, json};
use standfast_expressions::{Context, Expression};

/// A debug build of `cel` needs more than a test's stack.
const STACK_BYTES: usize = 256 * 1024 * 1024;

type Answer = Result<cel::Value, String>;

static INTERPRETER: LazyLock<Mutex<(Sender<String>, Receiver<Answer>)>> = LazyLock::new(|| {
    let (questions, inbox) = channel::<String>();
    let (outbox, answers) = channel();
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        for text in inbox {
            outbox.send(run_cel(&text)).expect("the test waits for the answer");
        }
    });
    thread.expect("a thread starts");
    Mutex::new((questions, answers))
});

fn input() -> Value {
    json!({
        "i": 7, "n": -3, "u": 18_446_744_073_709_551_615_u64, "d": 2.5, "t": "text é", "b": true,
        "z": null, "l": [1, 2, 3], "m": {"a": 1}, "w": {"b": [true]}, "e": [],
    })
}

fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => number
            .as_i64()
            .map(cel::Value::Int)
            .or_else(|| number.as_u64().map(cel::Value::UInt))
            .or_else(|| number.as_f64().map(cel::Value::Float))
            .expect("one of the three"),
        Value::String(text) => text.as_str().into(),
        Value::Array(elements) => elements.iter().map(to_cel).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (key.clone(), to_cel(value)));
            fields.collect::<HashMap<String, cel::Value>>().into()
        }
    }
}

/// `None` for what is outside JSON.
fn from_cel(value: &cel::Value) -> Option<Value> {
    Some(match value {
        cel::Value::Null => Value::Null,
        cel::Value::Bool(value) => json!(value),
        cel::Value::Int(value) => json!(value),
        cel::Value::UInt(value) => json!(value),
        cel::Value::Float(value) => Value::Number(serde_json::Number::from_f64(*value)?),
        cel::Value::String(text) => json!(text.as_str()),
        cel::Value::List(elements) => {
            Value::Array(elements.iter().map(from_cel).collect::<Option<_>>()?)
        }
        cel::Value::Map(map) => {
            let fields =
                map.map.iter().map(|(key, value)| Some((key.to_string(), from_cel(value)?)));
            Value::Object(fields.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

fn run_cel(text: &str) -> Answer {
    let program = cel::Program::compile(text).map_err(|errors| errors.to_string())?;
    let mut context = cel::Context::default();
    context.add_variable_from_value("input", to_cel(&input()));
    program.execute(&context).map_err(|error| error.to_string())
}

fn ask_cel(text: &str) -> Answer {
    let interpreter = INTERPRETER.lock().unwrap_or_else(|poison| poison.into_inner());
    interpreter.0.send(text.to_owned()).expect("the interpreter runs");
    interpreter.1.recv().expect("the interpreter runs")
}

fn expression() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(vec![
        "0",
        "1",
        "2",
        "-5",
        "3u",
        "1.5",
        "-0.5",
        "true",
        "false",
        "null",
        "'a'",
        "'text'",
        "''",
        "'12'",
        "input.i",
        "input.n",
        "input.u",
        "input.d",
        "input.t",
        "input.b",
        "input.z",
        "input.l",
        "input.m",
        "input.e",
        "input.m.a",
        "input.w['b']",
        "input.l[1]",
        "input.nope",
        "input.l[9]",
        "x",
        "[1, 2]",
        "['a', 'text']",
        "{'a': 1}",
        "{'k': [1, null]}",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(4, 24, 3, |inner| {
        let binary = proptest::sample::select(vec![
            "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "&&", "||",
        ]);
        let function = proptest::sample::select(vec!["size", "string", "int", "uint", "double"]);
        let member = proptest::sample::select(vec!["contains", "startsWith", "endsWith", "matches"]);
        let macros = proptest::sample::select(vec!["all", "exists", "exists_one", "map", "filter"]);
        prop_oneof![
            4 => (inner.clone(), binary, inner.clone()).prop_map(|(a, op, b)| format!("({a}) {op} ({b})")),
            1 => (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a}) ? {b} : {c}")),
            1 => (function, inner.clone()).prop_map(|(f, a)| format!("{f}({a})")),
            1 => (inner.clone(), member).prop_map(|(a, f)| format!("({a}).{f}('te')")),
            2 => (inner.clone(), macros, inner.clone()).prop_map(|(a, m, b)| format!("({a}).{m}(x, {b})")),
            1 => (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a}).map(x, {b}, {c})")),
            1 => inner.clone().prop_map(|a| format!("!({a})")),
            1 => inner.clone().prop_map(|a| format!("-({a})")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{'p': [{a}, {b}]}}")),
            1 => (inner.clone(), inner).prop_map(|(a, b)| format!("({a})[{b}]")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn the_same_answers(text in expression()) {
        // Without a loop around it, `x` is unknown: to us when parsing, to `cel` when evaluating.
        let text = format!("[7].map(x, {text})");
        let Ok(parsed) = Expression::parse(&text) else { return Ok(()) };
        let context = Context { input: input(), ..Context::default() };
        let ours = parsed.evaluate(&context);
        let theirs = ask_cel(&text);
        match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => {
                if let Some(theirs) = from_cel(theirs) {
                    prop_assert_eq!(ours, &theirs, "{}", text);
                }
            }
            (Ok(ours), Err(theirs)) => {
                prop_assert!(false, "{text}: we say {ours}, cel faults: {theirs}");
            }
            (Err(fault), Ok(theirs)) => {
                let intended = ["finite number", "list + map"];
                let intended = intended.iter().any(|part| fault.message.contains(part));
                prop_assert!(intended, "{text}: cel says {theirs:?}, we fault: {fault}");
            }
            (Err(_), Err(_)) => {}
        }
    }
}
