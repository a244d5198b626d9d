#!/bin/sh
# count-words TEXT: counts the words of a text.
#
#   $ ./count-words.sh 'Hello, World!'
#   2
set -eu

set -f
# Splitting into words is what is wanted here.
# shellcheck disable=SC2048,SC2086
set -- $*
echo "$#"
