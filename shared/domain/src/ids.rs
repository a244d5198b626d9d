//! Names: tasks, steps, principals, workers, queues. Each is checked once, when it enters.

use std::cmp::Ordering;
use std::fmt;

use compact_str::{CompactString, format_compact};
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Partitions of an installation, fixed at its first start: enough to share out among
/// schedulers, few enough to walk all of them for one page of a list.
pub const PARTITIONS: u8 = 64;
/// Bytes of a user-chosen name: fits any file name, AMQP short string and metric label.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a principal, `kind:name`.
pub const PRINCIPAL_BYTES_MAX: usize = 128;
/// Characters of a task id after its partition: 65 bits, 5 bits a character.
const TASK_ID_CHARS: usize = 13;
/// Crockford's alphabet in lower case: no `i`, `l`, `o`, `u`, so ids can be read aloud.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Says why a name was not accepted; the text fits after "failed to".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameFault(pub String);

/// The rule of user-chosen names, in the words of the error.
pub const NAME_RULE: &str = "a letter or digit, then up to 63 letters, digits, `.`, `_` or `-`";

/// Checks a user-chosen name against [`NAME_RULE`].
pub fn check_name(text: &str) -> Result<(), NameFault> {
    let mut bytes = text.bytes();
    let head = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric());
    let tail = bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if head && tail && text.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
    Err(NameFault(format!("expected {NAME_RULE}, found `{shown}` ({} bytes)", text.len())))
}

/// Stands between a step's name and the number of a run of its `undo`.
const UNDO_MARK: &str = "~undo-";

/// Checks the name of a step, or of a run of its `undo`.
fn check_step(text: &str) -> Result<(), NameFault> {
    match text.split_once(UNDO_MARK) {
        Some((step, number)) if number.parse::<u32>().is_ok_and(|n| n.to_string() == number) => {
            check_name(step)
        }
        Some(_) | None => check_name(text),
    }
}

impl StepId {
    /// Checks and takes a name that an author has chosen.
    pub fn chosen(text: impl AsRef<str>) -> Result<Self, NameFault> {
        let text = text.as_ref();
        check_name(text)?;
        Ok(Self(text.into()))
    }

    /// Names the run that undoes this step's effect with this number in the order of landing.
    pub fn undo(&self, landing: u32) -> Self {
        Self(format_compact!("{}{UNDO_MARK}{landing}", self.0))
    }

    /// Gives the step and the number of the landing, if this names a run of an `undo`.
    pub fn undone(&self) -> Option<(Self, u32)> {
        let (step, landing) = self.0.split_once(UNDO_MARK)?;
        Some((Self(step.into()), landing.parse().ok()?))
    }
}

/// Compares two names as texts: byte by byte, since most are short or differ soon, and each command
/// compares hundreds. Calling the general comparison takes longer than that.
fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let differ = one.iter().zip(other).find(|(one, other)| one != other);
    differ.map_or(one.len().cmp(&other.len()), |(one, other)| one.cmp(other))
}

/// What all names have in common: they read and write as texts, and short ones are kept and
/// copied without the allocator, since each key of each record holds some.
macro_rules! text {
    ($type:ident, $read:path) => {
        impl $type {
            /// Gives the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Ord for $type {
            fn cmp(&self, other: &Self) -> Ordering {
                compare(self.0.as_bytes(), other.0.as_bytes())
            }
        }

        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = CompactString::deserialize(deserializer)?;
                $read(&text).map_err(D::Error::custom)
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameFault;
            fn try_from(text: String) -> Result<Self, NameFault> {
                $read(&text)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0.into_string()
            }
        }
    };
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident) => { name! { $(#[$doc])* $type, checked by check_name } };
    ($(#[$doc:meta])* $type:ident, checked by $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, JsonSchema)]
        #[schemars(with = "String", extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"))]
        pub struct $type(CompactString);

        text! { $type, $type::new }

        impl $type {
            /// Checks and takes a name.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameFault> {
                let text = text.as_ref();
                $check(text)?;
                Ok(Self(text.into()))
            }
        }
    };
}

name! {
    /// Names a step within its plan; also a run of a step's `undo`, as `STEP~undo-N`, which no
    /// author can choose.
    StepId, checked by check_step
}
name! {
    /// Names a queue: where a step waits for a worker.
    Queue
}
name! {
    /// Names a handler: the code that a step's `uses` runs.
    HandlerName
}
name! {
    /// Names one worker process; new at each start of a process.
    WorkerId
}
name! {
    /// Says what a task is for, such as `release-notes`; chosen by its author.
    Kind
}

/// One of the [`PARTITIONS`]; all keys of one share a Redis hash tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u8);

impl Partition {
    /// Takes a number below [`PARTITIONS`].
    pub fn new(number: u8) -> Option<Self> {
        (number < PARTITIONS).then_some(Self(number))
    }

    /// Gives the number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Walks all partitions in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..PARTITIONS).map(Self)
    }
}

impl WorkerId {
    /// Makes the id of a new process of a kind from 16 random bytes: the kind, a dash and as many
    /// letters as a task's id has.
    pub fn random(kind: &str, bytes: [u8; 16]) -> Result<Self, NameFault> {
        let mut text = format_compact!("{kind}-");
        push_letters(&mut text, &bytes);
        Self::new(text)
    }
}

/// Adds [`TASK_ID_CHARS`] letters, five bits each.
fn push_letters(text: &mut CompactString, bytes: &[u8]) {
    let mut bits = bytes.iter().flat_map(|byte| (0..8).map(move |i| byte >> i & 1));
    for _ in 0..TASK_ID_CHARS {
        let index = bits.by_ref().take(5).fold(0, |sum, bit| sum << 1 | usize::from(bit));
        text.push(char::from(ALPHABET[index]));
    }
}

/// Identifies a task; carries its partition: `t` + two hex digits + `-` + 13 characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(CompactString);

impl TaskId {
    /// Makes the id that a principal's idempotency key always leads to.
    pub fn keyed(principal: &Principal, key: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"standfast task\0");
        hash.update(principal.as_str().as_bytes());
        hash.update(b"\0");
        hash.update(key.as_bytes());
        Self::from_bytes(&hash.finalize())
    }

    /// Makes an id from 16 random bytes.
    pub fn random(bytes: [u8; 16]) -> Self {
        Self::from_bytes(&Sha256::digest(bytes))
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let mut text = format_compact!("t{:02x}-", bytes[0] % PARTITIONS);
        push_letters(&mut text, &bytes[1..]);
        Self(text)
    }

    /// Reads an id that came from outside.
    pub fn parse(text: &str) -> Result<Self, NameFault> {
        let fault = || {
            let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
            NameFault(format!("expected a task id such as `t07-4k9v2mq8r5x1c`, found `{shown}`"))
        };
        let (partition, rest) =
            text.strip_prefix('t').and_then(|t| t.split_once('-')).ok_or_else(fault)?;
        let number = u8::from_str_radix(partition, 16).map_err(|_| fault())?;
        let right = partition.len() == 2
            && number < PARTITIONS
            && partition.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
            && rest.len() == TASK_ID_CHARS
            && rest.bytes().all(|b| ALPHABET.contains(&b));
        if right { Ok(Self(text.into())) } else { Err(fault()) }
    }

    /// Gives the partition that all records of the task live in.
    pub fn partition(&self) -> Partition {
        Partition(u8::from_str_radix(&self.0[1..3], 16).expect("checked when the id was made"))
    }
}

text! { TaskId, TaskId::parse }

/// Who acts: `user:ana`, `service:billing`, `worker:w1`, `group:finance`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, JsonSchema)]
#[schemars(with = "String")]
#[schemars(extend("pattern" = "^(user|service|worker|group):[A-Za-z0-9][A-Za-z0-9._@+-]{0,119}$"))]
pub struct Principal(CompactString);

impl Principal {
    /// Reads `kind:name`; kind is `user`, `service`, `worker` or `group`.
    pub fn new(text: impl AsRef<str>) -> Result<Self, NameFault> {
        let text = text.as_ref();
        let right = text.split_once(':').is_some_and(|(kind, name)| {
            matches!(kind, "user" | "service" | "worker" | "group")
                && name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._@+-".contains(&b))
        });
        if right && text.len() <= PRINCIPAL_BYTES_MAX {
            return Ok(Self(text.into()));
        }
        let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
        Err(NameFault(format!(
            "expected `user:`, `service:`, `worker:` or `group:` and a name, found `{shown}`"
        )))
    }

    /// Gives the person of the embedded mode, who owns the file.
    pub fn local() -> Self {
        Self(CompactString::const_new("user:local"))
    }

    /// Gives the system itself: clocks, sweeps and recovery act as this.
    pub fn system() -> Self {
        Self(CompactString::const_new("service:standfast"))
    }

    /// True for a group: it is named in plans and stands for its members, but never acts.
    pub fn is_group(&self) -> bool {
        self.0.starts_with("group:")
    }
}

text! { Principal, Principal::new }

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_keyed_id_is_the_same_each_time_and_differs_by_principal() {
        let (ana, ben) = (Principal::new("user:ana").unwrap(), Principal::new("user:ben").unwrap());
        assert_eq!(TaskId::keyed(&ana, "k"), TaskId::keyed(&ana, "k"));
        assert_ne!(TaskId::keyed(&ana, "k"), TaskId::keyed(&ben, "k"));
    }

    #[test]
    fn an_id_reads_back_and_knows_its_partition() {
        for seed in 0..200u8 {
            let id = TaskId::random([seed; 16]);
            assert_eq!(TaskId::parse(id.as_str()), Ok(id.clone()));
            assert!(id.partition().number() < PARTITIONS);
        }
    }

    #[test]
    fn names_stand_in_the_order_of_their_texts() {
        let texts = ["a", "b", "a1", "a10", "a2", "A", "a.b", "a-b", "a_b", "0", "aa", "a1b"];
        for one in texts {
            for other in texts {
                let names = [one, other].map(|text| StepId::new(text).unwrap());
                assert_eq!(names[0].cmp(&names[1]), one.cmp(other), "{one} {other}");
            }
        }
    }

    #[test]
    fn a_workers_id_is_its_kind_and_letters_that_each_of_65_bits_changes() {
        let of = |bytes| WorkerId::random("api", bytes).unwrap();
        assert_eq!(of([0; 16]).as_str(), "api-0000000000000");
        assert_eq!(of([0xff; 16]).as_str(), "api-zzzzzzzzzzzzz");
        let flipped = |bit: usize| {
            let mut bytes = [0b0101_0101; 16];
            bytes[bit / 8] ^= 1 << (bit % 8);
            of(bytes)
        };
        let ids: BTreeSet<WorkerId> = (0..65).map(flipped).collect();
        assert_eq!(ids.len(), 65);
        for id in &ids {
            let letters = id.as_str().strip_prefix("api-").unwrap();
            assert_eq!(letters.len(), 13, "{id}");
            assert!(letters.bytes().all(|letter| ALPHABET.contains(&letter)), "{id}");
        }
        assert!(WorkerId::random("a/b", [0; 16]).is_err());
    }

    #[test]
    fn strange_names_are_refused() {
        let long = "a".repeat(65);
        for text in ["", "a/b", "a:b", "a{b}c", "..", "%2F", "a b", "\n", "\0", "é", ".a", &long] {
            assert!(StepId::new(text).is_err(), "{text:?}");
            assert!(TaskId::parse(text).is_err(), "{text:?}");
        }
        for text in ["a", "A", "0", "null", "a.b_c-d", &"a".repeat(64)] {
            assert!(StepId::new(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn principals_need_a_known_kind() {
        assert!(Principal::new("user:ana@example.org").is_ok());
        for text in ["ana", "robot:x", "user:", "user:a b", "user:a/b"] {
            assert!(Principal::new(text).is_err(), "{text:?}");
        }
    }
}
