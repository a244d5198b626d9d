//! Index entries: what the store keeps in order so that the system finds what is due, ready or
//! asked for. Each entry follows from one record; a commit changes the difference.
//!
//! Entries are hints. Whoever reads one looks at the record before acting.

use crate::decide::TimerKind;
use crate::evolve::header_todo;
use crate::hold::{Hold, HoldReason};
use crate::ids::{Principal, Queue, StepId, TaskId};
use crate::record::{Header, Key, Meta, Owner, Phase, Record, Status, StepState};
use crate::time::{Span, Time};

/// The index of what comes due.
pub const TIMERS: &str = "timers";
/// The index of steps and tasks that call for a follow-up.
pub const WORK: &str = "work";
/// The index of live claims, by task and step, each with its expiry; apart from the timers, since
/// more than the time must be looked at before a claim is taken over.
pub const CLAIMS: &str = "claims";
/// The index of messages that commits have promised to send, by age.
pub const OUTBOX: &str = "outbox";
/// The index of all tasks by age.
pub const TASKS: &str = "tasks";
/// When a submission that wrote ahead and never came to its birth is cleaned up.
pub const BIRTH_GRACE: Span = Span::from_secs(60 * 60);
/// Separates the parts of a member; no name contains it.
pub const SEPARATOR: &str = "|";

/// One entry: an index's name and a member.
pub type Entry = (String, String);

/// Gives the index of ready steps of a queue.
pub fn ready_index(queue: &Queue) -> String {
    ["ready:", queue.as_str()].concat()
}

/// Gives the index of what a principal owns.
pub fn owner_index(owner: &Principal) -> String {
    format!("owner:{owner}")
}

/// Gives the index of what a principal sees without owning it.
pub fn sees_index(principal: &Principal) -> String {
    format!("sees:{principal}")
}

/// Writes a time so that text order is time order: 15 digits, never negative.
pub fn time_key(time: Time) -> String {
    const DIGITS: usize = 15;
    let (mut digits, mut rest) = ([b'0'; DIGITS], time.0.max(0));
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(rest % 10).expect("one digit");
        rest /= 10;
    }
    match rest {
        0 => digits.map(char::from).iter().collect(),
        _ => time.0.to_string(), // beyond the year 30,000
    }
}

/// Writes a member of [`TASKS`] and of the filters' indexes.
pub fn task_member(created_at: Time, task: &TaskId) -> String {
    [time_key(created_at).as_str(), task.as_str()].join(SEPARATOR)
}

/// Reads a member of [`TASKS`] and of the filters' indexes.
pub fn parse_task_member(member: &str) -> Option<(Time, TaskId)> {
    let (time, task) = member.split_once(SEPARATOR)?;
    Some((Time(time.parse().ok()?), TaskId::parse(task).ok()?))
}

/// An entry of [`TIMERS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimerEntry {
    /// When it is due.
    pub due: Time,
    /// Whose.
    pub task: TaskId,
    /// Of which step, if not of the task itself.
    pub step: Option<StepId>,
    /// Which.
    pub kind: TimerKind,
}

impl TimerEntry {
    /// Writes the member.
    pub fn member(&self) -> String {
        let step = self.step.as_ref().map_or("", StepId::as_str);
        let (due, kind) = (time_key(self.due), self.kind.as_str());
        [due.as_str(), self.task.as_str(), step, kind].join(SEPARATOR)
    }

    /// Reads a member.
    pub fn parse(member: &str) -> Option<Self> {
        let mut parts = member.split(SEPARATOR);
        let due = Time(parts.next()?.parse().ok()?);
        let task = TaskId::parse(parts.next()?).ok()?;
        let step = match parts.next()? {
            "" => None,
            step => Some(StepId::new(step).ok()?),
        };
        let word = parts.next()?;
        let kind = TimerKind::ALL.into_iter().find(|kind| kind.as_str() == word)?;
        Some(Self { due, task, step, kind })
    }
}

/// Writes a member of a ready index.
pub fn ready_member(since: Time, task: &TaskId, step: &StepId) -> String {
    [time_key(since).as_str(), task.as_str(), step.as_str()].join(SEPARATOR)
}

/// Reads a member of a ready index.
pub fn parse_ready_member(member: &str) -> Option<(Time, TaskId, StepId)> {
    let (time, rest) = member.split_once(SEPARATOR)?;
    let (task, step) = rest.split_once(SEPARATOR)?;
    Some((Time(time.parse().ok()?), TaskId::parse(task).ok()?, StepId::new(step).ok()?))
}

/// An entry of [`CLAIMS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimEntry {
    /// Whose.
    pub task: TaskId,
    /// The step.
    pub step: StepId,
    /// When it expires unless renewed; a renewal writes another entry.
    pub expires_at: Time,
}

impl ClaimEntry {
    /// Writes the member: those of a task, and of a step, stand together.
    pub fn member(&self) -> String {
        let Self { task, step, expires_at } = self;
        [task.as_str(), step.as_str(), time_key(*expires_at).as_str()].join(SEPARATOR)
    }

    /// Reads a member.
    pub fn parse(member: &str) -> Option<Self> {
        let mut parts = member.split(SEPARATOR);
        let task = TaskId::parse(parts.next()?).ok()?;
        let step = StepId::new(parts.next()?).ok()?;
        let expires_at = Time(parts.next()?.parse().ok()?);
        Some(Self { task, step, expires_at })
    }
}

/// Writes a member of [`WORK`].
pub fn step_member(task: &TaskId, step: Option<&StepId>) -> String {
    [task.as_str(), step.map_or("", StepId::as_str)].join(SEPARATOR)
}

/// Reads a member of [`WORK`].
pub fn parse_step_member(member: &str) -> Option<(TaskId, Option<StepId>)> {
    let (task, step) = member.split_once(SEPARATOR)?;
    let step = match step {
        "" => None,
        step => Some(StepId::new(step).ok()?),
    };
    Some((TaskId::parse(task).ok()?, step))
}

/// Writes a member of [`OUTBOX`].
pub fn outbox_member(at: Time, task: &TaskId, id: &str) -> String {
    [time_key(at).as_str(), task.as_str(), id].join(SEPARATOR)
}

/// Reads a member of [`OUTBOX`]: since when, whose, which.
pub fn parse_outbox_member(member: &str) -> Option<(Time, TaskId, String)> {
    let (time, rest) = member.split_once(SEPARATOR)?;
    let (task, id) = rest.split_once(SEPARATOR)?;
    Some((Time(time.parse().ok()?), TaskId::parse(task).ok()?, id.to_owned()))
}

/// Gives the index of open holds of a reason.
pub fn held_index(reason: HoldReason) -> String {
    format!("held:{reason}")
}

/// Writes a member of the index of a reason: since when a step, or the task itself, is held.
pub fn held_member(since: Time, task: &TaskId, step: Option<&StepId>) -> String {
    let step = step.map_or("", StepId::as_str);
    [time_key(since).as_str(), task.as_str(), step].join(SEPARATOR)
}

/// Reads a member of the index of a reason.
pub fn parse_held_member(member: &str) -> Option<(Time, TaskId, Option<StepId>)> {
    let (time, rest) = member.split_once(SEPARATOR)?;
    let (task, step) = parse_step_member(rest)?;
    Some((Time(time.parse().ok()?), task, step))
}

fn held(task: &TaskId, step: Option<&StepId>, hold: &Hold) -> Entry {
    (held_index(hold.reason), held_member(hold.since, task, step))
}

/// Gives all entries that a record stands for. A step with a claim stands in no ready index;
/// the claim's own change takes care of that (see [`crate::stage`]).
pub fn entries(task: &TaskId, key: &Key, record: &Record) -> Vec<Entry> {
    let mut entries = Vec::new();
    match record {
        Record::Header(header) => header_entries(task, header, &mut entries),
        Record::Meta(meta) => meta_entries(task, meta, &mut entries),
        Record::Owner(owner) => owner_entries(task, owner, &mut entries),
        Record::Step(state) => {
            if let Key::Step(step) = key {
                step_entries(task, step, state, &mut entries);
            }
        }
        Record::Claim(claim) => {
            if let Key::Claim(step) = key {
                let (task, step, expires_at) = (task.clone(), step.clone(), claim.expires_at);
                let entry = ClaimEntry { task, step, expires_at };
                entries.push((CLAIMS.to_owned(), entry.member()));
            }
        }
        Record::Value(value) if *key == Key::Ahead => {
            let at = Time(value["at"].as_i64().unwrap_or(0));
            timer(task, None, TimerKind::Birth, at.after(BIRTH_GRACE), &mut entries);
        }
        Record::Outgoing(outgoing) => {
            if let Key::Outgoing(id) = key {
                entries.push((OUTBOX.to_owned(), outbox_member(outgoing.at, task, id)));
            }
        }
        Record::Gate(gate) => entries.extend(gate.holds.iter().map(|hold| held(task, None, hold))),
        Record::Names(_)
        | Record::Definition(_)
        | Record::Dependents(_)
        | Record::Value(_)
        | Record::Payload(_)
        | Record::Artifacts(_)
        | Record::Failure(_)
        | Record::Log(_)
        | Record::Effects(_)
        | Record::Landing(_) => {}
    }
    entries
}

/// True if two states of a record stand for the same entries, as far as that shows without
/// writing them: a header changes with each event, its entries seldom.
pub(crate) fn stand_alike(before: Option<&Record>, now: Option<&Record>) -> bool {
    let (Some(Record::Header(before)), Some(Record::Header(now))) = (before, now) else {
        return false;
    };
    before.state == now.state
        && before.created_at == now.created_at
        && before.remove_at == now.remove_at
        && strikes(before) == strikes(now)
        && calls(before) == calls(now)
}

fn timer(
    task: &TaskId,
    step: Option<StepId>,
    kind: TimerKind,
    due: Time,
    entries: &mut Vec<Entry>,
) {
    let entry = TimerEntry { due, task: task.clone(), step, kind };
    entries.push((TIMERS.to_owned(), entry.member()));
}

/// True if a header calls for a follow-up.
fn calls(header: &Header) -> bool {
    let ended = matches!(header.phase, Phase::Ended { .. });
    header_todo(header).is_some() || (ended && header.uncleared)
}

/// Says when a task's deadline strikes, if it does.
fn strikes(header: &Header) -> Option<Time> {
    header.deadline_at.filter(|_| !header.paused)
}

fn header_entries(task: &TaskId, header: &Header, entries: &mut Vec<Entry>) {
    let state = format!("state:{}", header.state);
    entries.push((state, task_member(header.created_at, task)));
    if calls(header) {
        entries.push((WORK.to_owned(), step_member(task, None)));
    }
    if let Some(due) = strikes(header) {
        timer(task, None, TimerKind::Deadline, due, entries);
    }
    if let Some(due) = header.remove_at {
        timer(task, None, TimerKind::Remove, due, entries);
    }
}

fn meta_entries(task: &TaskId, meta: &Meta, entries: &mut Vec<Entry>) {
    let member = task_member(meta.created_at, task);
    entries.push((TASKS.to_owned(), member.clone()));
    entries.push((format!("kind:{}", meta.kind), member.clone()));
    for named in meta.operators.iter().chain(&meta.approvers).chain(&meta.viewers) {
        entries.push((sees_index(named), member.clone()));
    }
    for (name, value) in &meta.labels {
        entries.push((format!("label:{name}={value}"), member.clone()));
    }
}

/// A task's owner finds it under its own name; so does who submitted it and owns it no more.
fn owner_entries(task: &TaskId, owner: &Owner, entries: &mut Vec<Entry>) {
    let member = task_member(owner.created_at, task);
    entries.push((owner_index(&owner.owner), member.clone()));
    if owner.submitted_by != owner.owner {
        entries.push((sees_index(&owner.submitted_by), member));
    }
}

/// Gives the entries that a ready step has only while no worker has claimed it: its place in
/// its queue and the end of its queue time.
pub(crate) fn startable_entries(task: &TaskId, step: &StepId, state: &StepState) -> Vec<Entry> {
    let Status::Ready { since, queue } = &state.status else { return Vec::new() };
    let mut entries = vec![(ready_index(queue), ready_member(*since, task, step))];
    entries.extend(state.start_by.map(|due| {
        let (step, kind) = (Some(step.clone()), TimerKind::Queue);
        (TIMERS.to_owned(), TimerEntry { due, task: task.clone(), step, kind }.member())
    }));
    entries
}

fn step_entries(task: &TaskId, step: &StepId, state: &StepState, entries: &mut Vec<Entry>) {
    let own = Some(step.clone());
    entries.extend(startable_entries(task, step, state));
    match &state.status {
        Status::Ready { .. } => {}
        Status::Retrying { at } => timer(task, own.clone(), TimerKind::Retry, *at, entries),
        Status::Held { hold } => {
            entries.push(held(task, Some(step), hold));
            if let Some(due) = hold.due.max(state.look_at.filter(|_| hold.due.is_some())) {
                timer(task, own.clone(), TimerKind::Hold, due, entries);
            }
        }
        Status::Pending if state.remaining == 0 => {
            entries.push((WORK.to_owned(), step_member(task, Some(step))));
        }
        Status::Pending
        | Status::Succeeded { .. }
        | Status::Failed { .. }
        | Status::Skipped { .. } => {}
    }
    if state.telling.is_some() {
        entries.push((WORK.to_owned(), step_member(task, Some(step))));
    }
    if let Some(give_up_at) = state.give_up_at
        && matches!(state.status, Status::Ready { .. } | Status::Retrying { .. })
    {
        let due = state.look_at.map_or(give_up_at, |look_at| look_at.max(give_up_at));
        timer(task, own, TimerKind::GiveUp, due, entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_order_of_times_is_their_order() {
        for (time, right) in [
            (-5, "000000000000000"),
            (0, "000000000000000"),
            (7, "000000000000007"),
            (1_796_051_408_703, "001796051408703"),
            (999_999_999_999_999, "999999999999999"),
            (1_000_000_000_000_000, "1000000000000000"),
        ] {
            assert_eq!(time_key(Time(time)), right);
        }
    }

    #[test]
    fn members_read_back() {
        let task = TaskId::random([7; 16]);
        let step = StepId::new("a.b-c").unwrap();
        let entry =
            TimerEntry { due: Time(12), task: task.clone(), step: None, kind: TimerKind::Deadline };
        assert_eq!(TimerEntry::parse(&entry.member()), Some(entry));
        let entry = ClaimEntry { task: task.clone(), step: step.clone(), expires_at: Time(30) };
        assert_eq!(ClaimEntry::parse(&entry.member()), Some(entry));
        let ready = ready_member(Time(3), &task, &step);
        assert_eq!(parse_ready_member(&ready), Some((Time(3), task.clone(), step.clone())));
        let member = step_member(&task, Some(&step));
        assert_eq!(parse_step_member(&member), Some((task.clone(), Some(step))));
        let member = outbox_member(Time(4), &task, "a1");
        assert_eq!(parse_outbox_member(&member), Some((Time(4), task.clone(), "a1".to_owned())));
        let member = held_member(Time(5), &task, None);
        assert_eq!(parse_held_member(&member), Some((Time(5), task.clone(), None)));
        assert_eq!(parse_task_member(&task_member(Time(9), &task)), Some((Time(9), task)));
    }
}
