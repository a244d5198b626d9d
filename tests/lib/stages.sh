# shellcheck shell=bash
# One function a stage, called by name from run_stage. Sourced by tests/run.

stage_tools() {
    command -v cargo >/dev/null || missing "cargo is not on the PATH; install Rust 1.95 or newer"
    cargo fmt --version >/dev/null 2>&1 || missing "rustfmt is missing: rustup component add rustfmt"
    cargo clippy --version >/dev/null 2>&1 || missing "clippy is missing: rustup component add clippy"
    require_programs git git
    rustc --version
    git --version
}

stage_services() {
    require_programs redis-server redis-server redis-cli
    require_programs rabbitmq-server rabbitmq-server rabbitmqctl
    use_redis
    use_rabbitmq
}

stage_python() {
    use_python
}

stage_format() {
    cargo fmt --all --check
}

stage_lints() {
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

# The tests' binaries too: one resolution of features for both, so that the next
# stage compiles nothing.
stage_build() {
    cargo build --workspace --lib --bins --tests --examples --locked
    [ -x "$STANDFAST_TEST_BINARY" ] || missing "the build left no $STANDFAST_TEST_BINARY"
}

stage_tests() {
    local log="$TARGET/tests.log"
    if cargo nextest --version >/dev/null 2>&1; then
        # Many tests only wait for processes of their own: with two more than there are cores,
        # all cores are busy.
        local threads=$(($(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 2))
        cargo nextest run --workspace --locked --profile "$NEXTEST_PROFILE" \
            --test-threads "$threads" ${FILTERS[@]+"${FILTERS[@]}"} 2>&1 | tee "$log"
    else
        echo "cargo-nextest is not installed; using cargo test"
        cargo test --workspace --lib --bins --tests --examples --locked --no-fail-fast \
            -- ${FILTERS[@]+"${FILTERS[@]}"} 2>&1 | tee "$log"
    fi
    count_tests "$log"
}

# The last lines of a run are what people and machines read: the tests' count
# goes there, and a run of no test is a failure.
count_tests() {
    local passed
    passed=$(sed -E 's/\x1b\[[0-9;]*m//g' "$1" | sed -nE \
        -e 's/^ *Summary \[.*\] .*[ :]([0-9]+) passed.*/\1/p' \
        -e 's/^test result: ok\. ([0-9]+) passed.*/\1/p' | awk '{ sum += $1 } END { print sum + 0 }')
    [ "$passed" -gt 0 ] || missing "no test ran; is a name misspelt?"
    TESTS_COUNTED="tests: $passed passed, 0 failed"
}

stage_doctests() {
    cargo test --workspace --doc --locked
}

stage_docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
}

stage_deny() {
    if cargo deny --version >/dev/null 2>&1; then
        cargo deny --locked check bans licenses sources
    else
        skipped "cargo-deny is not installed (cargo install cargo-deny --locked)"
    fi
}

# Syntax only; what the examples do is tested by running them.
stage_scripts() {
    local file
    while IFS= read -r file; do bash -n "$file"; done < <(
        echo .ci/run
        echo tests/run
        echo tests/mutants
        echo tests/chaos
        echo tests/growth
        find tests/lib examples -name '*.sh'
    )
    if ! command -v python3 >/dev/null; then
        skipped "python3 is not installed, Python examples are not checked"
        return
    fi
    # Parsed rather than compiled, which would leave __pycache__ in the tree.
    find examples tests -name '*.py' -print0 |
        xargs -0 python3 -c 'import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path, encoding="utf-8").read(), path)'
}

stage_compose() {
    if docker compose version >/dev/null 2>&1; then
        docker compose -f compose.yaml config --quiet
        docker compose -f compose.yaml -f tests/lib/compose.yaml config --quiet
    else
        skipped "docker compose is not installed"
    fi
}
