#!/bin/sh
# Patches $FILE in a copy of the checked out project, with one of the fixes in the folder $1.
#
# This script stands where a model would. It takes the fix whose description has most words in
# common with what is known: in the first round that is the issue, in later ones the tests that
# failed, which stand on standard input. The issue speaks of an exclamation mark, and so the
# first choice is to treat the symptom; the failed tests then tell of the cause.
set -eu
LC_ALL=C
export LC_ALL
. "$(dirname "$0")/words.sh"

[ -z "$FAILURE" ] || echo "the last round: $FAILURE" >&2

failed=$(grep '^not ok' || :)
printf '%s\n' "${failed:-$ISSUE}" | words >known-words

best=
most=0
for fix in "$1"/*.sed; do
    common=$(sed -n 's/^# about: //p' "$fix" | words | grep -cxF -f known-words || :)
    echo "$common words in common with ${fix##*/}" >&2
    if [ "$common" -gt "$most" ]; then
        best=$fix
        most=$common
    fi
done

if [ -z "$best" ]; then
    echo "no fix has to do with it" >&2
    exit 1
fi

cp -R inputs/checkout/project project
chmod -R u+w project
sed -f "$best" "inputs/checkout/project/$FILE" >"project/$FILE"
if cmp -s "inputs/checkout/project/$FILE" "project/$FILE"; then
    echo "${best##*/} changes nothing in $FILE" >&2
    exit 1
fi

# One line on standard output is what is shown of a step; all else is in its log.
echo "round $STANDFAST_ROUND takes ${best##*/}"
