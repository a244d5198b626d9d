#!/bin/sh
# There is nothing to compile in a shell script, but it must parse.
set -eu
cd "$(dirname "$0")"

files=0
for file in *.sh tests/*.sh; do
    sh -n "$file"
    files=$((files + 1))
done
echo "$files files parse"
