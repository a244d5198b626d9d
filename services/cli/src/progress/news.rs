//! What events tell: which steps changed, and which attempts failed on the way.
//!
//! An attempt that failed is told by one event, what follows by the next ones of its step: a
//! retry, a new round, or the step's end, which the step itself shows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use standfast_protocol::events::EventView;

use crate::show::quantities::{between, span};

/// What some events told.
#[derive(Debug, Default)]
pub struct News {
    /// Steps that changed.
    pub changed: BTreeSet<String>,
    /// Attempts that failed and were not their steps' end, in order.
    pub failures: Vec<Failure>,
}

/// An attempt that failed and was not its step's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step.
    pub step: String,
    /// When the attempt started.
    pub started_at: String,
    /// When it failed.
    pub at: String,
    /// How.
    pub class: String,
    /// Why.
    pub message: String,
    /// What follows.
    pub then: String,
}

/// Failures of which it is not known yet what follows, by step.
#[derive(Debug, Default)]
pub struct Heard(BTreeMap<String, Failure>);

impl Heard {
    /// Takes an event in.
    pub fn note(&mut self, news: &mut News, event: EventView) {
        let Some(step) = event.step else { return };
        news.changed.insert(step.clone());
        let text = |name: &str| event.data.get(name).and_then(Value::as_str).unwrap_or_default();
        let then = match event.kind.as_str() {
            "attempt_failed" => {
                let failure = Failure {
                    step: step.clone(),
                    started_at: text("started_at").to_owned(),
                    at: event.at.clone(),
                    class: text("class").to_owned(),
                    message: text("message").to_owned(),
                    then: String::new(),
                };
                self.0.insert(step, failure);
                return;
            }
            "retry_scheduled" => match between(&event.at, text("due")) {
                Some(millis) => Some(format!("retry in {}", span(millis))),
                None => Some("retry".to_owned()),
            },
            "step_ready" => Some("retry now".to_owned()),
            "round_opened" => {
                let round = event.data.get("round").and_then(Value::as_u64);
                Some(round.map_or("a new round begins".to_owned(), |n| format!("round {n} begins")))
            }
            _ => None,
        };
        if let (Some(failure), Some(then)) = (self.0.remove(&step), then) {
            news.failures.push(Failure { then, ..failure });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Gives what follows each failure, and the steps that changed.
    fn told(events: &[(&str, &str, Value)]) -> (Vec<String>, Vec<String>) {
        let (mut heard, mut news) = (Heard::default(), News::default());
        for (kind, step, data) in events {
            let event = EventView {
                sequence: 1,
                at: "2026-11-29T14:14:10.000Z".to_owned(),
                kind: (*kind).to_owned(),
                actor: String::new(),
                step: Some((*step).to_owned()),
                data: data.clone(),
            };
            heard.note(&mut news, event);
        }
        let failures = news.failures.into_iter();
        let failures = failures.map(|failed| format!("{} · {}", failed.message, failed.then));
        (failures.collect(), news.changed.into_iter().collect())
    }

    #[test]
    fn what_follows_a_failed_attempt_is_told() {
        let failed = ("attempt_failed", "a", json!({"message": "no", "class": "retryable"}));
        let due = json!({"due": "2026-11-29T14:14:12.000Z"});
        for (then, expected) in [
            (("retry_scheduled", "a", due), vec!["no · retry in 2.0 s"]),
            (("step_ready", "a", json!({})), vec!["no · retry now"]),
            (("round_opened", "a", json!({"round": 2})), vec!["no · round 2 begins"]),
            (("step_held", "a", json!({})), vec![]),
            (("step_failed", "a", json!({})), vec![]),
            (("step_ready", "b", json!({})), vec![]),
        ] {
            let (failures, changed) = told(&[failed.clone(), then.clone()]);
            assert_eq!(failures, expected, "{then:?}");
            assert!(changed.contains(&"a".to_owned()));
        }
    }

    #[test]
    fn a_step_that_becomes_ready_without_a_failure_is_no_retry() {
        assert!(told(&[("step_ready", "a", json!({}))]).0.is_empty());
    }
}
