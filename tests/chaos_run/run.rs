//! One run, from the first process to the table.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use standfast_protocol::tasks::TaskView;
use standfast_sdk::Client;
use standfast_tests::binary::Draw;
use standfast_tests::wait;
use tokio_util::sync::CancellationToken;

use crate::demon::Demon;
use crate::load::Load;
use crate::oracle::{self, Counts};
use crate::outside::Shop;
use crate::people;
use crate::site::{Is, Site};

/// Publishers over HTTP.
const PUBLISHERS: u64 = 4;
/// What each publisher waits between two tasks.
const PAUSE: Duration = Duration::from_millis(1_500);
/// How long the rest may take once everything is back: some effects may be settled only 40 s
/// after their intent, and a task has up to six in a row.
const REST_MAX: Duration = Duration::from_secs(480);
/// How long a start of the fleet may take on a busy machine.
const START_MAX: Duration = Duration::from_secs(90);

/// Runs it and prints the table; gives the number of faults.
pub async fn run(length: Duration, seed: u64) -> usize {
    println!("seed {seed}; {} s of faults", length.as_secs());
    let mut site = Site::start().await;
    for member in &site.members {
        if let Is::Ours(process) = &member.process {
            process.green(START_MAX).await;
        }
    }
    site.start_outside();
    let load = Arc::new(load(&site, seed).await);
    let rest = CancellationToken::new();
    let person = tokio::spawn(people::answer(load.clone(), rest.clone(), Draw::seeded(seed ^ 1)));
    let mut publishing = Vec::new();
    for number in 0..PUBLISHERS {
        let draw = Draw::seeded(seed ^ (100 + number));
        publishing.push(tokio::spawn(load.clone().over_http(number, PAUSE, draw)));
    }
    publishing.push(tokio::spawn(load.clone().over_amqp(PAUSE, Draw::seeded(seed ^ 2))));
    let mut demon = Demon::new(site, load.clone(), Draw::seeded(seed ^ 3));
    demon.rage(Instant::now() + length).await;
    println!("everything is back; the rest runs out");
    load.enough.cancel();
    let mut counts = Counts::default();
    let views = tokio::select! {
        biased;
        () = demon.watch() => Vec::new(),
        views = run_out(&load, publishing, &mut counts, seed) => views,
    };
    rest.cancel();
    let answered = person.await.unwrap();
    oracle::judge(&load, &demon.site, &views, &mut counts).await;
    let faults = load.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
    table(&load, &demon, &answered, &counts);
    println!("{} faults; seed {seed}", faults.len());
    if !faults.is_empty() {
        for fault in &faults {
            println!("  {fault}");
        }
        keep(&demon.site);
    }
    faults.len()
}

async fn load(site: &Site, seed: u64) -> Load {
    let patience = Duration::from_secs(10);
    let client = |url: &String| Client::new(url, &site.own.token).unwrap().patience(patience);
    Load {
        clients: site.urls.iter().map(client).collect(),
        amqp: site.node.url(),
        exchange: site.own.place.prefix.clone(),
        token: site.own.token.clone(),
        ledger: site.own.ledger(),
        shop: Arc::new(Shop::open(seed, site.own.path().join("orders")).await),
        sent: Mutex::default(),
        faults: Mutex::default(),
        enough: CancellationToken::new(),
    }
}

/// Waits for the publishers, asks for every task again, and waits until all have ended.
async fn run_out(
    load: &Load,
    publishing: Vec<tokio::task::JoinHandle<()>>,
    counts: &mut Counts,
    seed: u64,
) -> Vec<TaskView> {
    for publishing in publishing {
        publishing.await.unwrap();
    }
    let mut draw = Draw::seeded(seed);
    let sent = load.sent().clone();
    let mut tasks = Vec::new();
    for (name, before) in &sent {
        let (task, created) = load.submit(name, &before.plan, &mut draw).await;
        if before.promised && (created || before.task.as_ref().is_some_and(|id| *id != task)) {
            counts.lost += 1;
            load.blame(format!("{name} was promised and is lost ({:?}, {task})", before.task));
        }
        tasks.push(task);
    }
    let client = &load.clients[0];
    let (start, mut views) = (Instant::now(), BTreeMap::new());
    while start.elapsed() < REST_MAX && views.len() < tasks.len() {
        for task in &tasks {
            if !views.contains_key(task)
                && let Ok(view) = client.get(task).await
                && view.state.is_ended()
            {
                views.insert(task.clone(), view);
            }
        }
        wait::pass(Duration::from_millis(500)).await;
    }
    println!("the rest took {} s", start.elapsed().as_secs());
    for task in &tasks {
        if views.contains_key(task) {
            continue;
        }
        counts.stuck += 1;
        let explained = client.explain(task).await.map(|explain| explain.lines().join("\n"));
        load.blame(format!("{task} is stuck:\n{explained:?}").replace("\\n", "\n"));
        if let Ok(view) = client.get(task).await {
            views.insert(task.clone(), view);
        }
    }
    views.into_values().collect()
}

fn table(load: &Load, demon: &Demon, answered: &BTreeMap<String, u64>, counts: &Counts) {
    let row = |name: &str, value: String| println!("  {name:<42} {value}");
    let sent = load.sent().clone();
    println!("tried");
    for (what, times) in &demon.tried {
        row(what, times.to_string());
    }
    println!("tasks");
    let over_amqp = sent.values().filter(|sent| sent.over_amqp).count();
    row("submitted over HTTP", (sent.len() - over_amqp).to_string());
    row("submitted over AMQP", over_amqp.to_string());
    for (state, times) in &counts.states {
        row(state, times.to_string());
    }
    println!("answered by a person");
    for (what, times) in answered {
        row(what, times.to_string());
    }
    println!("steps");
    row("attempts started", counts.starts.to_string());
    row("attempts lost and taken over", counts.lost_attempts.to_string());
    row("settled steps started again", counts.settled_again.to_string());
    println!("effects");
    for (class, (orders, asked, done)) in &counts.effects {
        row(class, format!("{orders} orders, sent {asked} times, carried out {done} times"));
    }
    row("carried out twice without a person", counts.doubled.to_string());
    row("said to have landed and did not", counts.missing.to_string());
    println!("in the end");
    row("lost tasks", counts.lost.to_string());
    row("stuck tasks", counts.stuck.to_string());
    row("events in logs", counts.events.to_string());
    row("logs with a fault", counts.unverified.to_string());
}

/// Keeps what the processes have said.
fn keep(site: &Site) {
    let to = std::env::temp_dir().join(format!("standfast-chaos-{}", std::process::id()));
    let _ = std::fs::create_dir_all(&to);
    for entry in std::fs::read_dir(site.own.path()).unwrap().filter_map(Result::ok) {
        if entry.path().is_file() {
            let _ = std::fs::copy(entry.path(), to.join(entry.file_name()));
        }
    }
    println!("logs and ledgers: {}", to.display());
}
