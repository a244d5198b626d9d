//! Samples, and what is said of several of them.

use std::time::Duration;

use serde::Serialize;

/// One run of a job.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Units of work: steps, submissions or timers.
    pub units: u64,
    /// From the first submission to the end of the last unit.
    pub elapsed: Duration,
    /// The time of each unit, where the job measures it.
    pub each: Vec<Duration>,
}

impl Sample {
    /// Gives units a second.
    pub fn rate(&self) -> f64 {
        self.units as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// The median of several runs and their range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// How many there were.
    pub runs: usize,
}

impl Figures {
    /// Sums up; all zero for none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else {
            return Self::default();
        };
        let half = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[half - 1], values[half]),
            _ => values[half],
        };
        Self { median, min: *min, max: *max, runs: values.len() }
    }
}

/// How long single units took, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half of them took at most this.
    pub p50_ms: f64,
    /// All but a hundredth took at most this.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

impl Latency {
    /// Sums up; all zero for none.
    pub fn of(each: &[Duration]) -> Self {
        let mut sorted = each.to_vec();
        sorted.sort_unstable();
        let at = |share: f64| {
            let place = (sorted.len() as f64 * share).ceil() as usize;
            sorted.get(place.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Self { p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let figures = Figures::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(figures, Figures { median: 2.5, min: 1.0, max: 4.0, runs: 4 });
        assert_eq!(Figures::of([7.0]).median, 7.0);
        assert_eq!(Figures::of([]), Figures::default());
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let each: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        let latency = Latency::of(&each);
        assert_eq!((latency.p50_ms, latency.p99_ms, latency.max_ms), (50.0, 99.0, 100.0));
    }
}
