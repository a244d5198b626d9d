//! One digest over many records that never change, so that an event can vouch for them.

use sha2::{Digest, Sha256};

use crate::canonical::hex;
use crate::decide::digest;
use crate::record::{Key, Record};

/// Takes records in, in an order that their reader can repeat, and gives one digest.
#[derive(Clone, Debug, Default)]
pub struct RecordsDigest(Sha256);

impl RecordsDigest {
    /// Takes in a record if it is one of those that a plan is made of; others are left out.
    pub fn add(&mut self, key: &Key, record: &Record) {
        let own = match record {
            Record::Meta(meta) => digest(meta),
            Record::Definition(definition) => digest(definition),
            Record::Dependents(dependents) => digest(dependents),
            Record::Names(names) if matches!(key, Key::Needs(..)) => digest(names),
            _ => return,
        };
        for part in [key.field().as_str(), " ", own.as_str(), "\n"] {
            self.0.update(part);
        }
    }

    /// Gives the digest of all that was taken in, in hex.
    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }

    /// Gives the digest of a list.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a (Key, Record)>) -> String {
        let mut all = Self::default();
        records.into_iter().for_each(|(key, record)| all.add(key, record));
        all.finish()
    }
}
