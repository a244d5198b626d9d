//! What goes wrong: at each moment something is drawn that breaks, stands still or goes missing,
//! and is brought back a while later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::{Connection, ConnectionProperties};
use standfast_tests::binary::Draw;
use standfast_tests::wait;
use tokio::task::JoinHandle;

use crate::load::Load;
use crate::site::Site;

/// The pause between two looks at what is due.
const TICK: Duration = Duration::from_millis(100);
/// How long a process may take to end after SIGTERM, whatever else is broken.
const ENDING_MAX: Duration = Duration::from_secs(120);
/// How long the broker may take to come back after a kill before it is started once more.
const BROKER_START_MAX: Duration = Duration::from_secs(90);
/// How long one thing asked of the broker may take.
const BROKER_CALL: Duration = Duration::from_secs(10);
/// Freezes are shorter than a request's time and the window before it (`plans.rs`: 20 and 10 s).
/// A worker that is frozen for longer between its last look at the clock and the write to the
/// socket may send once more than it should, which decision 16 says.
const FROZEN_MS_MAX: u64 = 20_000;

/// How a process is.
enum State {
    Up,
    /// Killed; it starts again then.
    Down(Instant),
    /// Frozen; it goes on then.
    Frozen(Instant),
    /// Told to end at that time.
    Ending(Instant),
}

/// Breaks things, and counts what it broke.
pub struct Demon {
    pub site: Site,
    load: Arc<Load>,
    draw: Draw,
    states: Vec<State>,
    /// The broker on its way back.
    booting: Option<Instant>,
    broker_frozen: Option<Instant>,
    store_frozen: Option<Instant>,
    asides: Vec<JoinHandle<()>>,
    pub tried: BTreeMap<String, u64>,
}

impl Demon {
    pub fn new(site: Site, load: Arc<Load>, draw: Draw) -> Self {
        let states = site.members.iter().map(|_| State::Up).collect();
        Self {
            site,
            load,
            draw,
            states,
            booting: None,
            broker_frozen: None,
            store_frozen: None,
            asides: Vec::new(),
            tried: BTreeMap::new(),
        }
    }

    /// Breaks things until the time is over, then brings everything back.
    pub async fn rage(&mut self, until: Instant) {
        let mut next = Instant::now();
        while Instant::now() < until {
            self.look().await;
            if Instant::now() >= next {
                self.strike().await;
                next = Instant::now() + Duration::from_millis(300 + self.draw.below(3_500));
            }
            wait::pass(TICK).await;
        }
        self.relent().await;
    }

    fn count(&mut self, what: impl Into<String>) {
        *self.tried.entry(what.into()).or_default() += 1;
    }

    async fn strike(&mut self) {
        match self.draw.below(100) {
            0..34 => self.kill(),
            34..48 => self.terminate(),
            48..70 => self.freeze(),
            70..75 => self.kill_broker(),
            75..80 => self.freeze_broker(),
            80..85 => self.close_connections(),
            85..90 => self.kill_store().await,
            90..94 => self.freeze_store(),
            94..97 => self.lose_queue(true),
            _ => self.lose_queue(false),
        }
    }

    /// Draws a process that is up.
    fn victim(&mut self) -> Option<usize> {
        let up = |state: &State| matches!(state, State::Up);
        let up: Vec<usize> =
            (0..).zip(&self.states).filter(|(_, state)| up(state)).map(|(n, _)| n).collect();
        let drawn = self.draw.below(u64::MAX) as usize;
        (!up.is_empty()).then(|| up[drawn % up.len()])
    }

    fn later(&mut self, millis: u64) -> Instant {
        Instant::now() + Duration::from_millis(self.draw.below(millis))
    }

    fn kill(&mut self) {
        let Some(number) = self.victim() else { return };
        self.site.members[number].running().kill();
        self.states[number] = State::Down(self.later(4_000));
        self.count(format!("kill -9 {}", self.site.members[number].kind));
    }

    fn terminate(&mut self) {
        let Some(number) = self.victim() else { return };
        self.site.members[number].signal("TERM");
        self.states[number] = State::Ending(Instant::now());
        self.count(format!("SIGTERM {}", self.site.members[number].kind));
    }

    fn freeze(&mut self) {
        let Some(number) = self.victim() else { return };
        self.site.members[number].signal("STOP");
        self.states[number] = State::Frozen(self.later(FROZEN_MS_MAX));
        self.count(format!("freeze {}", self.site.members[number].kind));
    }

    fn broker_is_up(&self) -> bool {
        self.booting.is_none() && self.broker_frozen.is_none()
    }

    fn kill_broker(&mut self) {
        if !self.broker_is_up() {
            return;
        }
        self.site.node.signal("-9");
        self.site.node.launch();
        self.booting = Some(Instant::now());
        self.count("kill -9 broker");
    }

    fn freeze_broker(&mut self) {
        if !self.broker_is_up() {
            return;
        }
        self.site.node.signal("-STOP");
        self.broker_frozen = Some(self.later(15_000));
        self.count("freeze broker");
    }

    fn close_connections(&mut self) {
        if !self.broker_is_up() {
            return;
        }
        let node = self.site.node.clone();
        let closing = async move { node.close_connections().await };
        self.asides.push(tokio::spawn(closing));
        self.count("close all connections");
    }

    async fn kill_store(&mut self) {
        if self.store_frozen.is_none() {
            let down = Duration::from_millis(self.draw.below(6_000));
            self.site.own.redis.kill();
            wait::pass(down).await;
            self.site.own.redis.revive().await;
            self.count("kill -9 store");
        }
    }

    fn freeze_store(&mut self) {
        if self.store_frozen.is_none() {
            self.site.own.redis.signal("STOP");
            self.store_frozen = Some(self.later(12_000));
            self.count("freeze store");
        }
    }

    /// Purges or deletes a queue of steps; submissions are not the product's to remember once
    /// their queue is gone.
    fn lose_queue(&mut self, delete: bool) {
        let names = ["default", "research", "outside"];
        let queue = names[self.draw.below(names.len() as u64) as usize];
        let name = format!("{}.steps.{queue}", self.site.own.place.prefix);
        let url = self.site.node.url();
        let losing = async move {
            let properties = ConnectionProperties::default();
            let connection = Connection::connect(&url, properties).await.ok()?;
            let channel = connection.create_channel().await.ok()?;
            match delete {
                true => channel.queue_delete(name.as_str().into(), Default::default()).await,
                false => channel.queue_purge(name.as_str().into(), Default::default()).await,
            }
            .ok()
        };
        self.asides.push(tokio::spawn(async move {
            let _ = tokio::time::timeout(BROKER_CALL, losing).await;
        }));
        self.count(if delete { "delete a queue" } else { "purge a queue" });
    }

    /// Brings back what is due, and finds who has ended unasked.
    async fn look(&mut self) {
        let now = Instant::now();
        for number in 0..self.states.len() {
            self.look_at(number, now);
        }
        if self.broker_frozen.is_some_and(|at| at <= now) {
            self.site.node.signal("-CONT");
            self.broker_frozen = None;
        }
        if self.store_frozen.is_some_and(|at| at <= now) {
            self.site.own.redis.signal("CONT");
            self.store_frozen = None;
        }
        if let Some(since) = self.booting {
            if self.site.node.answers().await {
                self.booting = None;
            } else if now.duration_since(since) > BROKER_START_MAX {
                self.site.node.launch(); // one that runs all the same keeps its name and port
                self.booting = Some(now);
                self.count("start the broker once more");
            }
        }
    }

    fn look_at(&mut self, number: usize, now: Instant) {
        let kind = self.site.members[number].kind;
        let ended = self.site.members[number].running().0.try_wait().unwrap();
        let state = match &self.states[number] {
            State::Up => match ended {
                Some(_) if self.site.members[number].found_no_service() => {
                    self.count("ended at its start without store or broker");
                    State::Down(now)
                }
                Some(status) => {
                    self.load.blame(format!("{kind} {number} ended by itself: {status}"));
                    State::Down(now)
                }
                None => return,
            },
            State::Down(at) if *at <= now => {
                self.site.again(number);
                State::Up
            }
            State::Frozen(at) if *at <= now => {
                self.site.members[number].signal("CONT");
                State::Up
            }
            State::Ending(since) => match ended {
                Some(status) => {
                    if !status.success() {
                        let what = format!("{kind} {number} ended after SIGTERM with {status}");
                        self.load.blame(what);
                    }
                    State::Down(now)
                }
                None if now.duration_since(*since) > ENDING_MAX => {
                    self.load.blame(format!("{kind} {number} has not ended after SIGTERM"));
                    self.site.members[number].running().kill();
                    State::Down(now)
                }
                None => return,
            },
            State::Down(_) | State::Frozen(_) => return,
        };
        self.states[number] = state;
    }

    /// Brings everything back.
    async fn relent(&mut self) {
        let now = Instant::now();
        self.broker_frozen = self.broker_frozen.map(|_| now);
        self.store_frozen = self.store_frozen.map(|_| now);
        for state in &mut self.states {
            match state {
                State::Down(at) | State::Frozen(at) => *at = now,
                State::Up | State::Ending(_) => {}
            }
        }
        loop {
            self.look().await;
            let up = self.states.iter().all(|state| matches!(state, State::Up));
            if up && self.booting.is_none() {
                break;
            }
            wait::pass(TICK).await;
        }
        for aside in std::mem::take(&mut self.asides) {
            aside.await.unwrap();
        }
    }

    /// Watches over the processes while the rest runs out.
    pub async fn watch(&mut self) {
        loop {
            self.look().await;
            wait::pass(TICK).await;
        }
    }
}
