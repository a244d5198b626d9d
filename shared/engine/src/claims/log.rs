//! Keeps what an attempt writes.

use standfast_domain::commit::{Commit, Guard, Scope};
use standfast_domain::ids::TaskId;
use standfast_domain::record::{AttemptLog, Key, Record};
use standfast_domain::refusal::Refusal;
use standfast_domain::view::Attempt;

use super::Claims;
use crate::EngineError;
use crate::ports::Load;

impl Claims {
    /// Stores what an attempt has written so far; the last call wins. Gives false if a renewal
    /// at the same moment was in the way: then the caller asks again.
    pub async fn append_log(
        &self,
        task: &TaskId,
        at: &Attempt,
        log: AttemptLog,
    ) -> Result<bool, EngineError> {
        let claim = Key::Claim(at.step.clone());
        let key = Key::Log(at.step.clone(), at.attempt);
        // A late line of an attempt that was fenced must not bring its log back to life.
        let scope = Scope::Task(task.clone());
        let load = Load { scope, fields: vec![claim.field()] };
        let (_, records) = self.engine.store().load(&[load]).await?;
        let stored = records.into_iter().flatten().next().flatten();
        let held = stored.as_ref().and_then(|stored| {
            match Record::decode(&claim, &stored.bytes).ok()? {
                Record::Claim(held) => Some(held),
                _ => None,
            }
        });
        let (step, attempt) = (at.step.clone(), at.attempt);
        if held.is_none_or(|held| held.attempt != attempt || held.worker != at.worker) {
            return Err(Refusal::Fenced { step, attempt }.into());
        }
        let version = stored.map(|stored| stored.version);
        let guards = vec![Guard { field: claim.field(), version }];
        let commit = Commit {
            id: self.engine.commit_id(),
            scope: Scope::Task(task.clone()),
            guards,
            writes: vec![(key.field(), Some(Record::Log(log).encode()))],
            first_event: 0,
            events: Vec::new(),
            indexes: Vec::new(),
            returns: Vec::new(),
        };
        self.engine.commit_raw(commit).await
    }
}
