//! The repository checks itself: who may import whom, how long things are, what
//! every file must say and what none may.
//!
//! A rule that is only written down is broken by the third reader. Each test
//! here lists every place that breaks its rule, with the line.

#[path = "tidy/mutants.rs"]
mod mutants;
#[path = "tidy/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Longest file, in lines, test modules not counted. Longer ones hold two topics.
const FILE_LINES_MAX: usize = 600;

/// Longest function, in lines of code. More does not fit on one screen.
const FUNCTION_LINES_MAX: usize = 70;

/// Widest line, in characters. rustfmt leaves strings and comments alone. Wider
/// may be an address, and data in a test, which a break would make no clearer.
const LINE_WIDTH_MAX: usize = 100;

/// Longest `main.rs`, in lines: parse the arguments, build, run.
const MAIN_LINES_MAX: usize = 30;

/// Who may import whom: a crate of ours and the crates of ours it may name, in
/// what a crate needs to be built. The direction is the architecture.
const LAYERS: &[(&str, &[&str])] = &[
    ("standfast-domain", &[]),
    ("standfast-expressions", &[]),
    ("standfast-protocol", &[]),
    ("standfast-engine", &["standfast-domain", "standfast-expressions"]),
    ("standfast-stores", &["standfast-domain", "standfast-engine"]),
    ("standfast-brokers", &["standfast-domain", "standfast-engine"]),
    ("standfast-sdk", &["standfast-protocol"]),
    ("standfast-api", SERVICE),
    ("standfast-scheduler", SERVICE),
    ("standfast-worker", SERVICE),
    ("standfast-bench", BENCH),
    ("standfast", BINARY),
    ("standfast-example-rust-worker", &["standfast-sdk"]),
    (TESTS, EVERYTHING),
];

/// A service sees the ports, never an adapter behind them.
const SERVICE: &[&str] =
    &["standfast-domain", "standfast-engine", "standfast-expressions", "standfast-protocol"];

/// The benchmark runs a whole installation in one process, over ports that it is given, and
/// submits to it from outside too.
const BENCH: &[&str] = &[
    "standfast-api",
    "standfast-domain",
    "standfast-engine",
    "standfast-scheduler",
    "standfast-sdk",
    "standfast-worker",
];

/// The binary is where ports and adapters are put together.
const BINARY: &[&str] = &[
    "standfast-api",
    "standfast-bench",
    "standfast-brokers",
    "standfast-domain",
    "standfast-engine",
    "standfast-expressions",
    "standfast-protocol",
    "standfast-scheduler",
    "standfast-sdk",
    "standfast-stores",
    "standfast-worker",
];

/// The tests drive everything, and the binary as a process.
const EVERYTHING: &[&str] = BINARY;

const TESTS: &str = "standfast-tests";

/// Dependencies that stand behind a wall, and the crates on its inner side. Tests
/// look over every wall: what they depend on reaches no user.
const WALLS: &[(&str, &[&str])] = &[
    ("redis", &["standfast-stores"]),
    ("deadpool-redis", &["standfast-stores"]),
    ("redb", &["standfast-stores"]),
    ("lapin", &["standfast-brokers", "standfast-sdk"]),
    ("cel", &["standfast-expressions"]),
    ("axum", &["standfast-api"]),
    ("clap", &["standfast"]),
];

/// What the domain may depend on: values, their encodings and digests. Nothing
/// that has a clock, a socket or a thread.
const DOMAIN_DEPENDENCIES: &[&str] =
    &["compact_str", "schemars", "serde", "serde_json", "sha2", "thiserror", "time"];

/// What the domain may not name. Its `clippy.toml` says the same to clippy; this
/// list also holds for a build that ran no clippy.
const IMPURE: &[&str] = &[
    "std::time::Instant",
    "SystemTime",
    "now_utc",
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "HashMap",
    "HashSet",
    "rand::",
    "tokio",
    "tracing",
    "async fn",
    "async move",
];

/// Files of the tests that may sleep, and why. A sleep is no synchronisation:
/// only a bounded poll of something that cannot be waited for may stand here.
const SLEEPERS: &[(&str, &str)] = &[
    (
        "services/worker/src/handlers/exec/tests.rs",
        "polls for the end of processes that are not children, which nothing can wait for",
    ),
    ("tests/conformance/broker/rig.rs", "polls a broker for a condition, bounded"),
    ("tests/processes/disturbed.rs", "draws the moment of a kill, which waits for nothing"),
    ("tests/processes/kill_resume.rs", "draws the moment of a kill, which waits for nothing"),
    ("tests/processes/tools.rs", "draws the moment of a kill, which waits for nothing"),
    ("tests/simulation/trace.rs", "waits virtually, which takes no time"),
    ("tests/src/wait.rs", "polls for a condition, bounded; what other tests wait with"),
];

/// Words that belong to how something was made, not to what it is.
const FORBIDDEN: &[&str] = &["/work/", "/root/", "session of the project"];

const TEXT_FILES: &[&str] = &["rs", "md", "toml", "yaml", "yml", "sh", "py", "json", "snap", "lua"];

struct Source {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
    /// The text without comments and strings.
    code: String,
    /// One a line: whether the line is of a test.
    in_test: Vec<bool>,
}

#[test]
fn crates_import_only_in_the_directions_that_are_allowed() {
    let metadata = workspace();
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let Some(allowed) = entry(LAYERS, &package.name) else {
            faults.push(format!("{} has no line in LAYERS", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            // What only a crate's own tests use gives it no direction.
            let ours = dependency.path.is_some() && dependency.kind == DependencyKind::Normal;
            if ours && !allowed.contains(&dependency.name.as_str()) {
                faults.push(format!("{} imports {}", package.name, dependency.name));
            }
        }
    }
    report("imports against the direction", &faults);
}

#[test]
fn heavy_dependencies_stay_behind_their_walls() {
    let mut faults = Vec::new();
    for package in &workspace().packages {
        for dependency in &package.dependencies {
            let Some(inside) = entry(WALLS, &dependency.name) else { continue };
            let for_tests =
                dependency.kind == DependencyKind::Development || package.name.as_str() == TESTS;
            if !for_tests && !inside.contains(&package.name.as_str()) {
                faults.push(format!("{} depends on {}", package.name, dependency.name));
            }
        }
    }
    report("dependencies outside their wall", &faults);
}

#[test]
fn the_domain_depends_on_values_only() {
    let metadata = workspace();
    let domain = package(&metadata, "standfast-domain");
    let faults: Vec<String> = domain
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind == DependencyKind::Normal)
        .filter(|dependency| !DOMAIN_DEPENDENCIES.contains(&dependency.name.as_str()))
        .map(|dependency| format!("standfast-domain depends on {}", dependency.name))
        .collect();
    report("dependencies that the domain may not have", &faults);
}

#[test]
fn the_domain_knows_no_clock_no_io_and_no_unordered_map() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|file| file.path.starts_with("shared/domain/src/")) {
        for word in IMPURE {
            find_words(source, word, |_| true, &mut faults);
        }
    }
    report("words that a pure domain does not know", &faults);
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    let faults: Vec<String> = workspace()
        .packages
        .iter()
        .filter(|package| {
            let manifest = read(package.manifest_path.as_std_path());
            !manifest.contains("[lints]\nworkspace = true")
        })
        .map(|package| format!("{} lacks [lints] workspace = true", package.name))
        .collect();
    report("crates with lints of their own", &faults);
}

#[test]
fn files_functions_and_lines_are_short() {
    let mut faults = Vec::new();
    for source in &sources() {
        let in_modules: usize =
            source::test_modules(&source.code).into_iter().map(|lines| lines.len()).sum();
        let lines = source.text.lines().count() - in_modules;
        if lines > FILE_LINES_MAX {
            faults.push(format!("{}: {lines} lines", source.path));
        }
        for found in source::functions(&source.code) {
            if found.code_lines > FUNCTION_LINES_MAX {
                let (path, line) = (&source.path, found.line);
                faults
                    .push(format!("{path}:{line}: {} has {} lines", found.name, found.code_lines));
            }
        }
        for (number, line) in source.text.lines().enumerate() {
            let width = line.chars().count();
            let quotes = line.contains('"') || source.text.contains("assert_snapshot!");
            let data = source.in_test[number] && quotes;
            if width > LINE_WIDTH_MAX && !data && !line.contains("https://") {
                faults.push(format!("{}:{}: {width} characters", source.path, number + 1));
            }
        }
    }
    report("files, functions or lines that are too long", &faults);
}

#[test]
fn a_main_only_parses_builds_and_runs() {
    let faults: Vec<String> = sources()
        .iter()
        .filter(|source| source.path.starts_with("services/"))
        .filter(|source| source.path.ends_with("src/main.rs"))
        .map(|source| (&source.path, source.text.lines().count()))
        .filter(|(_, lines)| *lines > MAIN_LINES_MAX)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    report("a main.rs that does too much", &faults);
}

#[test]
fn every_file_says_what_it_is_for() {
    let faults: Vec<String> = sources()
        .iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| format!("{}:1: does not start with //!", source.path))
        .collect();
    report("files without a word about themselves", &faults);
}

#[test]
fn nothing_is_left_half_done() {
    let mut faults = Vec::new();
    for source in &sources() {
        for word in ["todo!", "unimplemented!", "dbg!", "#[ignore"] {
            find_words(source, word, |_| true, &mut faults);
        }
    }
    report("code that is not finished, or a test that does not run", &faults);
}

#[test]
fn tests_do_not_sleep_to_wait_for_something() {
    let mut faults = Vec::new();
    let sources = sources();
    for source in &sources {
        let mut sleeps = Vec::new();
        for word in ["sleep(", "sleep_until(", "sleep_ms("] {
            find_words(source, word, |line| source.in_test[line - 1], &mut sleeps);
        }
        match (entry(SLEEPERS, &source.path), sleeps.is_empty()) {
            (None, _) => faults.extend(sleeps),
            (Some(_), true) => faults.push(format!("{} sleeps no more: unlist it", source.path)),
            (Some(_), false) => {}
        }
    }
    for (path, _) in SLEEPERS {
        if !sources.iter().any(|source| source.path == *path) {
            faults.push(format!("{path} is listed in SLEEPERS and does not exist"));
        }
    }
    report("sleeps in tests", &faults);
}

#[test]
fn links_in_the_docs_lead_somewhere() {
    let root = root();
    let mut faults = Vec::new();
    for path in files(&root).iter().filter(|path| has_extension(path, &["md"])) {
        let folder = path.parent().expect("a file stands in a folder");
        for (line, target) in links(&read(path)) {
            let base = if target.starts_with('/') { root.as_path() } else { folder };
            if !base.join(target.trim_start_matches('/')).exists() {
                faults.push(format!("{}:{line}: {target}", relative(&root, path)));
            }
        }
    }
    report("links that lead nowhere", &faults);
}

#[test]
fn nothing_speaks_of_how_it_was_made() {
    let root = root();
    let mut faults = Vec::new();
    for path in files(&root) {
        let name = relative(&root, &path);
        let scripts = ["tests/run", ".ci/run", "Dockerfile"].contains(&name.as_str());
        if name == "tests/tidy.rs" || !(scripts || has_extension(&path, TEXT_FILES)) {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let lower = line.to_lowercase();
            let forbidden = FORBIDDEN.iter().find(|word| lower.contains(**word));
            if let Some(word) = forbidden {
                faults.push(format!("{name}:{}: '{word}'", number + 1));
            }
            if names_a_tracker_entry(&lower) {
                faults.push(format!("{name}:{}: a number that only its tracker knows", number + 1));
            }
        }
    }
    report("words about how it was made", &faults);
}

#[test]
fn links_are_found_in_prose_and_not_in_code() {
    let text =
        "[a](b.md#c \"t\") `[x](y)` [d](https://e)\n```\n[f](g)\n```\n[h]: i.md\n![j](k.png)\n";
    assert_eq!(links(text), [(1, "b.md".into()), (5, "i.md".into()), (6, "k.png".into())]);
}

/// Fails with every fault on a line of its own.
fn report(what: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{what}:\n    {}\n", faults.join("\n    "));
}

fn entry<T: Copy>(table: &[(&str, T)], key: &str) -> Option<T> {
    table.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
}

fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("the tests stand below the root").to_path_buf()
}

fn workspace() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace")
}

fn package<'a>(metadata: &'a Metadata, name: &str) -> &'a Package {
    let found = metadata.packages.iter().find(|package| package.name.as_str() == name);
    found.expect("the crate is a member of the workspace")
}

/// Every file of the repository, in the order of its path. What a build or a run
/// leaves behind is not part of it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).expect("a folder of the repository can be listed");
    for entry in entries {
        let path = entry.expect("an entry of a folder can be read").path();
        if path.is_symlink() {
            continue;
        }
        if path.is_file() {
            found.push(path);
        } else if !is_left_behind(&path) {
            found.extend(files(&path));
        }
    }
    found.sort();
    found
}

fn is_left_behind(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let known = [".git", ".standfast", "target", "node_modules", "__pycache__"];
    known.contains(&name.as_ref()) || folder.join("CACHEDIR.TAG").exists()
}

fn sources() -> Vec<Source> {
    let root = root();
    let rust = files(&root).into_iter().filter(|path| has_extension(path, &["rs"]));
    rust.map(|path| source(relative(&root, &path), read(&path))).collect()
}

fn source(path: String, text: String) -> Source {
    let code = source::code_only(&text);
    let of_tests = path.starts_with("tests/") || path.contains("/tests/") || {
        path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
    };
    let mut in_test = vec![of_tests; text.lines().count()];
    for lines in source::test_modules(&code) {
        in_test[lines].fill(true);
    }
    Source { path, text, code, in_test }
}

fn find_words(source: &Source, word: &str, wanted: impl Fn(usize) -> bool, into: &mut Vec<String>) {
    for at in source::words(&source.code, word) {
        let line = source::line_of(&source.code, at);
        let before = source.code[..at].trim_end();
        let defined_or_called_on_a_value = before.ends_with('.') || before.ends_with("fn");
        if wanted(line) && !defined_or_called_on_a_value {
            into.push(format!("{}:{line}: {word}", source.path));
        }
    }
}

/// The relative targets of a page's links with their lines, without fragments.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let prose: String = line.split('`').step_by(2).collect();
        let inline = prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or(""));
        let defined = prose.trim_start().starts_with('[').then(|| prose.split_once("]: "));
        let defined = defined.flatten().map(|(_, target)| target);
        for target in inline.chain(defined) {
            let target = target.split_whitespace().next().unwrap_or("");
            let target = target.split('#').next().unwrap_or("").trim_matches(['<', '>']);
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((number + 1, target.to_owned()));
            }
        }
    }
    found
}

/// A word for an entry of a tracker, with the entry's number after it.
fn names_a_tracker_entry(lower: &str) -> bool {
    lower
        .match_indices("issue #")
        .any(|(at, word)| lower[at + word.len()..].starts_with(|next: char| next.is_ascii_digit()))
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    extensions.contains(&extension.as_ref())
}

fn relative(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).expect("the file stands below the root");
    inside.to_string_lossy().replace('\\', "/")
}

fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}
