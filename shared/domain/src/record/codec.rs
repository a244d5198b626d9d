//! Records as bytes: the format's number, a space, and JSON.

use std::io::Write;

use serde_json::Value;

use super::{
    AttemptLog, Claim, Definition, Dependent, Effects, FORMAT, Gate, Header, Key, Landing, Meta,
    Outgoing, Owner, Payload, RoundFailure, StepState,
};
use crate::ids::StepId;
use crate::outcome::Artifact;

/// Room that most encoded records fit into.
const ENCODED_BYTES: usize = 448;

/// A record of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// See [`Header`].
    Header(Header),
    /// See [`Gate`].
    Gate(Gate),
    /// See [`Meta`].
    Meta(Box<Meta>),
    /// See [`Owner`].
    Owner(Owner),
    /// Names of steps.
    Names(Vec<StepId>),
    /// See [`Definition`].
    Definition(Box<Definition>),
    /// See [`Dependent`].
    Dependents(Vec<Dependent>),
    /// See [`StepState`].
    Step(StepState),
    /// See [`Claim`].
    Claim(Claim),
    /// Resolved input.
    Value(Value),
    /// See [`Payload`].
    Payload(Payload),
    /// See [`Artifact`].
    Artifacts(Vec<Artifact>),
    /// See [`RoundFailure`].
    Failure(RoundFailure),
    /// See [`AttemptLog`].
    Log(AttemptLog),
    /// See [`Effects`].
    Effects(Effects),
    /// See [`Landing`].
    Landing(Landing),
    /// See [`Outgoing`].
    Outgoing(Outgoing),
}

/// Says why stored bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A later version of this program wrote it.
    #[error("read record `{field}`: its format is {found}, this program knows up to {FORMAT}")]
    Newer {
        /// The record's field name.
        field: String,
        /// The format found.
        found: u32,
    },
    /// The bytes are not what this program writes.
    #[error("read record `{field}`: {reason}")]
    Malformed {
        /// The record's field name.
        field: String,
        /// What is wrong.
        reason: String,
    },
}

impl Record {
    /// Encodes as the format's number, a space, and JSON.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENCODED_BYTES);
        write!(bytes, "{FORMAT} ").expect("memory takes all");
        let out = &mut bytes;
        let done = match self {
            Self::Header(record) => serde_json::to_writer(out, record),
            Self::Gate(record) => serde_json::to_writer(out, record),
            Self::Meta(record) => serde_json::to_writer(out, record),
            Self::Owner(record) => serde_json::to_writer(out, record),
            Self::Names(record) => serde_json::to_writer(out, record),
            Self::Definition(record) => serde_json::to_writer(out, record),
            Self::Dependents(record) => serde_json::to_writer(out, record),
            Self::Step(record) => serde_json::to_writer(out, record),
            Self::Claim(record) => serde_json::to_writer(out, record),
            Self::Value(record) => serde_json::to_writer(out, record),
            Self::Payload(record) => serde_json::to_writer(out, record),
            Self::Artifacts(record) => serde_json::to_writer(out, record),
            Self::Failure(record) => serde_json::to_writer(out, record),
            Self::Log(record) => serde_json::to_writer(out, record),
            Self::Effects(record) => serde_json::to_writer(out, record),
            Self::Landing(record) => serde_json::to_writer(out, record),
            Self::Outgoing(record) => serde_json::to_writer(out, record),
        };
        done.expect("records hold only what JSON can carry");
        bytes
    }

    /// Decodes what [`Record::encode`] wrote under `key`.
    pub fn decode(key: &Key, bytes: &[u8]) -> Result<Self, DecodeError> {
        let malformed = |reason: String| DecodeError::Malformed { field: key.field(), reason };
        let space = bytes.iter().position(|byte| *byte == b' ');
        let (format, json) = bytes.split_at(space.unwrap_or(0));
        let found: u32 = std::str::from_utf8(format)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| malformed("it does not start with its format's number".to_owned()))?;
        if found > FORMAT {
            return Err(DecodeError::Newer { field: key.field(), found });
        }
        let decoded = match key {
            Key::Header => serde_json::from_slice(json).map(Self::Header),
            Key::Gate => serde_json::from_slice(json).map(Self::Gate),
            Key::Meta => serde_json::from_slice(json).map(Self::Meta),
            Key::Owner => serde_json::from_slice(json).map(Self::Owner),
            Key::Order(_) | Key::Roots(_) | Key::Needs(..) => {
                serde_json::from_slice(json).map(Self::Names)
            }
            Key::Definition(_) => serde_json::from_slice(json).map(Self::Definition),
            Key::Dependents(..) => serde_json::from_slice(json).map(Self::Dependents),
            Key::Step(_) => serde_json::from_slice(json).map(Self::Step),
            Key::Claim(_) => serde_json::from_slice(json).map(Self::Claim),
            Key::Ahead | Key::Resolution(..) | Key::Check(..) => {
                serde_json::from_slice(json).map(Self::Value)
            }
            Key::Output(..) | Key::Request(..) | Key::Receipt(..) => {
                serde_json::from_slice(json).map(Self::Payload)
            }
            Key::Effects(_) => serde_json::from_slice(json).map(Self::Effects),
            Key::Artifacts(_) => serde_json::from_slice(json).map(Self::Artifacts),
            Key::Failure(_) => serde_json::from_slice(json).map(Self::Failure),
            Key::Log(..) => serde_json::from_slice(json).map(Self::Log),
            Key::Landing(_) => serde_json::from_slice(json).map(Self::Landing),
            Key::Outgoing(_) => serde_json::from_slice(json).map(Self::Outgoing),
        };
        decoded.map_err(|error| malformed(error.to_string()))
    }
}
