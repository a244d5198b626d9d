//! Who was taken over: those who stood still, never those whom an outage kept from renewing.

use std::time::Duration;

use standfast_domain::event::Change;
use standfast_domain::outcome::FailureClass;

use super::Case;
use crate::faults::Fault;
use crate::process::Trouble;
use crate::world::Seen;

impl Case<'_> {
    /// An attempt that was taken from a worker which lived, ran and reached the store whenever it
    /// was there, was taken wrongly.
    pub(super) fn takeovers(&mut self) {
        let claim = Duration::from_millis(self.world.claim_length.0);
        for Seen { elapsed, event, .. } in self.events.clone() {
            let Change::AttemptFailed { step, attempt, worker, class, .. } = &event.change else {
                continue;
            };
            if *class != FailureClass::Lost {
                continue;
            }
            let process = self.world.processes.lock().unwrap().get(worker.as_str()).cloned();
            let Some(process) = process else {
                self.fault(format!("`{step}` was claimed by {worker}, whom nobody started"));
                continue;
            };
            let since = elapsed.saturating_sub(claim * 2);
            let what = match process.trouble_between(since, elapsed) {
                Some(Trouble::Down) => "take-over from the dead",
                Some(Trouble::Frozen) => "take-over from the frozen",
                Some(Trouble::CutOff) => "take-over from the cut off",
                None => "take-over from the living",
            };
            self.world.trace.count(what);
            // Of a claim whose answer was lost its worker knows nothing.
            let begun = self
                .starts
                .iter()
                .any(|start| start.step == step.as_str() && start.attempt == *attempt);
            let lived = process.trouble_between(since, elapsed).is_none() && begun;
            let outage = self
                .world
                .faults
                .outages()
                .into_iter()
                .any(|(from, to)| to - from > claim && from <= elapsed && elapsed < to + claim);
            if outage && process.trouble_between(since, elapsed) != Some(Trouble::Down) {
                let text = format!(
                    "`{step}` attempt {attempt} was taken from {worker} before the \
                    store had been back for a claim's length"
                );
                self.fault(text);
            } else if lived && !self.is_deaf_to_failures() {
                let text = format!("`{step}` attempt {attempt} was taken from {worker}, who lived");
                self.fault(text);
            }
        }
        self.outlived();
    }

    /// True in a world whose store fails single calls: there a worker may miss its renewals.
    fn is_deaf_to_failures(&self) -> bool {
        let kinds = [Fault::StoreFails, Fault::SlowAnswer, Fault::AnswerLost, Fault::HalfApplied];
        !self.world.faults.of(&kinds).is_empty()
    }

    /// Counts attempts that were running before an outage longer than a claim, and after it.
    fn outlived(&self) {
        let claim = Duration::from_millis(self.world.claim_length.0);
        for ((step, attempt), granted) in &self.claims {
            let ended = self.events.iter().find(|seen| match &seen.event.change {
                Change::AttemptFailed { step: of, attempt: number, .. }
                | Change::StepSucceeded { step: of, attempt: number, .. } => {
                    of == step && number == attempt
                }
                _ => false,
            });
            let Some(ended) = ended else { continue };
            let lost = matches!(
                ended.event.change,
                Change::AttemptFailed { class: FailureClass::Lost, .. }
            );
            let through = self.world.faults.outages().into_iter().any(|(from, to)| {
                to - from > claim && granted.elapsed < from && to < ended.elapsed
            });
            if through && !lost {
                self.world.trace.count("attempt outlived an outage");
            }
        }
    }
}
