#!/bin/sh
# Searches the program in the folder $1 that has most to do with the issue on standard input:
# the one with most lines that hold a word of it.
set -eu
LC_ALL=C
export LC_ALL
. "$(dirname "$0")/words.sh"

words >issue-words
best=
most=0
for path in "$1"/*.sh; do
    lines=$(grep -ciF -f issue-words "$path" || :)
    echo "$lines lines of ${path##*/} have words of the issue" >&2
    if [ "$lines" -gt "$most" ]; then
        best=${path##*/}
        most=$lines
    fi
done

if [ -z "$best" ]; then
    echo "no program has a word of the issue" >&2
    exit 1
fi
printf '{ "output": { "file": "%s", "lines": %d } }\n' "$best" "$most" >"$STANDFAST_OUTCOME"
