//! The world outside: a shop that carries orders out or not, answers or not, and keeps count by
//! the orders' own names, which mean nothing to the product.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use standfast_tests::binary::Draw;
use standfast_tests::outside::{Answer, Outside, header};
use standfast_tests::wait;

/// One order, under a name of its own.
#[derive(Clone, Debug, Default)]
pub struct Order {
    pub class: String,
    /// How often it was asked for.
    pub asked: usize,
    /// How often it was carried out; a repeat under its key is none where the class is idempotent.
    pub done: usize,
    /// The keys under which it came.
    pub keys: BTreeSet<String>,
}

type Orders = Arc<Mutex<BTreeMap<String, Order>>>;

/// The shop, and the file in which programs write what they have carried out.
pub struct Shop {
    server: Outside,
    orders: Orders,
    pub file: PathBuf,
}

impl Shop {
    /// Opens it; what becomes of each request is drawn from a seed.
    pub async fn open(seed: u64, file: PathBuf) -> Self {
        let orders = Orders::default();
        let known = orders.clone();
        let server = Outside::new(move |head, number| serve(&known, seed, head, number)).await;
        Self { server, orders, file }
    }

    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Gives all orders: those of requests, and those that programs wrote down as
    /// `CLASS ORDER KEY`.
    pub fn orders(&self) -> BTreeMap<String, Order> {
        let mut orders = lock(&self.orders).clone();
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let order = orders.entry(words[1].to_owned()).or_default();
            order.class = words[0].to_owned();
            order.asked += 1;
            if order.keys.insert(words[2].to_owned()) || order.class != "idempotent" {
                order.done += 1;
            }
        }
        orders
    }

    /// Says whether anything was carried out under a key: what a person finds out who looks.
    pub fn has_done(&self, key: &str) -> bool {
        self.orders().values().any(|order| order.done > 0 && order.keys.contains(key))
    }
}

fn lock(orders: &Orders) -> MutexGuard<'_, BTreeMap<String, Order>> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves `GET /CLASS/ORDER`, which asks, and everything else to it, which orders.
fn serve(orders: &Orders, seed: u64, head: &str, number: usize) -> Answer {
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let Some((class, name)) = path.trim_start_matches('/').split_once('/') else {
        return Answer::Status(404);
    };
    if method == "GET" {
        let done = lock(orders).get(name).is_some_and(|order| order.done > 0);
        return Answer::Status(if done { 200 } else { 404 });
    }
    let Some(key) = header(head, "idempotency-key") else { return Answer::Status(400) };
    let (does, answer) = drawn(seed, number);
    let mut orders = lock(orders);
    let order = orders.entry(name.to_owned()).or_default();
    order.class = class.to_owned();
    order.asked += 1;
    let is_new = order.keys.insert(key.to_owned());
    if does && (class != "idempotent" || is_new || order.done == 0) {
        order.done += 1;
    }
    answer
}

/// Draws what becomes of a request: whether it is carried out, and what is answered.
fn drawn(seed: u64, number: usize) -> (bool, Answer) {
    let mut draw = Draw::seeded(seed ^ (number as u64).wrapping_mul(0x9e37_79b9));
    let slow = Duration::from_millis(500 + draw.below(5_000));
    match draw.below(100) {
        0..7 => (true, Answer::Close),
        7..11 => (true, Answer::Status(500)),
        11..15 => (false, Answer::Close),
        15..19 => (false, Answer::Status(429)),
        19..21 => (false, Answer::Status(409)),
        21..45 => (true, Answer::After(Box::pin(wait::pass(slow)), 201)),
        _ => (true, Answer::Status(201)),
    }
}
