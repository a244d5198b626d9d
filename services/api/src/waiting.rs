//! Walks tasks by their open holds, the longest wait first, page by page.
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

use crate::auth::Caller;
use crate::list::{
    CANDIDATES_A_READ, CANDIDATES_MAX, Filter, Holds, STEPS_MAX, entries_first, matches,
};
use crate::problems::Fail;
use crate::reads::{self, BASE_KEYS, Base, Survey};
use crate::{Api, present};

/// Which holds are looked for.
struct Wanted<'a> {
    reasons: &'a [HoldReason],
    /// Holds that began later are too young.
    since_max: Option<Time>,
}

/// Gives a page from an entry on; and the entry to go on from, if there may be more.
pub(crate) async fn page(
    api: &Api,
    caller: &Caller,
    (filter, holds): (&Filter, &Holds),
    place: String,
    limit: usize,
) -> Result<(Vec<Survey>, Option<String>), Fail> {
    if !place.is_empty() {
        parse_held_member(&place).ok_or_else(Fail::bad_cursor)?;
    }
    let wanted = wanted(api, holds).await?;
    let mut page = Page { limit, room: CANDIDATES_MAX, last: place, ..Page::default() };
    let mut each = entries_first(limit);
    let more = loop {
        let (members, threshold) = round(api, &wanted, &page.last, each).await?;
        if page.fill(api, caller, filter, &members).await? {
            break true;
        }
        let Some(threshold) = threshold else { break false };
        page.last = threshold;
        each = (each * 2).min(BATCH_MAX); // so that few rounds get through what is not taken
    };
    let bases: Vec<Base> = page.bases.into_values().collect();
    let surveys = reads::survey(api.engine(), bases).await?;
    let mut oldest: BTreeMap<String, Survey> =
        surveys.into_iter().filter_map(|survey| Some((wanted.oldest(&survey)?, survey))).collect();
    let given = page.members.iter().filter_map(|member| oldest.remove(member)).collect();
    Ok((given, Some(page.last).filter(|_| more)))
}

async fn wanted<'a>(api: &Api, holds: &'a Holds) -> Result<Wanted<'a>, Fail> {
    let Holds { reasons, older_ms, as_of } = holds;
    let as_of = match as_of {
        Some(time) => Some(*time),
        None if *older_ms == 0 => None,
        None => Some(api.engine().now().await?),
    };
    let since_max = as_of.map(|time| Time(time.0.saturating_sub_unsigned(*older_ms)));
    Ok(Wanted { reasons, since_max })
}

impl Wanted<'_> {
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
    limit: usize,
    /// Entries that may still be looked at.
    room: usize,
    /// The entry that was looked at last.
    last: String,
}

impl Page {
    /// Takes entries in as long as there is room; says whether there is none left.
    async fn fill(
        &mut self,
        api: &Api,
        caller: &Caller,
        filter: &Filter,
        members: &[String],
    ) -> Result<bool, Fail> {
        for members in members.chunks(CANDIDATES_A_READ) {
            let members = &members[..members.len().min(self.room)];
            let mut found = self.read(api, members).await?;
            for member in members {
                if !self.take(caller, filter, member, &mut found) {
                    return Ok(true);
                }
                self.last.clone_from(member);
            }
            self.room -= members.len();
            if self.room == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes one entry in, or passes it over; gives false if it is meant and there is no room.
    fn take(
        &mut self,
        caller: &Caller,
        filter: &Filter,
        member: &str,
        found: &mut BTreeMap<TaskId, Base>,
    ) -> bool {
        let Some((_, task, _)) = parse_held_member(member) else { return true };
        if let Some(base) = found.remove(&task) {
            let takes = matches(filter, &base) && caller.may_see(&base.meta);
            let created = task_member(base.meta.created_at, &task);
            let within = filter.after < created
                && filter.before.as_ref().is_none_or(|before| created < *before);
            let cost = reads::survey_cost(&base);
            let full = self.bases.len() == self.limit
                || (!self.bases.is_empty() && self.cost + cost > STEPS_MAX);
            if !(takes && within) {
                self.others.insert(task.clone());
            } else if full {
                return false;
            } else {
                self.cost += cost;
                self.bases.insert(task.clone(), base);
            }
        }
        if self.bases.contains_key(&task) {
            self.members.push(member.to_owned());
        }
        true
    }

    /// Reads the tasks behind entries that were not looked at before.
    async fn read(&self, api: &Api, members: &[String]) -> Result<BTreeMap<TaskId, Base>, Fail> {
        let tasks: BTreeSet<TaskId> = members
            .iter()
            .filter_map(|member| parse_held_member(member).map(|(_, task, _)| task))
            .filter(|task| !self.bases.contains_key(task) && !self.others.contains(task))
            .collect();
        let wants: Vec<(TaskId, Vec<Key>)> =
            tasks.into_iter().map(|task| (task, BASE_KEYS.to_vec())).collect();
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
    wanted: &Wanted<'_>,
    after: &str,
    each: usize,
) -> Result<(Vec<String>, Option<String>), Fail> {
    let before = wanted.since_max.map(|max| time_key(Time(max.0.saturating_add(1))));
    let mut pages = Vec::new();
    for reason in wanted.reasons {
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
