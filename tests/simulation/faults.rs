//! What goes wrong: which faults a world has, how often, and those that last for a while.
//!
//! Each world draws a subset of the faults and a rate for each, so that some worlds have one
//! kind of trouble in plenty and others a little of everything.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::random::Random;

/// One kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A call of the store fails and was not carried out.
    StoreFails,
    /// A call of the store is carried out and its answer is lost.
    AnswerLost,
    /// Of a call with several commits the first ones are carried out; the answer is lost.
    HalfApplied,
    /// A call takes its time on the way there or back.
    SlowAnswer,
    /// The store answers nobody for a while.
    StoreDown,
    /// The store answers nobody for longer than claims last.
    LongOutage,
    /// The store refuses writes for a while.
    ReadOnly,
    /// One process does not reach the store for a while.
    CutOff,
    /// The store's clock jumps forward.
    ClockForward,
    /// The store's clock jumps back; the time it gives stands still meanwhile.
    ClockBack,
    /// A message is taken and vanishes.
    MessageLost,
    /// A message comes twice.
    MessageTwice,
    /// A message comes late, behind others that were sent later.
    MessageLate,
    /// The messages of one call come in another order.
    Reordered,
    /// A publish is not confirmed, whether the message is there or not.
    NotConfirmed,
    /// A queue is emptied.
    Purged,
    /// The broker loses a consumer, who subscribes again after a while.
    ConsumerLost,
    /// The broker answers nobody for a while.
    BrokerDown,
    /// A process is killed and another starts later.
    Killed,
    /// A process stands still for a while, then goes on; its clock has gone on.
    Stopped,
    /// A process stands still for a while, then goes on; its clock has stood still too.
    Suspended,
    /// A process is told to end and hands back what runs.
    ShutDown,
}

impl Fault {
    pub const ALL: [Self; 22] = [
        Self::StoreFails,
        Self::AnswerLost,
        Self::HalfApplied,
        Self::SlowAnswer,
        Self::StoreDown,
        Self::LongOutage,
        Self::ReadOnly,
        Self::CutOff,
        Self::ClockForward,
        Self::ClockBack,
        Self::MessageLost,
        Self::MessageTwice,
        Self::MessageLate,
        Self::Reordered,
        Self::NotConfirmed,
        Self::Purged,
        Self::ConsumerLost,
        Self::BrokerDown,
        Self::Killed,
        Self::Stopped,
        Self::Suspended,
        Self::ShutDown,
    ];

    pub fn name(self) -> String {
        format!("fault {self:?}")
    }
}

/// How much goes wrong in one world.
pub struct Faults {
    rates: BTreeMap<Fault, u64>,
    state: Mutex<State>,
}

/// What lasts, as virtual times since the world began.
#[derive(Default)]
struct State {
    calm: bool,
    store_down: Duration,
    /// When the store did not answer, or took no writes.
    outages: Vec<(Duration, Duration)>,
    read_only: Duration,
    broker_down: Duration,
    clock: i64,
    /// When the clock was put forward or back, and what it was off by then.
    jumps: Vec<(Duration, i64)>,
}

impl Faults {
    /// Faults of a world where nothing goes wrong by itself.
    pub fn none() -> Self {
        Self { rates: BTreeMap::new(), state: Mutex::default() }
    }

    /// Draws which faults a world has: each is left out of two worlds in five.
    pub fn draw(random: &mut Random) -> Self {
        let mut rates = BTreeMap::new();
        for fault in Fault::ALL {
            let rate = *random.pick(&[10, 30, 100]);
            if random.chance(600) {
                rates.insert(fault, rate);
            }
        }
        Self { rates, state: Mutex::default() }
    }

    /// Draws whether a fault strikes now; `scale` multiplies its rate of up to a tenth.
    pub fn strikes(&self, fault: Fault, scale: u64, random: &Mutex<Random>) -> bool {
        let Some(rate) = self.rates.get(&fault) else { return false };
        !self.is_calm() && random.lock().unwrap().chance(rate * scale)
    }

    /// Draws whether a fault strikes at one of the very many moments where it may: a hundred
    /// times as seldom.
    pub fn strikes_rarely(&self, fault: Fault, scale: u64, random: &Mutex<Random>) -> bool {
        let Some(rate) = self.rates.get(&fault) else { return false };
        !self.is_calm() && random.lock().unwrap().below(100_000) < rate * scale
    }

    /// Gives those of some faults that this world has.
    pub fn of(&self, wanted: &[Fault]) -> Vec<Fault> {
        wanted.iter().copied().filter(|fault| self.rates.contains_key(fault)).collect()
    }

    pub fn is_calm(&self) -> bool {
        self.state.lock().unwrap().calm
    }

    /// From now on nothing goes wrong any more. The clock stays where it has jumped to.
    pub fn calm(&self, now: Duration) {
        let mut state = self.state.lock().unwrap();
        state.outages.iter_mut().for_each(|(_, end)| *end = (*end).min(now));
        state.calm = true;
        (state.store_down, state.read_only, state.broker_down) = Default::default();
    }

    pub fn store_down(&self, now: Duration) -> bool {
        now < self.state.lock().unwrap().store_down
    }

    pub fn read_only(&self, now: Duration) -> bool {
        now < self.state.lock().unwrap().read_only
    }

    pub fn broker_down(&self, now: Duration) -> bool {
        now < self.state.lock().unwrap().broker_down
    }

    /// Gives what the store's clock is off by, in milliseconds.
    pub fn clock(&self) -> i64 {
        self.state.lock().unwrap().clock
    }

    /// Gives from when to when the store did not answer, or took no writes.
    pub fn outages(&self) -> Vec<(Duration, Duration)> {
        self.state.lock().unwrap().outages.clone()
    }

    /// Begins a fault that lasts from now until a time.
    pub fn lasts(&self, fault: Fault, now: Duration, until: Duration) {
        let mut state = self.state.lock().unwrap();
        match fault {
            Fault::StoreDown | Fault::LongOutage => {
                state.store_down = state.store_down.max(until);
                state.outages.push((now, until));
            }
            Fault::ReadOnly => {
                state.read_only = until;
                state.outages.push((now, until));
            }
            Fault::BrokerDown => state.broker_down = until,
            other => panic!("{other:?} does not last"),
        }
    }

    /// Puts the store's clock forward or back.
    pub fn jump(&self, now: Duration, millis: i64) {
        let mut state = self.state.lock().unwrap();
        state.clock += millis;
        let clock = state.clock;
        state.jumps.push((now, clock));
    }

    /// Gives how far the store's clock has been from itself until a time: so far may processes
    /// that remember an old time be from those that do not.
    pub fn clocks_apart_before(&self, time: Duration) -> Duration {
        let state = self.state.lock().unwrap();
        let until = state.jumps.iter().take_while(|(at, _)| *at <= time).map(|(_, clock)| *clock);
        let (least, most) =
            until.fold((0, 0), |(least, most), clock| (clock.min(least), clock.max(most)));
        Duration::from_millis((most - least).unsigned_abs())
    }

    /// True if the store's clock was put forward or back before a time: processes that remember
    /// its old time may have disagreed since.
    pub fn has_jumped_before(&self, time: Duration) -> bool {
        self.state.lock().unwrap().jumps.first().is_some_and(|(jumped, _)| *jumped <= time)
    }
}
