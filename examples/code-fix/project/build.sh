#!/bin/sh
# There is nothing to compile in a shell script, but it must parse.
set -eu
cd "$(dirname "$0")"

for file in *.sh tests/*.sh; do
    sh -n "$file"
    echo "parses: $file"
done
