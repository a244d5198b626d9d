//! All records of one task, read back from the bytes that are stored.

use std::collections::{BTreeMap, BTreeSet};

use standfast_domain::commit::{Home, Scope};
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::index;
use standfast_domain::invariants::{self, Records};
use standfast_domain::record::{Header, Key, Record};
use standfast_tests::memory_store::Contents;

/// Reads a field's name.
pub fn key_of(field: &str) -> Option<Key> {
    let mut parts = field.split('/');
    let (first, second) = (parts.next()?, parts.next());
    let (third, fourth) = (parts.next(), parts.next());
    let step = || StepId::new(second?).ok();
    let number = |text: Option<&str>| text?.parse::<u32>().ok();
    Some(match first {
        "header" => Key::Header,
        "gate" => Key::Gate,
        "ahead" => Key::Ahead,
        "meta" => Key::Meta,
        "owner" => Key::Owner,
        "order" => Key::Order(number(second)?),
        "roots" => Key::Roots(number(second)?),
        "failure" => Key::Failure(number(second)?),
        "def" => Key::Definition(step()?),
        "needs" => Key::Needs(step()?, number(third)?),
        "deps" => Key::Dependents(step()?, number(third)?),
        "step" => Key::Step(step()?),
        "claim" => Key::Claim(step()?),
        "with" => Key::Resolution(step()?, number(third)?),
        "out" => Key::Output(step()?, number(third)?),
        "files" => Key::Artifacts(step()?),
        "log" => Key::Log(step()?, number(third)?),
        "check" => Key::Check(step()?, number(third)?),
        "effects" => Key::Effects(step()?),
        "request" => Key::Request(step()?, third?.to_owned(), number(fourth)?),
        "receipt" => Key::Receipt(step()?, third?.to_owned(), number(fourth)?),
        "landing" => Key::Landing(number(second)?),
        "outgoing" => Key::Outgoing(second?.to_owned()),
        _ => return None,
    })
}

/// Reads all records of a task; what cannot be read is a fault.
pub fn records(contents: &Contents, task: &TaskId, faults: &mut Vec<String>) -> Records {
    let mut records = Records::new();
    for (field, stored) in contents.records.get(&Scope::Task(task.clone())).into_iter().flatten() {
        let Some(key) = key_of(field) else {
            faults.push(format!("{task} has a record `{field}` that nobody knows"));
            continue;
        };
        match Record::decode(&key, &stored.bytes) {
            Ok(record) => drop(records.insert(key, record)),
            Err(error) => faults.push(format!("record `{field}` of {task}: {error}")),
        }
    }
    records
}

/// Gives the header among records.
pub fn header(records: &Records) -> Option<&Header> {
    match records.get(&Key::Header) {
        Some(Record::Header(header)) => Some(header),
        _ => None,
    }
}

/// Says what the domain's own invariants have against the records.
pub fn broken(task: &TaskId, records: &Records) -> Vec<String> {
    invariants::faults(records).into_iter().map(|fault| format!("{task}: {fault}")).collect()
}

/// Compares the entries of all partitions with those that ended tasks may leave: where a list
/// finds them, and when they are removed.
pub fn index_faults(contents: &Contents, tasks: &BTreeMap<TaskId, Records>) -> Vec<String> {
    let mut wanted: BTreeSet<(Home, String, String)> = BTreeSet::new();
    for (task, records) in tasks {
        for key in [Key::Header, Key::Meta, Key::Owner] {
            let Some(record) = records.get(&key) else { continue };
            let home = Home::Partition(task.partition());
            let entries = index::entries(task, &key, record);
            wanted.extend(entries.into_iter().map(|(index, member)| (home, index, member)));
        }
    }
    let mut found = BTreeSet::new();
    for (home, indexes) in &contents.indexes {
        if *home == Home::Installation {
            continue;
        }
        for (index, members) in indexes {
            found.extend(members.iter().map(|member| (*home, index.clone(), member.clone())));
        }
    }
    let left = found.difference(&wanted).map(|(_, i, m)| format!("left in index `{i}`: {m}"));
    let gone = wanted.difference(&found).map(|(_, i, m)| format!("missing in index `{i}`: {m}"));
    left.chain(gone).collect()
}

/// True if nothing but ended tasks, and what removes them, stands in the indexes.
pub fn is_quiet(contents: &Contents) -> bool {
    let kind = |member: &String| index::TimerEntry::parse(member).map(|entry| entry.kind);
    let removal =
        |member: &String| matches!(kind(member), Some(standfast_domain::decide::TimerKind::Remove));
    contents.indexes.iter().filter(|(home, _)| **home != Home::Installation).all(|(_, indexes)| {
        indexes.iter().all(|(index, members)| match index.as_str() {
            index::TIMERS => members.iter().all(removal),
            index::WORK | index::CLAIMS => false,
            name => {
                let ended = ["state:cancelled", "state:completed", "state:failed"];
                !name.starts_with("ready:")
                    && (!name.starts_with("state:") || ended.contains(&name))
            }
        })
    })
}
