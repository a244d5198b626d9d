//! A plan's file: read as YAML or JSON, its inputs set from the command line.

mod inputs;
mod yaml;

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;
use standfast_domain::json::{self, DEPTH_MAX, Limits, PLAN_BYTES_MAX};
use standfast_domain::plan::Fault;

use crate::failure::Failure;

/// Names standard input where a file is named.
const STANDARD_INPUT: &str = "-";

/// Names a plan's file and sets its inputs.
#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// File of the plan, YAML or JSON; `-` reads standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    inputs: InputArgs,
}

/// Sets a plan's inputs.
#[derive(Args, Clone, Debug)]
pub struct InputArgs {
    /// Sets an input that the plan declares; VALUE is JSON, else text. May be repeated
    #[arg(long = "input", value_name = "NAME=VALUE")]
    inputs: Vec<String>,
}

/// A plan as it is submitted.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanFile {
    /// The plan.
    pub plan: Value,
    /// The file's folder, absolute.
    pub dir: String,
}

impl PlanFile {
    /// Says whether the plan has a template that names its folder. Only then is the folder part
    /// of what is submitted: an api that serves others refuses it, and the same plan from two
    /// folders is the same plan.
    pub fn names_its_folder(&self) -> bool {
        let mut open = vec![&self.plan];
        while let Some(value) = open.pop() {
            match value {
                Value::String(text) if names_folder(text) => return true,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => open.extend(fields.values()),
            }
        }
        false
    }
}

/// Finds `plan.dir` in the forms in which an expression can write it.
fn names_folder(text: &str) -> bool {
    let packed: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    ["plan.dir", "plan[\"dir\"]", "plan['dir']"].iter().any(|form| packed.contains(form))
}

impl PlanArgs {
    /// Reads the file and sets the inputs.
    pub fn read(&self) -> Result<PlanFile, Failure> {
        read(&self.file, &self.inputs)
    }
}

/// Reads a plan's file and sets its inputs.
pub fn read(file: &Path, inputs: &InputArgs) -> Result<PlanFile, Failure> {
    let mut plan = parse("the plan", file, &contents("the plan", file)?)?;
    inputs::set(&mut plan, &inputs.inputs)?;
    let shown = file.display();
    // A plan from standard input would be a file here.
    let absolute = std::path::absolute(file)
        .map_err(|error| Failure::new(format!("failed to find the plan {shown}: {error}")))?;
    let dir = absolute.parent().unwrap_or(Path::new("/")).to_str().map(str::to_owned);
    let dir = dir.ok_or_else(|| {
        Failure::new(format!("the folder of {shown} is not UTF-8, which a plan cannot name"))
    })?;
    Ok(PlanFile { plan, dir })
}

/// Reads any other file as strictly as a plan.
pub fn read_value(file: &Path) -> Result<Value, Failure> {
    parse("the file", file, &contents("the file", file)?)
}

/// Reads a file, or standard input, up to what a plan may have.
fn contents(what: &str, file: &Path) -> Result<Vec<u8>, Failure> {
    let shown = file.display();
    let input: std::io::Result<Box<dyn Read>> = match file == Path::new(STANDARD_INPUT) {
        true => Ok(Box::new(std::io::stdin().lock())),
        false => std::fs::File::open(file).map(|file| Box::new(file) as Box<dyn Read>),
    };
    let mut bytes = Vec::new();
    input
        .and_then(|input| input.take(PLAN_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| Failure::new(format!("failed to read {what} {shown}: {error}")))?;
    if bytes.len() > PLAN_BYTES_MAX {
        let most = format!("at most {PLAN_BYTES_MAX} bytes are allowed");
        return Err(Failure::new(format!("{what} {shown} is too large: {most}")));
    }
    Ok(bytes)
}

/// Reads a file's text; what it is shows in its content.
fn parse(what: &str, file: &Path, bytes: &[u8]) -> Result<Value, Failure> {
    let faulty = |faults: Vec<Fault>| {
        let count = crate::show::quantities::count(faults.len() as u64, "fault");
        let faults = faults.into_iter().map(|fault| (fault.pointer, fault.message));
        Failure::new(format!("{what} {} has {count}", file.display())).with_faults(faults)
    };
    if is_json(file, bytes) {
        return json::read(bytes, Limits::PLAN).map_err(faulty);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let place = error.valid_up_to();
        Failure::new(format!("{what} {} is not UTF-8 at byte {place}", file.display()))
    })?;
    let value = yaml::read(text).map_err(|error| match error {
        yaml::Unreadable::Syntax(message) => {
            Failure::new(format!("{what} {} is not YAML: {message}", file.display()))
        }
        yaml::Unreadable::Values(faults) => faulty(faults),
    })?;
    let faults = json::check_value(&value, DEPTH_MAX);
    if faults.is_empty() { Ok(value) } else { Err(faulty(faults)) }
}

/// Says whether a text is meant as JSON: an object whose first key is quoted. (YAML reads most
/// of JSON too, but JSON's own reader knows better what is wrong with it.)
fn is_json(file: &Path, bytes: &[u8]) -> bool {
    let mut letters = bytes.iter().filter(|byte| !byte.is_ascii_whitespace());
    let object = letters.next() == Some(&b'{') && matches!(letters.next(), Some(b'"' | b'}'));
    object || file.extension().is_some_and(|extension| extension == "json")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        (folder, file)
    }

    fn read_text(name: &str, text: &str, inputs: &[&str]) -> Result<PlanFile, Failure> {
        let (_folder, file) = write(name, text);
        let inputs = InputArgs { inputs: inputs.iter().map(|&input| input.to_owned()).collect() };
        read(&file, &inputs)
    }

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = "kind: k\ngoal: g\ninput: {count: 20}\nsteps: []\n";
        let json = r#"{"kind": "k", "goal": "g", "input": {"count": 20}, "steps": []}"#;
        for inputs in [&[][..], &["count=7"]] {
            let read = |text| read_text("plan", text, inputs).unwrap().plan;
            assert_eq!(read(yaml), read(json));
        }
    }

    #[test]
    fn the_folder_is_absolute() {
        let (folder, file) = write("plan.yaml", "kind: k\n");
        let read = read(&file, &InputArgs { inputs: Vec::new() }).unwrap();
        assert_eq!(read.dir, folder.path().to_str().unwrap());
        assert_eq!(read.plan, json!({"kind": "k"}));
    }

    #[test]
    fn a_plan_names_its_folder_only_where_it_says_so() {
        let file =
            |text: &str| PlanFile { plan: json!({"steps": [{"with": [text]}]}), dir: "".into() };
        for text in ["${{ plan.dir }}/x", "${{ plan [ 'dir' ] }}", "${{ plan[\"dir\"] }}"] {
            assert!(file(text).names_its_folder(), "{text}");
        }
        assert!(!file("a plan of the directory").names_its_folder());
    }

    #[test]
    fn faults_are_told_one_a_line() {
        let text = r#"{"kind": "a", "kind": "b", "input": {"x": 1e999}}"#;
        let failure = read_text("plan", text, &[]).unwrap_err();
        assert!(failure.message.ends_with("has 2 faults"), "{}", failure.message);
        assert!(failure.lines[0].starts_with("/kind: "), "{:?}", failure.lines);
        assert!(failure.lines[1].starts_with("/input/x: "), "{:?}", failure.lines);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, expected) in
            [("a: [1", "is not YAML: "), ("a: 1\na: 2\n", "is not YAML: "), ("\u{0}", "not YAML")]
        {
            let failure = read_text("plan.yaml", text, &[]).unwrap_err();
            assert!(failure.message.contains(expected), "{text}: {}", failure.message);
        }
        let missing = read(Path::new("/nowhere/plan"), &InputArgs { inputs: Vec::new() });
        assert!(missing.unwrap_err().message.contains("/nowhere/plan"));
        let large = "#".repeat(PLAN_BYTES_MAX + 1);
        let failure = read_text("plan.yaml", &large, &[]).unwrap_err();
        assert!(failure.message.contains("at most 1048576"), "{}", failure.message);
    }
}
