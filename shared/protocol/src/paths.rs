//! Paths of the api, as templates with `{name}` places, and how to fill them.

/// Submit with POST, list with GET.
pub const TASKS: &str = "/v1/tasks";
/// One task.
pub const TASK: &str = "/v1/tasks/{id}";
/// The six questions of one task.
pub const EXPLAIN: &str = "/v1/tasks/{id}/explain";
/// The steps of one task.
pub const STEPS: &str = "/v1/tasks/{id}/steps";
/// One step.
pub const STEP: &str = "/v1/tasks/{id}/steps/{step}";
/// The log of one attempt of a step.
pub const STEP_LOG: &str = "/v1/tasks/{id}/steps/{step}/log";
/// What one task has changed outside, or may have.
pub const TASK_EFFECTS: &str = "/v1/tasks/{id}/effects";
/// The artifacts of one task.
pub const ARTIFACTS: &str = "/v1/tasks/{id}/artifacts";
/// The bytes of one artifact.
pub const ARTIFACT: &str = "/v1/tasks/{id}/artifacts/{step}/{name}";
/// The events of one task, as pages or as a stream.
pub const EVENTS: &str = "/v1/tasks/{id}/events";
/// Answers to a hold of the task itself, or to its only open hold.
pub const TASK_ANSWERS: &str = "/v1/tasks/{id}/answers";
/// Answers to a hold of one step.
pub const STEP_ANSWERS: &str = "/v1/tasks/{id}/steps/{step}/answers";
/// Stops one task.
pub const STOP: &str = "/v1/tasks/{id}/stop";
/// GET: what a stop would do, [`crate::stops::StopPlanQuery`] to [`crate::stops::StopPlan`].
pub const STOP_PLAN: &str = "/v1/tasks/{id}/stop-plan";
/// GET: what a stop came to, [`crate::stops::Settlement`].
pub const SETTLEMENT: &str = "/v1/tasks/{id}/settlement";
/// Stops one attempt of a step, so that another one starts.
pub const ATTEMPT_STOP: &str = "/v1/tasks/{id}/steps/{step}/attempts/{attempt}/stop";
/// Stops many tasks, by a filter.
pub const STOPS: &str = "/v1/stops";
/// Counts the tasks that a stop by a filter would stop.
pub const STOPS_COUNT: &str = "/v1/stops/count";
/// Pauses one task.
pub const PAUSE: &str = "/v1/tasks/{id}/pause";
/// Resumes one task.
pub const RESUME: &str = "/v1/tasks/{id}/resume";
/// Gives one task to another owner.
pub const HAND_OVER: &str = "/v1/tasks/{id}/hand-over";
/// Checks the history of one task.
pub const VERIFY: &str = "/v1/tasks/{id}/verify";
/// Announces a worker.
pub const WORKERS: &str = "/v1/workers";
/// Claims an attempt.
pub const CLAIMS: &str = "/v1/claims";
/// Keeps a claim.
pub const HEARTBEAT: &str = "/v1/claims/{task}/{step}/heartbeat";
/// Waits for word that an attempt is to end.
pub const CONTROL: &str = "/v1/claims/{task}/{step}/control";
/// Ends an attempt with its outcome.
pub const COMPLETE: &str = "/v1/claims/{task}/{step}/complete";
/// Ends an attempt without an outcome and without charge.
pub const HAND_BACK: &str = "/v1/claims/{task}/{step}/hand-back";
/// Records that an attempt is about to change something outside.
pub const EFFECT: &str = "/v1/claims/{task}/{step}/effects/{name}";
/// Tells that an effect has happened.
pub const EFFECT_RECEIPT: &str = "/v1/claims/{task}/{step}/effects/{name}/receipt";
/// Tells that an effect has not happened.
pub const EFFECT_NOT_LANDED: &str = "/v1/claims/{task}/{step}/effects/{name}/not-landed";
/// Appends to the log of an attempt.
pub const CLAIM_LOG: &str = "/v1/claims/{task}/{step}/log";
/// Puts an artifact of an attempt.
pub const CLAIM_ARTIFACT: &str = "/v1/claims/{task}/{step}/artifacts/{name}";
/// The JSON Schema of a plan.
pub const PLAN_SCHEMA: &str = "/v1/plan-schema.json";
/// The OpenAPI document.
pub const OPENAPI: &str = "/openapi.json";
/// Says whether the api can work.
pub const HEALTH: &str = "/healthz";

/// Puts values into the places of a template, in order, each encoded as one path segment.
///
/// Places without a value stay as they are, so that the server answers with 404 rather than
/// with something else's data.
pub fn fill(template: &str, values: &[&str]) -> String {
    let mut path = String::with_capacity(template.len() + 32);
    let mut values = values.iter();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        path.push_str(before);
        let (place, after) = after.split_once('}').unwrap_or((after, ""));
        match values.next() {
            Some(value) => push_segment(&mut path, value),
            None => path.extend(["{", place, "}"]),
        }
        rest = after;
    }
    path.push_str(rest);
    path
}

/// Encodes all but RFC 3986's unreserved characters. A segment of dots alone gets its dots
/// encoded too, since `.` and `..` would otherwise be taken as parts of the path.
fn push_segment(path: &mut String, value: &str) {
    let dots = !value.is_empty() && value.bytes().all(|byte| byte == b'.');
    for byte in value.bytes() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~' | b'.');
        if plain && !dots {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in_order_and_encoded() {
        assert_eq!(fill(TASKS, &[]), "/v1/tasks");
        assert_eq!(fill(ARTIFACT, &["t1", "a", "x/y z"]), "/v1/tasks/t1/artifacts/a/x%2Fy%20z");
        assert_eq!(fill(TASK, &[".."]), "/v1/tasks/%2E%2E");
        assert_eq!(fill(STEP, &["t1"]), "/v1/tasks/t1/steps/{step}");
    }
}
