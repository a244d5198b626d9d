//! The records of a task: what is stored, field by field, and under which name.
//!
//! Immutable records (meta, definitions, needs, dependents, resolutions, outputs) are written
//! once. The header, the gate and the step states change; a claim changes without the header.

mod attempt;
mod codec;
mod definition;
mod effect;
mod header;
mod key;
mod outgoing;
mod step;

pub use attempt::AttemptLog;
pub use attempt::Claim;
pub use attempt::INTERVAL_MIN;
pub use attempt::OVERRUN;
pub use attempt::Payload;
pub use attempt::RoundFailure;
pub use codec::DecodeError;
pub use codec::Record;
pub use definition::Definition;
pub use definition::Dependent;
pub use definition::Meta;
pub use definition::Owner;
pub use definition::Part;
pub use definition::UndoOf;
pub use effect::EFFECTS_MAX;
pub use effect::Effect;
pub use effect::EffectClass;
pub use effect::EffectCounts;
pub use effect::Effects;
pub use effect::Landing;
pub use effect::MAIN_EFFECT;
pub use effect::NotLanded;
pub use effect::Standing;
pub use effect::effect_key;
pub use header::Ending;
pub use header::Gate;
pub use header::Header;
pub use header::Phase;
pub use header::Stop;
pub use header::StopMode;
pub use header::TaskState;
pub use key::Key;
pub use outgoing::Outgoing;
pub use step::LastAttempt;
pub use step::LastFailure;
pub use step::Settled;
pub use step::SkipReason;
pub use step::Status;
pub use step::StepState;

/// The format of everything that is stored; a reader refuses a higher one by name.
pub const FORMAT: u32 = 1;
/// Dependents kept within a step's definition; more stand in chunks of this size, so that no
/// commit over them grows beyond a batch.
pub const DEPENDENTS_CHUNK: usize = 200;
/// Names a chunk of a list record holds: a load of one chunk stays one small record.
pub const LIST_CHUNK: usize = 400;

/// What a count that begins with one is if it is not stored.
fn one() -> u32 {
    1
}

/// Leaves out of what is stored what most records have.
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// Leaves zeros out of what is stored.
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Leaves zeros out of what is stored.
fn is_zero_u64(number: &u64) -> bool {
    *number == 0
}
