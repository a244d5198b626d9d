//! The list of schedulers: each says again and again until when it counts as living.

use standfast_domain::commit::{Home, IndexChange};
use standfast_domain::time::Time;

use crate::ports::{BATCH_MAX, Range};
use crate::{Engine, EngineError};

const INDEX: &str = "schedulers";

/// Makes a scheduler's entry, `ID|UNTIL`.
pub fn entry(id: &str, until: Time) -> String {
    format!("{id}|{:015}", until.0)
}

/// Reads an entry: whose it is, and until when that one counts as living.
pub fn parse(entry: &str) -> Option<(&str, Time)> {
    let (name, until) = entry.rsplit_once('|')?;
    Some((name, Time(until.parse().ok()?)))
}

/// Makes the change that adds an entry to the list or takes it out.
pub fn change(member: String, add: bool) -> IndexChange {
    IndexChange { index: INDEX.to_owned(), member, add }
}

/// Reads the list, those that are past their time included.
pub async fn entries(engine: &Engine) -> Result<Vec<String>, EngineError> {
    let range = Range {
        home: Home::Installation,
        index: INDEX.to_owned(),
        after: String::new(),
        before: None,
        limit: BATCH_MAX,
        reverse: false,
    };
    Ok(engine.store().ranges(&[range]).await?.pop().unwrap_or_default())
}

/// Counts the schedulers that live.
pub async fn living(engine: &Engine) -> Result<usize, EngineError> {
    let now = engine.now().await?;
    let entries = entries(engine).await?;
    Ok(entries.iter().filter_map(|entry| parse(entry)).filter(|(_, until)| *until > now).count())
}
