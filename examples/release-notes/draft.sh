#!/bin/sh
# Drafts RELEASE_NOTES.md out of commits on standard input, one a line: HASH TAB SUBJECT.
#
# A subject such as `domain: plans have deadlines` belongs to the area `domain`; `api!: …`
# breaks something in the area `api`. Areas come in the order of their newest commit, and
# what has no area comes last.
#
# While the task goes on, a copy lies in the folder $PREVIEW for whoever cannot wait. It is a
# courtesy: where that folder cannot be written, the draft is made all the same.
set -eu

# Subjects are bytes to this script: no locale can make one of them invalid.
LC_ALL=C
export LC_ALL

awk '
    # Takes the meaning for Markdown from all that is not within a pair of backticks.
    function plain(text,    parts, count, at, whole) {
        count = split(text, parts, "`")
        if (count % 2 == 0) {
            gsub(/[\\`*<\[\]]/, "\\\\&", text)
            return text
        }
        for (at = 1; at <= count; at++) {
            if (at % 2 == 1) gsub(/[\\*<\[\]]/, "\\\\&", parts[at])
            whole = whole (at > 1 ? "`" : "") parts[at]
        }
        return whole
    }

    { tab = index($0, "\t") }
    tab == 0 { next }
    {
        hash = substr($0, 1, tab - 1)
        subject = substr($0, tab + 1)
        gsub(/[\001-\037\177]/, " ", subject)

        area = "Other changes"
        breaks = ""
        if (match(subject, /^[A-Za-z0-9][A-Za-z0-9_.,\/()+-]*!?: +/) && RLENGTH < length(subject)) {
            area = substr(subject, 1, index(subject, ": ") - 1)
            subject = substr(subject, RLENGTH + 1)
            if (sub(/!$/, "", area)) breaks = "**breaking:** "
        }

        if (area != "Other changes" && !(area in lines)) areas[++area_count] = area
        lines[area] = lines[area] "- " breaks plain(subject) " (`" hash "`)\n"
        if (!commits++) newest = hash
        oldest = hash
    }

    END {
        printf "# Release notes\n\n"
        if (!commits) printf "Nothing has changed.\n"
        else if (commits == 1) printf "One change: `%s`.\n", newest
        else printf "%d changes, newest first, from `%s` back to `%s`.\n", commits, newest, oldest
        if ("Other changes" in lines) areas[++area_count] = "Other changes"
        for (at = 1; at <= area_count; at++)
            printf "\n## %s\n\n%s", areas[at], lines[areas[at]]
    }
' >RELEASE_NOTES.md

if [ -n "${PREVIEW:-}" ]; then
    { mkdir -p "$PREVIEW" && cp RELEASE_NOTES.md "$PREVIEW/$STANDFAST_TASK.md"; } 2>/dev/null || :
fi

commits=$(grep -c '^- ' RELEASE_NOTES.md || :)
areas=$(grep -c '^## ' RELEASE_NOTES.md || :)
echo "commits: $commits, areas: $areas"
