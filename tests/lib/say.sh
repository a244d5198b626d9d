# shellcheck shell=bash
# What the run prints: stages with their seconds, one sentence on a failure.
# Sourced by tests/run.

STAGES_DONE=0
STAGE=""
STAGE_START=0
TESTS_COUNTED=""

usage_error() {
    echo "tests/run: $1; try --help" >&2
    exit 64
}

# The one way in which a check gives up: a sentence that says what to do.
missing() {
    echo "tests/run: $1" >&2
    exit 1
}

skipped() {
    echo "skipped: $1"
}

# `exit` rather than `return` in a failing stage, so that the trap below names it
# however deep the failing command stands.
run_stage() {
    STAGE="$1"
    STAGE_START=$SECONDS
    printf '\n== %s\n' "$STAGE"
    "stage_$STAGE"
    STAGES_DONE=$((STAGES_DONE + 1))
    printf -- '-- %s: %d s\n' "$STAGE" $((SECONDS - STAGE_START))
    STAGE=""
}

on_exit() {
    local code=$?
    if [ "$code" -eq 0 ] || [ -z "$STAGE" ]; then return; fi
    printf '\nfailed: stage %s after %d s\n' "$STAGE" $((SECONDS - STAGE_START))
    if [ "$STAGE" = tests ]; then
        echo "A seeded test prints its seed when it fails; the same run again:"
        echo "    STANDFAST_TEST_SEED=<seed> ./tests/run <name of the test>"
    fi
}
trap on_exit EXIT

summary() {
    echo
    if [ -n "$TESTS_COUNTED" ]; then echo "$TESTS_COUNTED"; fi
    echo "ok: $STAGES_DONE stages in $SECONDS s"
}
