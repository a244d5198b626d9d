//! Expressions and templates as plans have them: what they give, and the fault they end in.

use serde_json::{Value, json};
use standfast_expressions::{ArtifactView, Context, Expression, StepView, resolve};

fn context() -> Context {
    let step = |status: &str, output: Option<Value>, output_is_reference: bool| StepView {
        status: status.into(),
        output,
        output_is_reference,
    };
    Context {
        input: json!({
            "count": 20, "ratio": 0.5, "ok": true, "none": null, "name": "ana",
            "big": u64::MAX, "low": i64::MIN,
            "list": [3, 1, 2], "people": [{"name": "ana"}, {"name": "ben"}],
            "map": {"b": 2, "a": 1, "c": {"z": 1, "y": 2}},
        }),
        steps: [
            ("log".into(), step("succeeded", Some(json!({"stdout": "a\nb\n", "exit": 0})), false)),
            ("a-b.c".into(), step("succeeded", Some(json!(7)), false)),
            ("large".into(), step("succeeded", None, true)),
            ("skip".into(), step("skipped", None, false)),
        ]
        .into(),
        artifacts: [("draft/NOTES.md".into(), ArtifactView { bytes: 12, sha256: "ab12".into() })]
            .into(),
        plan_dir: Some("/plans/notes".into()),
        failure: None,
        effect: None,
    }
}

#[track_caller]
fn gives(text: &str, expected: Value) {
    let expression = Expression::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
    assert_eq!(expression.evaluate(&context()), Ok(expected), "{text}");
}

#[track_caller]
fn faults(text: &str, part: &str) {
    let result = Expression::parse(text).and_then(|parsed| parsed.evaluate(&context()));
    let fault = result.expect_err(text);
    assert!(fault.message.contains(part), "{text}: {fault}");
}

#[track_caller]
fn resolves(template: Value, expected: Value) {
    assert_eq!(resolve(&template, &context(), ""), Ok(expected), "{template}");
}

#[track_caller]
fn does_not_resolve(template: Value, pointer: &str, part: &str) {
    let (at, fault) = resolve(&template, &context(), "/with").expect_err("it has a fault");
    assert_eq!(at, pointer);
    assert!(fault.message.contains(part), "{fault}");
}

#[test]
fn the_examples_of_the_design_work() {
    gives(
        r#"steps.log.status == "succeeded" && artifacts["draft/NOTES.md"].bytes > 0"#,
        json!(true),
    );
    resolves(
        json!({"command": ["git", "-C", "${{ plan.dir }}", "-n", "${{ string(input.count) }}"]}),
        json!({"command": ["git", "-C", "/plans/notes", "-n", "20"]}),
    );
    resolves(json!("${{ steps.log.output.stdout }}"), json!("a\nb\n"));
}

#[test]
fn a_sole_template_keeps_its_type_and_others_become_text() {
    resolves(json!("${{ input.count }}"), json!(20));
    resolves(json!("${{input.none}}"), json!(null));
    resolves(json!("${{ input.map }}"), json!({"a": 1, "b": 2, "c": {"y": 2, "z": 1}}));
    resolves(json!(" ${{ input.count }}"), json!(" 20"));
    resolves(
        json!("${{ input.count }}/${{ input.ratio }}/${{ input.ok }}/${{ input.name }}"),
        json!("20/0.5/true/ana"),
    );
    resolves(json!("x${{ input.map }}"), json!(r#"x{"a":1,"b":2,"c":{"y":2,"z":1}}"#));
    resolves(json!("x${{ input.list }}"), json!("x[3,1,2]"));
    resolves(json!("a}} and $ and {{b"), json!("a}} and $ and {{b"));
    does_not_resolve(json!(["rm ${{ input.none }}/x"]), "/with/0", "null cannot be part");
}

#[test]
fn braces_in_literals_and_maps_do_not_end_a_template() {
    resolves(json!(r#"${{ "}}" }}"#), json!("}}"));
    resolves(json!(r#"<${{ 'it\'s }}' }}>"#), json!("<it's }}>"));
    resolves(json!(r#"${{ r"\" + '''}}"''' }}"#), json!("\\}}\""));
    resolves(json!(r#"${{ {"a": {"b": 1}} }}"#), json!({"a": {"b": 1}}));
    resolves(json!(r#"${{ {"a": {"b": 1}}}}"#), json!({"a": {"b": 1}}));
    resolves(json!(r#"${{ "${{" }}x"#), json!("${{x"));
    does_not_resolve(json!({"a/b~": "${{ input.count }"}), "/with/a~1b~0", "no closing");
    does_not_resolve(json!("${{ 'a }}"), "/with", "no closing quote");
    does_not_resolve(json!("${{ }}"), "/with", "found nothing");
}

#[test]
fn integers_keep_all_their_digits() {
    resolves(json!("${{ input.big }}"), json!(u64::MAX));
    resolves(json!("${{ input.low }}"), json!(i64::MIN));
    resolves(json!("=${{ input.big }}"), json!("=18446744073709551615"));
    gives("18446744073709551615u == input.big", json!(true));
    gives("input.big > 18446744073709551615.0", json!(false));
    gives("input.big - 1u", json!(u64::MAX - 1));
    faults("input.big + 1", "uint + int is not defined, convert");
    faults("9223372036854775807 + 1", "overflows int");
    faults("-input.low", "overflows int");
    faults("input.low / -1", "overflows int");
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    faults("1.0 / 0.0", "no finite number");
    faults("1e308 * 10.0", "no finite number");
    faults("double('NaN')", "no finite number");
    faults("1 / 0", "/ by zero");
    faults("1 % 0", "% by zero");
    faults("input.count * input.ratio", "int * double is not defined");
    gives("double(input.count) * input.ratio", json!(10.0));
}

#[test]
fn maps_are_in_key_order_however_they_are_used() {
    gives("input.map.map(key, key)", json!(["a", "b", "c"]));
    gives("{'z': 1, 'm': 2, 'a': 3}.filter(key, key > 'b')", json!(["m", "z"]));
    let text = Expression::parse("{'z': 1, 'm': {'b': 1, 'a': 2}}").expect("it parses");
    let value = text.evaluate(&context()).expect("it evaluates");
    assert_eq!(value.to_string(), r#"{"m":{"a":2,"b":1},"z":1}"#);
    faults("{'a': 1, 'a': 2}", "key `a` twice");
    faults("{1: 2}", "map key expects a string, found int");
}

#[test]
fn functions_and_macros() {
    gives("size(input.list) + 'größe'.size() + size(input.map)", json!(11));
    gives("steps.log.output.stdout.trim().split('\\n')", json!(["a", "b"]));
    gives("input.people.map(p, p.name).join(', ')", json!("ana, ben"));
    gives("['a', 'b'].join()", json!("ab"));
    gives("input.people.filter(p, p.name.startsWith('b')).size() == 1", json!(true));
    gives("input.list.map(x, x > 1, x * 2)", json!([6, 4]));
    gives("input.list.exists_one(x, x == 1)", json!(true));
    gives("input.list.all(x, x > 0) && !input.list.exists(x, x > 3)", json!(true));
    gives("input.name.matches('^a.+a$') && 'abc'.contains('b') && 'a'.endsWith('a')", json!(true));
    gives("string(1.5) + string(2u) + string(true) + string(1.0)", json!("1.52true1"));
    gives("int('-7') + int(2.9) + int(3u)", json!(-2));
    gives("uint('7') + uint(2)", json!(9));
    gives("double('1e3')", json!(1000.0));
    gives("1 in [1.0] && 'a' in input.map && !('x' in input.map)", json!(true));
    gives("input.list[0] + input['count'] + input.people.size()", json!(25));
    gives("1 in input.map || 1.5 in input.map || true in input.map", json!(false));
    faults("[1] in input.map", "list in map is not defined");
    faults("1 in 'text'", "int in string is not defined");
    gives("true ? 1 : input.nothing", json!(1));
    gives("[1] + ['a']", json!([1, "a"]));
    gives("-(-3) == 3 && !!true", json!(true));
    faults("int('x')", "expects digits");
    faults("input.name.matches(input.name)", "one literal string");
    faults("input.name.matches('(')", "not a regular expression");
    faults("size(1)", "size() expects a string, list or map, found int");
    faults("size(1, 2)", "size() has 2 arguments, expected 1");
    faults("input.list.map(x)", "map() has 1 arguments, expected 2 or 3");
    faults("input.list.map(input, 1)", "hides input, rename it");
    faults("frobnicate(1)", "unknown function `frobnicate`");
    faults("timestamp('2020-01-01T00:00:00Z')", "unknown function `timestamp`");
    faults("b'abc'", "bytes literal is not supported");
    faults("input.?a", "expected an expression");
}

#[test]
fn logic_absorbs_faults_of_operands_that_do_not_matter() {
    gives("input.nothing == 1 || true", json!(true));
    gives("input.nothing == 1 && false", json!(false));
    gives("input.list.exists(x, 6 / (x - 3) < 0)", json!(true));
    faults("input.nothing == 1 || false", "no field `nothing`");
    faults("1 || false", "|| expects a bool, found int");
}

#[test]
fn missing_things_are_named() {
    faults("input.nmae", "input has no field `nmae`, it has");
    faults("input.map.x", "input.map has no field `x`, it has a, b, c");
    faults("input.count.x", "input.count is an int and has no field `x`");
    faults("input.list[3]", "input.list has no element 3, it has 3 counted from 0");
    faults("input.list[-1]", "no element -1");
    faults("failure.message", "failure is null and has no field `message`");
    faults("steps.nope.status", "step nope is not known here");
    faults("steps.skip.output", "step skip has no output, its status is skipped");
    faults(
        "steps.large.output.x",
        "output of step large is kept by reference and cannot be templated",
    );
    faults("artifacts['draft/x'].bytes", "artifact draft/x does not exist");
    gives("failure == null", json!(true));
    gives("has(input.name) && !has(input.nope) && has(steps.large.output)", json!(true));
    gives("has(steps.skip.output) || has(artifacts['draft/x'].bytes)", json!(false));
    let without = Context::default();
    let plan_dir = Expression::parse("plan.dir").expect("it parses");
    let fault = plan_dir.evaluate(&without).expect_err("there is no folder");
    assert!(fault.message.contains("plan.dir is not known here"));
}

#[test]
fn names_must_be_literal_and_known() {
    gives("steps['a-b.c'].output", json!(7));
    gives("steps['log']['output'].exit", json!(0));
    faults("steps", "named one by one");
    faults("steps[input.name].output", "not by a computed name");
    faults("steps['a' + 'b'].output", "not by a computed name");
    faults("steps.log", "step log is no value");
    faults("steps.log == 1", "step log is no value");
    faults("steps.a.b.output", "no `b` (an id with a dot is written steps[\"a.b\"])");
    faults("steps.map(s, s)", "named one by one");
    faults("artifacts[input.name].bytes", "not by a computed name");
    faults("artifacts['draft']", "artifact draft is no value");
    faults("artifacts['draft'].bytes", "not named as \"STEP/NAME\"");
    faults("artifacts.draft.bytes", "not named as");
    faults("plan", "nothing but plan.dir");
    faults("plan.name", "no `name`");
    faults("env.HOME", "unknown name `env`, expected one of input, steps, artifacts, plan");
    faults("secrets.TOKEN", "secret TOKEN can only stand alone");
    faults("secrets['TOKEN'] + 'x'", "secret TOKEN can only stand alone");
    faults("steps.log-2.output", "steps[\"ID\"]");
}

#[test]
fn conditions_must_be_bools() {
    let condition = |text| Expression::parse(text).and_then(|c| c.evaluate_bool(&context()));
    assert_eq!(condition("input.ok"), Ok(true));
    let fault = condition("input.name").expect_err("it is a string");
    assert_eq!(fault.to_string(), "expected a bool, found string");
}

#[test]
fn an_effect_is_read_only_where_there_is_one() {
    faults("effect.receipt", "effect is not known here");
    let effect =
        json!({"name": "main", "generation": 1, "key": "t/pay/main/1", "receipt": {"id": "h_55"}});
    let context = Context { effect: Some(effect), ..context() };
    let value = |text: &str| Expression::parse(text).expect("it parses").evaluate(&context);
    assert_eq!(value("effect.receipt.id"), Ok(json!("h_55")));
    assert_eq!(value("effect.key"), Ok(json!("t/pay/main/1")));
    assert!(Expression::parse("effect.key").expect("it parses").references().effect);
}
