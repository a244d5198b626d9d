//! The jobs' names and sizes: the one list that every command line reads.

use std::fmt;

use serde::{Serialize, Serializer};

/// The jobs. `C` is kept for child tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    /// Tasks of one step.
    A,
    /// Chains of ten steps.
    B,
    /// The time of one task of one step, from submission to completion, on an idle system.
    D,
    /// Submissions alone, by the shortest way there is.
    E,
    /// Submissions over HTTP.
    EHttp,
    /// Submissions as messages to the intake.
    EAmqp,
    /// Timers that are due at once.
    G,
    /// One task of many parallel steps and a join.
    H,
}

impl Job {
    /// All, in the order they run.
    pub const ALL: [Self; 8] =
        [Self::A, Self::B, Self::D, Self::E, Self::EHttp, Self::EAmqp, Self::G, Self::H];
    /// What runs unless others are asked for.
    pub const USUAL: &str = "a,b,d,h";

    /// Gives the name that is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::D => "d",
            Self::E => "e",
            Self::EHttp => "e-http",
            Self::EAmqp => "e-amqp",
            Self::G => "g",
            Self::H => "h",
        }
    }

    /// Gives the job of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|job| job.name() == name)
    }

    /// Says what is measured, in a few words.
    pub fn says(self) -> &'static str {
        match self {
            Self::A => "tasks of one step",
            Self::B => "steps of chains of ten",
            Self::D => "one task, submission to completion",
            Self::E => "submissions",
            Self::EHttp => "submissions over HTTP, answered",
            Self::EAmqp => "submissions as messages, answered",
            Self::G => "timers due at once",
            Self::H => "parallel steps of one task",
        }
    }

    /// Lists all for a help text: each name and what it measures.
    pub fn help() -> String {
        let one = |job: Self| format!("  {:<8}{}", job.name(), job.says());
        let lines: Vec<String> = Self::ALL.into_iter().map(one).collect();
        format!("Jobs:\n{}", lines.join("\n"))
    }
}

/// Writes the name as it stands in tables and JSON, such as `A` and `E-http`.
impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, rest) = self.name().split_at(1);
        f.pad(&format!("{}{rest}", first.to_ascii_uppercase()))
    }
}

impl Serialize for Job {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How large the jobs are.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Tasks of job A.
    pub singles: usize,
    /// Chains of job B, of ten steps each.
    pub chains: usize,
    /// Tasks of job D, one after the other.
    pub latencies: usize,
    /// Submissions of job E, whichever way they come.
    pub submissions: usize,
    /// Timers of job G.
    pub timers: usize,
    /// Parallel steps of job H.
    pub parallel: usize,
}

impl Size {
    /// The full jobs.
    pub const FULL: Self = Self {
        singles: 5_000,
        chains: 500,
        latencies: 300,
        submissions: 5_000,
        timers: 10_000,
        parallel: 1_000,
    };

    /// Small ones, for a first look.
    pub const QUICK: Self = Self {
        singles: 1_000,
        chains: 100,
        latencies: 50,
        submissions: 1_000,
        timers: 1_000,
        parallel: 200,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_is_found_by_its_name_and_shown_with_a_capital() {
        for job in Job::ALL {
            assert_eq!(Job::named(job.name()), Some(job));
        }
        assert_eq!(Job::named("c"), None);
        assert_eq!(Job::EHttp.to_string(), "E-http");
        assert_eq!(serde_json::to_value(Job::A).unwrap(), "A");
        assert!(Job::USUAL.split(',').all(|name| Job::named(name).is_some()));
    }
}
