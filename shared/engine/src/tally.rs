//! Counts by a word, for metrics with a label.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// One count for each word; the words are the program's own, so there are few.
#[derive(Debug, Default)]
pub struct Tally(Mutex<BTreeMap<&'static str, u64>>);

impl Tally {
    /// Counts one more.
    pub fn add(&self, word: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(word).or_default() += 1;
    }

    /// Gives the counts.
    pub fn read(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
