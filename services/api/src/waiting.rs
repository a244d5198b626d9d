//! Lists tasks by their open holds, the longest wait first, page by page.
//!
//! Each hold has an entry `SINCE|TASK|STEP` in the index of its reason. A page walks these
//! indexes from the oldest entry on, over all partitions. Entries are hints: a task is given at
//! the entry of its oldest hold that the filters take, if that is still open, and so only once.

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::commit::Home;
use standfast_domain::hold::HoldReason;
use standfast_domain::ids::{Partition, TaskId};
use standfast_domain::index::{held_index, held_member, parse_held_member, task_member, time_key};
use standfast_domain::record::Key;
use standfast_domain::time::Time;
use standfast_engine::ports::{BATCH_MAX, Range};
use standfast_protocol::tasks::TaskPage;

use crate::auth::Caller;
use crate::list::{CANDIDATES_MAX, Filter, STEPS_MAX, bad_query, matches};
use crate::problems::Fail;
use crate::reads::{self, Base, Survey};
use crate::{Api, present};
use standfast_protocol::problem::Fault;

/// The word for holds of any reason.
const ANY: &str = "any";

/// Which holds are looked for.
struct Wanted {
    reasons: Vec<HoldReason>,
    /// Holds that began later are too young.
    since_max: Option<Time>,
}

/// Lists one page.
pub(crate) async fn list(
    api: &Api,
    caller: &Caller,
    filter: &Filter,
    limit: usize,
) -> Result<TaskPage, Fail> {
    let wanted = wanted(api, filter).await?;
    let mut after = match &filter.query.cursor {
        Some(cursor) => {
            let place = filter.list.place(cursor)?;
            parse_held_member(&place).ok_or_else(Fail::bad_cursor)?;
            place
        }
        None => String::new(),
    };
    let mut page = Page::default();
    let more = loop {
        let (members, threshold) = round(api, &wanted, &after, limit).await?;
        let full = page.take(api, caller, filter, (members, limit)).await?;
        if full {
            break true;
        }
        let Some(threshold) = threshold else { break false };
        after = threshold;
        page.last = Some(after.clone());
        if page.looked_at >= CANDIDATES_MAX {
            break true;
        }
    };
    let bases: Vec<Base> = page.bases.into_values().collect();
    let mut surveys = reads::survey(api.engine(), bases).await?;
    reads::find_waits(api, &mut surveys).await?;
    let oldest: BTreeMap<String, &Survey> =
        surveys.iter().filter_map(|survey| Some((wanted.oldest(survey)?, survey))).collect();
    let given = page.members.iter().filter_map(|member| oldest.get(member));
    Ok(TaskPage {
        tasks: given.map(|survey| present::task::view(survey)).collect(),
        next_cursor: page.last.filter(|_| more).map(|member| filter.list.cursor(&member)),
    })
}

async fn wanted(api: &Api, filter: &Filter) -> Result<Wanted, Fail> {
    let word = filter.query.waiting.as_deref().unwrap_or(ANY);
    let reasons: Vec<HoldReason> = HoldReason::ALL
        .into_iter()
        .filter(|reason| word == ANY || reason.as_str() == word)
        .collect();
    if reasons.is_empty() {
        let words: Vec<&str> = HoldReason::ALL.iter().map(|reason| reason.as_str()).collect();
        let message = format!("expected `{ANY}` or one of {}", words.join(", "));
        return Err(bad_query(vec![Fault { pointer: "?waiting".to_owned(), message }]));
    }
    let now = api.engine().now().await?;
    let older = filter.query.older_ms;
    let since_max = older.map(|ms| Time(now.0.saturating_sub_unsigned(ms)));
    Ok(Wanted { reasons, since_max })
}

impl Wanted {
    fn takes(&self, reason: HoldReason, since: Time) -> bool {
        self.reasons.contains(&reason) && self.since_max.is_none_or(|max| since <= max)
    }

    /// Gives the entry of a task's oldest open hold that is looked for.
    fn oldest(&self, survey: &Survey) -> Option<String> {
        let base = &survey.base;
        if base.header.state.is_final() {
            return None;
        }
        let own = base.gate.holds.iter().map(|hold| (None, hold));
        let of_steps = survey.live.iter().filter_map(|live| {
            let hold = present::step::open_hold(&base.header.phase, live.part, &live.state)?;
            Some((Some(&live.step), hold))
        });
        let open = own.chain(of_steps).filter(|(_, hold)| self.takes(hold.reason, hold.since));
        open.map(|(step, hold)| held_member(hold.since, &base.task, step)).min()
    }
}

#[derive(Default)]
struct Page {
    /// Entries in order.
    members: Vec<String>,
    bases: BTreeMap<TaskId, Base>,
    /// Tasks that were looked at and are not taken.
    others: BTreeSet<TaskId>,
    cost: usize,
    looked_at: usize,
    last: Option<String>,
}

impl Page {
    /// Takes entries in as long as there is room; says whether the page is full.
    async fn take(
        &mut self,
        api: &Api,
        caller: &Caller,
        filter: &Filter,
        (members, limit): (Vec<String>, usize),
    ) -> Result<bool, Fail> {
        let mut found = self.read(api, &members).await?;
        for member in members {
            let Some((_, task, _)) = parse_held_member(&member) else { continue };
            if let Some(base) = found.remove(&task) {
                let takes = matches(filter, &base) && caller.may_see(&base.meta);
                let created = task_member(base.meta.created_at, &task);
                let within = filter.after < created
                    && filter.before.as_ref().is_none_or(|before| created < *before);
                let cost = reads::survey_cost(&base);
                if !(takes && within) {
                    self.others.insert(task.clone());
                } else if self.bases.len() == limit
                    || (!self.bases.is_empty() && self.cost + cost > STEPS_MAX)
                {
                    return Ok(true);
                } else {
                    self.cost += cost;
                    self.bases.insert(task.clone(), base);
                }
            }
            self.looked_at += 1;
            if self.bases.contains_key(&task) {
                self.members.push(member.clone());
            }
            self.last = Some(member);
        }
        Ok(false)
    }

    /// Reads the tasks behind entries that were not looked at before.
    async fn read(&self, api: &Api, members: &[String]) -> Result<BTreeMap<TaskId, Base>, Fail> {
        let tasks: BTreeSet<TaskId> = members
            .iter()
            .filter_map(|member| parse_held_member(member).map(|(_, task, _)| task))
            .filter(|task| !self.bases.contains_key(task) && !self.others.contains(task))
            .collect();
        let wants: Vec<(TaskId, Vec<Key>)> =
            tasks.into_iter().map(|task| (task, vec![Key::Header, Key::Gate, Key::Meta])).collect();
        let found = reads::records(api.engine(), &wants).await?;
        let bases = wants.into_iter().zip(found).filter_map(|((task, _), mut records)| {
            Some((task.clone(), reads::base(task, &mut records)?))
        });
        Ok(bases.collect())
    }
}

/// Reads the next entries of all partitions and reasons and merges them up to where all are
/// known; gives that place, or nothing if there is no more.
async fn round(
    api: &Api,
    wanted: &Wanted,
    after: &str,
    limit: usize,
) -> Result<(Vec<String>, Option<String>), Fail> {
    let each = (limit / 16 + 4).min(BATCH_MAX);
    let before = wanted.since_max.map(|max| time_key(Time(max.0.saturating_add(1))));
    let mut pages = Vec::new();
    for reason in &wanted.reasons {
        let ranges: Vec<Range> = Partition::all()
            .map(|partition| Range {
                home: Home::Partition(partition),
                index: held_index(*reason),
                after: after.to_owned(),
                before: before.clone(),
                limit: each,
                reverse: false,
            })
            .collect();
        pages.extend(api.engine().store().ranges(&ranges).await?);
    }
    Ok(merge(pages, each))
}

/// Merges pages of `each` members, oldest first, up to the oldest of the last members of full
/// pages: above it a partition may hold members that were not read.
fn merge(pages: Vec<Vec<String>>, each: usize) -> (Vec<String>, Option<String>) {
    let full = pages.iter().filter(|page| page.len() >= each);
    let threshold = full.filter_map(|page| page.last()).min().cloned();
    let mut members: Vec<String> = pages.into_iter().flatten().collect();
    if let Some(threshold) = &threshold {
        members.retain(|member| member <= threshold);
    }
    members.sort_unstable();
    members.dedup();
    (members, threshold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_stops_where_a_partition_may_hold_more() {
        let page = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (members, more) = merge(vec![page(&["1", "4"]), page(&["2", "3"]), page(&["3"])], 2);
        assert_eq!(
            (members, more.as_deref()),
            (vec!["1".into(), "2".into(), "3".into()], Some("3"))
        );
        assert_eq!(merge(vec![page(&["2"]), page(&["1"])], 2).1, None);
    }
}
