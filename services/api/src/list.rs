//! Lists tasks, newest first, page by page.
//!
//! Each index holds members `TIME|TASK`, the same for a task in every index. A page walks the
//! shortest index that its filters name, from the cursor towards older tasks, over all
//! partitions in one call. Whoever is not an admin sees few tasks of many: what it may see stands
//! in two indexes for each of its names (itself and its groups), `owner:NAME` and `sees:NAME`,
//! and a page walks those together unless a filter's index is shorter. Entries are hints: each
//! candidate's records are read and all filters checked again. Members are unique and never
//! change, so a task that exists throughout is given exactly once, whatever is created, removed
//! or changes in between.
//!
//! ```text
//! partition 0   9 7 4 2 …     fetched: 9 7        merged, newest first: 9 8 7 6
//! partition 1   8 6 5 1 …              8 6        below 6, partition 1 may hold more:
//!                                                 the next round starts there
//! ```
//!
//! Tasks that are looked for by their holds are walked in [`waiting`]. A stop by a filter walks as
//! the list does. The work for a page is bounded; one that came short still carries a cursor.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::Uri;
use serde_json::{Value, json};
use standfast_domain::commit::Home;
use standfast_domain::hold::HoldReason;
use standfast_domain::ids::{Partition, TaskId};
use standfast_domain::index::{TASKS, owner_index, parse_task_member, sees_index, time_key};
use standfast_domain::record::Key;
use standfast_domain::time::Time;
use standfast_engine::ports::{BATCH_MAX, Range};
use standfast_protocol::paths;
use standfast_protocol::problem::Fault;
use standfast_protocol::tasks::{TaskPage, TaskQuery};

use crate::auth::{By, Caller, needs};
use crate::cursor::List;
use crate::problems::Fail;
use crate::reads::{self, BASE_KEYS, Base, Survey};
use crate::{Api, present, waiting};

/// Ranges that one call reads: with the entries that each gives, some thousands.
const RANGES_MAX: usize = 256;
/// The word for holds of any reason.
const ANY: &str = "any";
/// Candidates that one page looks at: rare tasks behind a common filter come in short pages.
pub(crate) const CANDIDATES_MAX: usize = 2_000;
/// Candidates that are read at a time: a page that is full soon reads few in vain.
pub(crate) const CANDIDATES_A_READ: usize = 250;
/// Step records that one page reads for counts and holds; a page ends early beyond that.
pub(crate) const STEPS_MAX: usize = 5_000;

/// What is listed.
pub(crate) struct Filter {
    pub query: TaskQuery,
    /// Members at or below this are older than `created_after`.
    pub after: String,
    /// Members at or above this are not older than `created_before`.
    pub before: Option<String>,
    /// Where tasks are looked for by their holds: which.
    pub holds: Option<Holds>,
    /// The list as its cursors know it.
    pub list: List,
}

/// Which open holds are looked for.
pub(crate) struct Holds {
    pub reasons: Vec<HoldReason>,
    /// They have been open for so long, in milliseconds, …
    pub older_ms: u64,
    /// … at this time; without it, now.
    pub as_of: Option<Time>,
}

/// Tasks of a page.
pub(crate) enum Found {
    Bases(Vec<Base>),
    /// Looked at closely, to find their holds.
    Surveys(Vec<Survey>),
}

/// Lists tasks that the caller may see, newest first. A page may hold fewer tasks than its
/// limit, even none, and still have a `next_cursor`.
#[utoipa::path(get, path = paths::TASKS, tag = "tasks",
    params(
        ("state" = Option<String>, Query, description = "in this state"),
        ("kind" = Option<String>, Query, description = "of this kind"),
        ("owner" = Option<String>, Query, description = "of this owner"),
        ("label" = Option<Vec<String>>, Query, description = "`key=value`; may be repeated"),
        ("waiting" = Option<String>, Query,
            description = "with an open hold: `any`, or a reason; the longest wait first"),
        ("older_ms" = Option<u64>, Query,
            description = "with an open hold at least so old; without `waiting`, of any reason"),
        ("as_of" = Option<String>, Query,
            description = "with `waiting` or `older_ms`: held then, from which ages count back"),
        ("created_after" = Option<String>, Query, description = "accepted at or after this time"),
        ("created_before" = Option<String>, Query, description = "accepted before this time"),
        ("limit" = Option<u32>, Query, description = "tasks a page, 1 to 200"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = TaskPage)))]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: By<needs::List>,
    uri: Uri,
) -> Result<Json<TaskPage>, Fail> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(&uri)
        .map_err(|rejection| Fail::invalid(rejection.body_text()))?;
    let query = TaskQuery::from_pairs(pairs.0).map_err(bad_query)?;
    let (limit, cursor) = (query.page_limit() as usize, query.cursor.clone());
    let filter = Filter::new(query, &json!("tasks"), "?")?;
    let place = cursor.map(|cursor| filter.list.place(&cursor)).transpose()?;
    let (found, last) = page(&api, &caller, &filter, place, limit).await?;
    let mut surveys = match found {
        Found::Bases(bases) => reads::survey(api.engine(), bases).await?,
        Found::Surveys(surveys) => surveys,
    };
    reads::find_waits(&api, &mut surveys).await?;
    Ok(Json(TaskPage {
        tasks: surveys.iter().map(present::task::view).collect(),
        next_cursor: last.map(|member| filter.list.cursor(&member)),
    }))
}

impl Filter {
    /// Checks what is filtered by; `what` tells the list from others with the same filters, and
    /// `place` is what names the filters' own names begin with in faults.
    pub fn new(query: TaskQuery, what: &Value, place: &str) -> Result<Self, Fail> {
        let mut faults = Vec::new();
        let mut bound = |name: &str, text: &Option<String>| match text.as_deref() {
            None => None,
            Some(text) => {
                let time = Time::parse_rfc3339(text);
                if time.is_none() {
                    let message = "expected a time such as `2026-11-29T16:20:00Z`".to_owned();
                    faults.push(Fault { pointer: format!("{place}{name}"), message });
                }
                time
            }
        };
        let after = bound("created_after", &query.created_after).map(time_key).unwrap_or_default();
        let before = bound("created_before", &query.created_before).map(time_key);
        let as_of = bound("as_of", &query.as_of);
        let reasons = reasons(query.waiting.as_deref());
        if reasons.is_empty() {
            let words: Vec<&str> = HoldReason::ALL.iter().map(|reason| reason.as_str()).collect();
            let message = format!("expected `{ANY}` or one of {}", words.join(", "));
            faults.push(Fault { pointer: format!("{place}waiting"), message });
        }
        if as_of.is_some() && !query.by_holds() {
            let message = "only with `waiting` or `older_ms`".to_owned();
            faults.push(Fault { pointer: format!("{place}as_of"), message });
        }
        if !faults.is_empty() {
            return Err(bad_query(faults));
        }
        let mut labels = query.labels.clone();
        labels.sort();
        let state = query.state.map(|state| state.as_str());
        let waits = (&query.waiting, query.older_ms, as_of.map(time_key));
        let known = json!([what, state, query.kind, query.owner, labels, after, before, waits]);
        let older_ms = query.older_ms.unwrap_or_default();
        let holds = query.by_holds().then_some(Holds { reasons, older_ms, as_of });
        Ok(Self { query, after, before, holds, list: List::new(&known) })
    }
}

/// Names the reasons that a word stands for; none where it is not known.
fn reasons(word: Option<&str>) -> Vec<HoldReason> {
    let word = word.unwrap_or(ANY);
    let meant = |reason: &HoldReason| word == ANY || reason.as_str() == word;
    HoldReason::ALL.into_iter().filter(meant).collect()
}

impl Found {
    pub fn into_bases(self) -> Vec<Base> {
        match self {
            Self::Bases(bases) => bases,
            Self::Surveys(surveys) => surveys.into_iter().map(|survey| survey.base).collect(),
        }
    }
}

/// Gives up to `limit` tasks that match and that the caller may see, from a place on; and the
/// place to go on from, if there may be more. The newest come first, or where holds are looked
/// for the longest wait. Lists and stops by filter all walk by this.
pub(crate) async fn page(
    api: &Api,
    caller: &Caller,
    filter: &Filter,
    place: Option<String>,
    limit: usize,
) -> Result<(Found, Option<String>), Fail> {
    if let Some(holds) = &filter.holds {
        let place = place.unwrap_or_default();
        let (surveys, last) = waiting::page(api, caller, (filter, holds), place, limit).await?;
        return Ok((Found::Surveys(surveys), last));
    }
    let before = match place {
        Some(place) => {
            parse_task_member(&place).ok_or_else(Fail::bad_cursor)?;
            Some(filter.before.iter().cloned().fold(place, String::min))
        }
        None => filter.before.clone(),
    };
    let indexes = shortest(api, caller, &filter.query).await?;
    let mut page = Page { bases: Vec::new(), cost: 0, limit };
    let last = fill(api, caller, filter, Walk { indexes, before }, &mut page).await?;
    Ok((Found::Bases(page.bases), last))
}

pub(crate) fn bad_query(faults: Vec<Fault>) -> Fail {
    let each = faults.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message));
    let detail = each.collect::<Vec<_>>().join("; ");
    Fail::invalid(detail).with_errors(faults)
}

/// Names the indexes to walk: of those that hold all that the filters and the caller's rights
/// let through, the one with the fewest entries. What the caller sees stands in several.
async fn shortest(api: &Api, caller: &Caller, query: &TaskQuery) -> Result<Vec<String>, Fail> {
    let mut ways: Vec<Vec<String>> = Vec::new();
    ways.extend(query.state.map(|state| vec![format!("state:{state}")]));
    ways.extend(query.kind.as_ref().map(|kind| vec![format!("kind:{kind}")]));
    ways.extend(query.owner.as_ref().map(|owner| vec![format!("owner:{owner}")]));
    let of_label = |(name, value): &(String, String)| vec![format!("label:{name}={value}")];
    ways.extend(query.labels.iter().map(of_label));
    ways.extend(seen_in(caller));
    if ways.len() < 2 {
        return Ok(ways.pop().unwrap_or_else(|| vec![TASKS.to_owned()]));
    }
    let mut best: Option<(u64, Vec<String>)> = None;
    for way in ways {
        let total = entries(api, &way).await?;
        if best.as_ref().is_none_or(|(least, _)| total < *least) {
            best = Some((total, way));
        }
    }
    Ok(best.map_or_else(Vec::new, |(_, way)| way))
}

/// Names the indexes that together hold all that the caller may see; none for those who may see
/// everything.
fn seen_in(caller: &Caller) -> Option<Vec<String>> {
    if caller.is_admin() {
        return None;
    }
    let names = caller.identity.names()?;
    Some(names.into_iter().flat_map(|name| [owner_index(name), sees_index(name)]).collect())
}

/// Counts the entries of some indexes over all partitions.
async fn entries(api: &Api, indexes: &[String]) -> Result<u64, Fail> {
    let all = indexes.iter().flat_map(|index| {
        Partition::all().map(move |partition| (Home::Partition(partition), index.clone()))
    });
    let mut total = 0;
    for homes in all.collect::<Vec<_>>().chunks(BATCH_MAX) {
        total += api.engine().store().counts(homes).await?.into_iter().sum::<u64>();
    }
    Ok(total)
}

struct Page {
    bases: Vec<Base>,
    cost: usize,
    limit: usize,
}

impl Page {
    /// Takes a task in if there is room for it; a page always has room for its first.
    fn take(&mut self, base: Base) -> bool {
        let cost = reads::survey_cost(&base);
        let fits = self.bases.is_empty() || self.cost + cost <= STEPS_MAX;
        if fits {
            self.cost += cost;
            self.bases.push(base);
        }
        fits
    }
}

struct Walk {
    indexes: Vec<String>,
    before: Option<String>,
}

/// Fills a page. Gives the member to go on below, or nothing at the end of the list. Each round
/// reads further ahead than the one before, so that few of them get through what is not taken.
async fn fill(
    api: &Api,
    caller: &Caller,
    filter: &Filter,
    mut walk: Walk,
    page: &mut Page,
) -> Result<Option<String>, Fail> {
    let (mut room, mut each) = (CANDIDATES_MAX, entries_first(page.limit));
    loop {
        let (members, more) = round(api, filter, &walk, each).await?;
        for members in members.chunks(CANDIDATES_A_READ) {
            let members = &members[..members.len().min(room)];
            let bases = candidates(api, members).await?;
            for (member, base) in members.iter().zip(bases) {
                if page.bases.len() == page.limit {
                    return Ok(walk.before);
                }
                if let Some(base) = base
                    && matches(filter, &base)
                    && caller.may_see(&base.meta)
                    && !page.take(base)
                {
                    return Ok(walk.before);
                }
                walk.before = Some(member.clone());
            }
            room -= members.len();
            if room == 0 {
                return Ok(walk.before);
            }
        }
        match more {
            None => return Ok(None),
            Some(threshold) => walk.before = Some(threshold),
        }
        if page.bases.len() == page.limit {
            return Ok(walk.before);
        }
        each = (each * 2).min(BATCH_MAX);
    }
}

/// Says how many entries of each partition's index the first round reads.
pub(crate) fn entries_first(limit: usize) -> usize {
    (limit / 16 + 4).min(BATCH_MAX)
}

/// Reads the next members of all partitions and merges them down to where all are known; gives
/// that place, or nothing if there is no more.
async fn round(
    api: &Api,
    filter: &Filter,
    walk: &Walk,
    each: usize,
) -> Result<(Vec<String>, Option<String>), Fail> {
    let of = |index: &String, partition| Range {
        home: Home::Partition(partition),
        index: index.clone(),
        after: filter.after.clone(),
        before: walk.before.clone(),
        limit: each,
        reverse: true,
    };
    let all = walk.indexes.iter().flat_map(|index| Partition::all().map(move |p| of(index, p)));
    let mut pages = Vec::new();
    for ranges in all.collect::<Vec<Range>>().chunks(RANGES_MAX) {
        pages.extend(api.engine().store().ranges(ranges).await?);
    }
    Ok(merge(pages, each))
}

/// Merges pages of `each` members, newest first, down to the newest of the last members of full
/// pages: below it a partition may hold members that were not read.
fn merge(pages: Vec<Vec<String>>, each: usize) -> (Vec<String>, Option<String>) {
    let full = pages.iter().filter(|page| page.len() >= each);
    let threshold = full.filter_map(|page| page.last()).max().cloned();
    let mut members: Vec<String> = pages.into_iter().flatten().collect();
    if let Some(threshold) = &threshold {
        members.retain(|member| member >= threshold);
    }
    members.sort_unstable_by(|a, b| b.cmp(a));
    members.dedup(); // a task stands in the index of each who may see it
    (members, threshold)
}

/// Reads the tasks behind members, in their order; stale members have none.
async fn candidates(api: &Api, members: &[String]) -> Result<Vec<Option<Base>>, Fail> {
    let parsed: Vec<Option<(Time, TaskId)>> =
        members.iter().map(|member| parse_task_member(member)).collect();
    let wants: Vec<(TaskId, Vec<Key>)> =
        parsed.iter().flatten().map(|(_, task)| (task.clone(), BASE_KEYS.to_vec())).collect();
    let mut found = reads::records(api.engine(), &wants).await?.into_iter();
    Ok(parsed
        .into_iter()
        .map(|parsed| {
            let (time, task) = parsed?;
            let mut records = found.next()?;
            reads::base(task, &mut records).filter(|base| base.meta.created_at == time)
        })
        .collect())
}

/// Checks all filters against what is stored now.
pub(crate) fn matches(filter: &Filter, base: &Base) -> bool {
    let query = &filter.query;
    let state = present::task::state(base.header.state);
    query.state.is_none_or(|wanted| wanted == state)
        && query.kind.as_ref().is_none_or(|kind| kind == base.meta.kind.as_str())
        && query.owner.as_ref().is_none_or(|owner| owner == base.meta.owner.as_str())
        && query.labels.iter().all(|(name, value)| base.meta.labels.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: &[&[&str]]) -> Vec<Vec<String>> {
        pages.iter().map(|page| page.iter().map(|text| (*text).to_owned()).collect()).collect()
    }

    #[test]
    fn a_merge_stops_where_a_partition_may_hold_more() {
        let (members, more) = merge(pages(&[&["9", "7"], &["8", "6"], &["5"]]), 2);
        assert_eq!(members, ["9", "8", "7"]);
        assert_eq!(more.as_deref(), Some("7"));
    }

    #[test]
    fn what_stands_in_several_indexes_is_given_once() {
        let (members, more) = merge(pages(&[&["9", "7"], &["9", "8"], &["7"]]), 2);
        assert_eq!(members, ["9", "8"]);
        assert_eq!(more.as_deref(), Some("8"));
    }

    #[test]
    fn a_merge_of_short_pages_is_the_end() {
        let (members, more) = merge(pages(&[&["2"], &[], &["3"]]), 2);
        assert_eq!((members, more), (vec!["3".to_owned(), "2".to_owned()], None));
    }
}
