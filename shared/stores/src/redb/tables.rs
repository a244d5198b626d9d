//! The tables, their keys, and the format's number.

use ::redb::{ReadableTable, TableDefinition, WriteTransaction};
use standfast_domain::commit::{CommitId, Home, Scope, StoredRecord};
use standfast_engine::ports::StoreError;

/// (scope, field) -> version in 8 bytes, big endian, and the record.
pub(super) const RECORDS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("records");
/// (scope, number) -> event.
pub(super) const EVENTS: TableDefinition<(&str, u64), &[u8]> = TableDefinition::new("events");
/// (home, index, member).
pub(super) const INDEXES: TableDefinition<(&str, &str, &str), ()> = TableDefinition::new("indexes");
/// (home, index) -> members, so that counting does not walk them.
pub(super) const SIZES: TableDefinition<(&str, &str), u64> = TableDefinition::new("sizes");
/// `format` and `time` (the latest given, in milliseconds).
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// The format written here; a file with a greater number is left alone.
pub(super) const FORMAT: u64 = 1;
/// Bytes of a version before a record.
const VERSION_BYTES: usize = 8;

/// Makes all tables and writes the format into a new file; gives the format found.
pub(super) fn prepare(transaction: &WriteTransaction) -> Result<Option<u64>, ::redb::Error> {
    let new = transaction.list_tables()?.next().is_none();
    let mut meta = transaction.open_table(META)?;
    if new {
        meta.insert("format", FORMAT)?;
    }
    let found = meta.get("format")?.map(|format| format.value());
    if found == Some(FORMAT) {
        transaction.open_table(RECORDS)?;
        transaction.open_table(EVENTS)?;
        transaction.open_table(INDEXES)?;
        transaction.open_table(SIZES)?;
    }
    Ok(found)
}

/// Names a scope within keys. No name starts another: tasks' have one length, and the others
/// are shorter and differ.
pub(super) fn scope_name(scope: &Scope) -> std::borrow::Cow<'_, str> {
    match scope {
        Scope::Task(task) => task.as_str().into(),
        Scope::Partition(_) | Scope::Installation => home_name(scope.home()).into(),
    }
}

/// Names an index's home within keys.
pub(super) fn home_name(home: Home) -> String {
    match home {
        Home::Partition(partition) => format!("p{:02x}", partition.number()),
        Home::Installation => "sys".to_owned(),
    }
}

/// Puts the version before a record.
pub(super) fn encode(version: CommitId, bytes: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(VERSION_BYTES + bytes.len());
    stored.extend_from_slice(&version.0.to_be_bytes());
    stored.extend_from_slice(bytes);
    stored
}

/// Reads only the version.
pub(super) fn version(stored: &[u8]) -> Option<CommitId> {
    stored.first_chunk().map(|bytes| CommitId(u64::from_be_bytes(*bytes)))
}

/// Takes version and record apart.
pub(super) fn decode(mut stored: Vec<u8>) -> Result<StoredRecord, StoreError> {
    let Some(version) = version(&stored) else {
        let fault = "expected a record to start with its version, found fewer bytes";
        return Err(StoreError::Corrupt(fault.to_owned()));
    };
    stored.drain(..VERSION_BYTES);
    Ok(StoredRecord { version, bytes: stored })
}

/// Records as they are stored: several scopes, several fields.
pub(super) type Stored = Vec<Vec<Option<Vec<u8>>>>;

/// Takes all versions and records apart.
pub(super) fn decoded(stored: Stored) -> Result<Vec<Vec<Option<StoredRecord>>>, StoreError> {
    stored.into_iter().map(decoded_scope).collect()
}

/// Takes versions and records of one scope apart.
pub(super) fn decoded_scope(
    stored: Vec<Option<Vec<u8>>>,
) -> Result<Vec<Option<StoredRecord>>, StoreError> {
    stored.into_iter().map(|record| record.map(decode).transpose()).collect()
}
