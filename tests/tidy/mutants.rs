//! The mutants of `tests/mutants.d` still fit what they change, so that the script that tries
//! them, which takes minutes, finds no surprise.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{files, has_extension, read, relative, report, root, sources};

#[test]
fn every_mutant_still_applies_and_names_a_test_that_exists() {
    let (root, mut faults) = (root(), Vec::new());
    let sources = sources();
    let patches: Vec<PathBuf> = files(&root.join("tests/mutants.d"));
    assert!(!patches.is_empty(), "tests/mutants.d has mutants");
    for path in patches {
        let name = relative(&root, &path);
        if !has_extension(&path, &["patch"]) {
            faults.push(format!("{name}: is no patch"));
            continue;
        }
        let text = read(&path);
        let head = text.split("\ndiff ").next().unwrap_or_default();
        let field = |field: &str| -> Vec<String> {
            let lines = head.lines().filter_map(|line| line.strip_prefix(field));
            lines.map(|value| value.trim().to_owned()).collect()
        };
        for (what, count) in [("Removes:", 1), ("Package:", 1), ("Target:", 1)] {
            if field(what).len() != count {
                faults.push(format!("{name}: its head says `{what}` once"));
            }
        }
        if field("Test:").is_empty() {
            faults.push(format!("{name}: its head names no `Test:` that must fail"));
        }
        for test in field("Test:") {
            let function = format!("fn {test}(");
            if !sources.iter().any(|source| source.code.contains(&function)) {
                faults.push(format!("{name}: there is no test `{test}`"));
            }
        }
        faults.extend(applies(&root, &path).err().map(|error| format!("{name}: {error}")));
    }
    report("mutants that no longer fit; see docs/TESTING.md", &faults);
}

/// Checks a patch against the files as they are; no history is looked at.
fn applies(root: &Path, patch: &Path) -> Result<(), String> {
    let mut git = Command::new("git");
    git.args(["apply", "--check"]).arg(patch).current_dir(root);
    if let Some(above) = root.parent() {
        git.env("GIT_CEILING_DIRECTORIES", above); // a repository above is not this one
    }
    let output = git.output().map_err(|error| format!("git is needed to look: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
