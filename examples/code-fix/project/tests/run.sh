#!/bin/sh
# Tests the project; prints a line for each case and fails if one of them does.
set -u
cd "$(dirname "$0")/.." || exit 1

failed=0

# check NAME EXPECTED PROGRAM ARGUMENT
check() {
    got=$(sh "$3" "$4")
    if [ "$got" = "$2" ]; then
        echo "ok - $1"
    else
        echo "not ok - $1: expected '$2', got '$got'"
        failed=$((failed + 1))
    fi
}

check "words are joined by a dash" release-notes slugify.sh "Release Notes"
check "digits stay" 2nd-edition slugify.sh "2nd Edition"
check "no trailing dash behind an exclamation mark" hello-world slugify.sh "Hello, World!"
check "no trailing dash behind a question mark" who-is-there slugify.sh "Who is there?"
check "no leading dash before a bracket" draft-notes slugify.sh "[Draft] Notes"
check "words are counted" 2 count-words.sh "Hello, World!"

if [ "$failed" -gt 0 ]; then
    echo "$failed failed" >&2
    exit 1
fi
