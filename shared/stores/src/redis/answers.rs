//! Reads Redis's replies and errors. A reply of another shape than asked for means that someone
//! else wrote under our keys: it is named as such, never guessed at.

use ::redis::{ErrorKind, RedisError, RedisResult, Value};
use standfast_domain::commit::{CommitId, StoredRecord};
use standfast_engine::ports::StoreError;

fn strange(wanted: &str, found: &Value) -> StoreError {
    let kind = match found {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a text",
        Value::Array(_) => "a list",
        _ => "another kind of reply",
    };
    StoreError::Corrupt(format!("expected {wanted} from redis, found {kind}"))
}

/// Makes an error of a reply that is one.
pub(super) fn checked(value: Value) -> RedisResult<Value> {
    match value {
        Value::ServerError(error) => Err(error.into()),
        other => Ok(other),
    }
}

/// Takes a list.
pub(super) fn array(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(strange("a list", &other)),
    }
}

/// Takes a whole number.
pub(super) fn integer(value: Option<Value>) -> Result<i64, StoreError> {
    match value.unwrap_or_default() {
        Value::Int(number) => Ok(number),
        other => Err(strange("a number", &other)),
    }
}

/// Takes bytes.
pub(super) fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        other => Err(strange("a text", &other)),
    }
}

/// Takes a text.
pub(super) fn text(value: Value) -> Result<String, StoreError> {
    String::from_utf8(bytes(value)?)
        .map_err(|_| StoreError::Corrupt("expected UTF-8 in an index, found other bytes".into()))
}

/// Takes a number that is kept as text; nothing counts as zero.
pub(super) fn number_in_text(value: Value) -> Result<i64, StoreError> {
    if value == Value::Nil {
        return Ok(0);
    }
    text(value)?
        .parse()
        .map_err(|_| StoreError::Corrupt("expected a number in the clock's key".into()))
}

/// Takes `wanted` records.
pub(super) fn records(
    values: impl ExactSizeIterator<Item = Value>,
    wanted: usize,
) -> Result<Vec<Option<StoredRecord>>, StoreError> {
    if values.len() != wanted {
        let fault = format!("expected {wanted} records from redis, found {}", values.len());
        return Err(StoreError::Corrupt(fault));
    }
    values.map(record).collect()
}

fn record(value: Value) -> Result<Option<StoredRecord>, StoreError> {
    if value == Value::Nil {
        return Ok(None);
    }
    let mut bytes = bytes(value)?;
    let Some((version, _)) = CommitId::parse_prefix(&bytes) else {
        let fault = "expected a record to start with its commit's id, found other bytes";
        return Err(StoreError::Corrupt(fault.into()));
    };
    bytes.drain(..CommitId::CHARS);
    Ok(Some(StoredRecord { version, bytes }))
}

/// What an error means for the call, and whether the connection is of further use.
pub(super) struct Verdict {
    /// For the caller.
    pub(super) error: StoreError,
    /// Whether the next call should connect anew.
    pub(super) reconnect: Reconnect,
}

/// Whether a connection is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reconnect {
    /// It is sound.
    No,
    /// It is dead.
    Now,
    /// It works but may lead to the wrong server; a new one leads to the same if it is new.
    IfOld,
}

/// Judges an error. Unknown ones count as `Unavailable`: trying again is always safe.
pub(super) fn judge(error: &RedisError) -> Verdict {
    let error = match error.clone().into_server_errors() {
        Some(errors) => match errors.first() {
            Some((_, first)) => return judge_reply(first.code(), first.details()),
            None => error,
        },
        None => error,
    };
    match error.kind() {
        ErrorKind::UnexpectedReturnType => {
            Verdict { error: StoreError::Corrupt(error.to_string()), reconnect: Reconnect::No }
        }
        // Timeouts are among these: a server that hangs, or a half-open connection, would make
        // every later call wait as long.
        _ => {
            Verdict { error: StoreError::Unavailable(error.to_string()), reconnect: Reconnect::Now }
        }
    }
}

/// The code is the first word of Redis's error. Before Redis 7 a script's errors came as `ERR`
/// with the real code within the text.
fn judge_reply(code: &str, details: Option<&str>) -> Verdict {
    let details = details.unwrap_or_default();
    let is = |wanted: &[&str]| {
        wanted.contains(&code)
            || code == "ERR" && details.split([' ', ':', '-']).any(|word| wanted.contains(&word))
    };
    let said = format!("redis says {code} {details}");
    if is(&["WRONGTYPE"]) {
        return Verdict { error: StoreError::Corrupt(said), reconnect: Reconnect::No };
    }
    // A former primary stays connected: a fresh connection may find the new one.
    if is(&["READONLY"]) {
        return Verdict { error: StoreError::ReadOnly(said), reconnect: Reconnect::IfOld };
    }
    if is(&["OOM", "MISCONF", "NOREPLICAS"]) {
        return Verdict { error: StoreError::ReadOnly(said), reconnect: Reconnect::No };
    }
    Verdict { error: StoreError::Unavailable(said), reconnect: Reconnect::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart() {
        let script = "Error running script (call to f_1): @user_script:1: ";
        for (code, details, wanted) in [
            ("READONLY", "You can't write against a read only replica.", "write"),
            ("OOM", "command not allowed when used memory > 'maxmemory'.", "write"),
            ("ERR", &format!("{script}-OOM command not allowed")[..], "write"),
            ("MISCONF", "Errors writing to the AOF file: No space left on device", "write"),
            ("WRONGTYPE", "Operation against a key", "read"),
            ("ERR", &format!("{script}WRONGTYPE Operation against a key")[..], "read"),
            ("BUSY", "Redis is busy running a script.", "reach"),
            ("LOADING", "Redis is loading the dataset in memory", "reach"),
            ("MASTERDOWN", "Link with MASTER is down", "reach"),
            ("ERR", "unknown command", "reach"),
        ] {
            let verdict = judge_reply(code, Some(details));
            assert!(verdict.error.to_string().starts_with(wanted), "{code} {details}");
        }
    }

    #[test]
    fn a_record_without_a_version_is_corrupt() {
        for bytes in [&b""[..], b"short", b"not hexadecimal!{}"] {
            let found = record(Value::BulkString(bytes.to_vec()));
            assert!(matches!(found, Err(StoreError::Corrupt(_))), "{bytes:?}");
        }
        let found = record(Value::BulkString(b"000000000000000a\0\xff".to_vec())).unwrap();
        let wanted = StoredRecord { version: CommitId(10), bytes: b"\0\xff".to_vec() };
        assert_eq!(found, Some(wanted));
    }
}
