//! One setting of the check: a plan, how much may go wrong, and what must come to be seen.

#![expect(clippy::disallowed_types, reason = "a checker may use several threads")]

use std::collections::BTreeSet;
use std::sync::Mutex;

use standfast_domain::decide::{Command, Submission};
use standfast_domain::hold::HoldReason;
use standfast_domain::ids::TaskId;
use standfast_domain::outcome::FailureClass;
use standfast_domain::record::{Phase, Status, StopMode, TaskState};
use standfast_domain::time::Time;
use stateright::{Model, Property};

use super::deeds::Deed;
use super::rules::Rule;
use super::state::{Bounds, State};

/// What is seen in what happens rather than in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// The store refused a commit that rested on records from before another one.
    CommitRefused,
    /// An outcome of an attempt that was over was refused.
    LateRefused,
    /// An outcome was told again and changed nothing.
    TakenOnce,
    /// An attempt was taken from its worker.
    TakenOver,
    /// A receipt came after its attempt was over, and ended the hold that waited for it.
    ReceiptEndsHold,
    /// What has happened was sent again, as a person said.
    SentAgain,
    /// An attempt worked although its task was stopped: it drains.
    Drained,
    /// It became known after the task's end that an effect had happened.
    LandedLate,
    /// A stronger stop took the place of a weaker one.
    Strengthened,
    /// A clock struck while the task was paused.
    Postponed,
}

/// A plan, and what may happen to it.
pub struct Setting {
    pub name: &'static str,
    pub submission: Submission,
    pub bounds: Bounds,
    /// Records that one commit changes before what follows waits.
    pub room: usize,
    /// The check of completion that does not hold, if one does not.
    pub fault: Option<&'static str>,
    /// How handlers fail.
    pub fails: &'static [FailureClass],
    /// How a person stops the task.
    pub modes: &'static [StopMode],
    /// True if workers renew their claims.
    pub renews: bool,
    /// What must come to be seen, by the names of [`sights`].
    pub sights: &'static [&'static str],
    pub task: TaskId,
    /// Stores that keep the rules.
    pub sound: Mutex<BTreeSet<u64>>,
    /// States from which a patient world comes to rest.
    pub restful: Mutex<BTreeSet<u64>>,
    pub seen: Mutex<BTreeSet<Sight>>,
}

impl Setting {
    /// Makes a setting in which nothing goes wrong.
    pub fn new(name: &'static str, submission: Submission) -> Self {
        Self {
            name,
            submission,
            bounds: Bounds {
                faults: 0,
                failures: 0,
                answers: 0,
                stops: 0,
                attempt_stops: 0,
                pauses: 0,
            },
            modes: &[StopMode::Halt],
            room: 250,
            fault: None,
            fails: &[],
            renews: false,
            sights: &[],
            task: TaskId::random([7; 16]),
            sound: Mutex::default(),
            restful: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// Raises each bound that is not zero.
    pub fn deeper(self, by: u8) -> Self {
        let more = |bound: u8| if bound == 0 { 0 } else { bound.saturating_add(by) };
        let Bounds { faults, failures, answers, .. } = self.bounds;
        let (faults, failures, answers) = (more(faults), more(failures), more(answers));
        Self { bounds: Bounds { faults, failures, answers, ..self.bounds }, ..self }
    }

    /// Notes that something was seen.
    pub fn see(&self, sight: Sight) {
        self.seen.lock().expect("no check panics").insert(sight);
    }

    fn has_seen(&self, sight: Sight) -> bool {
        self.seen.lock().expect("no check panics").contains(&sight)
    }
}

impl Model for Setting {
    type State = State;
    type Action = Deed;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::new(&self.task, Time(1_000_000), self.bounds);
        let submit = Command::Submit(Box::new(self.submission.clone()));
        let said = self.execute(&mut state, 0, &submit);
        assert_eq!(said, Ok(true), "a new task is accepted");
        vec![state]
    }

    fn actions(&self, state: &State, deeds: &mut Vec<Deed>) {
        if state.broken.is_none() {
            self.possible(state, deeds);
        }
    }

    fn next_state(&self, state: &State, deed: Deed) -> Option<State> {
        Some(self.after(state, &deed))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let wanted = sights().into_iter().filter(|sight| self.sights.contains(&sight.name));
        rules().into_iter().chain(wanted).collect()
    }
}

fn keeps(state: &State, rule: Rule) -> bool {
    state.broken.as_ref().is_none_or(|broken| broken.rule != rule)
}

/// What holds always.
fn rules() -> Vec<Property<Setting>> {
    vec![
        Property::always("an outcome is taken only of the attempt that is claimed", |_, state| {
            keeps(state, Rule::Fences)
        }),
        Property::always("an attempt number starts at most once", |_, state| {
            keeps(state, Rule::Starts)
        }),
        Property::always("no settled step starts again in its round", |_, state| {
            keeps(state, Rule::Settled)
        }),
        Property::always("nothing of the plan starts after a stop", |_, state| {
            keeps(state, Rule::Stops)
        }),
        Property::always("a task that has ended changes no more", |_, state| {
            keeps(state, Rule::Ends)
        }),
        Property::always("the invariants of the records hold", |_, state| {
            keeps(state, Rule::Invariants)
        }),
        Property::always("the indexes hold the entries of the records", |_, state| {
            keeps(state, Rule::Indexes)
        }),
        Property::always("somebody or something can move the task on", |_, state| {
            keeps(state, Rule::Movers)
        }),
        Property::always("no effect is sent again unbidden", |_, state| keeps(state, Rule::Sends)),
        Property::always("what has landed stays so", |_, state| keeps(state, Rule::Receipts)),
        Property::always(
            "each landed effect is undone at most once, the last first",
            |_, state| keeps(state, Rule::Undoes),
        ),
        Property::always("what follows from a command is not refused", |_, state| {
            keeps(state, Rule::FollowUps)
        }),
        Property::always("a patient world ends the task or names a person", |setting, state| {
            setting.comes_to_rest(state)
        }),
    ]
}

fn shows(state: &State, shown: TaskState) -> bool {
    state.header().state == shown
}

fn any(state: &State, is: fn(&Status) -> bool) -> bool {
    state.statuses().any(|(_, status)| is(status))
}

/// Counts the runs of undos that stand so.
fn undos(state: &State, is: impl Fn(&Status) -> bool) -> usize {
    state.statuses().filter(|(step, status)| step.undone().is_some() && is(status)).count()
}

fn done(status: &Status) -> bool {
    matches!(status, Status::Succeeded { .. })
}

fn holds(state: &State, reason: HoldReason) -> bool {
    let of_step = state.statuses().any(|(_, status)| match status {
        Status::Held { hold } => hold.reason == reason,
        _ => false,
    });
    of_step || state.gate().holds.iter().any(|hold| hold.reason == reason)
}

/// What is seen sometimes, in one setting or the other.
pub fn sights() -> Vec<Property<Setting>> {
    let is = Property::<Setting>::sometimes;
    vec![
        is("queued", |_, state| shows(state, TaskState::Queued)),
        is("running", |_, state| shows(state, TaskState::Running)),
        is("waiting", |_, state| shows(state, TaskState::Waiting)),
        is("blocked", |_, state| shows(state, TaskState::Blocked)),
        is("cancelling", |_, state| shows(state, TaskState::Cancelling)),
        is("cancelled", |_, state| shows(state, TaskState::Cancelled)),
        is("completed", |_, state| shows(state, TaskState::Completed)),
        is("failed", |_, state| shows(state, TaskState::Failed)),
        is("a pending step", |_, state| any(state, |status| *status == Status::Pending)),
        is("a ready step", |_, state| any(state, |s| matches!(s, Status::Ready { .. }))),
        is("a claimed step", |_, state| state.claims().next().is_some()),
        is("a retrying step", |_, state| any(state, |s| matches!(s, Status::Retrying { .. }))),
        is("a held step", |_, state| any(state, |s| matches!(s, Status::Held { .. }))),
        is("a step that succeeded", |_, state| {
            any(state, |s| matches!(s, Status::Succeeded { .. }))
        }),
        is("a step that failed", |_, state| any(state, |s| matches!(s, Status::Failed { .. }))),
        is("a skipped step", |_, state| any(state, |s| matches!(s, Status::Skipped { .. }))),
        is("held: timer", |_, state| holds(state, HoldReason::Timer)),
        is("held: paused", |_, state| holds(state, HoldReason::Paused)),
        is("held: failures", |_, state| holds(state, HoldReason::Failures)),
        is("held: worker_died", |_, state| holds(state, HoldReason::WorkerDied)),
        is("held: verification", |_, state| holds(state, HoldReason::Verification)),
        is("held: uncertain_effect", |_, state| holds(state, HoldReason::UncertainEffect)),
        is("held: effect_changed", |_, state| holds(state, HoldReason::EffectChanged)),
        is("held: undo_failed", |_, state| holds(state, HoldReason::UndoFailed)),
        is("what has landed is being undone", |_, state| {
            matches!(state.header().phase, Phase::Undoing { .. })
        }),
        is("two effects are undone", |_, state| undos(state, done) == 2),
        is("an undo is settled by hand", |_, state| {
            undos(state, |s| matches!(s, Status::Skipped { .. })) > 0
        }),
        is("an undo is uncertain", |_, state| {
            let uncertain = |status: &Status| match status {
                Status::Held { hold } => hold.reason == HoldReason::UncertainEffect,
                _ => false,
            };
            undos(state, uncertain) > 0
        }),
        is("an effect lands after the end", |setting, _| setting.has_seen(Sight::LandedLate)),
        is("a step succeeds under a drain", |setting, _| setting.has_seen(Sight::Drained)),
        is("a stop is strengthened", |setting, _| setting.has_seen(Sight::Strengthened)),
        is("a pause", |_, state| state.header().paused),
        is("a clock struck in a pause", |setting, _| setting.has_seen(Sight::Postponed)),
        is("a late receipt ends its hold", |setting, _| setting.has_seen(Sight::ReceiptEndsHold)),
        is("an effect is sent again as bidden", |setting, _| setting.has_seen(Sight::SentAgain)),
        is("a second round", |_, state| state.header().round > 1),
        is("a second epoch", |_, state| state.gate().epoch > 1),
        is("a stale commit is refused", |setting, _| setting.has_seen(Sight::CommitRefused)),
        is("a late outcome is refused", |setting, _| setting.has_seen(Sight::LateRefused)),
        is("a repeated outcome is taken once", |setting, _| setting.has_seen(Sight::TakenOnce)),
        is("an attempt is taken over", |setting, _| setting.has_seen(Sight::TakenOver)),
    ]
}
