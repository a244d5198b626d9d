//! What belongs to the installation as a whole: its identity and format.

use serde::{Deserialize, Serialize};
use standfast_domain::commit::{Commit, Guard, Scope};
use standfast_domain::ids::PARTITIONS;
use standfast_domain::record::FORMAT;

use crate::ports::{Load, StoreError};
use crate::{Engine, EngineError};

const FIELD: &str = "installation";

/// An installation's identity; written once, at its first start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installation {
    /// The format of everything that is stored.
    pub format: u32,
    /// Partitions that tasks hash to.
    pub partitions: u8,
    /// Its random name.
    pub id: String,
}

impl Installation {
    /// Reads the installation's identity; writes it at the first start. Two processes that
    /// start at once agree on one.
    pub async fn open(engine: &Engine) -> Result<Self, EngineError> {
        loop {
            if let Some(found) = read(engine).await? {
                return Ok(found);
            }
            let fresh =
                Self { format: FORMAT, partitions: PARTITIONS, id: hex::encode(engine.random()) };
            let bytes = serde_json::to_vec(&fresh).expect("plain data");
            let commit = Commit {
                id: engine.commit_id(),
                scope: Scope::Installation,
                guards: vec![Guard { field: FIELD.to_owned(), version: None }],
                writes: vec![(FIELD.to_owned(), Some(bytes))],
                first_event: 0,
                events: Vec::new(),
                indexes: Vec::new(),
                returns: Vec::new(),
            };
            engine.commit_raw(commit).await?;
        }
    }
}

async fn read(engine: &Engine) -> Result<Option<Installation>, EngineError> {
    let load = Load { scope: Scope::Installation, fields: vec![FIELD.to_owned()] };
    let (_, records) = engine.store().load(&[load]).await?;
    let Some(stored) = records.into_iter().flatten().next().flatten() else { return Ok(None) };
    let found: Installation = serde_json::from_slice(&stored.bytes)
        .map_err(|error| StoreError::Corrupt(format!("record `{FIELD}`: {error}")))?;
    if found.format > FORMAT || found.partitions != PARTITIONS {
        let reason = format!(
            "the installation has format {} and {} partitions, this program knows format \
             {FORMAT} and {PARTITIONS} partitions",
            found.format, found.partitions
        );
        return Err(StoreError::Corrupt(reason).into());
    }
    Ok(Some(found))
}
