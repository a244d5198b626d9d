//! Tokens: who may use an installation from outside.
//!
//! A token is 256 random bits, shown once. Kept is its SHA-256, under which the record is
//! found; so nothing that is stored gives access, and no comparison leaks a secret byte by byte.
//!
//! A small record counts the tokens made and alive. Every change guards it, so of two racing
//! first tokens one is made, and whoever asks whether there are any reads one record.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use standfast_domain::commit::{Commit, CommitId, Guard, Home, IndexChange, Scope};
use standfast_domain::ids::Principal;
use standfast_domain::time::Time;
use subtle::ConstantTimeEq;

use crate::ports::{BATCH_MAX, Load, Range, StoreError};
use crate::{Engine, EngineError};

/// What every secret begins with, so that scanners of source code find one that leaked.
pub const SECRET_PREFIX: &str = "sf_";
/// Bytes of a label.
pub const LABEL_BYTES_MAX: usize = 255;
/// Tokens alive at a time: far more than people and services have names for.
pub const TOKENS_MAX: u64 = 10_000;
/// How long a token that was found valid is believed; so long a revoked one may still work.
const CACHED: Duration = Duration::from_secs(5);
/// Tokens kept in the cache; it is emptied when it is full.
const CACHED_MAX: usize = 4_096;
/// How often a change is tried again because another process changed tokens as well.
const TRIES: usize = 32;
const INDEX: &str = "tokens";
const COUNT: &str = "tokens";

/// What a token allows in the whole installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything.
    Admin,
    /// Submits tasks; sees and steers its own.
    Publisher,
    /// Announces handlers and claims attempts.
    Worker,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Admin, Self::Publisher, Self::Worker];

    /// Gives the word used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Publisher => "publisher",
            Self::Worker => "worker",
        }
    }
}

/// Who a token speaks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Who acts.
    pub principal: Principal,
    /// What it may do.
    pub role: Role,
}

impl Identity {
    /// True if a task that this one submits may have that owner: whoever is not an admin owns
    /// what it submits, for an owner is asked for answers and may be charged.
    pub fn may_name_owner(&self, owner: Option<&Principal>) -> bool {
        self.role == Role::Admin || owner.is_none_or(|owner| *owner == self.principal)
    }
}

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Names the token without giving it away.
    pub id: String,
    /// Whom it names.
    pub principal: Principal,
    /// What it allows.
    pub role: Role,
    /// What it is for, in the words of who made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// When it was made, by the store's clock.
    pub created_at: Time,
    /// SHA-256 of the secret, in hex.
    sha256: String,
}

/// A token that was just made.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// Names the token.
    pub id: String,
    /// What is sent with requests; shown only here.
    pub secret: String,
}

/// Hides the secret, so that it reaches no log by accident.
impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How many tokens there are; guarded by every change.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Count {
    made: u64,
    alive: u64,
}

/// Makes, finds and revokes an installation's tokens.
pub struct Tokens {
    engine: Engine,
    known: Mutex<HashMap<String, (Duration, Identity)>>,
    any: Mutex<Option<(Duration, bool)>>,
}

impl Tokens {
    /// Makes the tokens' side of an engine.
    pub fn new(engine: Engine) -> Self {
        Self { engine, known: Mutex::default(), any: Mutex::default() }
    }

    /// Makes a token.
    pub async fn create(
        &self,
        role: Role,
        principal: &Principal,
        label: &str,
    ) -> Result<Issued, EngineError> {
        match self.make(role, principal, label, |_| true).await? {
            Some(issued) => Ok(issued),
            None => Err(busy()),
        }
    }

    /// Makes a token unless one is alive; of two callers at once, one gets it.
    pub async fn create_first(
        &self,
        role: Role,
        principal: &Principal,
    ) -> Result<Option<Issued>, EngineError> {
        self.make(role, principal, "first token", |count| count.alive == 0).await
    }

    async fn make(
        &self,
        role: Role,
        principal: &Principal,
        label: &str,
        wanted: impl Fn(Count) -> bool,
    ) -> Result<Option<Issued>, EngineError> {
        let secret = self.secret();
        let sha256 = sha256_hex(&secret);
        let token = Token {
            id: format!("k{}", &sha256[..12]),
            principal: principal.clone(),
            role,
            label: standfast_domain::outcome::truncate(label, LABEL_BYTES_MAX),
            created_at: self.engine.now().await?,
            sha256,
        };
        let bytes = encode(&token);
        for _ in 0..TRIES {
            let (count, version) = self.count().await?;
            if !wanted(count) {
                return Ok(None);
            }
            if count.alive >= TOKENS_MAX {
                let text = format!("{TOKENS_MAX} tokens are alive; revoke some first");
                return Err(StoreError::ReadOnly(text).into());
            }
            let count = Count { made: count.made + 1, alive: count.alive + 1 };
            let write = (field(&token.sha256), Some(bytes.clone()));
            if self.change(write, count, version, &token, true).await? {
                return Ok(Some(Issued { id: token.id, secret }));
            }
        }
        Err(busy())
    }

    /// Lists the tokens that are alive, oldest first.
    pub async fn list(&self) -> Result<Vec<Token>, EngineError> {
        let mut tokens = self.found("").await?;
        tokens.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(tokens)
    }

    /// Ends a token; false if there is none of that id. Other processes may honour it for
    /// another five seconds.
    pub async fn revoke(&self, id: &str) -> Result<bool, EngineError> {
        for _ in 0..TRIES {
            let tokens = self.found(&format!("{id}|")).await?;
            let Some(token) = tokens.into_iter().find(|token| token.id == id) else {
                return Ok(false);
            };
            let (count, version) = self.count().await?;
            let count = Count { alive: count.alive.saturating_sub(1), ..count };
            if self.change((field(&token.sha256), None), count, version, &token, false).await? {
                lock(&self.known).remove(&token.sha256);
                return Ok(true);
            }
        }
        Err(busy())
    }

    /// Says who a secret speaks for; nothing if it is unknown or revoked.
    pub async fn authenticate(&self, secret: &str) -> Result<Option<Identity>, EngineError> {
        let sha256 = sha256_hex(secret);
        let now = self.engine.clock().monotonic();
        if let Some((at, identity)) = lock(&self.known).get(&sha256)
            && now.saturating_sub(*at) < CACHED
        {
            return Ok(Some(identity.clone()));
        }
        let field = field(&sha256);
        let Some((token, _)) = self.load::<Token>(&field).await? else {
            lock(&self.known).remove(&sha256);
            return Ok(None);
        };
        if !bool::from(token.sha256.as_bytes().ct_eq(sha256.as_bytes())) {
            return Ok(None);
        }
        let identity = Identity { principal: token.principal, role: token.role };
        let mut known = lock(&self.known);
        if known.len() >= CACHED_MAX {
            known.clear();
        }
        known.insert(sha256, (now, identity.clone()));
        Ok(Some(identity))
    }

    /// Says whether a token was ever made here. Once true it stays so: revoking the last token
    /// must not open the installation to everyone.
    pub async fn any(&self) -> Result<bool, EngineError> {
        let now = self.engine.clock().monotonic();
        let cached = *lock(&self.any);
        if let Some((at, any)) = cached
            && (any || now.saturating_sub(at) < CACHED)
        {
            return Ok(any);
        }
        let any = self.count().await?.0.made > 0;
        *lock(&self.any) = Some((now, any));
        Ok(any)
    }

    /// Makes a secret of 256 random bits: the operating system's ids hold some fixed bits, so
    /// three of them are condensed into one.
    fn secret(&self) -> String {
        let mut hash = Sha256::new();
        for _ in 0..3 {
            hash.update(self.engine.random());
        }
        format!("{SECRET_PREFIX}{}", base64url(&hash.finalize()))
    }

    async fn count(&self) -> Result<(Count, Option<CommitId>), EngineError> {
        Ok(match self.load::<Count>(COUNT).await? {
            Some((count, version)) => (count, Some(version)),
            None => (Count::default(), None),
        })
    }

    /// Writes or removes a token, with the count that follows, if nobody was faster.
    async fn change(
        &self,
        token: (String, Option<Vec<u8>>),
        count: Count,
        version: Option<CommitId>,
        entry: &Token,
        add: bool,
    ) -> Result<bool, EngineError> {
        let member = format!("{}|{}", entry.id, entry.sha256);
        let commit = Commit {
            id: self.engine.commit_id(),
            scope: Scope::Installation,
            guards: vec![Guard { field: COUNT.to_owned(), version }],
            writes: vec![token, (COUNT.to_owned(), Some(encode(&count)))],
            first_event: 0,
            events: Vec::new(),
            indexes: vec![IndexChange { index: INDEX.to_owned(), member, add }],
            returns: Vec::new(),
        };
        let applied = self.engine.commit_raw(commit).await?;
        if applied {
            *lock(&self.any) = None;
        }
        Ok(applied)
    }

    /// Loads the tokens whose index entries start with `prefix`.
    async fn found(&self, prefix: &str) -> Result<Vec<Token>, EngineError> {
        let mut tokens = Vec::new();
        let mut after = prefix.to_owned();
        loop {
            let range = Range {
                home: Home::Installation,
                index: INDEX.to_owned(),
                after: after.clone(),
                before: None,
                limit: if prefix.is_empty() { BATCH_MAX } else { 1 },
                reverse: false,
            };
            let page = self.engine.store().ranges(&[range]).await?.pop().unwrap_or_default();
            let Some(last) = page.last().cloned() else { return Ok(tokens) };
            let hashes = page.iter().filter_map(|member| member.split_once('|'));
            let fields = hashes.map(|(_, sha256)| field(sha256)).collect();
            let load = Load { scope: Scope::Installation, fields };
            let (_, records) = self.engine.store().load(&[load]).await?;
            for stored in records.into_iter().flatten().flatten() {
                tokens.push(decode(&stored.bytes)?);
            }
            if !prefix.is_empty() {
                return Ok(tokens);
            }
            after = last;
        }
    }

    async fn load<T: DeserializeOwned>(
        &self,
        field: &str,
    ) -> Result<Option<(T, CommitId)>, EngineError> {
        let load = Load { scope: Scope::Installation, fields: vec![field.to_owned()] };
        let (_, records) = self.engine.store().load(&[load]).await?;
        let Some(stored) = records.into_iter().flatten().next().flatten() else { return Ok(None) };
        Ok(Some((decode(&stored.bytes)?, stored.version)))
    }
}

fn busy() -> EngineError {
    let text = "others change tokens all the time; try again".to_owned();
    StoreError::Unavailable(text).into()
}

fn field(sha256: &str) -> String {
    format!("token/{sha256}")
}

fn encode(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("plain data")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, EngineError> {
    let corrupt = |error| StoreError::Corrupt(format!("a token's record: {error}"));
    Ok(serde_json::from_slice(bytes).map_err(corrupt)?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the SHA-256 of a secret, in hex: what is kept of it.
pub fn sha256_hex(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

/// Writes bytes in base64url without padding (RFC 4648, section 5).
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |at: usize| usize::from(part.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for sixth in 0..=part.len() {
            text.push(char::from(ALPHABET[bits >> (18 - 6 * sixth) & 63]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_that_of_the_standard() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")]
        {
            assert_eq!(base64url(bytes.as_bytes()), text);
        }
        assert_eq!(base64url(&[0xff; 32]).len(), 43);
        assert!(base64url(&[0xfb, 0xff]).contains('-') || base64url(&[0xfb, 0xff]).contains('_'));
    }
}
