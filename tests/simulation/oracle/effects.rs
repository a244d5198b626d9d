//! What was promised of effects, checked against the ledger of the world outside.
//!
//! A process that stands still between its last look at the clock and the sending may send at any
//! time afterwards: nothing within it could hold it back. Such requests are counted, and excuse
//! what follows from them.

use std::collections::BTreeMap;

use standfast_domain::event::Change;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::record::{
    Effect, EffectClass, Effects, Ending, Key, MAIN_EFFECT, NotLanded, Phase, Record, Standing,
    StopMode, effect_key,
};

use super::Case;
use crate::ledger::Sent;
use crate::process::Trouble;
use crate::records::header;
use crate::world::Seen;

/// One generation of an effect.
type Place = (StepId, String, u32);

impl Case<'_> {
    pub(super) fn effects(&mut self) {
        let mut keys: BTreeMap<String, Vec<Sent>> = BTreeMap::new();
        for sent in self.sent.clone() {
            if sent.request.unaware {
                self.world.trace.count("send of a zombie");
            }
            keys.entry(sent.request.key.clone()).or_default().push(sent);
        }
        for (key, sent) in &keys {
            for pair in sent.windows(2) {
                self.is_sent_again_rightly(key, &pair[0], &pair[1]);
            }
            self.happens_once(key, sent);
            self.has_its_generation(key, &sent[0]);
        }
        self.confirmed_is_not_sent_again();
        self.nothing_is_sent_after_the_epoch();
        self.the_fenced_send_nothing();
        self.nothing_is_sent_after_its_window();
        self.nothing_is_intended_after_a_stop();
        self.landed_is_not_doubted();
        self.holds_name_the_right_key();
        self.truth_is_not_taken_too_early();
        self.what_was_told_is_known(&keys);
        self.receipts_are_taken();
        self.a_completed_task_owes_nothing(&keys);
    }

    /// Between two requests under one key there is what its class asks for.
    fn is_sent_again_rightly(&mut self, key: &str, first: &Sent, second: &Sent) {
        if first.request.unaware || second.request.unaware {
            return;
        }
        if first.was_refused_before(second.moment) {
            return self.world.trace.count("sent again after a refusal");
        }
        let between = |moment: u64| first.moment < moment && moment < second.moment;
        let (task, step) = (self.task.as_str(), first.request.step.as_str());
        match first.request.class {
            EffectClass::None => {}
            EffectClass::Idempotent if first.bytes == second.bytes => {
                self.world.trace.count("sent again under its key");
            }
            EffectClass::Idempotent if self.answered_no(first, between) => {}
            EffectClass::Idempotent => {
                self.fault(format!("{key}: another request was sent under the same key"));
            }
            EffectClass::Checkable => {
                let name = &first.request.name;
                let no = self.checks.iter().any(|check| {
                    let same = check.task == task && check.step == step && check.name == *name;
                    same && !check.happened && between(check.moment)
                });
                if no {
                    self.world.trace.count("sent again after its check");
                } else if !self.answered_no(first, between) {
                    self.fault(format!("{key}: was sent again, and no check said that it may"));
                }
            }
            EffectClass::Irreversible if self.answered_no(first, between) => {
                self.world.trace.count("sent again after an answer");
            }
            EffectClass::Irreversible => {
                self.fault(format!("{key}: was sent again, and nobody said that it may"));
            }
        }
    }

    /// True if a person's `not_happened` was taken at such a moment.
    fn answered_no(&self, of: &Sent, at: impl Fn(u64) -> bool) -> bool {
        self.events.iter().any(|Seen { moment, event, .. }| match &event.change {
            Change::EffectNotLanded { step, name, how: NotLanded::Answered, .. } => {
                step.as_str() == of.request.step && *name == of.request.name && at(*moment)
            }
            _ => false,
        })
    }

    /// The outside acts at most once on what is not idempotent.
    fn happens_once(&mut self, key: &str, sent: &[Sent]) {
        let acted: Vec<&Sent> = sent.iter().filter(|sent| sent.acted.is_some()).collect();
        let Some([first, second]) = acted.first_chunk() else { return };
        if sent.iter().any(|sent| sent.request.unaware) {
            return;
        }
        // The person had looked before the request came that made the word untrue.
        let overtaken = self.said.iter().any(|said| {
            let of = said.step.as_str() == first.request.step;
            of && said.answer == Answer::NotHappened
                && said.looked < first.acted.unwrap_or(0)
                && first.moment < second.moment
        });
        // By some clock the first request was over, and by the world's it was not.
        let early = second.at - first.at < first.request.timeout;
        match (early && self.world.faults.has_jumped_before(second.at), overtaken) {
            (true, _) => self.world.trace.count("twice, since the store's clock had jumped"),
            (false, true) => self.world.trace.count("twice, since a person was overtaken"),
            (false, false) => self.fault(format!("{key}: happened {} times", acted.len())),
        }
    }

    /// Another generation is sent only if a person wanted that.
    fn has_its_generation(&mut self, key: &str, sent: &Sent) {
        let request = &sent.request;
        let step = StepId::new(request.step.clone()).unwrap();
        let right = effect_key(self.task, &step, &request.name, sent.generation());
        if right != *key {
            self.fault(format!("{key}: was sent, {right} is right"));
        }
        let also = self.said.iter().filter(|said| {
            said.step == step && said.answer == Answer::SendAlso && said.looked < sent.moment
        });
        if also.count() < sent.generation() as usize - 1 {
            self.fault(format!("{key}: nobody asked for another one"));
        }
    }

    /// Gives when each generation was first known to have happened.
    pub(super) fn landed(&self) -> BTreeMap<Place, u64> {
        let mut landed = BTreeMap::new();
        for Seen { moment, event, .. } in &self.events {
            if let Change::EffectLanded { step, name, generation, .. } = &event.change {
                let place = (step.clone(), name.clone(), *generation);
                landed.entry(place).or_insert(*moment);
            }
        }
        landed
    }

    fn confirmed_is_not_sent_again(&mut self) {
        for ((step, name, generation), moment) in self.landed() {
            let key = effect_key(self.task, &step, &name, generation);
            for sent in self.sent.clone() {
                let late = sent.request.key == key && sent.moment > moment;
                // A claim is the intent of an idempotent effect, and hands over what is kept.
                let intended = sent.request.class == EffectClass::Idempotent
                    && self.granted(&sent).is_some_and(|granted| granted < moment);
                if late && !sent.request.unaware && !intended {
                    self.fault(format!("{key}: was sent after its receipt was stored"));
                }
            }
        }
    }

    /// Once the epoch has risen, no attempt of an older one sends.
    fn nothing_is_sent_after_the_epoch(&mut self) {
        let raised = self.events.iter().find_map(|seen| match seen.event.change {
            Change::EpochRaised { epoch } => Some((seen.moment, epoch)),
            _ => None,
        });
        let Some((raised, epoch)) = raised else { return };
        for sent in self.sent.clone() {
            // By its claim's epoch: one may be claimed in the very commit that raises it.
            let step = StepId::new(sent.request.step.clone()).unwrap();
            let claim = self.claims.get(&(step, sent.request.attempt));
            let older = claim.is_some_and(|claim| claim.epoch < epoch);
            let Sent { moment, request, .. } = sent;
            let excused = request.unaware || request.behind;
            if older && raised < moment && !excused {
                let key = request.key;
                self.fault(format!("{key}: was sent after the epoch had risen"));
            }
        }
    }

    /// When the attempt that sent something was given to its worker.
    fn granted(&self, sent: &Sent) -> Option<u64> {
        let step = StepId::new(sent.request.step.clone()).unwrap();
        self.claims.get(&(step, sent.request.attempt)).map(|granted| granted.moment)
    }

    /// An attempt that was taken over, or has ended otherwise, sends nothing any more. One that a
    /// person stopped may send while its claim lasts and its worker has not heard, but nothing
    /// once the next attempt has begun.
    fn the_fenced_send_nothing(&mut self) {
        for Seen { moment, event, .. } in self.events.clone() {
            let Change::AttemptFailed { step, attempt, .. } = &event.change else { continue };
            let next = self.claims.get(&(step.clone(), attempt + 1)).copied();
            for Sent { moment: sent, at, request, .. } in self.sent.clone() {
                let own = request.step == step.as_str() && request.attempt == *attempt;
                let excused = request.unaware || request.behind;
                if !own || sent <= moment || excused {
                    continue;
                }
                if !self.is_under_way_at_its_stop(step, *attempt, sent, at) {
                    self.fault(format!("{}: was sent after its attempt had ended", request.key));
                } else if next.is_some_and(|next| next.moment < sent)
                    && !self.world.faults.has_jumped_before(at)
                {
                    self.fault(format!("{}: was sent after the next attempt began", request.key));
                } else {
                    self.world.trace.count("send under way at an attempt's stop");
                }
            }
        }
    }

    /// Nobody checks, repeats or undoes what was intended until its window and its request's time
    /// are over; so nothing is sent after that window.
    fn nothing_is_sent_after_its_window(&mut self) {
        for sent in self.sent.clone() {
            let request = &sent.request;
            let intent = self.events.iter().rfind(|seen| match &seen.event.change {
                Change::EffectIntended { step, name, generation, intent, .. } => {
                    step.as_str() == request.step
                        && *name == request.name
                        && *generation == sent.generation()
                        && intent.attempt == request.attempt
                        && seen.moment < sent.moment
                }
                _ => false,
            });
            let Some(Seen { elapsed, event, .. }) = intent else {
                if request.class != EffectClass::Idempotent || request.name != MAIN_EFFECT {
                    self.fault(format!("{}: was sent without an intent", request.key));
                }
                continue;
            };
            let Change::EffectIntended { window, .. } = &event.change else { continue };
            if sent.at > *elapsed + window.to_std() && !request.unaware {
                self.fault(format!("{}: was sent after its window", request.key));
            }
        }
    }

    fn nothing_is_intended_after_a_stop(&mut self) {
        // Under a drain, attempts that run may finish, and send what they must for that.
        let ends = |seen: &&Seen| match &seen.event.change {
            Change::StopRequested { mode, .. } | Change::StopStrengthened { mode, .. } => {
                *mode != StopMode::Drain
            }
            Change::TaskFailing { .. } => true,
            _ => false,
        };
        let Some(closed) = self.events.iter().find(ends).map(|seen| seen.moment) else { return };
        for Seen { moment, event, .. } in self.events.clone() {
            let Change::EffectIntended { step, name, .. } = &event.change else { continue };
            let finally = self.promises.get(step.as_str()).is_some_and(|promise| promise.finally);
            if moment > closed && !finally && step.undone().is_none() {
                self.fault(format!("effect `{name}` of `{step}` was intended after a stop"));
            }
        }
    }

    /// What is known to have happened is never uncertain again.
    fn landed_is_not_doubted(&mut self) {
        let landed = self.landed();
        for Seen { moment, event, .. } in self.events.clone() {
            let Change::StepHeld { step, hold } = &event.change else { continue };
            let Some(held) = hold.effect.as_ref() else { continue };
            let of_hold = landed.iter().find(|((of, name, generation), _)| {
                of == step && effect_key(self.task, of, name, *generation) == held.key
            });
            let known = of_hold.is_some_and(|(_, known)| *known < moment);
            if hold.reason == HoldReason::UncertainEffect && known {
                self.fault(format!("{} is held as uncertain though it has landed", held.key));
            }
        }
        for (step, name, generation) in landed.into_keys() {
            let effect = self.effect(&step, &name);
            let kept = effect.is_some_and(|effect| {
                effect.generation > generation
                    || (effect.generation == generation && effect.has_landed())
            });
            if !kept {
                self.fault(format!("effect `{name}` of `{step}` has landed and does not stand so"));
            }
        }
        let late = self.late_receipts();
        (0..late).for_each(|_| self.world.trace.count("receipt after the attempt's end"));
        let ends = |seen: &Seen| matches!(seen.event.change, Change::TaskEnded { .. });
        let after = self.events.iter().skip_while(|seen| !ends(seen));
        let receipts =
            after.filter(|seen| matches!(seen.event.change, Change::EffectLanded { .. }));
        receipts.for_each(|_| self.world.trace.count("landed after the task's end"));
    }

    /// Counts receipts that came from attempts which had ended before.
    fn late_receipts(&self) -> usize {
        let mut intents: BTreeMap<Place, u32> = BTreeMap::new();
        let mut ended: Vec<(StepId, u32, u64)> = Vec::new();
        let mut late = 0;
        let answered = |place: &usize| {
            let before = place.checked_sub(1).map(|before| &self.events[before].event.change);
            matches!(before, Some(Change::HoldAnswered { .. }))
        };
        for (place, Seen { moment, event, .. }) in self.events.iter().enumerate() {
            match &event.change {
                Change::EffectIntended { step, name, generation, intent, .. } => {
                    intents.insert((step.clone(), name.clone(), *generation), intent.attempt);
                }
                Change::AttemptFailed { step, attempt, .. } => {
                    ended.push((step.clone(), *attempt, *moment));
                }
                Change::EffectLanded { step, name, generation, .. } => {
                    let of = (step.clone(), name.clone(), *generation);
                    let over = intents.get(&of).is_some_and(|attempt| {
                        ended
                            .iter()
                            .any(|(of, ended, at)| of == step && ended == attempt && at < moment)
                    });
                    late += usize::from(over && !answered(&place));
                }
                _ => {}
            }
        }
        late
    }

    fn effect(&self, step: &StepId, name: &str) -> Option<&Effect> {
        match self.records.get(&Key::Effects(step.clone())) {
            Some(Record::Effects(effects)) => effects.get(name),
            _ => None,
        }
    }

    /// A hold names the effect that its step has, in its newest generation.
    fn holds_name_the_right_key(&mut self) {
        let mut newest: BTreeMap<(StepId, String), u32> = BTreeMap::new();
        for Seen { event, .. } in self.events.clone() {
            match &event.change {
                Change::EffectIntended { step, name, generation, .. }
                | Change::EffectReopened { step, name, generation } => {
                    newest.insert((step.clone(), name.clone()), *generation);
                }
                Change::StepHeld { step, hold } => {
                    let of_effect = matches!(
                        hold.reason,
                        HoldReason::UncertainEffect | HoldReason::EffectChanged
                    );
                    let right = hold.effect.as_ref().map(|held| {
                        let place = (step.clone(), held.name.clone());
                        let generation = newest.get(&place).copied().unwrap_or(1);
                        effect_key(self.task, step, &held.name, generation)
                    });
                    if hold.reason == HoldReason::UndoFailed {
                        continue; // it names what is not undone, an effect of another step
                    }
                    if right != hold.effect.as_ref().map(|held| held.key.clone())
                        || right.is_some() != of_effect
                    {
                        let named = &hold.effect;
                        self.fault(format!("`{step}` is held for {named:?}, right is {right:?}"));
                    }
                }
                _ => {}
            }
        }
    }

    /// Nobody's `not_happened` is taken while the request may be under way, and only of those
    /// who said so.
    fn truth_is_not_taken_too_early(&mut self) {
        let mut over = BTreeMap::new();
        for Seen { event, .. } in self.events.clone() {
            match &event.change {
                Change::EffectIntended { step, name, window, request_timeout, .. } => {
                    let until = event.at.after(*window).after(*request_timeout);
                    over.insert((step.clone(), name.clone()), until);
                }
                Change::EffectNotLanded { step, name, how: NotLanded::Answered, .. } => {
                    let until = over.get(&(step.clone(), name.clone()));
                    if until.is_some_and(|until| event.at < *until) {
                        self.fault(format!("`{step}`: `{name}` may still have been under way"));
                    }
                    let said = self
                        .said
                        .iter()
                        .any(|said| said.step == *step && said.answer == Answer::NotHappened);
                    if !said {
                        self.fault(format!("`{step}`: nobody said what became of `{name}`"));
                    }
                }
                _ => {}
            }
        }
    }

    /// What the outside answered, and the sender's code handed on, is known in the end, if its
    /// process lived to tell it.
    fn what_was_told_is_known(&mut self, keys: &BTreeMap<String, Vec<Sent>>) {
        for (key, sent) in keys {
            let alive = |sent: &&Sent| {
                let processes = self.world.processes.lock().unwrap();
                let process = processes.get(&sent.process).expect("senders are processes");
                let now = self.world.trace.elapsed();
                process.trouble_between(sent.at, now) != Some(Trouble::Down)
            };
            let told = sent.iter().rfind(|sent| sent.told && sent.acted.is_some());
            let told = told.filter(alive).cloned();
            let Some(told) = told.filter(|sent| sent.request.class != EffectClass::Idempotent)
            else {
                continue;
            };
            if !self.is_known(&told) {
                self.fault(format!("{key}: was answered and told, and is not known"));
            }
        }
    }

    /// A receipt is taken from whoever recorded the intent, until another attempt has recorded it
    /// anew.
    fn receipts_are_taken(&mut self) {
        for sent in self.sent.clone().into_iter().filter(|sent| sent.not_taken) {
            let request = &sent.request;
            let anew = self.events.iter().any(|seen| match &seen.event.change {
                Change::EffectIntended { step, name, intent, .. } => {
                    let same = step.as_str() == request.step && *name == request.name;
                    same && intent.attempt > request.attempt
                }
                _ => false,
            });
            if !anew {
                self.fault(format!("{}: its receipt was not taken", request.key));
            }
        }
    }

    fn is_known(&self, sent: &Sent) -> bool {
        let step = StepId::new(sent.request.step.clone()).unwrap();
        self.effect(&step, &sent.request.name).is_some_and(|effect| {
            let generation = sent.generation();
            effect.generation > generation
                || (effect.generation == generation && effect.has_landed())
        })
    }

    /// True if processes disagreed about the time, and so believed a check or a person while the
    /// request was under way.
    fn was_settled_early(&self, sent: &Sent) -> bool {
        let acted = sent.acted.unwrap_or(0);
        let settled = self.events.iter().any(|seen| match &seen.event.change {
            Change::EffectNotLanded { step, name, .. } => {
                let same = step.as_str() == sent.request.step && *name == sent.request.name;
                same && sent.moment < seen.moment && seen.moment < acted
            }
            _ => false,
        });
        settled && self.world.faults.has_jumped_before(sent.at + sent.request.timeout)
    }

    fn a_completed_task_owes_nothing(&mut self, keys: &BTreeMap<String, Vec<Sent>>) {
        let Some(header) = header(self.records) else { return };
        if !matches!(header.phase, Phase::Ended { ending: Ending::Completed, .. }) {
            return;
        }
        let owed: Effects = self
            .records
            .values()
            .filter_map(|record| match record {
                Record::Effects(effects) => Some(effects.clone()),
                _ => None,
            })
            .flatten()
            .filter(|(_, effect)| {
                let open = match effect.standing {
                    Standing::InFlight | Standing::Uncertain { .. } => true,
                    Standing::Landed { .. } | Standing::NotLanded { .. } => false,
                };
                open && effect.class != EffectClass::Idempotent
            })
            .collect();
        if !owed.is_empty() || header.effects_owed > 0 {
            let said = header.effects_owed;
            self.fault(format!("completed, and owes {owed:?}; its header says {said}"));
        }
        for (key, sent) in keys {
            let zombies = sent.iter().any(|sent| sent.request.unaware);
            let acted = sent.iter().find(|sent| sent.acted.is_some()).cloned();
            let acted = acted.filter(|sent| sent.request.class != EffectClass::Idempotent);
            let acted = acted.filter(|sent| !self.was_settled_early(sent));
            if let Some(acted) = acted.filter(|_| !zombies)
                && !self.is_known(&acted)
            {
                self.fault(format!("{key}: has happened, and its task completed without knowing"));
            }
        }
    }
}
