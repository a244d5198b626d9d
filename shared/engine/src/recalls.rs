//! Hears at once what heartbeats would tell later: that attempts are to end.
//!
//! ```text
//! whoever commits a stop ── Broker::tell ──▶ this ──▶ those that wait for the task's attempts
//!                                                       │ look now, not in ten seconds
//!                                                       ▼
//!                                             store: go on, end, or lost
//! ```
//!
//! A message is never believed. It makes the heart of an attempt beat at once, or the api look
//! for a worker outside, and what the store answers is what counts. A message about a task of
//! which nobody waits here costs a look at a table in memory, so a flood of them harms nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use standfast_domain::ids::{StepId, TaskId};
use standfast_domain::stage::Recall;
use tokio::sync::Notify;

use crate::Engine;
use crate::ports::{Source, Subscription};

/// Messages that the broker may send ahead: enough that a flood needs no round trip for each.
const PREFETCH: u16 = 500;
/// The pause before the broker is asked again for a subscription that it has refused.
const AGAIN: Duration = Duration::from_secs(30);

/// The attempts that somebody in this process waits for.
#[derive(Default)]
pub struct Recalls(Mutex<BTreeMap<TaskId, Vec<Listening>>>);

struct Listening {
    /// The step and its attempt; `None` while it is not known which comes.
    at: Option<(StepId, u32)>,
    beat: Arc<Notify>,
}

/// What a message says: all attempts of a task, or one.
#[derive(Debug, Serialize, Deserialize)]
struct Word {
    /// Why, for people who watch the broker.
    #[serde(default)]
    what: String,
    task: TaskId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<StepId>,
    #[serde(default)]
    epoch: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
}

impl Word {
    fn means(&self, step: &StepId, attempt: u32) -> bool {
        self.step.as_ref().is_none_or(|said| said == step)
            && self.attempt.is_none_or(|said| said == attempt)
    }
}

/// Writes the message that tells all listeners to look at attempts.
pub(crate) fn message(recall: &Recall) -> Bytes {
    let what = if recall.attempt.is_some() { "attempt_taken" } else { "task_ending" };
    let (step, attempt) = recall.attempt.clone().unzip();
    let (task, epoch) = (recall.task.clone(), recall.epoch);
    let word = Word { what: what.to_owned(), task, step, epoch, attempt };
    Bytes::from(serde_json::to_vec(&word).expect("names and numbers are JSON"))
}

/// One attempt's place in the table, for as long as it lives.
pub struct Listener<'r> {
    recalls: &'r Recalls,
    task: TaskId,
    /// Told when it is to be looked now. What was said before the waiting began is kept.
    pub beat: Arc<Notify>,
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        let mut table = self.recalls.lock();
        let Some(of_task) = table.get_mut(&self.task) else { return };
        of_task.retain(|other| !Arc::ptr_eq(&other.beat, &self.beat));
        if of_task.is_empty() {
            table.remove(&self.task);
        }
    }
}

impl Listener<'_> {
    /// Says which attempt it has listened for.
    pub fn settle(&self, step: &StepId, attempt: u32) {
        let mut table = self.recalls.lock();
        for listening in table.get_mut(&self.task).into_iter().flatten() {
            if Arc::ptr_eq(&listening.beat, &self.beat) {
                listening.at = Some((step.clone(), attempt));
            }
        }
    }
}

impl Recalls {
    /// Begins to listen for an attempt. Called before it is claimed: a stop may come right after.
    pub fn listen(&self, task: &TaskId, step: &StepId, attempt: u32) -> Listener<'_> {
        self.add(task, Some((step.clone(), attempt)))
    }

    /// Begins to listen for an attempt that is claimed with another's outcome: which one it is,
    /// [`Listener::settle`] says afterwards. Until then it hears all that is said of the task.
    pub fn listen_ahead(&self, task: &TaskId) -> Listener<'_> {
        self.add(task, None)
    }

    fn add(&self, task: &TaskId, at: Option<(StepId, u32)>) -> Listener<'_> {
        let beat = Arc::new(Notify::new());
        let listening = Listening { at, beat: beat.clone() };
        self.lock().entry(task.clone()).or_default().push(listening);
        Listener { recalls: self, task: task.clone(), beat }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskId, Vec<Listening>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was said. Whoever says nothing wants everything looked at.
    fn hear(&self, body: &[u8]) {
        let table = self.lock();
        if body.is_empty() {
            table.values().flatten().for_each(|listening| listening.beat.notify_one());
            return;
        }
        let Ok(word) = serde_json::from_slice::<Word>(body) else {
            tracing::debug!("a control message cannot be read");
            return;
        };
        for listening in table.get(&word.task).into_iter().flatten() {
            let at = listening.at.as_ref();
            if at.is_none_or(|(step, attempt)| word.means(step, *attempt)) {
                listening.beat.notify_one();
            }
        }
    }

    /// Listens until dropped, under a name that no other listener has. A broker that refuses is
    /// asked again: looks and heartbeats do meanwhile.
    pub async fn follow(self: Arc<Self>, engine: Engine, listener: String) {
        let mut refused = false;
        loop {
            let source = Source::Control { listener: listener.clone() };
            match engine.broker().subscribe(source, PREFETCH).await {
                Ok(subscription) => {
                    refused = false;
                    self.hear(&[]); // what was said before
                    self.follow_one(subscription).await;
                }
                Err(fault) if !refused => {
                    tracing::warn!(%fault, "stops are heard of by looks and heartbeats; retrying");
                    refused = true;
                }
                Err(_) => {}
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn follow_one(&self, mut subscription: Box<dyn Subscription>) {
        while let Some(delivery) = subscription.next().await {
            self.hear(&delivery.body);
            delivery.acker.ack().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn id(byte: u8) -> TaskId {
        TaskId::random([byte; 16])
    }

    fn told(listener: &Listener<'_>) -> bool {
        listener.beat.notified().now_or_never().is_some()
    }

    #[test]
    fn a_word_reaches_those_it_means_and_is_kept_until_they_look() {
        let recalls = Recalls::default();
        let (a, b) = (StepId::new("a").unwrap(), StepId::new("b").unwrap());
        let first = recalls.listen(&id(1), &a, 1);
        let second = recalls.listen(&id(1), &b, 2);
        let other = recalls.listen(&id(2), &a, 1);
        let cases: [(String, [bool; 3]); 7] = [
            (format!(r#"{{"task": "{}"}}"#, id(1)), [true, true, false]),
            (format!(r#"{{"task": "{}", "step": "b"}}"#, id(1)), [false, true, false]),
            (format!(r#"{{"task": "{}", "step": "b", "attempt": 1}}"#, id(1)), [false; 3]),
            (format!(r#"{{"task": "{}", "more": [1]}}"#, id(2)), [false, false, true]),
            (format!(r#"{{"task": "{}"}}"#, id(3)), [false; 3]),
            ("{".to_owned(), [false; 3]),
            (String::new(), [true; 3]),
        ];
        for (body, expected) in cases {
            recalls.hear(body.as_bytes());
            assert_eq!([&first, &second, &other].map(told), expected, "{body}");
        }
        drop((first, second));
        assert_eq!(recalls.lock().len(), 1, "a task without attempts here leaves the table");
    }

    #[test]
    fn what_is_written_is_read() {
        let recalls = Recalls::default();
        let step = StepId::new("a").unwrap();
        let (first, second) = (recalls.listen(&id(1), &step, 1), recalls.listen(&id(1), &step, 2));
        let (task, epoch) = (id(1), 7);
        for (attempt, text, expected) in [
            (None, r#"{"what":"task_ending","task":"TASK","epoch":7}"#, [true, true]),
            (
                Some((step.clone(), 2)),
                r#"{"what":"attempt_taken","task":"TASK","step":"a","epoch":7,"attempt":2}"#,
                [false, true],
            ),
        ] {
            let written = message(&Recall { task: task.clone(), epoch, attempt });
            assert_eq!(written, text.replace("TASK", task.as_str()));
            recalls.hear(&written);
            assert_eq!([&first, &second].map(told), expected, "{text}");
        }
    }

    #[test]
    fn what_is_said_before_it_is_known_which_attempt_comes_is_kept() {
        let recalls = Recalls::default();
        let step = StepId::new("b").unwrap();
        let ahead = recalls.listen_ahead(&id(1));
        let word = |step| format!(r#"{{"task": "{}", "step": "{step}", "attempt": 1}}"#, id(1));
        recalls.hear(word("b").as_bytes());
        ahead.settle(&step, 1);
        assert!(told(&ahead), "a stop may come between the claim and its answer");
        recalls.hear(word("c").as_bytes());
        assert!(!told(&ahead), "now it is known whom it means");
        recalls.hear(word("b").as_bytes());
        assert!(told(&ahead));
    }
}
