//! What is shipped has no crash points: neither their names nor the variable that arms them.

use std::path::Path;
use std::process::Command;

use standfast_engine::crash::POINTS;
use standfast_tests::{binary, processes::said};

const VARIABLE: &str = "STANDFAST_CRASH";

#[test]
fn a_build_without_debug_assertions_has_no_crash_points() {
    let folder = tempfile::tempdir().unwrap();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/engine/src/crash.rs");
    let (main, built) = (folder.path().join("main.rs"), folder.path().join("main"));
    let calls: String =
        POINTS.iter().map(|name| format!("    crash::point({name:?});\n")).collect();
    let text = format!(
        "#[path = {:?}]\nmod crash;\nfn main() {{\n{calls}    assert!(!crash::COMPILED);\n}}\n",
        module.canonicalize().unwrap()
    );
    std::fs::write(&main, text).unwrap();
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["--edition", "2024", "-O", "-o"]).arg(&built).arg(&main);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let mut command = Command::new(&built);
    command.env(VARIABLE, POINTS[0]);
    assert!(command.status().unwrap().success(), "it passes every point and lives");
    for name in POINTS.iter().chain([&VARIABLE]) {
        assert!(!holds(&built, name), "a release build holds `{name}`");
    }
    let tested = binary::path();
    assert!(
        holds(&tested, VARIABLE),
        "these tests need {} with debug assertions",
        tested.display()
    );
}

fn holds(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
