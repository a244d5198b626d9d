//! Walks an index over partitions, past entries that are not for now.

use standfast_domain::commit::Home;
use standfast_domain::ids::Partition;
use standfast_engine::ports::{BATCH_MAX, Range};
use standfast_engine::{Engine, EngineError};

/// Reads entries of an index in order until each partition has given `enough` that pass `want`
/// or has no more. So entries that only wait at the front never hide those behind them.
pub(crate) async fn until_enough(
    engine: &Engine,
    partitions: Vec<Partition>,
    index: &str,
    before: Option<String>,
    enough: usize,
    want: impl Fn(&String) -> bool,
) -> Result<Vec<String>, EngineError> {
    let limit = enough.min(BATCH_MAX);
    let range = |partition| Range {
        home: Home::Partition(partition),
        index: index.to_owned(),
        after: String::new(),
        before: before.clone(),
        limit,
        reverse: false,
    };
    let mut open: Vec<(usize, Range)> =
        partitions.into_iter().map(|partition| (0, range(partition))).collect();
    let mut wanted = Vec::new();
    while !open.is_empty() {
        let ranges: Vec<Range> = open.iter().map(|(_, range)| range.clone()).collect();
        let pages = engine.store().ranges(&ranges).await?;
        let mut next = Vec::new();
        for ((found, range), page) in open.into_iter().zip(pages) {
            let last = page.last().cloned().filter(|_| page.len() == limit);
            let before = wanted.len();
            wanted.extend(page.into_iter().filter(&want));
            let found = found + wanted.len() - before;
            if let Some(after) = last
                && found < enough
            {
                next.push((found, Range { after, ..range }));
            }
        }
        open = next;
    }
    Ok(wanted)
}
