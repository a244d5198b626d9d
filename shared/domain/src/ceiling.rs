//! What one principal may not go beyond: the handlers, queues, effects and limits of its plans,
//! and whom they may name. What a ceiling does not speak of, it leaves open.
//!
//! It goes with the task: steps that an outcome adds later, and what an attempt changes outside,
//! are held to the ceiling that their plan was submitted under.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{HandlerName, NameFault, Principal, Queue};
use crate::plan::{Fault, Plan, StepPlan, UndoPlan, Uses};
use crate::record::EffectClass;
use crate::rights::Identity;
use crate::time::Span;

/// Names in one list of a ceiling: each is looked at for each step of a plan.
pub const NAMES_MAX: usize = 1_000;

/// What one principal may not go beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    /// Handlers that steps may use, and that a worker may have; `timer` is always allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handlers: Option<BTreeSet<HandlerName>>,
    /// Queues that steps may name, and that a worker may take from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<BTreeSet<Queue>>,
    /// Classes of effects that steps may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<BTreeSet<EffectClass>>,
    /// Limits of steps and tasks.
    #[serde(skip_serializing_if = "Limits::is_open")]
    pub limits: Limits,
    /// Whom a plan may name as owner besides the principal and its groups, and whom a task may
    /// be handed over to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owners: Option<BTreeSet<Naming>>,
    /// Whom a plan may name as approvers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvers: Option<BTreeSet<Naming>>,
    /// Whom a plan may name as operators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operators: Option<BTreeSet<Naming>>,
    /// Whom a plan may name as viewers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub viewers: Option<BTreeSet<Naming>>,
}

/// Limits of steps and tasks; what is not there is left open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The largest `retry.max_attempts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The longest `timeout.attempt`.
    #[serde(skip_serializing_if = "Option::is_none", with = "span_text")]
    pub attempt_timeout: Option<Span>,
    /// The longest `retention`.
    #[serde(skip_serializing_if = "Option::is_none", with = "span_text")]
    pub retention: Option<Span>,
}

impl Ceiling {
    /// What a user of the broker publishes within to whom nothing was granted, unless the
    /// installation says otherwise. Its plans reach any queue, since that is what publishing is
    /// for, do nothing outside that may not be done twice, bind a worker for a day at most, and
    /// name nobody else.
    pub fn of_ungranted_users() -> Self {
        Self {
            handlers: None,
            queues: None,
            effects: Some([EffectClass::None, EffectClass::Idempotent].into()),
            limits: Limits {
                max_attempts: Some(100),
                attempt_timeout: Some(Span::from_secs(24 * 60 * 60)),
                retention: Some(Span::from_secs(30 * 24 * 60 * 60)),
            },
            owners: Some(BTreeSet::new()),
            approvers: Some(BTreeSet::new()),
            operators: Some(BTreeSet::new()),
            viewers: Some(BTreeSet::new()),
        }
    }
}

impl Limits {
    fn is_open(&self) -> bool {
        *self == Self::default()
    }
}

/// Writes spans as people do.
mod span_text {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::time::Span;

    pub(super) fn serialize<S: Serializer>(span: &Option<Span>, to: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => to.collect_str(span),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Span>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let wrong = || {
            let message = format!("expected a span such as `30s`, `1h30m` or `7d`, found `{text}`");
            serde::de::Error::custom(message)
        };
        Span::parse(&text).map(Some).ok_or_else(wrong)
    }
}

/// Whom a plan may name: one principal, all of a kind (`user:*`), or anyone (`*`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Naming {
    /// Anyone.
    Any,
    /// Everyone of a kind; with its colon.
    Kind(String),
    /// One.
    One(Principal),
}

impl Naming {
    /// Reads `*`, `KIND:*` or a principal.
    pub fn new(text: impl Into<String>) -> Result<Self, NameFault> {
        let text = text.into();
        if text == "*" {
            return Ok(Self::Any);
        }
        match text.strip_suffix('*') {
            Some(kind) if Principal::new(format!("{kind}x")).is_ok() && kind.ends_with(':') => {
                Ok(Self::Kind(kind.to_owned()))
            }
            Some(_) | None => Principal::new(text).map(Self::One),
        }
    }

    /// True if it names the principal.
    pub fn takes(&self, principal: &Principal) -> bool {
        match self {
            Self::Any => true,
            Self::Kind(kind) => principal.as_str().starts_with(kind.as_str()),
            Self::One(one) => one == principal,
        }
    }
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Kind(kind) => write!(f, "{kind}*"),
            Self::One(one) => one.fmt(f),
        }
    }
}

impl TryFrom<String> for Naming {
    type Error = NameFault;
    fn try_from(text: String) -> Result<Self, NameFault> {
        Self::new(text)
    }
}

impl From<Naming> for String {
    fn from(naming: Naming) -> String {
        naming.to_string()
    }
}

impl Ceiling {
    /// True if it leaves everything open.
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Says what of itself is not acceptable.
    pub fn faults(&self) -> Vec<Fault> {
        let length = |list: Option<usize>| list.unwrap_or(0);
        let lists = [
            ("/handlers", length(self.handlers.as_ref().map(BTreeSet::len))),
            ("/queues", length(self.queues.as_ref().map(BTreeSet::len))),
            ("/owners", length(self.owners.as_ref().map(BTreeSet::len))),
            ("/approvers", length(self.approvers.as_ref().map(BTreeSet::len))),
            ("/operators", length(self.operators.as_ref().map(BTreeSet::len))),
            ("/viewers", length(self.viewers.as_ref().map(BTreeSet::len))),
        ];
        let long = lists.into_iter().filter(|(_, found)| *found > NAMES_MAX);
        let mut faults: Vec<Fault> = long
            .map(|(pointer, found)| {
                fault(pointer, format!("expected at most {NAMES_MAX} names, found {found}"))
            })
            .collect();
        if self.limits.max_attempts == Some(0) {
            faults.push(fault("/limits/max_attempts", "expected at least 1, found 0"));
        }
        faults
    }

    /// Says where steps go beyond it; `base` is where they stand.
    pub fn beyond(&self, steps: &[StepPlan], base: &str) -> Vec<Fault> {
        if self.is_open() {
            return Vec::new();
        }
        let each = steps.iter().enumerate();
        each.flat_map(|(at, step)| self.of_step(step, &format!("{base}/{at}"))).collect()
    }

    fn of_step(&self, step: &StepPlan, place: &str) -> Vec<Fault> {
        let Uses::Handler(handler) = &step.uses else { return Vec::new() };
        let mut faults = Vec::new();
        let check = step.effect.as_ref().and_then(|effect| effect.check.as_ref());
        faults.extend(outside("handler", handler, &self.handlers, &format!("{place}/uses")));
        faults.extend(outside("queue", &step.queue, &self.queues, &format!("{place}/queue")));
        let class = step.effect_class();
        faults.extend(outside("effect class", &class, &self.effects, &format!("{place}/effect")));
        if let Some(check) = check {
            let place = format!("{place}/effect/check/uses");
            faults.extend(outside("handler", &check.uses, &self.handlers, &place));
        }
        if let Some(undo) = &step.undo {
            faults.extend(self.of_undo(undo, &step.queue, &format!("{place}/undo")));
        }
        let found = step.retry.max_attempts;
        if let Some(most) = self.limits.max_attempts.filter(|most| found > *most) {
            let place = format!("{place}/retry/max_attempts");
            faults.push(fault(place, format!("{found} attempts are beyond your {most}")));
        }
        faults.extend(self.too_long(step.timeout.attempt, place));
        faults
    }

    fn of_undo(&self, undo: &UndoPlan, of_step: &Queue, place: &str) -> Vec<Fault> {
        let queue = undo.queue.as_ref().unwrap_or(of_step);
        let class = undo.effect.as_ref().map_or(EffectClass::None, |effect| effect.class);
        let check = undo.effect.as_ref().and_then(|effect| effect.check.as_ref());
        let mut faults = Vec::new();
        faults.extend(outside("handler", &undo.uses, &self.handlers, &format!("{place}/uses")));
        faults.extend(outside("queue", queue, &self.queues, &format!("{place}/queue")));
        faults.extend(outside("effect class", &class, &self.effects, &format!("{place}/effect")));
        if let Some(check) = check {
            let place = format!("{place}/effect/check/uses");
            faults.extend(outside("handler", &check.uses, &self.handlers, &place));
        }
        faults.extend(self.too_long(undo.timeout.attempt, place));
        faults
    }

    fn too_long(&self, found: Span, place: &str) -> Option<Fault> {
        let most = self.limits.attempt_timeout.filter(|most| found > *most)?;
        let place = format!("{place}/timeout/attempt");
        Some(fault(place, format!("{found} is beyond your {most}")))
    }
}

/// Says where a plan goes beyond what its submitter may, all at once.
pub fn beyond(who: &Identity, plan: &Plan) -> Vec<Fault> {
    let ceiling = &who.ceiling;
    let mut faults = Vec::new();
    if let Some(owner) = plan.owner.as_ref().filter(|owner| !who.may_own_by(owner)) {
        let message = format!("you may not name `{owner}` as owner; leave it out to own the task");
        faults.push(fault("/owner", message));
    }
    for (part, named, allowed) in [
        ("approver", &plan.approvers, &ceiling.approvers),
        ("operator", &plan.operators, &ceiling.operators),
        ("viewer", &plan.viewers, &ceiling.viewers),
    ] {
        let Some(allowed) = allowed else { continue };
        for (at, one) in named.iter().enumerate() {
            if !allowed.iter().any(|naming| naming.takes(one)) {
                let message = format!("you may not name `{one}` as {part}; {}", list(allowed));
                faults.push(fault(format!("/{part}s/{at}"), message));
            }
        }
    }
    if let (Some(found), Some(most)) = (plan.retention, ceiling.limits.retention)
        && found > most
    {
        faults.push(fault("/retention", format!("{found} is beyond your {most}")));
    }
    faults.extend(ceiling.beyond(&plan.steps, "/steps"));
    faults.extend(ceiling.beyond(&plan.finally, "/finally"));
    faults
}

fn outside<T: Ord + fmt::Display>(
    what: &str,
    found: &T,
    allowed: &Option<BTreeSet<T>>,
    place: &str,
) -> Option<Fault> {
    let allowed = allowed.as_ref().filter(|allowed| !allowed.contains(found))?;
    Some(fault(place, format!("you may not use {what} `{found}`; {}", list(allowed))))
}

/// Names what is allowed, as far as a sentence holds it.
fn list<T: fmt::Display>(allowed: &BTreeSet<T>) -> String {
    const SHOWN: usize = 10;
    if allowed.is_empty() {
        return "your ceiling allows none".to_owned();
    }
    let shown: Vec<String> = allowed.iter().take(SHOWN).map(|one| format!("`{one}`")).collect();
    let more = allowed.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("your ceiling allows {}{more}", shown.join(", "))
}

fn fault(pointer: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault { pointer: pointer.into(), message: message.into() }
}

#[cfg(test)]
mod tests;
