//! Speaks the commit script's language: lays commits out as one flat argument buffer, and reads
//! the answers.

use std::io::Write;

use ::redis::{Cmd, RedisWrite, Value};
use standfast_domain::commit::{Commit, CommitAnswer, IndexChange};
use standfast_domain::time::Time;
use standfast_engine::ports::{BATCH_MAX, StoreError};

use super::answers::{array, integer, records};
use super::keys::Prefix;

/// The source; see there for the layout of keys and arguments.
pub(super) const SOURCE: &str = include_str!("commit.lua");

/// How the script is named in a call.
#[derive(Clone, Copy)]
pub(super) enum Call<'a> {
    /// By its digest, as Redis gave it: usual, and short.
    Digest(&'a str),
    /// By its source, for a Redis that has forgotten it; Redis then knows it again.
    Source,
}

/// Cuts a call's commits into scripts that each name at most [`BATCH_MAX`] things, so that no
/// script keeps other clients waiting; a commit is never cut, since it is atomic.
pub(super) fn units(commits: &[Commit]) -> impl Iterator<Item = &[Commit]> {
    let mut rest = commits;
    std::iter::from_fn(move || {
        let mut sum = rest.first().map(weight)?;
        let mut taken = 1;
        for commit in &rest[1..] {
            sum += weight(commit);
            if sum > BATCH_MAX {
                break;
            }
            taken += 1;
        }
        let (unit, after) = rest.split_at(taken);
        rest = after;
        Some(unit)
    })
}

fn weight(commit: &Commit) -> usize {
    commit.guards.len()
        + commit.writes.len()
        + commit.events.len()
        + commit.indexes.len()
        + commit.returns.len()
}

/// Builds the call that applies a unit; `latest` is the latest time this process has seen.
pub(super) fn command(call: Call<'_>, prefix: &Prefix, latest: Time, unit: &[Commit]) -> Cmd {
    let payload: usize = unit.iter().map(payload).sum();
    let names: usize = unit.iter().map(weight).sum();
    let mut cmd = Cmd::with_capacity(16 + 12 * unit.len() + 3 * names, payload + 96 * names + 512);
    match call {
        Call::Digest(digest) => cmd.arg("EVALSHA").arg(digest),
        Call::Source => cmd.arg("EVAL").arg(SOURCE),
    };
    let keys: usize = unit.iter().map(|commit| 2 + runs(commit).count()).sum();
    cmd.arg(1 + keys);
    cmd.write_arg_fmt(prefix.clock());
    for commit in unit {
        cmd.write_arg_fmt(prefix.records(&commit.scope));
        cmd.write_arg_fmt(prefix.events(&commit.scope));
        for run in runs(commit) {
            cmd.write_arg_fmt(prefix.index(commit.scope.home(), &run[0].index));
        }
    }
    cmd.arg(latest.0).arg(unit.len());
    for commit in unit {
        write_commit(&mut cmd, commit);
    }
    cmd
}

fn payload(commit: &Commit) -> usize {
    let records = commit.writes.iter().filter_map(|(_, bytes)| bytes.as_ref().map(Vec::len));
    records.chain(commit.events.iter().map(Vec::len)).sum()
}

/// Index changes in a row that go the same way in the same index become one command.
fn runs(commit: &Commit) -> impl Iterator<Item = &[IndexChange]> {
    commit.indexes.chunk_by(|one, next| one.index == next.index && one.add == next.add)
}

fn write_commit(cmd: &mut Cmd, commit: &Commit) {
    cmd.write_arg_fmt(commit.id);
    cmd.write_arg(&head(commit));
    for guard in &commit.guards {
        cmd.write_arg(guard.field.as_bytes());
    }
    for guard in &commit.guards {
        match guard.version {
            Some(version) => cmd.write_arg_fmt(version),
            None => cmd.write_arg(b""),
        }
    }
    for (field, bytes) in &commit.writes {
        if let Some(bytes) = bytes {
            cmd.write_arg(field.as_bytes());
            let mut record = cmd.writer_for_next_arg();
            write!(record, "{}", commit.id).expect("a command's buffer takes any bytes");
            record.write_all(bytes).expect("a command's buffer takes any bytes");
        }
    }
    for (field, _) in commit.writes.iter().filter(|(_, bytes)| bytes.is_none()) {
        cmd.write_arg(field.as_bytes());
    }
    if !commit.events.is_empty() {
        cmd.arg(commit.first_event);
        for event in &commit.events {
            cmd.write_arg(event);
        }
    }
    for run in runs(commit) {
        write_run(cmd, run);
    }
    for field in &commit.returns {
        cmd.write_arg(field.as_bytes());
    }
}

/// Six counts as little-endian 16-bit numbers: one argument instead of six.
fn head(commit: &Commit) -> [u8; 12] {
    let puts = commit.writes.iter().filter(|(_, bytes)| bytes.is_some()).count();
    let counts = [
        commit.guards.len(),
        puts,
        commit.writes.len() - puts,
        commit.events.len(),
        runs(commit).count(),
        commit.returns.len(),
    ];
    let mut head = [0; 12];
    for (pair, count) in head.chunks_exact_mut(2).zip(counts) {
        let count = u16::try_from(count).expect("counts were checked to be at most BATCH_MAX");
        pair.copy_from_slice(&count.to_le_bytes());
    }
    head
}

fn write_run(cmd: &mut Cmd, run: &[IndexChange]) {
    if run[0].add {
        cmd.write_arg_fmt(format_args!("+{}", run.len()));
    } else {
        cmd.write_arg_fmt(format_args!("-{}", run.len()));
    }
    for change in run {
        if change.add {
            cmd.write_arg(b"0");
        }
        cmd.write_arg(change.member.as_bytes());
    }
}

/// Reads what the script gave: its time, and an answer for each commit of the unit.
pub(super) fn answers(
    value: Value,
    unit: &[Commit],
    into: &mut Vec<CommitAnswer>,
) -> Result<Time, StoreError> {
    let mut parts = array(value)?.into_iter();
    let time = Time(integer(parts.next())?);
    for commit in unit {
        let mut fields = array(parts.next().unwrap_or_default())?.into_iter();
        let applied = integer(fields.next())? == 1;
        into.push(CommitAnswer { applied, records: records(fields, commit.returns.len())? });
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use standfast_domain::commit::{CommitId, Scope};

    use super::*;

    fn commit(id: u64, records: usize) -> Commit {
        Commit {
            id: CommitId(id),
            scope: Scope::Installation,
            guards: Vec::new(),
            writes: (0..records).map(|field| (field.to_string(), Some(Vec::new()))).collect(),
            first_event: 0,
            events: Vec::new(),
            indexes: Vec::new(),
            returns: Vec::new(),
        }
    }

    #[test]
    fn many_commits_become_units_of_bounded_size_in_order() {
        let commits = [commit(1, 300), commit(2, 200), commit(3, 1), commit(4, 500), commit(5, 0)];
        let ids: Vec<Vec<u64>> =
            units(&commits).map(|unit| unit.iter().map(|commit| commit.id.0).collect()).collect();
        assert_eq!(ids, [vec![1, 2], vec![3], vec![4, 5]]);
        assert_eq!(units(&[]).count(), 0);
    }

    #[test]
    fn changes_in_a_row_share_a_command() {
        let mut changes = commit(1, 0);
        for (index, member, add) in
            [("a", "1", true), ("a", "2", true), ("a", "1", false), ("b", "1", false)]
        {
            let (index, member) = (index.to_owned(), member.to_owned());
            changes.indexes.push(IndexChange { index, member, add });
        }
        assert_eq!(runs(&changes).map(<[_]>::len).collect::<Vec<_>>(), [2, 1, 1]);
    }
}
