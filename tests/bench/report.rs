//! What is printed: medians, ranges, and what each figure has cost.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use standfast_bench::{Figures, Job, Latency, Sample, Used};

/// One run of one side.
pub struct Side {
    pub sample: Sample,
    pub used: BTreeMap<String, Used>,
    /// Commands of Redis for each unit.
    pub commands: BTreeMap<String, f64>,
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

    fn commands(&self) -> BTreeMap<String, f64> {
        let rounded =
            |(name, calls): (&String, &f64)| (name.clone(), (calls * 100.0).round() / 100.0);
        self.0.last().map(|side| side.commands.iter().map(rounded).collect()).unwrap_or_default()
    }

    fn counts(&self) -> Vec<&BTreeMap<&'static str, u64>> {
        self.0.iter().map(|side| &side.counts).collect()
    }

    fn json(&self, job: Job) -> Value {
        let rate = Figures::of(self.rates());
        let mut value = json!({
            "rate": round(rate.median), "min": round(rate.min), "max": round(rate.max),
            "runs": rate.runs, "used": self.used(), "commands": self.commands(),
            "counts": self.counts(),
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
    persistence: &'static str,
    stay: u32,
    pub ours: Runs,
    pub least: Runs,
}

impl Row {
    /// Makes an empty one.
    pub fn new(job: Job, in_flight: u16, persistence: &'static str, stay: u32) -> Self {
        let (ours, least) = Default::default();
        Self { job, in_flight, persistence, stay, ours, least }
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
        let (ours, least) = (Figures::of(self.ours.rates()), Figures::of(self.least.rates()));
        let ratio = self.ratios();
        println!(
            "{:?} {:<9} {:>4} in flight, stay {}: {:>7.0}/s [{:.0}-{:.0}], least {:>7.0}/s \
             [{:.0}-{:.0}], ratio {:.2} [{:.2}-{:.2}]",
            self.job,
            self.persistence,
            self.in_flight,
            self.stay,
            ours.median,
            ours.min,
            ours.max,
            least.median,
            least.min,
            least.max,
            ratio.median,
            ratio.min,
            ratio.max,
        );
        if self.job == Job::D {
            println!("    ours {:?}\n    least {:?}", self.ours.latency(), self.least.latency());
        }
        println!("    ours  {} {}", json!(self.ours.used()), json!(self.ours.commands()));
        println!("    ours  {}", json!(self.ours.counts()));
        println!("    least {} {}", json!(self.least.used()), json!(self.least.commands()));
    }

    fn json(&self) -> Value {
        let ratio = self.ratios();
        let mut value = self.ours.json(self.job);
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
            let name = format!("{:?}", row.job);
            let value = row.json();
            settings.push(json!({
                "job": name, "in_flight": row.in_flight, "persistence": row.persistence,
                "stay": row.stay, "figures": value,
            }));
            jobs.entry(name).or_insert(value);
        }
        json!({ "jobs": jobs, "settings": settings })
    }
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
