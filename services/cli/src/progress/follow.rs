//! Follows a task to its end, or to where only a person can move it.
//!
//! Events say which steps changed; what is shown is read from the steps themselves. Only an
//! attempt that failed and was not its step's end is shown from its event: the step does not
//! keep it. A reading beside the events tells what makes none: progress within an attempt, a
//! silent worker, a worker that is missing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use standfast_domain::time::{Span, Time};
use standfast_protocol::events::{EventQuery, EventView};
use standfast_protocol::limits::PAGE_LIMIT_MAX;
use standfast_protocol::steps::{StepState, StepView};
use standfast_protocol::tasks::TaskView;
use standfast_sdk::{Client, Error};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::all_steps;
use super::end::Ended;
use super::news::{Failure as FailedAttempt, Heard, News};
use super::people::needs_person;
use super::screen::Screen;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{Look, now};
use crate::show::quantities::between;
use crate::show::steps::{self, Widths, line};

/// Events taken in before they are shown.
const EVENTS_AHEAD: usize = 256;
/// Changed steps that are read one by one; more are read in pages.
const SINGLE_READS_MAX: usize = 20;
/// How often what makes no event is read, in rounds of the screen's interval.
const ROUNDS_A_READING: u32 = 5;
/// How long the last events of a task that has ended, or stands still, are waited for.
const LAST_EVENTS: Duration = Duration::from_secs(2);
const LAST_EVENTS_OF_STANDING: Duration = Duration::from_millis(200);

/// What is followed, and until when.
pub struct Watch<'a> {
    /// The api.
    pub client: &'a Client,
    /// The task's id.
    pub task: &'a str,
    /// Whether the task is new, so that all of its events are news.
    pub fresh: bool,
    /// Whether to go on where only a person can move the task.
    pub wait_for_people: bool,
    /// How to show it.
    pub look: Look,
}

/// Follows a task and shows its steps.
pub async fn follow(watch: &Watch<'_>, screen: &Screen) -> Result<Ended, Failure> {
    let cursor = match watch.fresh {
        true => None,
        false => end_of_events(watch.client, watch.task).await?,
    };
    let mut events = Events::start(watch.client, watch.task, cursor);
    let mut following = Following::start(watch, screen).await?;
    let mut ticker = tokio::time::interval(screen.interval());
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds = 0;
    loop {
        if following.exit().is_some() {
            following.failures(events.rest(following.task.state.is_ended()).await?)?;
            // The steps were read before the task: some may have settled in between.
            following.reread().await?;
            if let Some(exit) = following.exit() {
                return following.end(exit);
            }
        }
        tokio::select! {
            arrived = events.next() => match arrived? {
                Some(news) => following.heard(news).await?,
                None => following.reread().await?,
            },
            _ = ticker.tick() => {
                rounds += 1;
                if rounds % ROUNDS_A_READING == 0 {
                    following.look_at_open_steps().await?;
                }
            }
        }
        following.draw();
    }
}

/// Gives the cursor after the last event so far: what came before shows in the steps.
async fn end_of_events(client: &Client, task: &str) -> Result<Option<String>, Failure> {
    let mut after = None;
    loop {
        let query = EventQuery { after, limit: Some(PAGE_LIMIT_MAX), ..EventQuery::default() };
        let page = client.event_page(task, &query).await?;
        if page.ended || page.events.len() < PAGE_LIMIT_MAX as usize {
            return Ok(Some(page.next));
        }
        after = Some(page.next);
    }
}

/// The events, taken in by a task of their own so that waiting for them can be broken off.
struct Events {
    arriving: mpsc::Receiver<Result<EventView, Error>>,
    pump: tokio::task::JoinHandle<()>,
    heard: Heard,
}

impl Events {
    fn start(client: &Client, task: &str, after: Option<String>) -> Self {
        let mut events = client.events(task, after);
        let (sender, arriving) = mpsc::channel(EVENTS_AHEAD);
        let pump = tokio::spawn(async move {
            while let Some(event) = events.next().await.transpose() {
                let failed = event.is_err();
                if sender.send(event).await.is_err() || failed {
                    return;
                }
            }
        });
        Self { arriving, pump, heard: Heard::default() }
    }

    /// Gives what the events that have arrived tell; nothing once the task has ended.
    async fn next(&mut self) -> Result<Option<News>, Failure> {
        let Some(first) = self.arriving.recv().await else { return Ok(None) };
        let mut news = News::default();
        self.heard.note(&mut news, first?);
        while let Ok(event) = self.arriving.try_recv() {
            self.heard.note(&mut news, event?);
        }
        Ok(Some(news))
    }

    /// Gives what the last events tell: those of an ended task come to an end.
    async fn rest(&mut self, ended: bool) -> Result<News, Failure> {
        let bound = if ended { LAST_EVENTS } else { LAST_EVENTS_OF_STANDING };
        let deadline = tokio::time::Instant::now() + bound;
        let mut news = News::default();
        while let Ok(Some(event)) = tokio::time::timeout_at(deadline, self.arriving.recv()).await {
            self.heard.note(&mut news, event?);
        }
        Ok(news)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// What is known of the task and what of it was shown.
struct Following<'a> {
    watch: &'a Watch<'a>,
    screen: &'a Screen,
    task: TaskView,
    /// By id, with the place in the plan.
    steps: BTreeMap<String, (usize, StepView)>,
    shown: BTreeMap<String, (StepState, u32, u32)>,
    widths: Widths,
    /// Since when only a person can move the task.
    person_since: Option<Instant>,
    waited: Span,
}

impl<'a> Following<'a> {
    async fn start(watch: &'a Watch<'a>, screen: &'a Screen) -> Result<Self, Failure> {
        let task = watch.client.get(watch.task).await?;
        let mut following = Self {
            watch,
            screen,
            task,
            steps: BTreeMap::new(),
            shown: BTreeMap::new(),
            widths: Widths::default(),
            person_since: None,
            waited: Span(0),
        };
        following.reread().await?;
        Ok(following)
    }

    fn look(&self) -> Look {
        Look { now: now(), ..self.watch.look }
    }

    /// Reads the task and all of its steps.
    async fn reread(&mut self) -> Result<(), Failure> {
        let steps = all_steps(self.watch.client, self.watch.task).await?;
        steps.iter().for_each(|step| self.widths.include(step));
        for (place, step) in steps.into_iter().enumerate() {
            self.take(Some(place), step)?;
        }
        self.read_task().await
    }

    /// Shows what failed on the way; reads the task and the steps that changed.
    async fn heard(&mut self, news: News) -> Result<(), Failure> {
        let changed = news.changed.clone();
        let added = changed.iter().any(|step| !self.steps.contains_key(step));
        self.failures(news)?;
        if added || changed.len() > SINGLE_READS_MAX {
            return self.reread().await;
        }
        let mut steps = Vec::with_capacity(changed.len());
        for step in changed {
            steps.push(self.watch.client.step(self.watch.task, &step).await?);
        }
        // What settled first stands first; times of this form sort as texts.
        steps.sort_by(|one, other| one.ended_at.cmp(&other.ended_at));
        for step in steps {
            self.take(None, step)?;
        }
        self.read_task().await
    }

    /// Shows attempts that failed and were not their steps' end.
    fn failures(&self, news: News) -> Result<(), Failure> {
        for failed in news.failures {
            self.screen.settled(&self.failed_line(&failed))?;
        }
        Ok(())
    }

    fn failed_line(&self, failed: &FailedAttempt) -> String {
        let uses = self.steps.get(&failed.step).map_or("", |(_, step)| &step.uses);
        let shown = steps::FailedAttempt {
            step: &failed.step,
            uses,
            millis: between(&failed.started_at, &failed.at),
            at: &failed.at,
            class: &failed.class,
            message: &failed.message,
            then: &failed.then,
        };
        steps::failed_line(&shown, self.widths, &self.look())
    }

    /// Reads what may have changed without an event.
    async fn look_at_open_steps(&mut self) -> Result<(), Failure> {
        let open = self.steps.values().filter(|(_, step)| is_open(step.state));
        let open: Vec<String> = open.map(|(_, step)| step.id.clone()).collect();
        for step in open.into_iter().take(SINGLE_READS_MAX) {
            let step = self.watch.client.step(self.watch.task, &step).await?;
            self.take(None, step)?;
        }
        self.read_task().await
    }

    async fn read_task(&mut self) -> Result<(), Failure> {
        self.task = self.watch.client.get(self.watch.task).await?;
        match (needs_person(&self.task), self.person_since) {
            (true, None) => self.person_since = Some(Instant::now()),
            (false, Some(since)) => {
                let millis = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.waited = Span(self.waited.0.saturating_add(millis));
                self.person_since = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
        Ok(())
    }

    /// Takes a step in, and shows it for good if it has settled or, where nothing is redrawn,
    /// come to a stand.
    fn take(&mut self, place: Option<usize>, step: StepView) -> Result<(), Failure> {
        let known = self.steps.get(&step.id).map(|(place, _)| *place);
        let place = place.or(known).unwrap_or(self.steps.len());
        let now = (step.state, step.round, step.attempt);
        // That it is tried again was told by the attempt that failed, unless that was before.
        let told = step.state == StepState::Retrying && known.is_some();
        let stands = !self.screen.is_live() && is_halted(&step) && !told;
        let worth_a_line = is_settled(step.state) || stands;
        if worth_a_line && self.shown.get(&step.id) != Some(&now) {
            self.screen.settled(&line(&step, self.widths, &self.look()))?;
            self.shown.insert(step.id.clone(), now);
        }
        self.steps.insert(step.id.clone(), (place, step));
        Ok(())
    }

    fn draw(&self) {
        let look = self.look();
        let open = self.steps.values().filter(|(_, step)| is_under_way(step));
        let mut open: Vec<&(usize, StepView)> = open.collect();
        open.sort_by_key(|(place, _)| *place);
        self.screen
            .live(open.into_iter().map(|(_, step)| line(step, self.widths, &look)).collect());
    }

    /// Gives the exit code if following is over.
    fn exit(&self) -> Option<Exit> {
        let stands_still = needs_person(&self.task) && !self.watch.wait_for_people;
        Exit::of_ended(self.task.state).or(stands_still.then_some(Exit::NeedsPerson))
    }

    /// Ends the redrawing and says how it ended.
    fn end(&self, exit: Exit) -> Result<Ended, Failure> {
        self.screen.finish();
        if exit == Exit::NeedsPerson && self.screen.is_live() {
            let held = self.steps.values().filter(|(_, step)| step.state == StepState::Held);
            for (_, step) in held {
                self.screen.settled(&line(step, self.widths, &self.look()))?;
            }
        }
        let steps = self.steps.values().map(|(_, step)| step);
        let work = steps.filter_map(work_of).fold(Span(0), |sum, span| Span(sum.0 + span.0));
        Ok(Ended { task: self.task.clone(), exit, work, waited: self.waited })
    }
}

/// How long the last attempt of a step took that has settled.
fn work_of(step: &StepView) -> Option<Span> {
    let ended_at = steps::attempt_end(step)?;
    let started_at = Time::parse_rfc3339(step.started_at.as_deref()?)?;
    Some(Time::parse_rfc3339(ended_at)?.since(started_at))
}

/// Steps that have settled keep their line.
fn is_settled(state: StepState) -> bool {
    match state {
        StepState::Succeeded | StepState::Failed | StepState::Skipped | StepState::Cancelled => {
            true
        }
        StepState::Pending
        | StepState::Ready
        | StepState::Running
        | StepState::Retrying
        | StepState::Held => false,
    }
}

/// Steps whose view may change without an event.
fn is_open(state: StepState) -> bool {
    matches!(state, StepState::Ready | StepState::Running)
}

/// Steps that came to a stand, for a moment or for longer.
fn is_halted(step: &StepView) -> bool {
    match step.state {
        StepState::Held | StepState::Retrying => true,
        StepState::Ready => step.waiting_for.is_some(),
        StepState::Running => step.stalled,
        StepState::Pending
        | StepState::Succeeded
        | StepState::Failed
        | StepState::Skipped
        | StepState::Cancelled => false,
    }
}

/// Steps that are worth a line while they last.
fn is_under_way(step: &StepView) -> bool {
    step.state == StepState::Running || is_halted(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::samples::step;

    #[test]
    fn work_is_the_time_between_start_and_end() {
        assert_eq!(work_of(&step("a", StepState::Succeeded)), Some(Span(120)));
        assert_eq!(work_of(&step("a", StepState::Running)), None);
        let mut held = step("a", StepState::Failed);
        held.ended_at = Some("2026-11-29T15:00:00.000Z".to_owned());
        held.attempt_ended_at = Some("2026-11-29T14:14:10.700Z".to_owned());
        assert_eq!(work_of(&held), Some(Span(200)), "without the hold");
    }

    #[test]
    fn a_ready_step_is_shown_only_when_something_is_in_its_way() {
        let mut ready = step("a", StepState::Ready);
        assert!(!is_under_way(&ready));
        ready.waiting_for = Some(standfast_protocol::steps::WaitingFor::NoWorker);
        assert!(is_under_way(&ready));
    }
}
