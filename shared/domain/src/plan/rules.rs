//! The rules between steps: names, needs, cycles, redos and required artifacts.

use std::collections::{BTreeMap, BTreeSet};

use super::OnFailure;
use super::faults::{Faults, join, quoted};
use super::graph::Net;
use super::steps::ReadStep;

/// Steps that one redo may run again: they are reset in one commit.
pub const REDO_STEPS_MAX: usize = 200;
/// Steps of a cycle that its fault names; of a longer one the rest is counted.
const CYCLE_SHOWN: usize = 8;

/// Which of the plan's lists a step stands in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Steps,
    Finally,
}

impl List {
    fn name(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Finally => "finally",
        }
    }
}

/// Where each readable id stands first.
type Names<'a> = BTreeMap<&'a str, (List, usize)>;

/// Checks a whole plan's steps against each other.
pub(super) fn check(steps: &[ReadStep], finally: &[ReadStep], faults: &mut Faults) {
    let mut names = Names::new();
    for (list, section) in [(List::Steps, steps), (List::Finally, finally)] {
        check_ids(list, section, &mut names, faults);
    }
    for read in finally.iter().filter(|read| read.step.undo.is_some()) {
        let message = "a `finally` step has no `undo`: it runs after what has landed is undone";
        faults.push(join(&read.at, "undo"), message);
    }
    for (list, section) in [(List::Steps, steps), (List::Finally, finally)] {
        check_needs(list, section, &names, faults);
        check_graph(
            section,
            |id| match names.get(id) {
                Some((found, index)) if *found == list => Target::Here(*index),
                Some(_) | None => Target::Unknown,
            },
            faults,
        );
    }
}

/// Checks steps that an outcome adds. What they need or redo besides each other stands in the
/// task, which is not known here.
pub(super) fn check_added(steps: &[ReadStep], faults: &mut Faults) {
    let mut names = Names::new();
    check_ids(List::Steps, steps, &mut names, faults);
    check_graph(
        steps,
        |id| names.get(id).map_or(Target::Elsewhere, |(_, index)| Target::Here(*index)),
        faults,
    );
}

fn check_ids<'a>(list: List, section: &'a [ReadStep], names: &mut Names<'a>, faults: &mut Faults) {
    for (index, read) in section.iter().enumerate().filter(|(_, read)| read.named) {
        let id = read.step.id.as_str();
        if let Some((first_list, first)) = names.get(id) {
            let place = format!("`{}`, number {}", first_list.name(), first + 1);
            let message = format!("duplicate step `{id}`: already in {place}");
            faults.push(join(&read.at, "id"), message);
        } else {
            names.insert(id, (list, index));
        }
    }
}

fn check_needs(list: List, section: &[ReadStep], names: &Names<'_>, faults: &mut Faults) {
    for read in section {
        for (need, place) in read.step.needs.iter().zip(&read.need_places) {
            let message = match names.get(need.as_str()) {
                Some((found, _)) if *found == list => continue,
                Some((found, _)) => format!(
                    "`{need}` is a step of `{}`: a step of `{}` may need only steps of `{}`",
                    found.name(),
                    list.name(),
                    list.name()
                ),
                None => unknown(need.as_str(), names, faults),
            };
            faults.push(join(&join(&read.at, "needs"), &place.to_string()), message);
        }
    }
}

fn unknown(id: &str, names: &Names<'_>, faults: &mut Faults) -> String {
    format!("unknown step {}{}", quoted(id), faults.suggest(id, names.keys().copied()))
}

/// What a redo names.
enum Target {
    /// A step of the same list.
    Here(usize),
    /// A step that is not known here, but may be in the task.
    Elsewhere,
    /// No step, or one of the other list.
    Unknown,
}

fn check_graph(section: &[ReadStep], target: impl Fn(&str) -> Target, faults: &mut Faults) {
    let net = Net::of(section.iter().map(|read| &read.step));
    let groups = net.groups();
    for group in groups.iter().filter(|group| group.len() > 1) {
        report_cycle(section, &net.cycle(group), faults);
    }
    let redos: Vec<(usize, &str)> = section
        .iter()
        .enumerate()
        .filter_map(|(index, read)| match &read.step.on_failure {
            Some(OnFailure::Redo { step, .. }) => Some((index, step.as_str())),
            Some(OnFailure::Fail | OnFailure::Continue | OnFailure::Pause) | None => None,
        })
        .collect();
    if redos.is_empty() {
        return;
    }
    let reach = net.reach(&groups);
    for (index, redo) in redos {
        let count = match target(redo) {
            Target::Elsewhere => continue,
            Target::Here(_) if !reach.knows(index) => continue,
            Target::Here(from) => reach.between(from, index),
            Target::Unknown => None,
        };
        let message = match count {
            Some(count) if count <= REDO_STEPS_MAX => continue,
            Some(count) => {
                format!("expected a redo of at most {REDO_STEPS_MAX} steps, found {count}")
            }
            None => format!("expected a step upstream of this one, found {}", quoted(redo)),
        };
        faults.push(join(&join(&section[index].at, "on_failure"), "redo"), message);
    }
}

fn report_cycle(section: &[ReadStep], cycle: &[usize], faults: &mut Faults) {
    let (Some(&first), Some(&second)) = (cycle.first(), cycle.get(1)) else {
        return;
    };
    let name = |index: &usize| format!("`{}`", section[*index].step.id);
    let mut way: Vec<String> = cycle.iter().take(CYCLE_SHOWN).map(name).collect();
    if cycle.len() > CYCLE_SHOWN {
        way.push(format!("{} more", cycle.len() - CYCLE_SHOWN));
    }
    way.push(name(&first));
    let read = &section[first];
    let target = &section[second].step.id;
    let place = read.step.needs.iter().position(|need| need == target);
    let place = place.and_then(|place| read.need_places.get(place)).copied().unwrap_or(0);
    faults.push(
        join(&join(&read.at, "needs"), &place.to_string()),
        format!("steps need each other in a circle: {}", way.join(" → ")),
    );
}

/// Checks the artifacts that a plan requires, given with their places.
pub(super) fn check_artifacts(
    artifacts: &[(usize, String)],
    steps: &[ReadStep],
    faults: &mut Faults,
) {
    let mut by_id: BTreeMap<&str, &ReadStep> = BTreeMap::new();
    for read in steps.iter().filter(|read| read.named) {
        by_id.entry(read.step.id.as_str()).or_insert(read);
    }
    let mut seen = BTreeSet::new();
    for (place, entry) in artifacts {
        let Some((id, name)) = entry.split_once('/') else {
            continue;
        };
        let message = match by_id.get(id) {
            _ if !seen.insert(entry) => format!("duplicate artifact {}", quoted(entry)),
            None => {
                let meant = faults.suggest(id, by_id.keys().copied());
                format!("unknown step {} of `steps`{meant}", quoted(id))
            }
            Some(read) => match &read.step.artifact {
                Some(declared) if declared == name => continue,
                Some(declared) => {
                    format!(
                        "expected `{id}/{declared}`, which `{id}` declares, found {}",
                        quoted(entry)
                    )
                }
                None if read.has_artifact => continue,
                None => format!("step `{id}` declares no `artifact`"),
            },
        };
        faults.push(join("/artifacts", &place.to_string()), message);
    }
}
