# shellcheck shell=sh
# Sourced by the other scripts.

# words: prints the words of standard input, one a line, each once. Short ones say nothing.
words() {
    tr '[:upper:]' '[:lower:]' | tr -cs '[:lower:]' '\n' | awk 'length >= 4' | sort -u
}
