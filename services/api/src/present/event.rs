//! Events as readers see them.

use serde_json::{Map, Value};
use standfast_domain::event::Event;
use standfast_domain::time::Time;
use standfast_protocol::events::EventView;

/// Fields of stored events that hold a time; they are shown as RFC 3339.
const TIMES: [&str; 7] =
    ["at", "started_at", "since", "due", "give_up_at", "remove_at", "expires_at"];

/// Shows an event. Numbers are from 1, so that a cursor says how many were seen.
pub(crate) fn view(event: &Event) -> EventView {
    let mut data = match serde_json::to_value(&event.change) {
        Ok(Value::Object(data)) => data,
        Ok(_) | Err(_) => Map::new(),
    };
    let text = |value: Option<Value>| value.as_ref().and_then(Value::as_str).map(str::to_owned);
    let kind = text(data.remove("type")).unwrap_or_default();
    // What opens a round or adds steps is about the step by which it came.
    let step = text(data.remove("step")).or_else(|| text(data.get("by").cloned()));
    show_times(&mut data);
    show_intent(&mut data);
    if let Some(Value::Object(hold)) = data.get_mut("hold") {
        show_times(hold);
    }
    EventView {
        sequence: event.sequence + 1,
        at: event.at.rfc3339(),
        kind,
        actor: event.actor.to_string(),
        step,
        data: Value::Object(data),
    }
}

fn show_times(data: &mut Map<String, Value>) {
    for name in TIMES {
        if let Some(value) = data.get_mut(name)
            && let Some(millis) = value.as_i64()
        {
            *value = Value::String(Time(millis).rfc3339());
        }
    }
}

/// Puts what was intended beside the effect's name, and units to its spans.
fn show_intent(data: &mut Map<String, Value>) {
    for name in ["window", "request_timeout"] {
        if let Some(millis) = data.remove(name) {
            data.insert(format!("{name}_ms"), millis);
        }
    }
    if let Some(Value::Object(intent)) = data.remove("intent") {
        data.extend(intent);
    }
}

#[cfg(test)]
mod tests {
    use standfast_domain::event::{Change, IntentFact};
    use standfast_domain::hold::{Hold, HoldReason};
    use standfast_domain::ids::{Principal, StepId, WorkerId};
    use standfast_domain::record::EffectClass;
    use standfast_domain::time::Span;

    use super::*;

    fn show(change: Change) -> EventView {
        view(&Event { sequence: 4, at: Time(0), actor: Principal::system(), change })
    }

    #[test]
    fn times_are_text_and_the_step_stands_beside_the_data() {
        let step = StepId::new("a").unwrap();
        let view = show(Change::RetryScheduled { step: step.clone(), due: Time(1_000) });
        assert_eq!((view.sequence, view.kind.as_str()), (5, "retry_scheduled"));
        assert_eq!(view.step.as_deref(), Some("a"));
        assert_eq!(view.data, serde_json::json!({"due": "1970-01-01T00:00:01.000Z"}));
        let hold = Hold { due: Some(Time(5)), ..Hold::new(HoldReason::Timer, "m", Time(0)) };
        let view = show(Change::StepHeld { step, hold });
        assert_eq!(view.data["hold"]["due"], "1970-01-01T00:00:00.005Z");
    }

    #[test]
    fn an_intent_stands_beside_the_name_of_its_effect() {
        let intent = IntentFact {
            class: EffectClass::Irreversible,
            request_sha256: "ab".to_owned(),
            stored: false,
            attempt: 2,
            principal: None,
            worker: WorkerId::new("w").unwrap(),
            target: Some("bob".to_owned()),
            says: None,
        };
        let view = show(Change::EffectIntended {
            step: StepId::new("pay").unwrap(),
            name: "main".to_owned(),
            generation: 1,
            intent,
            window: Span(10_000),
            request_timeout: Span(30_000),
        });
        assert_eq!((view.kind.as_str(), view.step.as_deref()), ("effect_intended", Some("pay")));
        let expected = serde_json::json!({
            "name": "main", "generation": 1, "class": "irreversible", "request_sha256": "ab",
            "attempt": 2, "worker": "w", "target": "bob",
            "window_ms": 10_000, "request_timeout_ms": 30_000,
        });
        assert_eq!(view.data, expected);
    }

    #[test]
    fn a_round_is_about_the_step_that_opened_it() {
        let (by, from) = (StepId::new("b").unwrap(), StepId::new("a").unwrap());
        let view = show(Change::RoundOpened { by, from, round: 2, steps: Vec::new() });
        assert_eq!(view.step.as_deref(), Some("b"));
        assert_eq!(view.data["from"], "a");
    }
}
