//! What is printed: medians, ranges, and what each figure has cost.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use standfast_bench::{Figures, Job, Latency, Sample, Used};

use crate::options::Persistence;

/// What a row was measured on.
#[derive(Clone, Copy)]
pub enum On {
    /// Redis, keeping its data like this, and RabbitMQ.
    Services(Persistence),
    /// The same, and api, scheduler and worker are processes of their own.
    Processes(Persistence),
    /// A redb file and queues in this process.
    Folder,
}

impl On {
    fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Services(persistence) => ("services", Some(persistence.name())),
            Self::Processes(persistence) => ("processes", Some(persistence.name())),
            Self::Folder => ("embedded", None),
        }
    }
}

/// One run of one side.
pub struct Side {
    pub sample: Sample,
    pub used: BTreeMap<String, Used>,
    /// Commands of Redis for each unit.
    pub commands: BTreeMap<String, f64>,
    /// Messages of RabbitMQ for each unit, where they were counted.
    pub messages: BTreeMap<String, f64>,
    /// What the engine and the worker counted.
    pub counts: BTreeMap<&'static str, u64>,
}

/// The runs of one side.
#[derive(Default)]
pub struct Runs(Vec<Side>);

impl Runs {
    /// Adds a run, unless it only warmed up.
    pub fn add(&mut self, round: usize, side: Side) {
        if round > 0 {
            self.0.push(side);
        }
    }

    fn rates(&self) -> Vec<f64> {
        self.0.iter().map(|side| side.sample.rate()).collect()
    }

    fn latency(&self) -> Latency {
        let each: Vec<_> = self.0.iter().flat_map(|side| side.sample.each.clone()).collect();
        Latency::of(&each)
    }

    fn p50s(&self) -> Vec<f64> {
        self.0.iter().map(|side| Latency::of(&side.sample.each).p50_ms).collect()
    }

    fn used(&self) -> BTreeMap<String, Value> {
        let Some(first) = self.0.first() else { return BTreeMap::new() };
        let of = |name: &String| {
            let all = || self.0.iter().filter_map(|side| side.used.get(name));
            let cpu = Figures::of(all().map(|used| used.cpu_us_each)).median;
            let bytes = Figures::of(all().map(|used| used.resident_bytes as f64)).median;
            json!({ "cpu_us_each": round(cpu), "resident_mib": round(bytes / 1048576.0) })
        };
        first.used.keys().map(|name| (name.clone(), of(name))).collect()
    }

    /// Gives what the last run counted for each unit.
    fn counted(&self, of: fn(&Side) -> &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        let last = self.0.last().map(of).into_iter().flatten();
        last.map(|(name, count)| (name.clone(), (count * 100.0).round() / 100.0)).collect()
    }

    fn commands(&self) -> BTreeMap<String, f64> {
        self.counted(|side| &side.commands)
    }

    fn messages(&self) -> BTreeMap<String, f64> {
        self.counted(|side| &side.messages)
    }

    fn counts(&self) -> Vec<&BTreeMap<&'static str, u64>> {
        self.0.iter().map(|side| &side.counts).collect()
    }

    fn json(&self, job: Job) -> Value {
        let rate = Figures::of(self.rates());
        let mut value = json!({
            "rate": round(rate.median), "min": round(rate.min), "max": round(rate.max),
            "runs": rate.runs, "used": self.used(), "commands": self.commands(),
            "messages": self.messages(), "counts": self.counts(),
        });
        if job == Job::D {
            value["latency"] = json!(self.latency());
        }
        value
    }
}

/// One job under one setting.
pub struct Row {
    pub job: Job,
    in_flight: u16,
    on: On,
    stay: u32,
    pub ours: Runs,
    pub least: Runs,
}

impl Row {
    /// Makes an empty one.
    pub fn new(job: Job, in_flight: u16, on: On, stay: u32) -> Self {
        let (ours, least) = Default::default();
        Self { job, in_flight, on, stay, ours, least }
    }

    /// Gives ours over the least loop's, run by run: rates, and times for job D.
    fn ratios(&self) -> Figures {
        let (ours, least) = match self.job {
            Job::D => (self.ours.p50s(), self.least.p50s()),
            _ => (self.ours.rates(), self.least.rates()),
        };
        Figures::of(ours.iter().zip(&least).map(|(ours, least)| ours / least))
    }

    /// Prints one row of the table.
    pub fn print(&self) {
        let (on, persistence) = self.on.names();
        println!(
            "{:<6} {on} {} {} in flight, stay {}: {}{}",
            self.job,
            persistence.unwrap_or("redb"),
            self.in_flight,
            self.stay,
            shown(&self.ours),
            if self.least.0.is_empty() { String::new() } else { self.beside() },
        );
        for (name, runs) in [("ours", &self.ours), ("least", &self.least)] {
            if runs.0.is_empty() {
                continue;
            }
            if self.job == Job::D {
                println!("    {name:<5} {:?}", runs.latency());
            }
            println!("    {name:<5} {}", json!(runs.used()));
            println!("          redis {}", json!(runs.commands()));
            println!("          rabbitmq {}", json!(runs.messages()));
        }
        println!("          counted {}", json!(self.ours.counts()));
    }

    fn beside(&self) -> String {
        let ratio = self.ratios();
        let (median, min, max) = (ratio.median, ratio.min, ratio.max);
        format!(", least {}, ratio {median:.2} [{min:.2}-{max:.2}]", shown(&self.least))
    }

    fn json(&self) -> Value {
        let mut value = self.ours.json(self.job);
        if self.least.0.is_empty() {
            return value;
        }
        let ratio = self.ratios();
        value["least"] = self.least.json(self.job);
        value["ratio"] = json!((ratio.median * 1000.0).round() / 1000.0);
        value["ratio_min"] = json!((ratio.min * 1000.0).round() / 1000.0);
        value["ratio_max"] = json!((ratio.max * 1000.0).round() / 1000.0);
        value
    }
}

/// All rows.
#[derive(Default)]
pub struct Report {
    pub rows: Vec<Row>,
}

impl Report {
    /// Gives `{"jobs": {"A": …}}` for the first setting of each job, and all under `settings`.
    pub fn json(&self) -> Value {
        let mut jobs = serde_json::Map::new();
        let mut settings = Vec::new();
        for row in &self.rows {
            let name = row.job.to_string();
            let (on, persistence) = row.on.names();
            let value = row.json();
            settings.push(json!({
                "job": name, "on": on, "in_flight": row.in_flight, "persistence": persistence,
                "stay": row.stay, "figures": value,
            }));
            jobs.entry(name).or_insert(value);
        }
        json!({ "jobs": jobs, "settings": settings })
    }
}

fn shown(runs: &Runs) -> String {
    let rate = Figures::of(runs.rates());
    format!("{:.0}/s [{:.0}-{:.0}]", rate.median, rate.min, rate.max)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
