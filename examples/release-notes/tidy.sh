#!/bin/sh
# Removes this task's preview from the folder $1, and the folder if no other task has one there.
set -eu

rm -f "$1/$STANDFAST_TASK.md"
rmdir "$1" 2>/dev/null || :
