//! The graph that `needs` draws: who waits for whom, and what a redo runs again.
//!
//! Everything here takes time in proportion to steps and needs, and no recursion, so that a
//! chain of 10,000 steps is as safe as a plan of three.

use std::collections::{BTreeMap, BTreeSet};

use super::StepPlan;
use crate::ids::StepId;

/// Gives the steps that need each step, in plan order. Every step has an entry; so has a step
/// that is needed but not among `steps`.
pub fn dependents(steps: &[StepPlan]) -> BTreeMap<StepId, Vec<StepId>> {
    let mut map: BTreeMap<StepId, Vec<StepId>> =
        steps.iter().map(|step| (step.id.clone(), Vec::new())).collect();
    for step in steps {
        for need in &step.needs {
            map.entry(need.clone()).or_default().push(step.id.clone());
        }
    }
    map
}

/// Gives all steps that must be settled before `id`, itself not included.
pub fn upstream(steps: &[StepPlan], id: &StepId) -> BTreeSet<StepId> {
    let net = Net::of(steps.iter());
    let Some(start) = steps.iter().position(|step| step.id == *id) else {
        return BTreeSet::new();
    };
    let reached = walk(&net.needs, start);
    let ids = steps.iter().enumerate().filter(|(index, _)| reached[*index]);
    ids.map(|(_, step)| step.id.clone()).collect()
}

/// Gives the steps on all paths from `from` down to `to`, both included, in plan order: what a
/// redo of `from` after a failure of `to` runs again. Empty if `from` is not upstream of `to`.
pub fn between(steps: &[StepPlan], from: &StepId, to: &StepId) -> Vec<StepId> {
    let net = Net::of(steps.iter());
    let place = |id: &StepId| steps.iter().position(|step| step.id == *id);
    let (Some(first), Some(last)) = (place(from), place(to)) else {
        return Vec::new();
    };
    let above = walk(&net.needs, last);
    if !above[first] {
        return Vec::new();
    }
    let below = walk(&net.dependents(), first);
    let within = |index: usize| {
        let inner = above[index] && below[index];
        inner || index == first || index == last
    };
    let ids = steps.iter().enumerate().filter(|(index, _)| within(*index));
    ids.map(|(_, step)| step.id.clone()).collect()
}

/// Marks all that `edges` lead to from `start`; `start` itself only if a cycle leads back.
fn walk(edges: &[Vec<usize>], start: usize) -> Vec<bool> {
    let mut reached = vec![false; edges.len()];
    let mut open = vec![start];
    while let Some(node) = open.pop() {
        for &next in &edges[node] {
            if !reached[next] {
                reached[next] = true;
                open.push(next);
            }
        }
    }
    reached
}

/// The graph by numbers: a step is its place in the plan.
pub(super) struct Net {
    /// What each step needs; names that are not in the plan are left out.
    pub(super) needs: Vec<Vec<usize>>,
}

impl Net {
    /// Numbers the steps; of equal ids the first counts.
    pub(super) fn of<'a>(steps: impl Iterator<Item = &'a StepPlan> + Clone) -> Self {
        let mut places: BTreeMap<&StepId, usize> = BTreeMap::new();
        for (index, step) in steps.clone().enumerate() {
            places.entry(&step.id).or_insert(index);
        }
        let numbers = |step: &StepPlan| {
            step.needs.iter().filter_map(|need| places.get(need).copied()).collect()
        };
        Self { needs: steps.map(numbers).collect() }
    }

    fn dependents(&self) -> Vec<Vec<usize>> {
        let mut edges = vec![Vec::new(); self.needs.len()];
        for (index, needs) in self.needs.iter().enumerate() {
            for &need in needs {
                edges[need].push(index);
            }
        }
        edges
    }

    /// Groups the steps that need each other (Tarjan's strongly connected components), what is
    /// needed before what needs it. In a plan without cycles every group is a single step.
    pub(super) fn groups(&self) -> Vec<Vec<usize>> {
        const UNSEEN: usize = usize::MAX;
        let count = self.needs.len();
        let (mut order, mut low) = (vec![UNSEEN; count], vec![0; count]);
        let (mut stack, mut on_stack) = (Vec::new(), vec![false; count]);
        let (mut seen, mut groups) = (0, Vec::new());
        for root in 0..count {
            if order[root] != UNSEEN {
                continue;
            }
            let mut path = vec![(root, 0)];
            while let Some((node, tried)) = path.last_mut() {
                let node = *node;
                if *tried == 0 {
                    (order[node], low[node]) = (seen, seen);
                    seen += 1;
                    stack.push(node);
                    on_stack[node] = true;
                }
                if let Some(&need) = self.needs[node].get(*tried) {
                    *tried += 1;
                    if order[need] == UNSEEN {
                        path.push((need, 0));
                    } else if on_stack[need] {
                        low[node] = low[node].min(order[need]);
                    }
                    continue;
                }
                path.pop();
                if let Some((parent, _)) = path.last() {
                    low[*parent] = low[*parent].min(low[node]);
                }
                if low[node] == order[node] {
                    let start = stack.iter().rposition(|other| *other == node).unwrap_or(0);
                    let group = stack.split_off(start);
                    for &member in &group {
                        on_stack[member] = false;
                    }
                    groups.push(group);
                }
            }
        }
        groups
    }

    /// Finds one cycle within a group of several steps, beginning with its first in the plan.
    pub(super) fn cycle(&self, group: &[usize]) -> Vec<usize> {
        let members: BTreeSet<usize> = group.iter().copied().collect();
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        let mut path = Vec::new();
        let mut node = members.first().copied();
        while let Some(at) = node {
            if let Some(start) = places.insert(at, path.len()) {
                let mut cycle = path.split_off(start);
                let least = cycle.iter().enumerate().min_by_key(|(_, index)| **index);
                let turn = least.map_or(0, |(place, _)| place);
                cycle.rotate_left(turn);
                return cycle;
            }
            path.push(at);
            node = self.needs[at].iter().copied().find(|need| members.contains(need));
        }
        path
    }

    /// Computes who is upstream of whom, for all steps that no cycle is upstream of.
    pub(super) fn reach(&self, groups: &[Vec<usize>]) -> Reach {
        let count = self.needs.len();
        let words = count.div_ceil(64);
        let mut known = vec![false; count];
        let (mut up, mut down) = (vec![0; words * count], vec![0; words * count]);
        let order: Vec<usize> =
            groups.iter().filter(|group| group.len() == 1).flatten().copied().collect();
        for &node in &order {
            known[node] = self.needs[node].iter().all(|need| known[*need]);
            for &need in &self.needs[node] {
                merge(&mut up, words, node, need);
            }
        }
        for &node in order.iter().rev() {
            for &need in &self.needs[node] {
                merge(&mut down, words, need, node);
            }
        }
        Reach { words, known, up, down }
    }
}

/// Adds `other` and all of its row to the row of `node`.
fn merge(rows: &mut [u64], words: usize, node: usize, other: usize) {
    for word in 0..words {
        rows[node * words + word] |= rows[other * words + word];
    }
    rows[node * words + other / 64] |= 1 << (other % 64);
}

/// Who is upstream of whom, as one bit a pair: 25 MB for the largest plan, while it is checked.
/// Answers for ten thousand redos take no longer than for one.
pub(super) struct Reach {
    words: usize,
    known: Vec<bool>,
    up: Vec<u64>,
    down: Vec<u64>,
}

impl Reach {
    /// Tells whether a step's upstream is known: no cycle is in it.
    pub(super) fn knows(&self, node: usize) -> bool {
        self.known[node]
    }

    /// Counts the steps between `from` and `to`, both included; `None`: `from` is not upstream.
    pub(super) fn between(&self, from: usize, to: usize) -> Option<usize> {
        let row = |node: usize| node * self.words..(node + 1) * self.words;
        let above = &self.up[row(to)];
        if above[from / 64] & (1 << (from % 64)) == 0 {
            return None;
        }
        let both = above.iter().zip(&self.down[row(from)]);
        Some(both.map(|(a, b)| (a & b).count_ones() as usize).sum::<usize>() + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::read::read_added_steps;

    /// Reads `a b:a c:a,b`: ids and what they need.
    fn plan(text: &str) -> Vec<StepPlan> {
        let steps = text.split_whitespace().map(|word| {
            let (id, needs) = word.split_once(':').unwrap_or((word, ""));
            let needs: Vec<&str> = needs.split(',').filter(|need| !need.is_empty()).collect();
            serde_json::json!({"id": id, "uses": "exec", "needs": needs})
        });
        read_added_steps(&steps.collect(), "").0
    }

    fn names<'a>(ids: impl IntoIterator<Item = &'a StepId>) -> String {
        ids.into_iter().map(StepId::as_str).collect::<Vec<_>>().join(" ")
    }

    fn id(text: &str) -> StepId {
        StepId::new(text).expect("a test names steps rightly")
    }

    const DIAMOND: &str = "a b:a c:a d:b,c e:d x y:x,d";

    #[test]
    fn upstream_is_all_that_must_be_settled_first() {
        for (step, right) in [("a", ""), ("d", "a b c"), ("y", "a b c d x"), ("none", "")] {
            assert_eq!(names(&upstream(&plan(DIAMOND), &id(step))), right, "{step}");
        }
    }

    #[test]
    fn between_is_all_paths_with_both_ends() {
        for (from, to, right) in [
            ("a", "d", "a b c d"),
            ("b", "d", "b d"),
            ("a", "y", "a b c d y"),
            ("d", "a", ""),
            ("b", "c", ""),
            ("a", "a", ""),
        ] {
            assert_eq!(names(&between(&plan(DIAMOND), &id(from), &id(to))), right, "{from} {to}");
        }
    }

    #[test]
    fn dependents_are_in_plan_order() {
        let map = dependents(&plan(DIAMOND));
        assert_eq!(names(&map[&id("d")]), "e y");
        assert_eq!(names(&map[&id("e")]), "");
        assert_eq!(map.len(), 7);
    }

    #[test]
    fn the_bits_agree_with_the_walk() {
        let steps = plan(DIAMOND);
        let net = Net::of(steps.iter());
        let reach = net.reach(&net.groups());
        for (i, from) in steps.iter().enumerate() {
            for (j, to) in steps.iter().enumerate() {
                let walked = between(&steps, &from.id, &to.id).len();
                assert_eq!(reach.between(i, j).unwrap_or(0), walked, "{} {}", from.id, to.id);
            }
        }
    }

    #[test]
    fn groups_come_before_what_needs_them() {
        let net = Net { needs: vec![vec![1], vec![2, 3], vec![1], vec![], vec![0]] };
        assert_eq!(net.groups(), [vec![3], vec![1, 2], vec![0], vec![4]]);
        assert_eq!(net.cycle(&[2, 1]), [1, 2]);
        let reach = net.reach(&net.groups());
        assert_eq!(
            [0, 1, 2, 3, 4].map(|node| reach.knows(node)),
            [false, false, false, true, false]
        );
    }

    #[test]
    fn a_chain_of_ten_thousand_is_walked_without_recursion() {
        let text: Vec<String> = (0..10_000)
            .map(|i| if i == 0 { "s0".into() } else { format!("s{i}:s{}", i - 1) })
            .collect();
        let steps = plan(&text.join(" "));
        assert_eq!(upstream(&steps, &id("s9999")).len(), 9_999);
        assert_eq!(between(&steps, &id("s10"), &id("s9990")).len(), 9_981);
        let net = Net::of(steps.iter());
        assert_eq!(net.reach(&net.groups()).between(0, 9_999), Some(10_000));
    }
}
