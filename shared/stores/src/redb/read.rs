//! What is read from a snapshot. Each function opens one, so all it gives is of one moment.

use std::ops::Bound;

use ::redb::{Database, Error, ReadableDatabase, ReadableTable};
use standfast_domain::commit::{Home, Scope};
use standfast_domain::time::Time;
use standfast_engine::ports::{Load, Range};

use super::tables::{EVENTS, INDEXES, META, RECORDS, SIZES, Stored, home_name, scope_name};

/// Gives the latest time stored.
pub(super) fn latest(database: &Database) -> Result<Time, Error> {
    let meta = database.begin_read()?.open_table(META)?;
    let time = meta.get("time")?.map_or(0, |time| time.value());
    Ok(Time(i64::try_from(time).unwrap_or(i64::MAX)))
}

/// Gives records as they are stored.
pub(super) fn records(database: &Database, loads: &[Load]) -> Result<Stored, Error> {
    let table = database.begin_read()?.open_table(RECORDS)?;
    loads.iter().map(|load| fields(&table, &load.scope, &load.fields)).collect()
}

/// Gives records of one scope, in a snapshot or within a transaction.
pub(super) fn fields(
    table: &impl ReadableTable<(&'static str, &'static str), &'static [u8]>,
    scope: &Scope,
    fields: &[String],
) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let scope = scope_name(scope);
    let record = |field: &String| {
        Ok(table.get((&*scope, field.as_str()))?.map(|bytes| bytes.value().to_vec()))
    };
    fields.iter().map(record).collect()
}

/// Gives a page of events.
pub(super) fn events(
    database: &Database,
    scope: &Scope,
    from: u64,
    limit: usize,
) -> Result<Vec<Vec<u8>>, Error> {
    let table = database.begin_read()?.open_table(EVENTS)?;
    let scope = scope_name(scope);
    let page = table.range((&*scope, from)..=(&*scope, u64::MAX))?.take(limit);
    page.map(|entry| Ok(entry?.1.value().to_vec())).collect()
}

/// Gives pages of indexes.
pub(super) fn ranges(database: &Database, ranges: &[Range]) -> Result<Vec<Vec<String>>, Error> {
    let table = database.begin_read()?.open_table(INDEXES)?;
    ranges.iter().map(|range| page(&table, range)).collect()
}

fn page(
    table: &impl ReadableTable<(&'static str, &'static str, &'static str), ()>,
    range: &Range,
) -> Result<Vec<String>, Error> {
    if range.before.as_ref().is_some_and(|before| *before <= range.after) {
        return Ok(Vec::new());
    }
    let home = home_name(range.home);
    let low = match range.after.as_str() {
        "" => Bound::Included((&*home, range.index.as_str(), "")),
        after => Bound::Excluded((&*home, range.index.as_str(), after)),
    };
    // No text lies between a name and the name with a zero byte after it.
    let next = format!("{}\0", range.index);
    let high = match &range.before {
        Some(before) => Bound::Excluded((&*home, range.index.as_str(), before.as_str())),
        None => Bound::Excluded((&*home, next.as_str(), "")),
    };
    let mut found = table.range::<(&str, &str, &str)>((low, high))?;
    let step = || if range.reverse { found.next_back() } else { found.next() };
    let page = std::iter::from_fn(step).take(range.limit);
    page.map(|entry| Ok(entry?.0.value().2.to_owned())).collect()
}

/// Gives the sizes of indexes.
pub(super) fn counts(database: &Database, indexes: &[(Home, String)]) -> Result<Vec<u64>, Error> {
    let table = database.begin_read()?.open_table(SIZES)?;
    let count = |(home, index): &(Home, String)| {
        let key = home_name(*home);
        Ok(table.get((key.as_str(), index.as_str()))?.map_or(0, |size| size.value()))
    };
    indexes.iter().map(count).collect()
}
