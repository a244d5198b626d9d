#!/bin/sh
# Checks that the notes in the file $1 hold every commit on standard input: HASH TAB SUBJECT.
set -eu

notes=$1
tab=$(printf '\t')
found=0
missing=0

while IFS=$tab read -r hash _ || [ -n "$hash" ]; do
    [ -n "$hash" ] || continue
    if grep -qF -e "(\`$hash\`)" "$notes"; then
        found=$((found + 1))
    else
        missing=$((missing + 1))
        echo "missing: $hash" >&2
    fi
done

echo "$found of $((found + missing)) commits are in the notes"
[ "$missing" -eq 0 ]
