#!/bin/sh
# Writes fix.diff: what leads from the project in the folder $1 to the one in the folder $2.
set -eu

cp -R "$1" a
cp -R "$2" b

# Only the code 1 means that there are differences: 0 would be a fix that changes nothing.
code=0
diff -ruN a b >with-times.diff || code=$?
if [ "$code" -ne 1 ]; then
    echo "diff ended with code $code" >&2
    exit 1
fi

# The times of files that were just copied say nothing to a reader.
tab=$(printf '\t')
sed -e "/^diff /{n;s/$tab.*//;n;s/$tab.*//;}" with-times.diff >fix.diff

cat fix.diff >&2
echo "files changed: $(grep -c '^diff ' fix.diff)"
