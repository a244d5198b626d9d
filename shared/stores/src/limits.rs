//! What a caller may ask in one call. A breach is a bug of the caller, found by its first test,
//! so it panics with a sentence rather than become an error that someone would retry.

use std::collections::BTreeSet;

use standfast_domain::commit::{Commit, CommitId};
use standfast_engine::ports::{BATCH_MAX, Load, Range};

/// Checks sizes, that no record is written twice, and that each event starts with the id.
pub(crate) fn check_commits(commits: &[Commit]) {
    for commit in commits {
        check_size("guards of a commit", commit.guards.len());
        check_size("records written by a commit", commit.writes.len());
        check_size("events of a commit", commit.events.len());
        check_size("index changes of a commit", commit.indexes.len());
        check_size("records returned by a commit", commit.returns.len());
        assert!(
            commit.events.iter().all(|event| starts_with(event, commit.id)),
            "each event of commit {} starts with the commit's id",
            commit.id
        );
        assert!(
            i64::try_from(commit.first_event).is_ok(),
            "events of commit {} are numbered as lists are, up to 2^63",
            commit.id
        );
        assert!(
            distinct(commit.writes.iter().map(|(field, _)| field.as_str())),
            "commit {} writes each record once",
            commit.id
        );
    }
}

/// Checks the sizes of loads.
pub(crate) fn check_loads(loads: &[Load]) {
    for load in loads {
        check_size("records read of one scope", load.fields.len());
    }
}

/// Checks the sizes of pages.
pub(crate) fn check_ranges(ranges: &[Range]) {
    for range in ranges {
        check_size("members of an index's page", range.limit);
    }
}

/// Checks one size.
pub(crate) fn check_size(what: &str, number: usize) {
    assert!(number <= BATCH_MAX, "{what} are at most {BATCH_MAX}, found {number}");
}

/// Compares the id's text form with the start of an event.
pub(crate) fn starts_with(event: &[u8], id: CommitId) -> bool {
    CommitId::parse_prefix(event).is_some_and(|(found, _)| found == id)
}

/// Up to eight names are compared in pairs: commits are small, and this allocates nothing.
fn distinct<'a>(names: impl ExactSizeIterator<Item = &'a str> + Clone) -> bool {
    if names.len() > 8 {
        let mut seen = BTreeSet::new();
        return names.into_iter().all(|name| seen.insert(name));
    }
    names.clone().enumerate().all(|(at, name)| names.clone().take(at).all(|other| other != name))
}

#[cfg(test)]
mod tests {
    use standfast_domain::commit::Scope;

    use super::*;

    fn commit(fields: &[&str], events: &[&str]) -> Commit {
        Commit {
            id: CommitId(7),
            scope: Scope::Installation,
            guards: Vec::new(),
            writes: fields.iter().map(|field| ((*field).to_owned(), None)).collect(),
            first_event: 0,
            events: events.iter().map(|event| event.as_bytes().to_vec()).collect(),
            indexes: Vec::new(),
            returns: Vec::new(),
        }
    }

    #[test]
    fn a_sound_commit_passes() {
        check_commits(&[commit(&["a", "b"], &["0000000000000007{}"])]);
    }

    #[test]
    #[should_panic(expected = "writes each record once")]
    fn a_record_written_twice_is_a_bug() {
        check_commits(&[commit(&["a", "b", "a"], &[])]);
    }

    #[test]
    #[should_panic(expected = "starts with the commit's id")]
    fn an_event_of_another_commit_is_a_bug() {
        check_commits(&[commit(&[], &["0000000000000008{}"])]);
    }

    #[test]
    #[should_panic(expected = "at most 500, found 501")]
    fn too_many_events_are_a_bug() {
        check_commits(&[commit(&[], &["0000000000000007"; BATCH_MAX + 1])]);
    }

    #[test]
    fn many_names_are_compared_too() {
        let names: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        assert!(distinct(names.iter().map(String::as_str)));
        let twice: Vec<&str> = names.iter().chain(&names[3..4]).map(String::as_str).collect();
        assert!(!distinct(twice.iter().copied()));
    }
}
