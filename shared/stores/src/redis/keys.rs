//! The names of Redis keys: one place, so that an operator can read them off here.
//!
//! ```text
//! {standfast:p07}:r:t07-4k9v2mq8r5x1c   hash: a task's records, field -> version + bytes
//! {standfast:p07}:e:t07-4k9v2mq8r5x1c   list: its events
//! {standfast:p07}:r                     hash: the partition's own records (`:e` its events)
//! {standfast:p07}:i:NAME                sorted set, all scores 0: an index
//! {standfast:sys}:r                     hash: the installation's records (`:e`, `:i:` alike)
//! {standfast:sys}:clock                 string: the latest time given, in milliseconds
//! ```
//!
//! A partition's number is in hexadecimal, as in task ids. The braces are Redis's hash tag:
//! what is between them decides the slot, so all keys of a partition live together.

use std::fmt;

use standfast_domain::commit::{Home, Scope};

/// Bytes of a prefix: it is repeated in every key, so it should be short.
const PREFIX_BYTES_MAX: usize = 32;

/// A checked key prefix; several installations may share one Redis under different ones.
#[derive(Clone, Debug)]
pub(super) struct Prefix(String);

impl Prefix {
    /// Takes letters, digits and dashes: nothing that could end the hash tag.
    pub(super) fn new(text: &str) -> Option<Self> {
        let right = (1..=PREFIX_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        right.then(|| Self(text.to_owned()))
    }

    /// Gives the pattern that matches all keys of this prefix, and no others.
    pub(super) fn all(&self) -> String {
        format!("{{{}:*", self.0)
    }

    /// Names the hash of a scope's records.
    pub(super) fn records<'a>(&'a self, scope: &'a Scope) -> Key<'a> {
        Key { prefix: self, home: scope.home(), kind: "r", name: task_name(scope) }
    }

    /// Names the list of a scope's events.
    pub(super) fn events<'a>(&'a self, scope: &'a Scope) -> Key<'a> {
        Key { prefix: self, home: scope.home(), kind: "e", name: task_name(scope) }
    }

    /// Names the sorted set of an index.
    pub(super) fn index<'a>(&'a self, home: Home, index: &'a str) -> Key<'a> {
        Key { prefix: self, home, kind: "i", name: Some(index) }
    }

    /// Names the text that holds the latest time given.
    pub(super) fn clock(&self) -> Key<'_> {
        Key { prefix: self, home: Home::Installation, kind: "clock", name: None }
    }
}

fn task_name(scope: &Scope) -> Option<&str> {
    match scope {
        Scope::Task(task) => Some(task.as_str()),
        Scope::Partition(_) | Scope::Installation => None,
    }
}

/// A key, written straight into a command's buffer.
pub(super) struct Key<'a> {
    prefix: &'a Prefix,
    home: Home,
    kind: &'static str,
    name: Option<&'a str>,
}

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.home {
            Home::Partition(partition) => {
                write!(f, "{{{}:p{:02x}}}:{}", self.prefix.0, partition.number(), self.kind)?;
            }
            Home::Installation => write!(f, "{{{}:sys}}:{}", self.prefix.0, self.kind)?,
        }
        match self.name {
            Some(name) => write!(f, ":{name}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use standfast_domain::ids::{Partition, TaskId};

    use super::*;

    #[test]
    fn keys_read_as_documented() {
        let prefix = Prefix::new("standfast").unwrap();
        let task = Scope::Task(TaskId::parse("t07-4k9v2mq8r5x1c").unwrap());
        let partition = Partition::new(63).unwrap();
        for (key, wanted) in [
            (prefix.records(&task), "{standfast:p07}:r:t07-4k9v2mq8r5x1c"),
            (prefix.events(&task), "{standfast:p07}:e:t07-4k9v2mq8r5x1c"),
            (prefix.records(&Scope::Partition(partition)), "{standfast:p3f}:r"),
            (prefix.index(Home::Partition(partition), "a:{b}"), "{standfast:p3f}:i:a:{b}"),
            (prefix.records(&Scope::Installation), "{standfast:sys}:r"),
            (prefix.clock(), "{standfast:sys}:clock"),
        ] {
            assert_eq!(key.to_string(), wanted);
        }
    }

    #[test]
    fn a_prefix_cannot_end_the_hash_tag() {
        for text in ["", "a}b", "a{b", "a:b", "a b", "é", "*", &"a".repeat(33)] {
            assert!(Prefix::new(text).is_none(), "{text:?}");
        }
        assert!(Prefix::new("Blue-2").is_some());
    }
}
