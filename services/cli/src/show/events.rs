//! Events, one a line.

use serde_json::Value;
use standfast_protocol::events::EventView;

use super::quantities::when_both;
use crate::look::{Look, Tone};
use crate::text;

/// Columns of the type of an event.
const KIND_WIDTH: usize = 22;

/// Writes an event: number, time, type, step, actor, and what else is known.
pub fn line(event: &EventView, look: &Look) -> String {
    let step = event.step.as_deref().map(|step| format!("{}  ", text::plain(step)));
    let data = match &event.data {
        data if event.kind.starts_with("effect_") => text::plain(&effect(data)),
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        other => text::plain(&other.to_string()),
    };
    let time = when_both(&event.at, look);
    let kind = text::plain(&event.kind);
    let rest = format!("{}{}  {data}", step.unwrap_or_default(), text::plain(&event.actor));
    let head = format!("{:>5}  {time}  {}  ", event.sequence, text::pad(&kind, KIND_WIDTH));
    let room = look.width.saturating_sub(text::width(&head));
    format!("{}{}", look.tone(Tone::Dim, &head), text::fit(rest.trim_end(), room))
}

/// Says what happened to an effect: which one, what it does, what is known. Digests and spans
/// are left to the JSON.
fn effect(data: &Value) -> String {
    let text = |name: &str| match data.get(name) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let with = |word: &str, name: &str| text(name).map(|value| format!("{word} {value}"));
    let later = text("generation").filter(|generation| generation != "1");
    let name = text("name").unwrap_or_else(|| "main".to_owned());
    let parts = [
        Some(name),
        text("class"),
        text("says"),
        text("target"),
        with("how", "how"),
        with("attempt", "attempt"),
        later.map(|generation| format!("generation {generation}")),
        text("receipt_sha256").map(|sha256| format!("receipt {:.12}…", sha256)),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::look::samples::{pipe, terminal};

    #[test]
    fn an_event_is_one_line() {
        let mut event = EventView {
            sequence: 12,
            at: "2026-11-29T14:02:11.000Z".into(),
            kind: "step_succeeded".into(),
            actor: "worker:w-9d".into(),
            step: Some("log".into()),
            data: json!({"note": "a\u{1b}b\nc"}),
        };
        assert_eq!(
            line(&event, &pipe()),
            "   12  2026-11-29T14:02:11.000Z  step_succeeded          log  worker:w-9d  \
             {\"note\":\"a\\u001bb\\nc\"}"
        );
        event.data = json!({});
        let short = line(&event, &terminal(70));
        assert_eq!(text::width(&short), 70, "{short}");
        assert!(short.ends_with('…'), "{short}");
    }

    #[test]
    fn an_effect_is_told_in_words() {
        let event = |kind: &str, data| EventView {
            sequence: 3,
            at: "2026-11-29T14:02:11.000Z".into(),
            kind: kind.into(),
            actor: "worker:w-9d".into(),
            step: Some("pay".into()),
            data,
        };
        let intended = json!({"name": "main", "generation": 1, "class": "irreversible",
            "says": "120.00 EUR to bob", "attempt": 2, "request_sha256": "ab", "window_ms": 10});
        let not_landed = json!({"name": "main", "generation": 2, "how": "refused"});
        let landed = json!({"name": "main", "generation": 1, "receipt_sha256": "9f31".repeat(16)});
        for (kind, data, told) in [
            ("effect_intended", intended, "main · irreversible · 120.00 EUR to bob · attempt 2"),
            ("effect_not_landed", not_landed, "main · how refused · generation 2"),
            ("effect_landed", landed, "main · receipt 9f319f319f31…"),
        ] {
            let line = line(&event(kind, data), &pipe());
            let end = format!("{kind:<22}  pay  worker:w-9d  {told}");
            assert!(line.ends_with(&end), "{line}");
        }
    }
}
