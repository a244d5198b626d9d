//! Effects as readers see them.

use serde_json::Value;
use standfast_domain::hold::{Answer, HoldReason};
use standfast_domain::ids::StepId;
use standfast_domain::record::{Effect, Effects, MAIN_EFFECT, Payload, Standing, effect_key};
use standfast_domain::time::Time;
use standfast_protocol::holds::AnswerView;
use standfast_protocol::task_effects::{BlobView, EffectStanding, EffectView, Exchange};

use super::hold;
use super::text::{clock, plain};
use crate::reads::Base;

/// A step with the effects that it has recorded.
#[derive(Clone, Debug)]
pub(crate) struct Touched {
    pub step: StepId,
    pub effects: Effects,
    /// True while an attempt of the step runs.
    pub running: bool,
    /// True if the step will not run again, whatever is answered.
    pub over: bool,
}

impl Touched {
    /// Gives the answers that are open to a person, by effect: none while an attempt runs that
    /// may still find out.
    pub fn answers(&self, base: &Base, now: Time, name: &str, effect: &Effect) -> Vec<AnswerView> {
        let uncertain = matches!(effect.standing, Standing::Uncertain { .. });
        if !uncertain || self.running {
            return Vec::new();
        }
        let open = self.effects.values().filter(|effect| effect.is_open()).count();
        // One that is uncertain alone need not be named.
        let named = (open > 1 || name != MAIN_EFFECT).then_some(name);
        let reason = HoldReason::UncertainEffect;
        let answers = [Answer::Happened, Answer::NotHappened];
        let about = hold::About { step: Some(&self.step), effect: named };
        let views = answers.map(|answer| hold::answer_view(base, about, reason, answer));
        let [happened, mut not_happened] = match self.over {
            true => views.map(hold::for_the_record),
            false => views,
        };
        if now < effect.settled_by {
            // The request may still be under way.
            let from = clock(effect.settled_by, now);
            not_happened.effect.push_str(&format!("; taken from {from} on"));
        }
        vec![happened, not_happened]
    }
}

/// Says in the protocol's words where an effect stands, and since when.
pub(crate) fn standing(effect: &Effect) -> (EffectStanding, Time) {
    match &effect.standing {
        Standing::InFlight => (EffectStanding::InFlight, effect.intended_at),
        Standing::Uncertain { since } => (EffectStanding::Uncertain, *since),
        Standing::Landed { at, .. } => (EffectStanding::Landed, *at),
        Standing::NotLanded { at, .. } => (EffectStanding::NotLanded, *at),
    }
}

/// What was sent and what came back; what is not known is left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchanged {
    pub request: Option<Payload>,
    pub receipt: Option<Payload>,
}

/// An effect as the six answers take it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub step: StepId,
    pub name: String,
    pub effect: Effect,
    /// When a stop has undone it.
    pub undone_at: Option<Time>,
    pub answers: Vec<AnswerView>,
    /// Of the first ones alone.
    pub exchanged: Exchanged,
}

/// Shows one effect of a step.
pub(crate) fn view(
    base: &Base,
    now: Time,
    touched: &Touched,
    name: &str,
    effect: &Effect,
    exchanged: Exchanged,
) -> EffectView {
    let (standing, since) = standing(effect);
    let how = match &effect.standing {
        Standing::NotLanded { how, .. } => Some(how.as_str().to_owned()),
        Standing::InFlight | Standing::Uncertain { .. } | Standing::Landed { .. } => None,
    };
    EffectView {
        step: touched.step.to_string(),
        name: name.to_owned(),
        class: effect.class.as_str().to_owned(),
        generation: effect.generation,
        key: effect_key(&base.task, &touched.step, name, effect.generation),
        standing,
        how,
        since: since.rfc3339(),
        undone_at: None,
        intended_at: effect.intended_at.rfc3339(),
        send_before: effect.send_before.rfc3339(),
        settled_by: effect.settled_by.rfc3339(),
        worker: effect.worker.to_string(),
        attempt: effect.attempt,
        target: effect.target.as_deref().map(plain),
        says: effect.says.as_deref().map(plain),
        request_sha256: effect.request_sha256.clone(),
        request: exchanged.request.map(exchange),
        receipt: exchanged.receipt.map(exchange),
        answers: touched.answers(base, now, name, effect),
    }
}

fn exchange(payload: Payload) -> Exchange {
    match payload {
        Payload::Inline(value) => Exchange { value: Some(value), blob: None },
        Payload::Blob { name, bytes, sha256 } => {
            Exchange { value: None, blob: Some(BlobView { name, bytes, sha256 }) }
        }
    }
}

/// Names a request over HTTP: method and address, without query and credentials, which may hold
/// what is nobody's business.
pub(crate) fn http_line(request: &Value) -> Option<String> {
    let url = request.get("url")?.as_str()?;
    let (scheme, rest) = url.split_once("://")?;
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = host.rsplit('@').next().unwrap_or_default();
    let method = request.get("method").and_then(Value::as_str).unwrap_or("GET");
    Some(plain(&format!("{method} {scheme}://{host}{path}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_is_named_without_query_and_credentials() {
        for (url, shown) in [
            ("https://pay.example/refunds", "POST https://pay.example/refunds"),
            ("https://ana:x@pay.example/a/b?token=1#c", "POST https://pay.example/a/b"),
            ("http://pay.example?x=/y", "POST http://pay.example"),
            ("http://h/a@b\u{1b}", "POST http://h/a@b\\u{1b}"),
        ] {
            let line = http_line(&json!({"method": "POST", "url": url}));
            assert_eq!(line.as_deref(), Some(shown), "{url}");
        }
        assert_eq!(http_line(&json!({"url": "http://h/"})).as_deref(), Some("GET http://h/"));
        for other in [json!(null), json!({"command": ["cp"]}), json!({"url": {"secret": "X"}})] {
            assert_eq!(http_line(&other), None, "{other}");
        }
    }
}
