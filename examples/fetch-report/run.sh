#!/bin/sh
# Starts the shop's server on a free port, runs the plan against it, stops the server.
#
# Arguments are passed on: `run.sh --json`. STANDFAST names the program; without it the one on
# the PATH is taken, or else it is built from this repository.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

scratch=$(mktemp -d)
server=
# shellcheck disable=SC2317 # the trap calls it
tidy() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || :
        wait "$server" 2>/dev/null || :
    fi
    rm -rf "$scratch"
}
trap tidy EXIT
# Once the program has ended this shell goes on by itself, so that the code stays the program's.
trap : INT TERM

# The server's first line is its address; there is nothing to wait for once it was read.
mkfifo "$scratch/address"
python3 "$here/server.py" --port 0 >"$scratch/address" 2>"$scratch/requests" &
server=$!
base_url=
read -r base_url <"$scratch/address" || :
if [ -z "$base_url" ]; then
    echo "the server did not start:" >&2
    cat "$scratch/requests" >&2
    exit 1
fi

set -- run "$here/plan.yaml" --allow-private-addresses --input "base_url=$base_url" "$@"
if [ -n "${STANDFAST:-}" ]; then
    set -- "$STANDFAST" "$@"
elif command -v standfast >/dev/null; then
    set -- standfast "$@"
else
    set -- cargo run --quiet --manifest-path "$here/../../Cargo.toml" -p standfast -- "$@"
fi

code=0
"$@" || code=$?
exit "$code"
