//! The names of the grammar, once: the reader accepts exactly these, and the schema describes
//! exactly these.

use serde_json::Value;

use super::schema as form;

/// One field of an object.
pub(super) struct Field {
    /// Its name.
    pub(super) name: &'static str,
    /// What it means, for its reader and for the schema.
    pub(super) says: &'static str,
    /// The schema of its value.
    pub(super) form: fn() -> Value,
}

/// One kind of object.
pub(super) struct Shape {
    /// What it is, as in "expected a plan, found …".
    pub(super) what: &'static str,
    /// All fields that it may have.
    pub(super) fields: &'static [Field],
    /// Those that it must have.
    pub(super) required: &'static [&'static str],
    /// Those that a later version brings: refused by name rather than as unknown.
    pub(super) later: &'static [&'static str],
}

const fn field(name: &'static str, says: &'static str, form: fn() -> Value) -> Field {
    Field { name, says, form }
}

/// What `uses` names besides handlers in a later version.
pub(super) const USES_LATER: &[&str] = &["approval", "input", "signal", "task"];
/// What a timer cannot have, as no worker runs it.
pub(super) const NOT_OF_TIMERS: &[&str] =
    &["queue", "timeout", "retry", "artifact", "effect", "undo"];

/// The whole plan.
pub(super) const PLAN: Shape = Shape {
    what: "a plan",
    fields: &[
        field("kind", "What the task is for, such as `release-notes`.", form::name),
        field("goal", "The goal in the author's own words; at most 4 KiB.", form::text),
        field("input", "Values that templates read as `input`.", form::any_object),
        field("owner", "Who owns the task; by default who submits it.", form::principal),
        field("viewers", "Who may see the task.", form::principals),
        field("operators", "Who may act on the task besides its owner.", form::principals),
        field("approvers", "Who decides the task's approvals.", form::principals),
        field("labels", "Names and values to filter by; at most 32.", form::labels),
        field(
            "idempotency_key",
            "The same key and plan, submitted again, give the same task.",
            form::idempotency_key,
        ),
        field(
            "artifacts",
            "Artifacts that must exist at the end, as `STEP/NAME`.",
            form::artifact_list,
        ),
        field(
            "deadline",
            "When its end must be decided, and what happens if not; `finally` is not bound.",
            form::deadline,
        ),
        field("retention", "How long everything is kept after the end.", form::span),
        field(
            "complete_when",
            "A CEL expression that must be true for the task to complete; without `${{ }}`.",
            form::expression,
        ),
        field(
            "steps",
            "The steps; each runs once the steps that it needs are settled.",
            form::steps,
        ),
        field("finally", "Steps that run at every end, a stop included.", form::finally),
    ],
    required: &["kind", "steps"],
    later: &["lease"],
};

/// One step.
pub(super) const STEP: Shape = Shape {
    what: "a step",
    fields: &[
        field("id", "The step's name within its plan.", form::name),
        field("uses", "The handler that runs, or `timer` to wait without a worker.", form::uses),
        field("queue", "Where the step waits for a worker; by default `default`.", form::name),
        field("needs", "Steps that must be settled first.", form::needs),
        field("if", "A CEL expression; the step is skipped unless it is true.", form::expression),
        field("with", "The handler's input; texts may hold templates, `${{ }}`.", form::any_object),
        field("timeout", "How long the step may take.", form::timeout),
        field("retry", "How often and when a failed attempt is followed by another.", form::retry),
        field(
            "artifact",
            "A file or directory in the attempt's directory that is kept.",
            form::artifact,
        ),
        field("checkpoint", "The name of the checkpoint that its success makes.", form::name),
        field("on_failure", "What follows when the step has failed for good.", form::on_failure),
        field("effect", "What the step changes outside, and what may be repeated.", form::effect),
        field(
            "undo",
            "What undoes each of its effects that has landed, when a stop asks for that.",
            form::undo,
        ),
    ],
    required: &["id", "uses"],
    later: &["approval", "concurrency", "priority", "cost", "reads", "workspace"],
};

/// A step's `timeout`.
pub(super) const TIMEOUT: Shape = Shape {
    what: "time limits",
    fields: &[
        field(
            "queue",
            "The longest time from ready to started, each time anew; then the step fails for good.",
            form::span,
        ),
        field("attempt", "The longest time of one attempt; by default `30m`.", form::span),
        field(
            "heartbeat",
            "The longest silence of the handler; then the attempt ends as a timeout.",
            form::span,
        ),
        field(
            "total",
            "The longest time from first ready to settled, all attempts and waits included.",
            form::span,
        ),
    ],
    required: &[],
    later: &[],
};

/// A step's `retry`.
pub(super) const RETRY: Shape =
    Shape { what: "rules of retry", fields: &retry(form::attempts), required: &[], later: &[] };

/// The fields of `retry`; how many attempts there may be depends on whose it is.
const fn retry(attempts: fn() -> Value) -> [Field; 5] {
    [
        field("max_attempts", "Attempts, the first included; by default 3.", attempts),
        field("backoff", "The wait after the first attempt; by default `1s`.", form::span),
        field("factor", "What each further wait is multiplied by; by default 2.", form::factor),
        field(
            "max_backoff",
            "The longest wait; by default `1m`, or `backoff` if that is longer.",
            form::span,
        ),
        field("max_elapsed", "No retry starts later than this after the first ready.", form::span),
    ]
}

/// A plan's `deadline`.
pub(super) const DEADLINE: Shape = Shape {
    what: "a deadline",
    fields: &[
        field("in", "So long after the submission.", form::span),
        field("at", "At this time (RFC 3339).", form::time),
        field("then", "What happens if its end is not decided by then.", form::deadline_then),
    ],
    required: &["then"],
    later: &[],
};

/// A step's `on_failure` as an object.
pub(super) const REDO: Shape = Shape {
    what: "a redo",
    fields: &[
        field("redo", "The upstream step where the new round begins.", form::name),
        field("max", "How many rounds may be opened.", form::attempts),
    ],
    required: &["redo", "max"],
    later: &[],
};

/// The `with` of a timer.
pub(super) const TIMER: Shape = Shape {
    what: "a timer's `with`",
    fields: &[
        field("for", "Waits so long, from when the step is ready.", form::span_or_template),
        field("until", "Waits until this time (RFC 3339).", form::time_or_template),
    ],
    required: &[],
    later: &[],
};

/// A step's `effect`.
pub(super) const EFFECT: Shape = Shape {
    what: "an effect",
    fields: &[
        field(
            "class",
            "What may be done when nobody knows whether it has happened: run again (`none`), send \
             the same again (`idempotent`), ask (`checkable`), or nothing without a person \
             (`irreversible`).",
            form::effect_class,
        ),
        field("target", "Whom or what it touches.", form::words),
        field("says", "What it does, in plain words.", form::words),
        field("check", "How to find out whether it has happened.", form::check),
    ],
    required: &["class"],
    later: &[],
};

/// The `check` of a checkable effect.
pub(super) const CHECK: Shape = Shape {
    what: "a check",
    fields: &[
        field("uses", "The handler that asks, `exec` or `http`.", form::name),
        field("with", "Its input; texts may hold templates, `${{ }}`.", form::any_object),
    ],
    required: &["uses", "with"],
    later: &[],
};

/// A step's `undo`.
pub(super) const UNDO: Shape = Shape {
    what: "an undo",
    fields: &[
        field("uses", "The handler that undoes an effect of the step.", form::handler),
        field("queue", "Where it waits for a worker; by default where its step does.", form::name),
        field(
            "with",
            "Its input; templates may name the step itself, those upstream of it, and `effect`: \
             `effect.receipt`, `effect.key`, `effect.name`, `effect.generation`.",
            form::any_object,
        ),
        field("timeout", "How long it may take, within the 10 minutes of a stop.", form::timeout),
        field(
            "retry",
            "How often and when it is tried again; at most 3 attempts.",
            form::retry_undo,
        ),
        field("effect", "What it changes outside, and what may be repeated.", form::effect),
    ],
    required: &["uses", "with"],
    later: &[],
};

/// An undo's `retry`.
pub(super) const RETRY_UNDO: Shape =
    Shape { what: RETRY.what, fields: &retry(form::attempts_undo), required: &[], later: &[] };
