//! What is submitted: plans of every kind, each under a name of its own that its orders carry.

use std::path::Path;

use serde_json::{Value, json};
use standfast_tests::binary::Draw;

/// Kinds of plans, in the order of the table.
pub const KINDS: [&str; 8] =
    ["chain", "join", "flaky", "timed", "redone", "shop", "held", "outside"];
/// What the last step of a chain gives, whatever happened on the way.
pub const CHAIN_OUTPUT: &str = "one two three four";
const CHAIN: [&str; 4] = ["one", "two", "three", "four"];
/// The queue of the workers outside.
pub const OUTSIDE: &str = "outside";
const QUEUES: [&str; 2] = ["default", "research"];

/// Where plans lead to.
pub struct Places<'a> {
    pub ledger: &'a Path,
    pub shop: &'a str,
    /// The file of what programs have carried out.
    pub orders: &'a Path,
}

/// Makes a plan under a name.
pub fn plan(places: &Places<'_>, name: &str, draw: &mut Draw) -> Value {
    let kind = KINDS[draw.below(KINDS.len() as u64) as usize];
    let steps = match kind {
        "chain" => chain(places, draw),
        "join" => join(places, draw),
        "flaky" => vec![places.step("a", &[], "test $STANDFAST_ATTEMPT -ge 3 && sleep 0.1", draw)],
        "timed" => timed(places, draw),
        "redone" => redone(places, draw),
        "shop" => shop(places, name, draw),
        "held" => held(places, draw),
        _ => outside(places, name),
    };
    json!({ "kind": kind, "labels": { "name": name }, "steps": steps })
}

impl Places<'_> {
    /// Gives a step of a program that writes down its start and then runs a script.
    fn step(&self, id: &str, needs: &[&str], script: &str, draw: &mut Draw) -> Value {
        let note = "echo $STANDFAST_TASK/$STANDFAST_STEP $STANDFAST_ROUND $STANDFAST_ATTEMPT";
        let script = format!("{note} >> {}; {script}", self.ledger.display());
        json!({ "id": id, "uses": "exec", "needs": needs,
                "queue": QUEUES[draw.below(2) as usize],
                "retry": { "max_attempts": 6, "backoff": "200ms" },
                "with": { "command": ["sh", "-c", script] } })
    }

    /// Gives a step whose program carries out an order and writes that down.
    fn program(&self, class: &str, order: &str, needs: &[&str], draw: &mut Draw) -> Value {
        let id = format!("run-{class}");
        let done = format!("echo {class} {order}-{id} $STANDFAST_EFFECT_KEY");
        let script = format!("sleep 0.2; {done} >> {}; sleep 0.2", self.orders.display());
        let mut step = self.step(&id, needs, &script, draw);
        step["timeout"] = json!({ "attempt": "20s" });
        step["effect"] = json!({ "class": class, "says": format!("order {order}") });
        if class == "checkable" {
            let found = format!("grep -q ' {order}-{id} ' {}", self.orders.display());
            step["effect"]["check"] =
                json!({ "uses": "exec", "with": { "command": ["sh", "-c", found] } });
        }
        step
    }

    /// Gives a step that orders over HTTP.
    fn request(&self, class: &str, order: &str, needs: &[&str], draw: &mut Draw) -> Value {
        let id = format!("ask-{class}");
        let url = format!("{}/{class}/{order}-{id}", self.shop);
        let method = if class == "idempotent" { "PUT" } else { "POST" };
        let mut step = json!({ "id": id, "uses": "http", "needs": needs,
            "queue": QUEUES[draw.below(2) as usize],
            "timeout": { "attempt": "20s" },
            "retry": { "max_attempts": 6, "backoff": "200ms" },
            "with": { "url": url, "method": method, "body": { "order": order } } });
        if class == "checkable" {
            let check = json!({ "uses": "http", "with": { "url": url } });
            step["effect"] = json!({ "class": class, "check": check });
        }
        step
    }
}

fn chain(places: &Places<'_>, draw: &mut Draw) -> Vec<Value> {
    let mut steps = Vec::new();
    for (place, id) in CHAIN.into_iter().enumerate() {
        let script = format!("sleep 0.{}; printf '%s' \"${{BEFORE}}{id}\"", draw.below(5));
        let (needs, before) = match place.checked_sub(1).map(|before| CHAIN[before]) {
            Some(need) => (vec![need], format!("${{{{ steps.{need}.output.stdout }}}} ")),
            None => (vec![], String::new()),
        };
        let mut step = places.step(id, &needs, &script, draw);
        step["with"]["env"] = json!({ "BEFORE": before });
        steps.push(step);
    }
    steps
}

fn join(places: &Places<'_>, draw: &mut Draw) -> Vec<Value> {
    let mut steps = vec![places.step("begin", &[], "true", draw)];
    let ids: Vec<String> = (0..2 + draw.below(5)).map(|n| format!("part-{n}")).collect();
    for id in &ids {
        let script = format!("sleep 0.{}", draw.below(9));
        steps.push(places.step(id, &["begin"], &script, draw));
    }
    let needs: Vec<&str> = ids.iter().map(String::as_str).collect();
    steps.push(places.step("end", &needs, "true", draw));
    steps
}

fn timed(places: &Places<'_>, draw: &mut Draw) -> Vec<Value> {
    let wait = format!("{}ms", 200 + draw.below(8_000));
    vec![
        places.step("before", &[], "true", draw),
        json!({ "id": "wait", "uses": "timer", "needs": ["before"], "with": { "for": wait } }),
        places.step("after", &["wait"], "sleep 6", draw),
    ]
}

fn redone(places: &Places<'_>, draw: &mut Draw) -> Vec<Value> {
    let mut judge = places.step("judge", &["make"], "test $STANDFAST_ROUND -gt 1", draw);
    judge["retry"] = json!({ "max_attempts": 1 });
    judge["on_failure"] = json!({ "redo": "make", "max": 3 });
    vec![places.step("make", &[], "sleep 0.2", draw), judge, {
        places.step("end", &["judge"], "true", draw)
    }]
}

/// Orders of every class, over HTTP and by programs, in a row; some of it is done over.
fn shop(places: &Places<'_>, name: &str, draw: &mut Draw) -> Vec<Value> {
    let mut steps: Vec<Value> = Vec::new();
    let mut last: Option<String> = None;
    for class in ["idempotent", "irreversible", "checkable"] {
        for by_program in [false, true] {
            let needs: Vec<&str> = last.as_deref().into_iter().collect();
            let step = match by_program {
                true => places.program(class, name, &needs, draw),
                false => places.request(class, name, &needs, draw),
            };
            last = step["id"].as_str().map(str::to_owned);
            steps.push(step);
        }
    }
    let needs: Vec<&str> = last.as_deref().into_iter().collect();
    let mut judge = places.step("judge", &needs, "test $STANDFAST_ROUND -gt 1", draw);
    if draw.below(2) == 0 {
        judge["retry"] = json!({ "max_attempts": 1 });
        judge["on_failure"] = json!({ "redo": "ask-idempotent", "max": 2 });
        steps.push(judge);
    }
    steps
}

fn held(places: &Places<'_>, draw: &mut Draw) -> Vec<Value> {
    let mut asks = places.step("asks", &[], "test $STANDFAST_ATTEMPT -gt 1", draw);
    asks["retry"] = json!({ "max_attempts": 1 });
    let mut pauses = places.step("pauses", &["asks"], "test $STANDFAST_ATTEMPT -gt 1", draw);
    pauses["retry"] = json!({ "max_attempts": 1 });
    pauses["on_failure"] = json!("pause");
    vec![asks, pauses, places.step("end", &["pauses"], "true", draw)]
}

/// A plan of workers outside, which know nothing but the api.
fn outside(places: &Places<'_>, name: &str) -> Vec<Value> {
    let step = |id: &str, uses: &str, needs: &[&str], with: Value| {
        json!({ "id": id, "uses": uses, "queue": OUTSIDE, "needs": needs, "with": with,
                "retry": { "max_attempts": 6, "backoff": "200ms" } })
    };
    let order = |class: &str| {
        let url = format!("{}/{class}/{name}-{class}", places.shop);
        json!({ "url": url, "class": class, "name": "order" })
    };
    vec![
        step("say", "noted", &[], json!({ "say": name, "tenths": 3 })),
        step("idempotent", "order", &["say"], order("idempotent")),
        step("irreversible", "order", &["say"], order("irreversible")),
        step("checkable", "order", &["irreversible"], order("checkable")),
        step("end", "noted", &["idempotent", "checkable"], json!({ "say": "end" })),
    ]
}
