#!/bin/sh
# slugify TITLE: makes a slug, the readable part of a page's address, out of its title.
#
#   $ ./slugify.sh 'Release Notes, 2nd edition'
#   release-notes-2nd-edition
set -eu
LC_ALL=C
export LC_ALL

title=$1
printf '%s\n' "$title" |
    tr '[:upper:]' '[:lower:]' |
    sed -e 's/[^a-z0-9][^a-z0-9]*/-/g'
