# shellcheck shell=bash
# A Python with pika, for the examples that publish and consume over plain AMQP.
# Sourced by tests/run.

PIKA_VERSION=1.4.4

imports_pika() {
    "$1" -c 'import pika' >/dev/null 2>&1
}

# A launcher around `pip install --target`, for a Python that came without the
# venv module.
install_beside() {
    local folder="$TARGET/test-python-packages" launcher="$TARGET/test-python.sh"
    python3 -m pip install -q --target "$folder" "pika==$PIKA_VERSION" 2>/dev/null || return 1
    printf '#!/bin/sh\nPYTHONPATH="%s" exec python3 "$@"\n' "$folder" >"$launcher"
    chmod +x "$launcher"
    STANDFAST_TEST_PYTHON="$launcher"
}

install_venv() {
    local venv="$TARGET/test-python"
    if ! imports_pika "$venv/bin/python"; then
        rm -rf "$venv"
        python3 -m venv "$venv" >/dev/null 2>&1 || return 1
        "$venv/bin/python" -m pip install -q --disable-pip-version-check \
            "pika==$PIKA_VERSION" 2>/dev/null || return 1
    fi
    STANDFAST_TEST_PYTHON="$venv/bin/python"
}

use_python() {
    if [ -n "${STANDFAST_TEST_PYTHON:-}" ]; then
        imports_pika "$STANDFAST_TEST_PYTHON" ||
            missing "STANDFAST_TEST_PYTHON=$STANDFAST_TEST_PYTHON cannot import pika"
    else
        require_programs python3 python3
        if ! install_venv && root_on_debian; then apt_install python3-venv python3-pip; fi
        install_venv || install_beside ||
            missing "could not install pika $PIKA_VERSION; set STANDFAST_TEST_PYTHON to a Python that has it"
    fi
    export STANDFAST_TEST_PYTHON
    imports_pika "$STANDFAST_TEST_PYTHON" || missing "$STANDFAST_TEST_PYTHON cannot import pika"
    echo "python: $STANDFAST_TEST_PYTHON"
}
