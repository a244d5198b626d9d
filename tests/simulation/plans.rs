//! Plans from a seed: what is submitted to a world, and when it is to be stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use standfast_domain::record::StopMode;

use crate::outside::{Act, Kind, PLAY};
use crate::random::Random;

/// Steps of a plan that is born in several commits.
const LARGE: u64 = 60;

/// What a client asks of a task while it runs: one variant for each such command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Stop it in that way.
    Stop(StopMode),
    /// Look at what a stop in that way would do, and stop exactly that.
    StopAsShown(StopMode),
    /// Stop one attempt that runs.
    StopAttempt,
    /// Let nothing new start.
    Pause,
    /// End every pause.
    Resume,
}

/// A task that will be submitted.
#[derive(Clone, Debug)]
pub struct Drawn {
    pub key: String,
    pub plan: Value,
    /// When it is submitted.
    pub at: Duration,
    /// What is asked for, and how long after its acknowledgement or the wish before.
    pub wishes: Vec<(Duration, Wish)>,
}

/// What the oracle knows of a step, from the plan alone.
#[derive(Clone, Debug)]
pub struct Promise {
    pub needs: BTreeSet<String>,
    pub max_attempts: u64,
    pub finally: bool,
    /// Fails its task when it fails.
    pub fails: bool,
    /// Has an `undo`.
    pub undo: bool,
    /// Of a timer: how long it waits.
    pub waits: Option<Duration>,
}

impl Drawn {
    /// Gives what is promised of each step of the plan.
    pub fn promises(&self) -> BTreeMap<String, Promise> {
        let of = |name: &str| self.plan[name].as_array().cloned().unwrap_or_default();
        let finally = of("finally").into_iter().map(|step| (step, true));
        let all = of("steps").into_iter().map(|step| (step, false)).chain(finally);
        let promise = |(step, finally): (Value, bool)| {
            let needs = step["needs"].as_array().cloned().unwrap_or_default();
            let needs = needs.iter().map(|need| need.as_str().unwrap().to_owned()).collect();
            let max_attempts = step["retry"]["max_attempts"].as_u64().unwrap_or(3);
            let fails = step["on_failure"] == "fail";
            let id = step["id"].as_str().unwrap().to_owned();
            let undo = step["undo"].is_object();
            let waits = seconds(&step["with"]["for"]).filter(|_| step["uses"] == "timer");
            (id, Promise { needs, max_attempts, finally, fails, undo, waits })
        };
        all.map(promise).collect()
    }

    /// Gives within which time of its submission the task is to end.
    pub fn deadline(&self) -> Option<Duration> {
        seconds(&self.plan["deadline"]["in"])
    }

    pub fn deadline_then(&self) -> Option<&str> {
        self.plan["deadline"]["then"].as_str()
    }
}

/// Draws the tasks of a world that is in trouble for so long.
pub fn draw(random: &mut Random, trouble: Duration) -> Vec<Drawn> {
    let count = random.between(1, 4);
    let latest = u64::try_from(trouble.as_millis()).unwrap() * 6 / 10;
    (0..count)
        .map(|number| {
            let plan = match random.below(100) {
                0..3 => large(random),
                3..15 => again(random),
                _ => plan(random),
            };
            let wishes = wishes(random);
            Drawn { key: format!("task-{number}"), plan, at: random.millis(0, latest), wishes }
        })
        .collect()
}

/// Reads a span that was drawn, which is one of whole seconds.
fn seconds(span: &Value) -> Option<Duration> {
    let seconds = span.as_str()?.strip_suffix('s')?;
    Some(Duration::from_secs(seconds.parse().expect("spans are drawn in seconds")))
}

/// Draws what is asked for, at any moment of a task's life: at times before its first step is
/// born, at times long after its end.
fn wishes(random: &mut Random) -> Vec<(Duration, Wish)> {
    let mut wishes = Vec::new();
    if random.chance(200) {
        wishes.push((random.millis(0, 20_000), Wish::Pause));
        let long = if random.chance(300) { 120_000 } else { 15_000 };
        if random.chance(850) {
            wishes.push((random.millis(0, long), Wish::Resume));
        }
    }
    if random.chance(150) {
        wishes.push((random.millis(0, 15_000), Wish::StopAttempt));
    }
    if random.chance(400) {
        let mode = *random.pick(&StopMode::ALL);
        let shown = random.chance(400);
        let wish = if shown { Wish::StopAsShown(mode) } else { Wish::Stop(mode) };
        wishes.push((random.millis(0, 40_000), wish));
        // Another one comes soon, while attempts still run, or when they have ended.
        while random.chance(450) {
            let mode = *random.pick(&StopMode::ALL);
            let latest = *random.pick(&[300, 2_000, 15_000]);
            wishes.push((random.millis(0, latest), Wish::Stop(mode)));
        }
        if random.chance(200) {
            wishes.push((random.millis(0, 2_000), Wish::StopAttempt));
        }
    }
    wishes
}

fn plan(random: &mut Random) -> Value {
    let count = random.between(1, 7);
    let mut steps: Vec<Value> = Vec::new();
    for number in 0..count {
        steps.push(step(random, &format!("s{number}"), &steps));
    }
    let mut plan = json!({ "kind": "test", "steps": steps, "retention": "30d" });
    let finally: Vec<Value> = (0..random.between(0, 4).saturating_sub(2))
        .map(|number| {
            let mut step = step(random, &format!("f{number}"), &[]);
            step.as_object_mut().unwrap().remove("on_failure");
            step.as_object_mut().unwrap().remove("undo"); // it runs when all is undone
            step
        })
        .collect();
    if !finally.is_empty() {
        plan["finally"] = json!(finally);
    }
    if random.chance(120) {
        let within = format!("{}s", random.between(3, 60));
        plan["deadline"] =
            json!({ "in": within, "then": *random.pick(&["pause", "fail", "stop"]) });
    }
    if random.chance(150) {
        plan["complete_when"] = json!("steps.s0.status == \"succeeded\"");
    }
    plan
}

fn step(random: &mut Random, id: &str, earlier: &[Value]) -> Value {
    let names: Vec<String> =
        earlier.iter().map(|step| step["id"].as_str().unwrap().to_owned()).collect();
    let needs: Vec<String> = names.iter().filter(|_| random.chance(350)).cloned().collect();
    let mut step = json!({ "id": id, "needs": needs });
    if random.chance(80) {
        step["uses"] = json!("timer");
        step["with"] = json!({ "for": format!("{}s", random.between(1, 20)) });
        return step;
    }
    step["uses"] = json!(PLAY);
    step["with"] = json!({ "acts": acts(random) });
    step["retry"] = json!({
        "max_attempts": random.between(1, 4),
        "backoff": *random.pick(&["0s", "200ms", "2s"]),
        "max_backoff": "5s",
    });
    let (first, last) = *random.pick(&[(2, 20), (2, 20), (60, 200)]);
    step["timeout"] = json!({ "attempt": format!("{}s", random.between(first, last)) });
    if random.chance(100) {
        step["timeout"]["total"] = json!(format!("{}s", random.between(5, 60)));
    }
    if random.chance(150) {
        step["artifact"] = json!("left.txt");
    }
    if random.chance(200) {
        step["queue"] = json!("b");
    }
    if let Some(need) = needs.first() {
        if random.chance(350) {
            step["with"]["seen"] = json!({ need: format!("${{{{ steps.{need}.output }}}}") });
        } else if random.chance(200) {
            step["if"] = json!(format!("steps.{need}.status == \"succeeded\""));
        }
    }
    effects(random, &mut step);
    let upstream = upstream(&needs, earlier);
    match random.below(10) {
        0 => step["on_failure"] = json!("fail"),
        1 | 2 => step["on_failure"] = json!("continue"),
        3 => step["on_failure"] = json!("pause"),
        4 | 5 if !upstream.is_empty() => {
            let from = random.pick(&upstream).clone();
            step["on_failure"] = json!({ "redo": from, "max": random.between(1, 2) });
        }
        _ => {}
    }
    step
}

/// Lets a step change the world outside: by the one effect that it declares, or by others whose
/// names only its handler knows.
fn effects(random: &mut Random, step: &mut Value) {
    let classes = ["irreversible", "checkable", "idempotent"];
    match random.below(12) {
        0..=5 => {
            let class = *random.pick(&classes);
            step["effect"] = json!({ "class": class });
            if class == "checkable" {
                let with = json!({ "checks": true, "seen": step["with"]["seen"] });
                step["effect"]["check"] = json!({ "uses": PLAY, "with": with });
            }
        }
        6 | 7 => {
            let named: Vec<Value> = (0..random.between(1, 3))
                .map(|n| json!({ "name": format!("e{n}"), "class": *random.pick(&classes) }))
                .collect();
            step["with"]["named"] = json!(named);
        }
        8 => step["effect"] = json!({ "class": "none" }),
        _ => {}
    }
    let changes = step["with"]["named"].is_array()
        || classes.iter().any(|class| step["effect"]["class"] == *class);
    if changes && random.chance(600) {
        step["undo"] = undo(random);
    }
}

/// What undoes an effect: it has a request of its own to send, or none, and is told the receipt
/// of what it undoes. It fails never, a few times first, or for as long as it is tried.
fn undo(random: &mut Random) -> Value {
    let fails = *random.pick(&[Kind::FailsRetryable, Kind::FailsPermanent]);
    let failures = random.between(0, 4).saturating_sub(2);
    let mut acts: Vec<Act> =
        (0..failures).map(|_| Act { kind: fails, ms: random.between(0, 1_000) }).collect();
    let ms = if random.chance(100) { 20_000 } else { 1_000 };
    let last = if random.chance(150) { fails } else { Kind::Succeeds };
    acts.push(Act { kind: last, ms: random.between(0, ms) });
    let seen = json!({ "undone": "${{ effect.receipt }}" });
    let mut undo = json!({ "uses": PLAY, "with": { "acts": acts, "seen": seen } });
    undo["retry"] = json!({ "max_attempts": random.between(1, 3), "backoff": "200ms" });
    undo["timeout"] = json!({ "attempt": format!("{}s", random.between(5, 30)) });
    if random.chance(200) {
        undo["queue"] = json!("b");
    }
    let class = *random.pick(&["none", "irreversible", "checkable", "idempotent"]);
    undo["effect"] = json!({ "class": class });
    if class == "checkable" {
        let with = json!({ "checks": true, "seen": seen });
        undo["effect"]["check"] = json!({ "uses": PLAY, "with": with });
    }
    undo
}

fn upstream(needs: &[String], earlier: &[Value]) -> Vec<String> {
    let mut found: BTreeSet<String> = needs.iter().cloned().collect();
    for step in earlier.iter().rev() {
        if found.contains(step["id"].as_str().unwrap()) {
            let needs = step["needs"].as_array().cloned().unwrap_or_default();
            found.extend(needs.iter().map(|need| need.as_str().unwrap().to_owned()));
        }
    }
    found.into_iter().collect()
}

fn acts(random: &mut Random) -> Vec<Act> {
    let count = random.between(1, 5);
    let mut acts: Vec<Act> = (0..count)
        .map(|_| {
            let kind = match random.below(100) {
                0..55 => Kind::Succeeds,
                55..72 => Kind::FailsRetryable,
                72..78 => Kind::FailsPermanent,
                78..82 => Kind::FailsRateLimited,
                82..87 => Kind::Hangs,
                87..92 => Kind::Deaf,
                92..94 => Kind::Panics,
                _ => Kind::Adds,
            };
            let most = if random.chance(150) { 25_000 } else { 1_500 };
            Act { kind, ms: random.between(0, most) }
        })
        .collect();
    let last = if random.chance(850) { Kind::Succeeds } else { Kind::FailsPermanent };
    acts.push(Act { kind: last, ms: random.between(0, 500) });
    acts
}

/// A plan whose effect comes once more with another request, since what is before it runs anew.
fn again(random: &mut Random) -> Value {
    let act = |kind, random: &mut Random| Act { kind, ms: random.between(0, 2_000) };
    let first = json!({ "id": "s0", "uses": PLAY, "with": { "acts": acts(random) },
                        "timeout": { "attempt": "20s" } });
    let mut sends = json!({ "id": "s1", "uses": PLAY, "needs": ["s0"], "with": {
        "acts": [act(Kind::Succeeds, random)], "seen": { "s0": "${{ steps.s0.output }}" },
    } });
    while sends["effect"].is_null() && sends["with"]["named"].is_null() {
        effects(random, &mut sends);
    }
    let fails = random.between(1, 2);
    let mut last: Vec<Act> = (0..fails).map(|_| act(Kind::FailsPermanent, random)).collect();
    last.push(act(Kind::Succeeds, random));
    let last = json!({ "id": "s2", "uses": PLAY, "needs": ["s1"], "with": { "acts": last },
                       "on_failure": { "redo": "s0", "max": fails } });
    json!({ "kind": "test", "steps": [first, sends, last], "retention": "30d" })
}

fn large(random: &mut Random) -> Value {
    let step = |number: u64, random: &mut Random| {
        let acts = [Act { kind: Kind::Succeeds, ms: random.between(0, 50) }];
        let needs: Vec<String> =
            if number + 1 == LARGE { vec!["s0".to_owned(), "s7".to_owned()] } else { Vec::new() };
        json!({ "id": format!("s{number}"), "uses": PLAY, "needs": needs,
                "with": { "acts": acts }, "on_failure": "continue" })
    };
    let steps: Vec<Value> = (0..LARGE).map(|number| step(number, random)).collect();
    json!({ "kind": "test", "steps": steps, "retention": "30d" })
}
