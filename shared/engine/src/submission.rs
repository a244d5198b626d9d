//! Turns a submitted body into a [`Submission`], or into the list of all its faults: those of
//! the grammar, of expressions, of what they refer to, and of handlers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use standfast_domain::canonical::digest_hex;
use standfast_domain::ceiling::{self, Ceiling};
use standfast_domain::decide::{Addition, Submission};
use standfast_domain::ids::{HandlerName, Principal, StepId};
use standfast_domain::plan::{EffectPlan, Fault, Plan, StepPlan, UndoPlan, Uses, read};
use standfast_domain::record::EffectClass;
use standfast_domain::rights::Identity;
use standfast_domain::time::Span;
use standfast_expressions::{Expression, References, find_faults_and_references};

/// How long an ended task is kept unless the plan or the operator says otherwise.
pub const RETENTION_DEFAULT: Span = Span::from_secs(30 * 24 * 60 * 60);

/// What is known of handlers when a plan is checked.
pub trait Handlers: Send + Sync {
    /// Checks a step's `with` against a built-in handler; `None`: it is not a built-in one.
    /// Values that hold templates are left alone. Gives pointers within `with`.
    fn check(&self, handler: &str, with: &Value) -> Option<Vec<(String, String)>>;

    /// Gives the class of what a step of this handler changes outside unless its plan says
    /// otherwise; an error where the plan must say it. Handlers that are not built in declare
    /// their effects themselves, so theirs is `none`.
    fn effect_class(&self, handler: &str, with: &Value) -> Result<EffectClass, String>;

    /// Checks what a person gives as the receipt of a step's effect, since later steps read it
    /// as the step's output; says what was expected. Other handlers' receipts are theirs to know.
    fn check_receipt(&self, _handler: &str, _receipt: &Value) -> Result<(), String> {
        Ok(())
    }
}

/// What comes with a submitted body.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// The plan as it came.
    pub body: Value,
    /// The plan file's folder, where the submitter may name it.
    pub plan_dir: Option<String>,
    /// Who submits.
    pub by: Principal,
    /// The key from a header or message id; must agree with the plan's own.
    pub key: Option<String>,
    /// W3C trace context; one that is not well-formed is left out, as its standard asks.
    pub traceparent: Option<String>,
}

/// Reads and checks a body; all faults at once.
pub fn prepare(
    submitted: Submitted,
    retention: Span,
    handlers: &dyn Handlers,
    announced: &BTreeSet<String>,
) -> Result<Submission, Vec<Fault>> {
    let draft = read::read(&submitted.body);
    let mut faults = draft.faults;
    let mut plan = draft.plan;
    let sha256 = digest_hex(&json!({ "plan": submitted.body, "dir": submitted.plan_dir }));
    let check =
        Check { handlers, announced, plan_dir: submitted.plan_dir.is_some(), added_by: None };
    let steps = check.steps(&plan.steps, "/steps", &mut faults);
    let finally = check.finally(&plan, &mut faults);
    check.effects(&mut plan.steps, "/steps", &mut faults);
    check.effects(&mut plan.finally, "/finally", &mut faults);
    if let Some(text) = &plan.complete_when {
        let all: BTreeSet<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
        match Expression::parse(text) {
            Ok(expression) => check.references(
                expression.references(),
                "/complete_when",
                |step| all.contains(step).then_some(()).ok_or("is not a step of the plan"),
                &mut faults,
            ),
            Err(fault) => faults.push(at("/complete_when", fault.message)),
        }
    }
    let key = agree(submitted.key, plan.idempotency_key.clone(), &mut faults);
    if !faults.is_empty() {
        faults.sort();
        faults.dedup();
        return Err(faults);
    }
    let mut templated = BTreeSet::new();
    let mut named_in_if = BTreeMap::new();
    let all = plan.steps.iter().zip(steps).chain(plan.finally.iter().zip(finally));
    for (step, addition) in all {
        if addition.templated {
            templated.insert(step.id.clone());
        }
        if !addition.named_in_if.is_empty() {
            named_in_if.insert(step.id.clone(), addition.named_in_if);
        }
    }
    Ok(Submission {
        plan,
        sha256,
        plan_dir: submitted.plan_dir,
        submitted_by: submitted.by,
        ceiling: Ceiling::default(),
        idempotency_key: key,
        retention,
        templated,
        named_in_if,
        traceparent: submitted.traceparent.filter(|text| is_trace_context(text)),
        outgoing: BTreeMap::new(),
        written_ahead: false,
    })
}

/// True for a `traceparent` of four parts in small hexadecimal digits: version, trace, parent and
/// flags (<https://www.w3.org/TR/trace-context/#traceparent-header>).
fn is_trace_context(text: &str) -> bool {
    let parts = text.split('-');
    let digits = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    parts.clone().map(str::len).eq([2, 32, 16, 2]) && parts.flat_map(str::bytes).all(digits)
}

/// Why a body is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// All that is wrong with it, sorted by place.
    pub faults: Vec<Fault>,
    /// True if it is a good plan, and only beyond what its submitter may.
    pub forbidden: bool,
}

/// Reads and checks a body, and holds it to what its submitter may; all faults at once.
pub fn prepare_within(
    who: &Identity,
    submitted: Submitted,
    retention: Span,
    handlers: &dyn Handlers,
    announced: &BTreeSet<String>,
) -> Result<Submission, Unfit> {
    let body = submitted.body.clone();
    match prepare(submitted, retention, handlers, announced) {
        Ok(submission) => {
            let faults = ceiling::beyond(who, &submission.plan);
            match faults.is_empty() {
                true => Ok(Submission { ceiling: (*who.ceiling).clone(), ..submission }),
                false => Err(unfit(faults, true)),
            }
        }
        Err(mut faults) => {
            faults.extend(ceiling::beyond(who, &read::read(&body).plan));
            Err(unfit(faults, false))
        }
    }
}

fn unfit(mut faults: Vec<Fault>, forbidden: bool) -> Unfit {
    faults.sort();
    faults.dedup();
    Unfit { faults, forbidden }
}

/// What is known of the task whose plan grows.
#[derive(Clone, Debug)]
pub struct Grown {
    /// The step whose outcome adds others.
    pub by: StepId,
    /// True if the task has a plan file's folder.
    pub plan_dir: bool,
    /// What its submitter may not go beyond.
    pub ceiling: Ceiling,
}

/// Checks the steps that an outcome adds; `then` is the raw array.
pub fn prepare_added(
    then: &Value,
    of: &Grown,
    handlers: &dyn Handlers,
    announced: &BTreeSet<String>,
) -> Result<(Vec<StepPlan>, Vec<Addition>), Vec<Fault>> {
    let (mut steps, mut faults) = read::read_added_steps(then, "/then");
    let (plan_dir, added_by) = (of.plan_dir, Some(of.by.clone()));
    let check = Check { handlers, announced, plan_dir, added_by };
    let additions = check.steps(&steps, "/then", &mut faults);
    check.effects(&mut steps, "/then", &mut faults);
    faults.extend(of.ceiling.beyond(&steps, "/then"));
    if faults.is_empty() { Ok((steps, additions)) } else { Err(faults) }
}

fn agree(outer: Option<String>, inner: Option<String>, faults: &mut Vec<Fault>) -> Option<String> {
    if let (Some(outer), Some(inner)) = (&outer, &inner)
        && outer != inner
    {
        let message = "differs from the key that the request or message carries";
        faults.push(at("/idempotency_key", message));
    }
    let key = outer.or(inner);
    if let Some(key) = &key
        && (key.is_empty() || key.len() > read::IDEMPOTENCY_KEY_BYTES_MAX)
    {
        let most = read::IDEMPOTENCY_KEY_BYTES_MAX;
        let message = format!("expected 1 to {most} bytes, found {}", key.len());
        faults.push(at("/idempotency_key", message));
    }
    key
}

fn at(pointer: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault { pointer: pointer.into(), message: message.into() }
}

struct Check<'a> {
    handlers: &'a dyn Handlers,
    announced: &'a BTreeSet<String>,
    plan_dir: bool,
    added_by: Option<StepId>,
}

impl Check<'_> {
    fn finally(&self, plan: &Plan, faults: &mut Vec<Fault>) -> Vec<Addition> {
        let main: BTreeSet<&str> = plan.steps.iter().map(|step| step.id.as_str()).collect();
        let index = Upstream::new(&plan.finally);
        let each = plan.finally.iter().enumerate();
        each.map(|(n, step)| {
            let reachable = |name: &str| {
                let known = main.contains(name) || index.reaches(step, name);
                known.then_some(()).ok_or("is neither a step of the plan nor upstream")
            };
            self.step(step, &format!("/finally/{n}"), &reachable, faults)
        })
        .collect()
    }

    fn steps(&self, steps: &[StepPlan], base: &str, faults: &mut Vec<Fault>) -> Vec<Addition> {
        let index = Upstream::new(steps);
        let each = steps.iter().enumerate();
        each.map(|(n, step)| {
            let reachable = |name: &str| {
                let by = self.added_by.as_ref();
                let outside = by.is_some_and(|by| {
                    by.as_str() == name
                        || step.needs.iter().any(|need| {
                            need.as_str() == name && !index.needs.contains_key(need.as_str())
                        })
                });
                let known = outside || index.reaches(step, name);
                known.then_some(()).ok_or("is not upstream: add it to `needs`")
            };
            self.step(step, &format!("{base}/{n}"), &reachable, faults)
        })
        .collect()
    }

    fn step(
        &self,
        step: &StepPlan,
        base: &str,
        reachable: &dyn Fn(&str) -> Result<(), &'static str>,
        faults: &mut Vec<Fault>,
    ) -> Addition {
        let mut addition = Addition::default();
        if let Some(text) = &step.condition {
            let place = format!("{base}/if");
            match Expression::parse(text) {
                Ok(expression) => {
                    let references = expression.references();
                    self.references(references, &place, reachable, faults);
                    let named = references.steps.iter().filter_map(|n| StepId::new(n).ok());
                    addition.named_in_if = named.collect();
                    addition.templated = true;
                }
                Err(fault) => faults.push(at(place, fault.message)),
            }
        }
        let check = step.effect.as_ref().and_then(|effect| effect.check.as_ref());
        let check = check.map(|check| (&check.with, format!("{base}/effect/check/with")));
        for (input, place) in [(&step.with, format!("{base}/with"))].into_iter().chain(check) {
            addition.templated |= standfast_expressions::has_templates(input);
            let references = self.input(input, &place, reachable, faults);
            if references.effect {
                faults
                    .push(at(&place, "`effect` is known only in an `undo`: it is what is undone"));
            }
        }
        if let Some(undo) = &step.undo {
            self.undo(step, undo, &format!("{base}/undo"), reachable, faults);
        }
        if let Uses::Handler(handler) = &step.uses {
            self.handler(handler.as_str(), &step.with, base, faults);
        }
        addition
    }

    /// Checks the templates of an input, and what they name; gives that.
    fn input(
        &self,
        input: &Value,
        place: &str,
        reachable: &dyn Fn(&str) -> Result<(), &'static str>,
        faults: &mut Vec<Fault>,
    ) -> References {
        let (references, found) = find_faults_and_references(input, place);
        faults.extend(found.into_iter().map(|(pointer, fault)| at(pointer, fault.message)));
        self.references(&references, place, reachable, faults);
        references
    }

    /// Checks an undo: it runs after its step, so its input may name that too.
    fn undo(
        &self,
        step: &StepPlan,
        undo: &UndoPlan,
        place: &str,
        reachable: &dyn Fn(&str) -> Result<(), &'static str>,
        faults: &mut Vec<Fault>,
    ) {
        let reachable = |name: &str| match name == step.id.as_str() {
            true => Ok(()),
            false => reachable(name),
        };
        let check = undo.effect.as_ref().and_then(|effect| effect.check.as_ref());
        let check = check.map(|check| (&check.with, format!("{place}/effect/check/with")));
        for (input, place) in [(&undo.with, format!("{place}/with"))].into_iter().chain(check) {
            self.input(input, &place, &reachable, faults);
        }
        self.handler(undo.uses.as_str(), &undo.with, place, faults);
    }

    /// Fills in what each step changes outside, and checks what its author says of that.
    fn effects(&self, steps: &mut [StepPlan], base: &str, faults: &mut Vec<Fault>) {
        for (n, step) in steps.iter_mut().enumerate() {
            let place = format!("{base}/{n}/effect");
            if let Some(undo) = &mut step.undo {
                let place = format!("{base}/{n}/undo/effect");
                self.effect(&undo.uses, &undo.with, &mut undo.effect, &place, faults);
            }
            let Uses::Handler(handler) = &step.uses else { continue };
            self.effect(handler, &step.with, &mut step.effect, &place, faults);
        }
    }

    fn effect(
        &self,
        handler: &HandlerName,
        with: &Value,
        effect: &mut Option<EffectPlan>,
        place: &str,
        faults: &mut Vec<Fault>,
    ) {
        if let Some(effect) = effect {
            let built_in = self.handlers.check(handler.as_str(), with).is_some();
            return self.check_plan(effect, built_in, place, faults);
        }
        match self.handlers.effect_class(handler.as_str(), with) {
            Ok(EffectClass::None) => {}
            Ok(class) => {
                *effect = Some(EffectPlan { class, target: None, says: None, check: None });
            }
            Err(why) => faults.push(at(place, why)),
        }
    }

    /// The check of an effect: of a step whose handler cannot check by itself, by a handler
    /// that is built in too and changes nothing.
    fn check_plan(
        &self,
        effect: &EffectPlan,
        built_in: bool,
        place: &str,
        faults: &mut Vec<Fault>,
    ) {
        let Some(check) = &effect.check else {
            if built_in && effect.class == EffectClass::Checkable {
                faults.push(at(place, "a `checkable` effect needs a `check`"));
            }
            return;
        };
        let place = format!("{place}/check");
        if !built_in {
            faults.push(at(
                place,
                "only steps of built-in handlers have one: others check \
                                   their effects themselves",
            ));
            return;
        }
        let name = check.uses.as_str();
        match self.handlers.check(name, &check.with) {
            Some(found) => faults
                .extend(found.into_iter().map(|(at_, why)| at(format!("{place}/with{at_}"), why))),
            None => {
                let message = format!("expected `exec` or `http`, found `{name}`");
                faults.push(at(format!("{place}/uses"), message));
                return;
            }
        }
        if self.handlers.effect_class(name, &check.with) != Ok(EffectClass::None) {
            faults.push(at(place, "a check must not change anything: use GET or HEAD"));
        }
    }

    fn handler(&self, name: &str, with: &Value, base: &str, faults: &mut Vec<Fault>) {
        match self.handlers.check(name, with) {
            Some(found) => faults.extend(
                found
                    .into_iter()
                    .map(|(pointer, message)| at(format!("{base}/with{pointer}"), message)),
            ),
            None if self.announced.contains(name) => {}
            None => {
                let message = format!(
                    "unknown handler `{name}`; known are the built-in ones (`exec`, `http`, \
                     `timer`) and those that a worker has announced: start a worker that has it"
                );
                faults.push(at(format!("{base}/uses"), message));
            }
        }
    }

    fn references(
        &self,
        references: &References,
        place: &str,
        reachable: impl Fn(&str) -> Result<(), &'static str>,
        faults: &mut Vec<Fault>,
    ) {
        let files = references.artifacts.iter().filter_map(|name| name.split_once('/'));
        let steps = references.steps.iter().map(String::as_str).chain(files.map(|(step, _)| step));
        for step in steps.collect::<BTreeSet<&str>>() {
            if let Err(why) = reachable(step) {
                faults.push(at(place, format!("step `{step}` {why}")));
            }
        }
        if references.plan_dir && !self.plan_dir {
            let message = "`plan.dir` exists only for plans submitted from a file on the machine \
                           of a loopback api (`standfast run` and `standfast submit`)";
            faults.push(at(place, message));
        }
    }
}

/// Answers whether a step is upstream of another, fast for the usual case of a direct need.
struct Upstream<'a> {
    needs: BTreeMap<&'a str, &'a [StepId]>,
}

impl<'a> Upstream<'a> {
    fn new(steps: &'a [StepPlan]) -> Self {
        Self { needs: steps.iter().map(|step| (step.id.as_str(), &step.needs[..])).collect() }
    }

    fn reaches(&self, step: &StepPlan, name: &str) -> bool {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&[StepId]> = vec![&step.needs];
        while let Some(needs) = open.pop() {
            if needs.iter().any(|need| need.as_str() == name) {
                return true;
            }
            for need in needs {
                if seen.insert(need.as_str())
                    && let Some(further) = self.needs.get(need.as_str())
                {
                    open.push(further);
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_context_has_four_parts_of_small_hexadecimal_digits() {
        let right = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert!(is_trace_context(right));
        for wrong in [
            "",
            "00",
            &right.to_uppercase(),
            &right.replace("-b7", "b7-"),
            &right.replace("-01", "-0\0"),
            &format!("{right}-00"),
        ] {
            assert!(!is_trace_context(wrong), "{wrong:?}");
        }
    }
}
