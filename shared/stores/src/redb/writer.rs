//! The thread that writes. It takes every call that waits and makes one transaction of them, so
//! the disk is synced once for all; while it syncs, the next group gathers by itself, without a
//! delay that would have to be chosen.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use ::redb::{Database, Error, ReadableTable, Table, WriteTransaction};
use standfast_domain::commit::{Commit, CommitAnswer, Scope};
use standfast_domain::ids::TaskId;
use standfast_domain::time::Time;
use standfast_engine::ports::StoreError;
use tokio::sync::oneshot;

use super::Latest;
use super::file::{File, begin_write};
use super::read;
use super::tables::{
    self, EVENTS, INDEXES, META, RECORDS, SIZES, decoded_scope, home_name, scope_name,
};
use crate::limits::starts_with;

/// The most calls in one transaction: bounds how long the first of them waits.
const GROUP_MAX: usize = 128;
/// The record that makes a task exist for its claims; it is removed first.
const HEADER: &str = "header";

/// What the store says to a call, once it is on disk.
type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// One call that writes.
pub(super) enum Job {
    /// Commits, in order.
    Commit { commits: Vec<Commit>, reply: Reply<(Time, Vec<CommitAnswer>)> },
    /// A step of an erasure.
    Erase { task: TaskId, limit: usize, reply: Reply<bool> },
}

/// Whether a commit is stored, and the records it returns.
type Judged = (bool, Vec<Option<Vec<u8>>>);

/// An answer that waits for the transaction to be on disk.
enum Answer {
    Commit(Vec<Judged>),
    Erase(bool),
}

/// The way to the thread.
pub(super) struct Writer {
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(file: Arc<File>, latest: Arc<Latest>) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("standfast-writer".into())
            .spawn(move || write_until_closed(&receiver, &file, &latest))?;
        Ok(Self { jobs: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    /// Hands a job over and waits for its answer. A caller that gives up waiting changes
    /// nothing: the job is done all the same.
    pub(super) async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let closed = || StoreError::Unavailable("it was closed".into());
        let (reply, answer) = oneshot::channel();
        let sent = match &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(jobs) => jobs.send(job(reply)).is_ok(),
            None => false,
        };
        if !sent {
            return Err(closed());
        }
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Lets the thread finish what it was handed, and waits for it.
    pub(super) fn stop(&self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes the database panicked");
        }
    }
}

fn write_until_closed(jobs: &Receiver<Job>, file: &File, latest: &Latest) {
    while let Ok(first) = jobs.recv() {
        let group: Vec<Job> =
            std::iter::once(first).chain(jobs.try_iter().take(GROUP_MAX - 1)).collect();
        let outcome = file.run(|database| write_group(database, &group, latest));
        answer(group, outcome);
    }
}

/// Hands out answers; a caller that stopped waiting misses its own, which loses nothing.
fn answer(group: Vec<Job>, outcome: Result<(Time, Vec<Answer>), StoreError>) {
    let (time, answers) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return group.into_iter().for_each(|job| refuse(job, &error)),
    };
    for (job, answer) in group.into_iter().zip(answers) {
        match (job, answer) {
            (Job::Commit { reply, .. }, Answer::Commit(answers)) => {
                let _ = reply.send(decode(answers).map(|answers| (time, answers)));
            }
            (Job::Erase { reply, .. }, Answer::Erase(left)) => {
                let _ = reply.send(Ok(left));
            }
            (Job::Commit { .. }, Answer::Erase(_)) | (Job::Erase { .. }, Answer::Commit(_)) => {
                unreachable!("answers are made from the jobs, in order")
            }
        }
    }
}

fn refuse(job: Job, error: &StoreError) {
    match job {
        Job::Commit { reply, .. } => drop(reply.send(Err(error.clone()))),
        Job::Erase { reply, .. } => drop(reply.send(Err(error.clone()))),
    }
}

fn decode(answers: Vec<Judged>) -> Result<Vec<CommitAnswer>, StoreError> {
    let answer =
        |(applied, records)| Ok(CommitAnswer { applied, records: decoded_scope(records)? });
    answers.into_iter().map(answer).collect()
}

/// Writes a group in one transaction; all of it is on disk when this returns, or none.
fn write_group(
    database: &Database,
    group: &[Job],
    latest: &Latest,
) -> Result<(Time, Vec<Answer>), Error> {
    let transaction = begin_write(database)?;
    let time = latest.now();
    let mut changed = false;
    let mut answers = Vec::with_capacity(group.len());
    {
        let mut open = Open::new(&transaction)?;
        for job in group {
            answers.push(match job {
                Job::Commit { commits, .. } => Answer::Commit(open.commits(commits, &mut changed)?),
                Job::Erase { task, limit, .. } => {
                    Answer::Erase(open.erase(task, *limit, &mut changed)?)
                }
            });
        }
        if changed {
            let stored = u64::try_from(time.0).unwrap_or(0);
            transaction.open_table(META)?.insert("time", stored)?;
        }
    }
    // Nothing to sync: refusals and repeats speak of what is on disk already.
    if changed {
        transaction.commit()?;
    } else {
        transaction.abort()?;
    }
    Ok((time, answers))
}

/// The tables of one transaction.
struct Open<'a> {
    records: Table<'a, (&'static str, &'static str), &'static [u8]>,
    events: Table<'a, (&'static str, u64), &'static [u8]>,
    indexes: Table<'a, (&'static str, &'static str, &'static str), ()>,
    sizes: Table<'a, (&'static str, &'static str), u64>,
}

impl<'a> Open<'a> {
    fn new(transaction: &'a WriteTransaction) -> Result<Self, Error> {
        Ok(Self {
            records: transaction.open_table(RECORDS)?,
            events: transaction.open_table(EVENTS)?,
            indexes: transaction.open_table(INDEXES)?,
            sizes: transaction.open_table(SIZES)?,
        })
    }

    fn commits(&mut self, commits: &[Commit], changed: &mut bool) -> Result<Vec<Judged>, Error> {
        let mut answers = Vec::with_capacity(commits.len());
        for commit in commits {
            let stands = self.stands(commit)?;
            let writing = !stands && self.allowed(commit)?;
            if writing {
                self.write(commit)?;
                *changed = true;
            }
            let records = read::fields(&self.records, &commit.scope, &commit.returns)?;
            answers.push((stands || writing, records));
        }
        Ok(answers)
    }

    /// Says whether an earlier call applied the commit: its id stands where it would put it.
    fn stands(&self, commit: &Commit) -> Result<bool, Error> {
        let scope = scope_name(&commit.scope);
        if !commit.events.is_empty() {
            let found = self.events.get((&*scope, commit.first_event))?;
            return Ok(found.is_some_and(|event| starts_with(event.value(), commit.id)));
        }
        let Some((field, _)) = commit.writes.iter().find(|(_, bytes)| bytes.is_some()) else {
            return Ok(false);
        };
        let found = self.records.get((&*scope, field.as_str()))?;
        Ok(found.is_some_and(|record| tables::version(record.value()) == Some(commit.id)))
    }

    /// Says whether all guards hold and the events follow the last one without a gap.
    fn allowed(&self, commit: &Commit) -> Result<bool, Error> {
        let scope = scope_name(&commit.scope);
        for guard in &commit.guards {
            let found = self.records.get((&*scope, guard.field.as_str()))?;
            let version = found.and_then(|record| tables::version(record.value()));
            if version != guard.version {
                return Ok(false);
            }
        }
        if commit.events.is_empty() {
            return Ok(true);
        }
        let last = self.events.range((&*scope, 0)..=(&*scope, u64::MAX))?.next_back();
        let next = last.transpose()?.map_or(0, |(key, _)| key.value().1 + 1);
        Ok(next == commit.first_event)
    }

    fn write(&mut self, commit: &Commit) -> Result<(), Error> {
        let scope = scope_name(&commit.scope);
        for (field, bytes) in &commit.writes {
            let key = (&*scope, field.as_str());
            match bytes {
                Some(bytes) => {
                    self.records.insert(key, tables::encode(commit.id, bytes).as_slice())?;
                }
                None => {
                    self.records.remove(key)?;
                }
            }
        }
        for (number, event) in (commit.first_event..).zip(&commit.events) {
            self.events.insert((&*scope, number), event.as_slice())?;
        }
        let home = home_name(commit.scope.home());
        for change in &commit.indexes {
            self.change_index(&home, &change.index, &change.member, change.add)?;
        }
        Ok(())
    }

    fn change_index(
        &mut self,
        home: &str,
        index: &str,
        member: &str,
        add: bool,
    ) -> Result<(), Error> {
        let size = self.sizes.get((home, index))?.map_or(0, |size| size.value());
        let key = (home, index, member);
        let size = match add {
            true if self.indexes.insert(key, ())?.is_none() => size + 1,
            false if self.indexes.remove(key)?.is_some() => size - 1,
            true | false => return Ok(()),
        };
        if size == 0 {
            self.sizes.remove((home, index))?;
        } else {
            self.sizes.insert((home, index), size)?;
        }
        Ok(())
    }

    /// Removes the header, other records, then events, up to `limit`; says whether any is left.
    fn erase(&mut self, task: &TaskId, limit: usize, changed: &mut bool) -> Result<bool, Error> {
        let scope = Scope::Task(task.clone());
        let scope = scope_name(&scope);
        let mut room = limit.max(1);
        if self.records.remove((&*scope, HEADER))?.is_some() {
            room -= 1;
        }
        let fields = self.fields_from(&scope, room)?;
        for field in &fields {
            self.records.remove((&*scope, field.as_str()))?;
        }
        room -= fields.len();
        let numbers = self.numbers_from(&scope, room)?;
        for number in &numbers {
            self.events.remove((&*scope, *number))?;
        }
        *changed = *changed || room < limit.max(1) || !numbers.is_empty();
        Ok(!self.fields_from(&scope, 1)?.is_empty() || !self.numbers_from(&scope, 1)?.is_empty())
    }

    fn fields_from(&self, scope: &str, limit: usize) -> Result<Vec<String>, Error> {
        // Scope names hold no zero byte, so nothing lies between this one and its successor.
        let next = format!("{scope}\0");
        let found = self.records.range((scope, "")..(next.as_str(), ""))?.take(limit);
        found.map(|entry| Ok(entry?.0.value().1.to_owned())).collect()
    }

    fn numbers_from(&self, scope: &str, limit: usize) -> Result<Vec<u64>, Error> {
        let found = self.events.range((scope, 0)..=(scope, u64::MAX))?.take(limit);
        found.map(|entry| Ok(entry?.0.value().1)).collect()
    }
}
