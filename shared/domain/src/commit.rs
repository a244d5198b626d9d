//! What a store is asked to do in one atomic write. Nothing here knows what a task is:
//! records and events are bytes, indexes are ordered sets of texts.

use std::fmt;

use crate::ids::{Partition, TaskId};

/// Stamps a commit and every record it writes; random, so a version never comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u64);

impl CommitId {
    /// Characters of the text form.
    pub const CHARS: usize = 16;

    /// Gives the text form: 16 lower-case hex digits.
    pub fn text(self) -> [u8; Self::CHARS] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut rest = self.0;
        let mut text = [b'0'; Self::CHARS];
        for digit in text.iter_mut().rev() {
            *digit = DIGITS[(rest & 15) as usize];
            rest >>= 4;
        }
        text
    }

    /// Reads the text form from the start of a stored record or event.
    pub fn parse_prefix(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_at_checked(Self::CHARS)?;
        let number = u64::from_str_radix(std::str::from_utf8(head).ok()?, 16).ok()?;
        Some((Self(number), rest))
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).expect("hex digits"))
    }
}

/// Whose records, events and index entries are meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// One task: its records and events live in its partition.
    Task(TaskId),
    /// What belongs to one partition as a whole: locks of its duties.
    Partition(Partition),
    /// What belongs to the installation: format, tokens, announced handlers, workers.
    Installation,
}

/// Where an index lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Home {
    /// With the tasks of one partition.
    Partition(Partition),
    /// With the installation's own records.
    Installation,
}

impl Scope {
    /// Gives where the scope's records and index entries live.
    pub fn home(&self) -> Home {
        match self {
            Self::Task(task) => Home::Partition(task.partition()),
            Self::Partition(partition) => Home::Partition(*partition),
            Self::Installation => Home::Installation,
        }
    }
}

/// A record as a store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// The commit that last wrote it.
    pub version: CommitId,
    /// The encoded record; opaque to the store.
    pub bytes: Vec<u8>,
}

/// Demands that a record still has the version that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The record's field name within the scope.
    pub field: String,
    /// The version that was read; `None` demands that the record is absent.
    pub version: Option<CommitId>,
}

/// Adds or removes one entry of an index; adding twice and removing what is absent are fine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IndexChange {
    /// The index's name within the scope's [`Home`].
    pub index: String,
    /// The entry: a text whose byte order is the index's order.
    pub member: String,
    /// True adds, false removes.
    pub add: bool,
}

/// One atomic write to one scope and the indexes of its home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The version of all that is written.
    pub id: CommitId,
    /// Whose records are written.
    pub scope: Scope,
    /// All must hold, else nothing is written.
    pub guards: Vec<Guard>,
    /// Records to write (`Some`) or to remove (`None`), by field name.
    pub writes: Vec<(String, Option<Vec<u8>>)>,
    /// The number of the first event of `events`; events are numbered from 0.
    pub first_event: u64,
    /// Events to append, in order, each starting with the commit's id in text form.
    pub events: Vec<Vec<u8>>,
    /// Index changes.
    pub indexes: Vec<IndexChange>,
    /// Fields whose records come back with the answer, whether applied or refused.
    pub returns: Vec<String>,
}

/// The scope-less part of an answer: what the store said to one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitAnswer {
    /// True if the commit is stored, by this call or by an earlier one with the same id.
    pub applied: bool,
    /// The records of `returns`, in their order, after the commit (or as they are, if refused).
    pub records: Vec<Option<StoredRecord>>,
}
