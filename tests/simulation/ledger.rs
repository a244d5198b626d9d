//! The world outside: takes requests, acts on them or not, answers or not, and keeps a ledger of
//! all of it. Nothing in it comes from the product's own records, and what it did stays done.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use standfast_domain::record::EffectClass;

use crate::process::Process;
use crate::random::Random;
use crate::trace::pause;
use crate::world::{World, digest};

/// How often the outside fails one effect.
const FAILURES_MAX: u64 = 3;

/// How the outside treats one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Acts and answers.
    Answers,
    /// Acts; its answer never comes.
    LosesAnswer,
    /// Does not act, and says so.
    Refuses,
    /// Neither acts nor answers.
    Drops,
    /// Acts when the sender has long given up, though within the request's time.
    ActsLate,
    /// Acts and answers at the end of the request's time.
    AnswersLate,
}

impl Way {
    pub const ALL: [Self; 6] = [
        Self::Answers,
        Self::LosesAnswer,
        Self::Refuses,
        Self::Drops,
        Self::ActsLate,
        Self::AnswersLate,
    ];

    pub fn name(self) -> String {
        format!("outside {self:?}")
    }

    fn acts(self) -> bool {
        match self {
            Self::Answers | Self::LosesAnswer | Self::ActsLate | Self::AnswersLate => true,
            Self::Refuses | Self::Drops => false,
        }
    }
}

/// What is sent.
#[derive(Clone, Debug)]
pub struct Request {
    pub task: String,
    pub step: String,
    /// The effect's name within its step.
    pub name: String,
    pub key: String,
    pub class: EffectClass,
    pub body: Value,
    /// By what the outside can find it again, without knowing any key.
    pub about: Value,
    pub attempt: u32,
    /// How long it may take once it is sent.
    pub timeout: Duration,
    /// True if its process stood still between the product's last look at the clock and the
    /// sending, or its clock had stood still before: nothing could have held it back.
    pub unaware: bool,
    /// True if its clock stood still lately, so that its claim may seem to hold and does not.
    pub behind: bool,
}

/// One request that came.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When, as a line of the trace.
    pub moment: u64,
    /// When, since the world began.
    pub at: Duration,
    pub request: Request,
    /// Digest of its bytes.
    pub bytes: u64,
    pub process: String,
    pub way: Way,
    /// When the outside acted on it, as a line of the trace.
    pub acted: Option<u64>,
    /// When its sender heard the answer, as a line of the trace.
    pub heard: Option<u64>,
    /// True if the sender's code has handed the answer on.
    pub told: bool,
    /// True if the product did not take its receipt.
    pub not_taken: bool,
}

impl Sent {
    /// True if its sender knew before a moment that the outside had not acted.
    pub fn was_refused_before(&self, moment: u64) -> bool {
        self.way == Way::Refuses && self.heard.is_some_and(|heard| heard < moment)
    }

    /// Gives the generation that its key names.
    pub fn generation(&self) -> u32 {
        let last = self.request.key.rsplit('/').next();
        last.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{}", self.request.key))
    }
}

/// One question whether something had happened, and the answer.
#[derive(Clone, Debug)]
pub struct Checked {
    pub moment: u64,
    pub task: String,
    pub step: String,
    pub name: String,
    pub happened: bool,
}

/// What a sender hears.
#[derive(Debug)]
pub enum Reply {
    /// It has happened; the number of the receipt.
    Receipt(usize),
    /// It has not.
    Refused,
    /// Nothing.
    Silence,
}

/// The ledger.
pub struct Ledger {
    sent: Mutex<Vec<Sent>>,
    checks: Mutex<Vec<Checked>>,
    /// In how many of a thousand cases it does not simply act and answer.
    trouble: u64,
    /// How often it will still fail to, by effect: what fails for ever never ends.
    patience: Mutex<BTreeMap<String, u64>>,
}

impl Ledger {
    pub fn draw(random: &mut Random) -> Self {
        Self::failing(*random.pick(&[0, 150, 400, 750]))
    }

    /// Makes a world outside that fails in so many of a thousand cases.
    pub fn failing(trouble: u64) -> Self {
        let patience = Mutex::default();
        Self { sent: Mutex::default(), checks: Mutex::default(), trouble, patience }
    }

    pub fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    pub fn checks(&self) -> Vec<Checked> {
        self.checks.lock().unwrap().clone()
    }

    fn way(&self, world: &World, key: &str) -> Way {
        if !self.fails(world, key) {
            return Way::Answers;
        }
        *world.random.lock().unwrap().pick(&Way::ALL)
    }

    /// Draws whether something goes wrong outside. It knows nothing of the calm within.
    pub fn fails(&self, world: &World, key: &str) -> bool {
        let mut patience = self.patience.lock().unwrap();
        let left = patience.entry(key.to_owned()).or_insert(FAILURES_MAX);
        let fails = *left > 0 && world.chance(self.trouble);
        *left -= u64::from(fails);
        fails
    }

    /// Takes a request; gives its number.
    fn take(&self, process: &Process, request: Request, way: Way) -> usize {
        let (world, mut sent) = (&process.world, self.sent.lock().unwrap());
        let number = sent.len();
        let bytes = digest(request.body.to_string().as_bytes());
        let (key, class) = (&request.key, request.class);
        let moment = world.trace.say(
            &process.name,
            format_args!(
                "send {number}: {key} ({class}) of {bytes:x}, attempt {}: {way:?}",
                request.attempt
            ),
        );
        world.trace.count(&format!("sent {class}"));
        world.trace.count(&way.name());
        let (acted, heard, told, not_taken) = (None, None, false, false);
        let (at, process) = (world.trace.elapsed(), process.name.clone());
        sent.push(Sent { moment, at, request, bytes, process, way, acted, heard, told, not_taken });
        number
    }

    /// Acts on a request: on an idempotent one only if nothing came under its key before.
    fn act(&self, world: &World, number: usize) {
        let mut sent = self.sent.lock().unwrap();
        let moment = world.trace.say("out", format_args!("acts on {number}"));
        if known(&sent, number).is_none() {
            sent[number].acted = Some(moment);
        }
    }

    fn heard(&self, process: &Process, number: usize) -> Reply {
        let mut sent = self.sent.lock().unwrap();
        let way = sent[number].way;
        let moment =
            process.world.trace.say(&process.name, format_args!("hears of {number}: {way:?}"));
        sent[number].heard = Some(moment);
        match way.acts() {
            true => Reply::Receipt(known(&sent, number).unwrap_or(number)),
            false => Reply::Refused,
        }
    }

    /// Notes that the sender's code has handed the answer on.
    pub fn told(&self, number: usize) {
        self.sent.lock().unwrap()[number].told = true;
    }

    /// Notes that the product did not take a receipt.
    pub fn not_taken(&self, number: usize) {
        self.sent.lock().unwrap()[number].not_taken = true;
    }

    /// Looks for what has happened under a key, as a person would.
    pub fn look(&self, key: &str) -> Option<Value> {
        let sent = self.sent.lock().unwrap();
        let found = sent.iter().position(|sent| sent.request.key == key && sent.acted.is_some());
        found.map(receipt)
    }

    /// Gives what it acted on, if a receipt names that.
    pub fn receipted<'s>(sent: &'s [Sent], receipt: &Value) -> Option<&'s Sent> {
        let number = usize::try_from(receipt["receipt"].as_u64()?).ok()?;
        sent.get(number).filter(|sent| sent.acted.is_some())
    }
}

/// Gives the request under the same key on which the outside has acted already, if it knows keys.
fn known(sent: &[Sent], number: usize) -> Option<usize> {
    let one = &sent[number].request;
    if one.class != EffectClass::Idempotent {
        return None;
    }
    sent.iter().position(|other| other.request.key == one.key && other.acted.is_some())
}

/// What proves that a request was acted on.
pub fn receipt(number: usize) -> Value {
    json!({ "receipt": number })
}

/// Sends a request and waits for what comes back. Once it has left, it gets there whatever
/// becomes of its sender. Gives its number too.
pub async fn send(process: &Arc<Process>, request: Request) -> (usize, Reply) {
    let (world, timeout) = (process.world.clone(), request.timeout);
    let way = world.ledger.way(&world, &request.key);
    let soon = world.span(1, 300);
    let most = u64::try_from(timeout.as_millis()).unwrap();
    let late = world.span(most / 2, most - 1);
    let number = world.ledger.take(process, request, way);
    let (acts_after, comes_back) = match way {
        Way::Answers | Way::Refuses => (soon, Some(soon * 2)),
        Way::LosesAnswer | Way::Drops => (soon, None),
        Way::ActsLate => (late, None),
        Way::AnswersLate => (late, Some(late + Duration::from_millis(1))),
    };
    if way.acts() {
        let outside = world.clone();
        tokio::spawn(async move {
            pause(acts_after).await;
            outside.ledger.act(&outside, number);
        });
    }
    let left = world.trace.elapsed();
    process.pass_at("after send").await;
    let Some(back) = comes_back else {
        let breaks = world.span(0, most);
        pause(breaks).await;
        process.pass().await;
        return (number, Reply::Silence);
    };
    pause(back).await;
    process.pass().await;
    if world.trace.elapsed() > left + timeout {
        return (number, Reply::Silence); // it stood still, and the connection is gone
    }
    (number, world.ledger.heard(process, number))
}

/// Asks the outside whether something has happened; `None`: it gives no answer.
pub async fn check(
    process: &Arc<Process>,
    (task, step, name): (&str, &str, &str),
    about: &Value,
) -> Option<Option<Value>> {
    let world = &process.world;
    let silent = world.ledger.fails(world, &format!("{task}/{step}/{name} is asked for"));
    let there = world.span(1, 300);
    pause(there).await;
    if silent {
        world.trace.count("check unanswered");
        process.pass().await;
        return None;
    }
    let found = {
        let sent = world.ledger.sent.lock().unwrap();
        sent.iter().position(|Sent { request, acted, .. }| {
            let same = request.task == task && request.step == step && request.name == name;
            same && request.about == *about && acted.is_some()
        })
    };
    let happened = found.is_some();
    let moment =
        world.trace.say(&process.name, format_args!("checks {task}/{step}/{name}: {happened}"));
    world.trace.count(&format!("check {}", if happened { "yes" } else { "no" }));
    let (task, step, name) = (task.to_owned(), step.to_owned(), name.to_owned());
    let checked = Checked { moment, task, step, name, happened };
    world.ledger.checks.lock().unwrap().push(checked);
    process.pass().await;
    Some(found.map(receipt))
}
