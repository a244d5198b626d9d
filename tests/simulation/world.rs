//! One world: a store, its processes, the people who use it, and what was seen of it all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use standfast_brokers::in_process::InProcessBroker;
use standfast_domain::commit::{Commit, Scope};
use standfast_domain::event::{Change, Event, decode_event};
use standfast_domain::hold::Answer;
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::record::{Key, Record, Standing};
use standfast_domain::time::{Span, Time};
use standfast_engine::Engine;
use standfast_engine::blobs::Blobs;
use standfast_engine::claims::CLAIM_LENGTH;
use standfast_tests::memory_store::{Applied, Contents, MemoryStore};
use tokio_util::sync::CancellationToken;

use crate::faults::Faults;
use crate::ledger::{Checked, Ledger, Sent};
use crate::outside::{Outside, Start};
use crate::process::Process;
use crate::random::Random;
use crate::stops::Stops;
use crate::trace::Trace;

/// When every world begins: 2027-01-15, in milliseconds.
const BEGINNING: i64 = 1_800_000_000_000;

/// An event, and when it was stored.
#[derive(Clone, Debug)]
pub struct Seen {
    /// As a line of the trace.
    pub moment: u64,
    /// The line of its commit.
    pub commit: u64,
    /// Since the world began.
    pub elapsed: Duration,
    pub event: Event,
}

/// A claim, and when it was stored first.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    pub moment: u64,
    pub epoch: u32,
    /// Since the world began.
    pub elapsed: Duration,
}

/// Everything that is to be judged, as it was at one moment.
pub struct Snapshot {
    pub contents: Contents,
    pub history: History,
    pub starts: Vec<Start>,
    pub sent: Vec<Sent>,
    pub checks: Vec<Checked>,
    pub said: Vec<Said>,
}

/// What a person said of an effect, or wants to be done about it.
#[derive(Clone, Debug)]
pub struct Said {
    pub task: TaskId,
    pub step: StepId,
    pub answer: Answer,
    /// When the person had looked at the outside's ledger, as a line of the trace.
    pub looked: u64,
}

/// What commits have brought.
#[derive(Clone, Default)]
pub struct History {
    pub events: BTreeMap<TaskId, Vec<Seen>>,
    pub claims: BTreeMap<(TaskId, StepId, u32), Granted>,
}

/// A task whose submission was acknowledged, and what its client was told later.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// When a stop was acknowledged, as a line of the trace.
    pub stopped: Option<u64>,
    /// True if somebody asked for a stop, or answered with one, whether that was taken or not.
    pub asked_stop: bool,
    /// Attempts that somebody wanted stopped.
    pub stopped_attempts: BTreeSet<(StepId, u32)>,
}

/// A change, and for how long who commits it is cut off.
type CutsOff = (fn(&Change) -> bool, Duration);

/// Says of a commit whether it fails.
type Fails = fn(&Commit) -> bool;

/// The world.
pub struct World {
    pub trace: Arc<Trace>,
    pub random: Mutex<Random>,
    pub faults: Arc<Faults>,
    pub store: Arc<MemoryStore>,
    pub blobs: Blobs,
    pub outside: Outside,
    pub ledger: Ledger,
    pub history: Mutex<History>,
    /// By the task's key.
    pub told: Mutex<BTreeMap<String, (TaskId, Told)>>,
    /// What the person has said of effects, whether that was taken or not.
    pub said: Mutex<Vec<Said>>,
    /// All processes that ever ran, by name.
    pub processes: Mutex<BTreeMap<String, Arc<Process>>>,
    /// Which change cuts off the process that commits it, before it hears so, and for how long.
    pub cuts_off: Mutex<Option<CutsOff>>,
    /// Which commits fail, as if the store were away for that moment.
    pub fails: Mutex<Option<Fails>>,
    /// What stops were to do, looked at in the very commits that brought them.
    pub stops: Mutex<Stops>,
    /// Where the api is, while one runs.
    pub api: Mutex<Option<Engine>>,
    /// The queues that messages go through now.
    pub queues: Mutex<InProcessBroker>,
    /// How long a claim lasts unless renewed.
    pub claim_length: Span,
    /// Cancelled when nothing goes wrong any more.
    pub calm: CancellationToken,
    /// Cancelled when nobody asks for anything any more.
    pub over: CancellationToken,
}

impl World {
    pub fn new(seed: u64) -> Arc<Self> {
        let mut random = Random::new(seed);
        let faults = Faults::draw(&mut random);
        let ledger = Ledger::draw(&mut random);
        let claim_length = Span::from_secs(random.between(5, 30));
        Self::of(random, faults, ledger, claim_length)
    }

    /// Makes a world where nothing goes wrong by itself, with claims of the usual length.
    pub fn quiet(seed: u64) -> Arc<Self> {
        Self::of(Random::new(seed), Faults::none(), Ledger::failing(0), CLAIM_LENGTH)
    }

    fn of(random: Random, faults: Faults, ledger: Ledger, claim_length: Span) -> Arc<Self> {
        let trace = Arc::new(Trace::new());
        let faults = Arc::new(faults);
        let (clock, jumps) = (trace.clone(), faults.clone());
        let now = move || {
            let elapsed = i64::try_from(clock.elapsed().as_millis()).unwrap();
            Time(BEGINNING + elapsed + jumps.clock())
        };
        Arc::new(Self {
            trace,
            random: Mutex::new(random),
            faults,
            store: Arc::new(MemoryStore::new(now)),
            blobs: Blobs::in_memory(),
            outside: Outside::default(),
            ledger,
            history: Mutex::default(),
            told: Mutex::default(),
            said: Mutex::default(),
            processes: Mutex::default(),
            cuts_off: Mutex::default(),
            fails: Mutex::default(),
            stops: Mutex::default(),
            api: Mutex::default(),
            queues: Mutex::default(),
            claim_length,
            calm: CancellationToken::new(),
            over: CancellationToken::new(),
        })
    }

    /// Takes down how everything stands.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            contents: self.store.contents().clone(),
            history: self.history.lock().unwrap().clone(),
            starts: self.outside.starts(),
            sent: self.ledger.sent(),
            checks: self.ledger.checks(),
            said: self.said.lock().unwrap().clone(),
        }
    }

    /// Draws a span of so many milliseconds.
    pub fn span(&self, first: u64, last: u64) -> Duration {
        self.random.lock().unwrap().millis(first, last)
    }

    /// Draws a number from `first` to `last`, both included.
    pub fn between(&self, first: u64, last: u64) -> u64 {
        self.random.lock().unwrap().between(first, last)
    }

    pub fn chance(&self, permille: u64) -> bool {
        self.random.lock().unwrap().chance(permille)
    }

    /// Writes down what a commit has come to.
    pub fn saw_commit(&self, process: &str, commit: &Commit, applied: &Applied) {
        let came = match (applied.written, applied.answer.applied) {
            (true, _) => "written",
            (false, true) => "repeated",
            (false, false) => "refused",
        };
        let mut text = format!("commit {} {came} {}", commit.id, scope_name(&commit.scope));
        for (field, bytes) in &commit.writes {
            let _ = write!(text, " {field}={:x}", bytes.as_deref().map_or(0, digest));
        }
        for change in &commit.indexes {
            let sign = if change.add { '+' } else { '-' };
            let _ = write!(text, " {sign}{}:{}", change.index, change.member);
        }
        let moment = self.trace.say(process, format_args!("{text}"));
        self.trace.count(&format!("commit {came}"));
        if !applied.written {
            return;
        }
        if let Scope::Task(task) = &commit.scope {
            self.saw_records(task, commit, moment);
            self.saw_events(process, task, commit, moment);
        }
    }

    fn saw_records(&self, task: &TaskId, commit: &Commit, moment: u64) {
        for (field, bytes) in &commit.writes {
            let Some(bytes) = bytes else { continue };
            match field.split_once('/') {
                None if field == "header" => self.count_word("task", bytes, "\"state\":\""),
                None => {}
                Some(("step", _)) => self.count_word("step", bytes, "\"status\":\""),
                Some(("claim", name)) => {
                    let step = StepId::new(name).unwrap();
                    let key = Key::Claim(step.clone());
                    let Ok(Record::Claim(claim)) = Record::decode(&key, bytes) else { continue };
                    self.trace.count("step running");
                    let mut history = self.history.lock().unwrap();
                    let place = (task.clone(), step, claim.attempt);
                    let (epoch, elapsed) = (claim.epoch, self.trace.elapsed());
                    let granted = Granted { moment, epoch, elapsed };
                    history.claims.entry(place).or_insert(granted);
                }
                Some(("effects", name)) => self.count_effects(name, bytes),
                Some(_) => {}
            }
        }
    }

    fn cut_off_at(&self, process: &str, change: &Change) {
        let mut cuts_off = self.cuts_off.lock().unwrap();
        if let Some((_, span)) = cuts_off.take_if(|(wanted, _)| wanted(change)) {
            let process = self.processes.lock().unwrap()[process].clone();
            process.cut_off(self.trace.elapsed() + span);
        }
    }

    fn count_effects(&self, step: &str, bytes: &[u8]) {
        let key = Key::Effects(StepId::new(step).unwrap());
        let Ok(Record::Effects(effects)) = Record::decode(&key, bytes) else { return };
        for effect in effects.values() {
            let standing = match &effect.standing {
                Standing::InFlight => "in flight",
                Standing::Uncertain { .. } => "uncertain",
                Standing::Landed { .. } => "landed",
                Standing::NotLanded { how, .. } => how.as_str(),
            };
            self.trace.count(&format!("effect {standing}"));
        }
    }

    /// Counts the word that stands behind a mark in a record.
    fn count_word(&self, what: &str, bytes: &[u8], mark: &str) {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let word = text.split_once(mark).and_then(|(_, rest)| rest.split('"').next());
        self.trace.count(&format!("{what} {}", word.unwrap_or("?")));
    }

    fn saw_events(&self, process: &str, task: &TaskId, commit: &Commit, line: u64) {
        for (number, bytes) in (commit.first_event..).zip(&commit.events) {
            let event = decode_event(number, bytes).expect("an event as it was encoded").event;
            let said = serde_json::to_string(&event).expect("events are plain data");
            let moment = self.trace.say(process, format_args!("event {task} {said}"));
            self.trace.count(&format!("event {}", event.change.type_name()));
            match &event.change {
                Change::AttemptFailed { class, .. } => {
                    self.trace.count(&format!("failure {}", class.as_str()));
                }
                Change::StepHeld { hold, .. } | Change::TaskHeld { hold } => {
                    self.trace.count(&format!("hold {}", hold.reason));
                }
                Change::HoldAnswered { answer, .. } => {
                    self.trace.count(&format!("answer {answer}"));
                }
                Change::StepSkipped { reason, .. } => {
                    self.trace.count(&format!("skipped {reason:?}"));
                }
                Change::StopRequested { mode, plan_sha256, .. } => {
                    self.trace.count(&format!("stop with {}", mode.as_str()));
                    if plan_sha256.is_some() {
                        self.trace.count("stop by digest");
                    }
                }
                Change::StepSucceeded { step, .. } if step.undone().is_some() => {
                    self.trace.count("undo landed");
                }
                _ => {}
            }
            self.cut_off_at(process, &event.change);
            let mut history = self.history.lock().unwrap();
            let elapsed = self.trace.elapsed();
            let seen = Seen { moment, commit: line, elapsed, event };
            history.events.entry(task.clone()).or_default().push(seen);
        }
    }
}

fn scope_name(scope: &Scope) -> String {
    match scope {
        Scope::Task(task) => task.to_string(),
        Scope::Partition(partition) => format!("partition {}", partition.number()),
        Scope::Installation => "installation".to_owned(),
    }
}

/// Gives a short digest (FNV-1a), for comparison only.
pub fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
