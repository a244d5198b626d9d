//! Secrets stay references, and nothing but the plan can name one.

use serde_json::{Value, json};
use standfast_expressions::{Context, Template, find_faults_and_references, resolve};

fn resolved(template: &str, input: Value) -> Result<Value, String> {
    let context = Context { input, ..Context::default() };
    resolve(&json!(template), &context, "").map_err(|(_, fault)| fault.message)
}

#[test]
fn a_secret_stays_a_reference_alone_and_within_a_text() {
    assert_eq!(resolved("${{secrets.TOKEN}}", json!(1)), Ok(json!("${{ secrets.TOKEN }}")));
    assert_eq!(
        resolved("Bearer ${{  secrets._t1 }} ${{ input }}", json!(1)),
        Ok(json!("Bearer ${{ secrets._t1 }} 1"))
    );
    let template = Template::parse("${{ secrets.A }}${{ secrets.B }}").expect("it parses");
    let names = template.expect("it is a template").references().secrets.clone();
    assert_eq!(names, ["A".to_owned(), "B".to_owned()].into());
}

#[test]
fn a_secret_is_not_part_of_an_expression() {
    for text in ["${{ secrets.A + 'x' }}", "${{ secrets.A == 'x' }}", "${{ string(secrets.A) }}"] {
        let fault = resolved(text, json!(1)).expect_err(text);
        assert!(fault.contains("secret A can only stand alone"), "{fault}");
    }
    let long = format!("${{{{ secrets.{} }}}}", "a".repeat(65));
    assert!(resolved(&long, json!(1)).expect_err("too long").contains("does not fit"));
    assert!(resolved("${{ secrets.1a }}", json!(1)).is_err());
    assert!(resolved("${{ secrets }}", json!(1)).is_err());
}

#[test]
fn a_value_cannot_bring_a_reference_with_it() {
    let smuggled = json!("see ${{ secrets.TOKEN }}");
    for (template, input) in [
        ("${{ input }}", smuggled.clone()),
        ("got ${{ input }}", smuggled.clone()),
        ("${{ secrets.OWN }} ${{ input }}", smuggled.clone()),
        ("${{ input }}", json!({"a": ["b", smuggled.clone()]})),
        ("${{ input }}", json!({"${{secrets.TOKEN}}": 1})),
        ("got ${{ input }}", json!([smuggled])),
        ("$${{ input }}", json!("{{ secrets.TOKEN }}")),
        ("${{ input.a }}${{ input.b }}", json!({"a": "${", "b": "{secrets.TOKEN}}"})),
        ("${{ '${{ secrets.' + input }}", json!("TOKEN }}")),
    ] {
        let fault = resolved(template, input).expect_err(template);
        assert!(fault.contains("which only the plan itself may name"), "{fault}");
    }
    assert_eq!(resolved("${{ input }}", json!("${{ other }}")), Ok(json!("${{ other }}")));
}

#[test]
fn every_fault_has_its_pointer_and_references_are_gathered() {
    let with = json!({
        "a": ["${{ steps.x.output }}", "${{ nope }}", {"${{ k }}": "${{ artifacts['s/n'].bytes }}"}],
        "b": "${{ input.a",
        "c": "${{ plan.dir }} ${{ secrets.S }} ${{ failure.step }} ${{ steps['y'].status }}",
    });
    let (references, faults) = find_faults_and_references(&with, "/steps/0/with");
    let pointers: Vec<&str> = faults.iter().map(|(pointer, _)| pointer.as_str()).collect();
    assert_eq!(pointers, ["/steps/0/with/a/1", "/steps/0/with/a/2/${{ k }}", "/steps/0/with/b"]);
    assert_eq!(references.steps, ["x".to_owned(), "y".to_owned()].into());
    assert_eq!(references.outputs, ["x".to_owned()].into());
    assert_eq!(references.artifacts, ["s/n".to_owned()].into());
    assert_eq!(references.secrets, ["S".to_owned()].into());
    assert!(references.plan_dir && references.failure && !references.input);
}
