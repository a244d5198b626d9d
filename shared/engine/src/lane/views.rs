//! The views that a lane keeps between commands, so that the next one finds what it needs. They are
//! bounded by their number, by their records, and by the bytes of large records; those that were
//! not asked for the longest go first.

use std::collections::HashMap;

use standfast_domain::ids::TaskId;
use standfast_domain::view::View;

use super::Heat;

/// Views kept per lane.
const VIEWS_MAX: usize = 4_096;
/// Records of all of them: room for those of one task as large as tasks may be. A larger view is
/// loaded anew, piece by piece.
const RECORDS_MAX: usize = 65_536;
/// Bytes of large records in all of them, as stored; in memory they are some times that.
const BULK_MAX: usize = 16 * 1024 * 1024;
/// Bytes from which a record counts as large: plans' inputs and outputs, not what each step has.
const LARGE: usize = 1024;

/// Gives what a stored record adds to the bulk of its view.
pub(super) fn bulk(bytes: usize) -> usize {
    if bytes >= LARGE { bytes } else { 0 }
}

/// One view that is kept.
pub(super) struct Cached {
    pub view: Box<View>,
    pub heat: Heat,
    /// Bytes of the large records that went into it.
    pub bulk: usize,
    age: u64,
}

/// All views that are kept.
#[derive(Default)]
pub(super) struct Views {
    views: HashMap<TaskId, Cached>,
    records: usize,
    bulk: usize,
    age: u64,
}

impl Views {
    /// Takes a task's view out.
    pub fn take(&mut self, task: &TaskId) -> Option<Cached> {
        let cached = self.views.remove(task)?;
        self.records -= cached.view.len();
        self.bulk -= cached.bulk;
        Some(cached)
    }

    /// Keeps a view, unless it is too large by itself.
    pub fn keep(&mut self, view: Box<View>, heat: Heat, bulk: usize) {
        let len = view.len();
        if len > RECORDS_MAX || bulk > BULK_MAX {
            return;
        }
        while self.views.len() >= VIEWS_MAX
            || self.records + len > RECORDS_MAX
            || self.bulk + bulk > BULK_MAX
        {
            self.forget_half();
        }
        self.age += 1;
        self.records += len;
        self.bulk += bulk;
        self.views.insert(view.task().clone(), Cached { view, heat, bulk, age: self.age });
    }

    /// Forgets those views, about half of all, that were not asked for the longest.
    fn forget_half(&mut self) {
        let mut ages: Vec<u64> = self.views.values().map(|cached| cached.age).collect();
        let middle = ages.len() / 2;
        let newest = *ages.select_nth_unstable(middle).1;
        self.views.retain(|_, cached| cached.age > newest);
        self.records = self.views.values().map(|cached| cached.view.len()).sum();
        self.bulk = self.views.values().map(|cached| cached.bulk).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(number: u8) -> TaskId {
        TaskId::random([number; 16])
    }

    fn keep(views: &mut Views, number: u8, bulk: usize) {
        views.keep(Box::new(View::unborn(task(number))), Heat::default(), bulk);
    }

    #[test]
    fn large_records_push_out_the_views_that_were_not_asked_for_the_longest() {
        let mut views = Views::default();
        for number in 0..8 {
            keep(&mut views, number, BULK_MAX / 8);
        }
        let first = views.take(&task(0)).expect("there is room for all eight");
        views.keep(first.view, first.heat, first.bulk);
        keep(&mut views, 8, 1);
        let left: Vec<u8> = (0..9).filter(|number| views.take(&task(*number)).is_some()).collect();
        assert_eq!(left, [0, 6, 7, 8]);
        assert_eq!((views.records, views.bulk), (0, 0));
    }

    #[test]
    fn a_view_that_is_too_large_by_itself_is_not_kept_and_pushes_out_none() {
        let mut views = Views::default();
        keep(&mut views, 1, 7);
        keep(&mut views, 2, BULK_MAX + 1);
        assert!(views.take(&task(2)).is_none());
        assert!(views.take(&task(1)).is_some());
    }

    #[test]
    fn what_each_step_has_does_not_count_as_large() {
        assert_eq!((bulk(LARGE - 1), bulk(LARGE)), (0, LARGE));
    }
}
