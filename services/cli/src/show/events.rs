//! Events, one a line.

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
        serde_json::Value::Null => String::new(),
        serde_json::Value::Object(fields) if fields.is_empty() => String::new(),
        other => text::plain(&other.to_string()),
    };
    let time = when_both(&event.at, look);
    let kind = text::plain(&event.kind);
    let rest = format!("{}{}  {data}", step.unwrap_or_default(), text::plain(&event.actor));
    let head = format!("{:>5}  {time}  {}  ", event.sequence, text::pad(&kind, KIND_WIDTH));
    let room = look.width.saturating_sub(text::width(&head));
    format!("{}{}", look.tone(Tone::Dim, &head), text::fit(rest.trim_end(), room))
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
}
