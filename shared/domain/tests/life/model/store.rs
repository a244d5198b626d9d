//! A store of one task in memory: records with versions, events, ordered indexes, guards.

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::commit::{Commit, CommitId, IndexChange, StoredRecord};
use standfast_domain::index::Entry;
use standfast_domain::invariants::Records;
use standfast_domain::record::{Header, Key, Record};

/// What is stored.
#[derive(Clone, Default)]
pub struct Store {
    fields: BTreeMap<String, StoredRecord>,
    keys: BTreeMap<String, Key>,
    pub events: Vec<Vec<u8>>,
    pub indexes: BTreeSet<Entry>,
}

impl Store {
    /// Reads a record and its version, and learns how the field is named.
    pub fn load(&mut self, key: &Key) -> (Option<Record>, Option<CommitId>) {
        self.learn(key);
        let Some(stored) = self.fields.get(&key.field()) else { return (None, None) };
        let record = Record::decode(key, &stored.bytes).expect("what was encoded decodes");
        (Some(record), Some(stored.version))
    }

    /// Notes which key a field name stands for.
    pub fn learn(&mut self, key: &Key) {
        self.keys.insert(key.field(), key.clone());
    }

    /// Writes a commit wholly or not at all.
    pub fn commit(&mut self, commit: &Commit) -> bool {
        let holds = commit.guards.iter().all(|guard| {
            self.fields.get(&guard.field).map(|stored| stored.version) == guard.version
        });
        let follows = commit.events.is_empty() || commit.first_event == self.events.len() as u64;
        if !holds || !follows {
            return false;
        }
        for (field, bytes) in &commit.writes {
            match bytes {
                Some(bytes) => {
                    let stored = StoredRecord { version: commit.id, bytes: bytes.clone() };
                    self.fields.insert(field.clone(), stored);
                }
                None => {
                    self.fields.remove(field);
                }
            }
        }
        self.events.extend(commit.events.iter().cloned());
        self.change(&commit.indexes);
        true
    }

    /// Changes index entries.
    pub fn change(&mut self, changes: &[IndexChange]) {
        for change in changes {
            let entry = (change.index.clone(), change.member.clone());
            match change.add {
                true => self.indexes.insert(entry),
                false => self.indexes.remove(&entry),
            };
        }
    }

    /// Gives the members of one index in order.
    pub fn members(&self, index: &str) -> Vec<String> {
        let own = self.indexes.iter().filter(|(name, _)| name == index);
        own.map(|(_, member)| member.clone()).collect()
    }

    /// Gives all records.
    pub fn records(&self) -> Records {
        let each = self.fields.iter().map(|(field, stored)| {
            let key = self.keys.get(field).unwrap_or_else(|| panic!("unknown field {field}"));
            let record = Record::decode(key, &stored.bytes).expect("what was encoded decodes");
            (key.clone(), record)
        });
        each.collect()
    }

    /// Gives the header.
    pub fn header(&mut self) -> Header {
        match self.load(&Key::Header).0 {
            Some(Record::Header(header)) => header,
            _ => panic!("the task is not born"),
        }
    }
}
