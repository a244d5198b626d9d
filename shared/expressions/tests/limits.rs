//! Nothing that a plan may hold hangs, overflows a stack or takes the process down.

use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Value, json};
use standfast_expressions::{Context, Expression, Template, has_templates, resolve};

/// Generous for a debug build on a busy machine; a hang takes hours.
const SOON: Duration = Duration::from_secs(20);

fn evaluate(text: &str, input: Value) -> Result<Value, String> {
    let context = Context { input, ..Context::default() };
    let expression = Expression::parse(text).map_err(|fault| fault.message)?;
    expression.evaluate(&context).map_err(|fault| fault.message)
}

fn nested(open: &str, levels: usize, inner: &str, close: &str) -> String {
    format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
}

#[test]
fn twelve_levels_work_and_thirteen_are_refused_by_name() {
    assert_eq!(evaluate(&nested("(", 12, "1", ")"), json!(0)), Ok(json!(1)));
    let fault = evaluate(&nested("(", 13, "1", ")"), json!(0)).expect_err("it is too deep");
    assert_eq!(fault, "expression nests deeper than 12 levels");
    assert!(evaluate(&nested("[", 12, "1", "]"), json!(0)).is_ok());
    assert!(evaluate(&nested("string(", 12, "1", ")"), json!(0)).is_ok());
    assert!(evaluate(&nested("{'a':", 12, "1", "}"), json!(0)).is_ok());
    assert!(evaluate(&nested("true ? 1 : ", 12, "2", ""), json!(0)).is_ok());
    assert!(evaluate(&nested("input == 1 ? 1 : (", 6, "2", ")"), json!(0)).is_ok());
}

#[test]
fn the_deepest_trees_evaluate_on_a_small_stack() {
    let texts = [
        format!("input{}", " + input".repeat(79)),
        format!("{}{}", nested("[", 12, "1", "]"), "[0]".repeat(12)),
        format!("{} == 1", nested("-(", 6, &format!("1{}", " * 1".repeat(40)), ")")),
        format!("true{}", " && true".repeat(100)),
    ];
    let small = thread::Builder::new().stack_size(512 * 1024).spawn(move || {
        for text in texts {
            assert!(evaluate(&text, json!(1)).is_ok(), "{text}");
        }
    });
    small.expect("a thread starts").join().expect("the stack holds");
}

#[test]
fn the_longest_chains_parse_or_are_refused() {
    for (link, end) in [
        ("a+", "a"),
        ("a.", "a"),
        ("a<", "a"),
        ("a in ", "a"),
        ("!", "a"),
        ("-", "1"),
        ("a?a:", "a"),
        ("a&&", "a"),
        ("a||", "a"),
        ("a%", "a"),
        ("a,", "a"),
    ] {
        for links in [79, 100, 199, 250, 900] {
            let text = format!("[1].map(a, {}{end})", link.repeat(links));
            let _ = evaluate(&text, json!(1));
        }
    }
    let fault = evaluate(&format!("{}1", "1+".repeat(100)), json!(1)).expect_err("a long chain");
    assert!(fault.contains("more than 80 operations"), "{fault}");
}

#[test]
fn loops_over_large_lists_end_soon() {
    let numbers: Vec<u32> = (0..10_000).collect();
    let start = Instant::now();
    for text in [
        "input.all(a, input.all(b, a >= 0))",
        "input.map(a, input.map(b, [a, b]))",
        "input.filter(a, input.exists(b, b < 0)).size() == 0",
        "input.all(a, a in input)",
        "input.map(a, input + input)",
        "input.map(a, input == input)",
        "input.map(a, string(a)).map(t, input.map(b, t + t + t + t))",
        "input.exists(a, input.nope || input.exists(b, b < 0))",
        r"input.map(a, string(a).matches('(a|b)*a(a|b){30}$'))",
    ] {
        let fault = evaluate(text, json!(numbers)).expect_err(text);
        assert!(fault.contains("costs more than"), "{text}: {fault}");
    }
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    let count = evaluate("input.filter(n, n % 2 == 0).size()", json!(numbers));
    assert_eq!(count, Ok(json!(5_000)));
    let deep = evaluate("input.all(a, input.all(b, input.all(c, true)))", json!(numbers));
    assert!(deep.expect_err("three loops").contains("nest at most 2 deep"));
}

#[test]
fn large_texts_are_bounded() {
    let start = Instant::now();
    let text = "x".repeat(200_000);
    assert_eq!(evaluate("size(input + input)", json!(text)), Ok(json!(400_000)));
    let fault = evaluate("input + input", json!(text)).expect_err("too large");
    assert_eq!(fault, "result is larger than 262144 bytes");
    let doubled = format!("[input]{}", ".map(a, a + a)".repeat(30));
    assert!(evaluate(&doubled, json!(text)).expect_err("it doubles").contains("costs more"));
    let pattern = "input.matches('(x+x+)+y') || input.matches('(.*)(.*)(.*)(.*)(.*)[^x]y')";
    assert!(evaluate(pattern, json!(text)).is_err());
    let context = Context { input: json!(text), ..Context::default() };
    let with = json!(vec!["${{ input }}"; 6]);
    let (pointer, fault) = resolve(&with, &context, "").expect_err("more than 1 MiB");
    assert_eq!(pointer, "/5");
    assert!(fault.message.contains("1048576 bytes together"));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

/// Pieces that come together as something like an expression more often than characters do.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-z0-9 ]{0,3}",
        proptest::sample::select(vec![
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            "'",
            "\"",
            "\"\"\"",
            "r'",
            "b\"",
            "\\",
            "\n",
            "${{",
            "}}",
            "!",
            "-",
            "?",
            ":",
            ".",
            ",",
            "&&",
            "||",
            "==",
            "<",
            "in",
            "input",
            "steps",
            "steps.a",
            ".output",
            "has(",
            ".map(x, ",
            "1",
            "1.5",
            "0x",
            "1u",
            "null",
            "true",
            "secrets.A",
            "é",
            "\u{0}",
            "//",
            "`",
        ])
        .prop_map(str::to_owned),
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn parsing_never_panics(text in prop_oneof![any::<String>(), pieces()]) {
        let context = Context { input: json!([1, {"a": 1}]), ..Context::default() };
        for parsed in [Expression::parse(&text), Expression::parse(&format!("[{text}]"))] {
            if let Err(fault) | Ok(Err(fault)) = parsed.map(|parsed| parsed.evaluate(&context)) {
                prop_assert!(!fault.message.contains("cel library failed"), "{fault}");
            }
        }
        if let Ok(Some(template)) = Template::parse(&format!("${{{{{text}}}}}")) {
            prop_assert_eq!(template.evaluate(&context), template.evaluate(&context));
        }
    }

    #[test]
    fn integers_round_trip(signed: i64, unsigned: u64) {
        let context = Context { input: json!([signed, unsigned]), ..Context::default() };
        let template = json!(["${{ input[0] }}", "${{ input[1] }}", "${{ input }}"]);
        let expected = json!([signed, unsigned, [signed, unsigned]]);
        prop_assert_eq!(resolve(&template, &context, ""), Ok(expected));
        let text = resolve(&json!("${{ input[0] }} ${{ input[1] }}"), &context, "");
        prop_assert_eq!(text, Ok(json!(format!("{signed} {unsigned}"))));
    }

    #[test]
    fn values_without_templates_stay_as_they_are(text in any::<String>(), number: f64) {
        let value = json!({"a": [text.replace("${{", "")], "b": number});
        prop_assert!(!has_templates(&value));
        prop_assert_eq!(resolve(&value, &Context::default(), ""), Ok(value));
    }
}
