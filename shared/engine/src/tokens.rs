//! Tokens: who may use an installation from outside.
//!
//! A token names a principal and says what that principal may do: roles, groups, a ceiling, and
//! until when. A user of the message broker may be given the same without a secret, since the
//! broker has validated who publishes.
//!
//! A token is 256 random bits, shown once. Kept is its SHA-256, under which the record is
//! found; so nothing that is stored gives access, and no comparison leaks a secret byte by byte.
//!
//! A small record counts the tokens made and alive. Every change guards it, so of two racing
//! first tokens one is made, and whoever asks whether there are any reads one record.

mod grant;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};
use standfast_domain::canonical::base64url;
use standfast_domain::ceiling::Ceiling;
use standfast_domain::commit::{Commit, CommitId, Guard, Home, IndexChange, Scope};
use standfast_domain::ids::Principal;
use standfast_domain::rights::Groups;
use standfast_domain::time::Time;
use subtle::ConstantTimeEq;

use crate::ports::{BATCH_MAX, Load, Range, StoreError};
use crate::refusals::{Refusals, RefusedCommand};
use crate::seals::{Sealed, Seals, Sender};
use crate::{Engine, EngineError};

pub use grant::Grant;
pub use standfast_domain::rights::Identity;
pub use standfast_domain::rights::Role;

/// What every secret begins with, so that scanners of source code find one that leaked.
pub const SECRET_PREFIX: &str = "sf_";
/// Bytes of a label.
pub const LABEL_BYTES_MAX: usize = 255;
/// Groups of a token: a list of what one may see looks into an index for each.
pub const GROUPS_MAX: usize = 32;
/// Tokens alive at a time: far more than people and services have names for.
pub const TOKENS_MAX: u64 = 10_000;
/// How long a token that was found valid is believed; so long a revoked one may still work.
const CACHED: Duration = Duration::from_secs(5);
/// Tokens kept in the cache; it is emptied when it is full.
const CACHED_MAX: usize = 4_096;
/// How often a change is tried again because another process changed tokens as well.
const TRIES: usize = 32;
/// What stands in the place of a digest for a user of the broker.
const AMQP_PREFIX: &str = "amqp/";
const INDEX: &str = "tokens";
const COUNT: &str = "tokens";

/// A token as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Names the token without giving it away.
    pub id: String,
    /// Whom it names.
    pub principal: Principal,
    /// What it allows. Tokens of the first kind have one, as `role`.
    #[serde(deserialize_with = "one_or_more", alias = "role")]
    pub roles: BTreeSet<Role>,
    /// The groups that it stands for.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub groups: BTreeSet<Principal>,
    /// What its principal may not go beyond with it.
    #[serde(default, skip_serializing_if = "Ceiling::is_open")]
    pub ceiling: Ceiling,
    /// When it ends by itself, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// What it is for, in the words of who made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// When it was made, by the store's clock.
    pub created_at: Time,
    /// SHA-256 of the secret, in hex; `amqp/USER` for a user of the broker, who has none here.
    sha256: String,
}

impl Token {
    /// Gives the broker's user that it is for, if it is for one.
    pub fn amqp_user(&self) -> Option<&str> {
        self.sha256.strip_prefix(AMQP_PREFIX)
    }

    fn identity(&self) -> Identity {
        Identity {
            principal: self.principal.clone(),
            roles: self.roles.clone(),
            groups: Groups::Named(self.groups.clone()),
            ceiling: Arc::new(self.ceiling.clone()),
        }
    }
}

/// Reads one role, as the first tokens had it, or several.
fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<Role>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Roles {
        One(Role),
        More(BTreeSet<Role>),
    }
    Ok(match Roles::deserialize(from)? {
        Roles::One(role) => BTreeSet::from([role]),
        Roles::More(roles) => roles,
    })
}

/// What a secret turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It speaks for somebody.
    Valid(Credential),
    /// It did, until it expired.
    Expired,
    /// Nobody knows it, or it was revoked.
    Unknown,
}

/// Who speaks, and by which token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The token's id.
    pub token: String,
    /// Who speaks.
    pub identity: Identity,
    /// Until when.
    expires_at: Option<Time>,
    /// Where its record stands: a digest, or a user of the broker.
    place: String,
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
    known: Mutex<HashMap<String, (Duration, Credential)>>,
    any: Mutex<Option<(Duration, bool)>>,
    refusals: Refusals,
    seals: Seals,
}

impl Tokens {
    /// Makes the tokens' side of an engine.
    pub fn new(engine: Engine) -> Self {
        let (refusals, seals) = (Refusals::default(), Seals::default());
        Self { engine, known: Mutex::default(), any: Mutex::default(), refusals, seals }
    }

    /// Gives the refusals of this process.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Counts and logs that a command was refused for want of a right.
    pub fn note_refused(&self, refused: &RefusedCommand<'_>) {
        self.refusals.note(self.engine.clock().monotonic(), refused);
    }

    /// Seals a message as sent by somebody; see [`crate::seals`].
    pub async fn seal(&self, sender: &Sender, of: &Sealed<'_>) -> Result<String, EngineError> {
        self.seals.seal(&self.engine, sender, of).await
    }

    /// Says who sent a message by its seal; nothing if the seal is not of this message.
    pub async fn open_seal(
        &self,
        seal: &str,
        of: &Sealed<'_>,
    ) -> Result<Option<Sender>, EngineError> {
        self.seals.open(&self.engine, seal, of).await
    }

    /// Makes a token of one role.
    pub async fn create(
        &self,
        role: Role,
        principal: &Principal,
        label: &str,
    ) -> Result<Issued, EngineError> {
        self.grant(Grant { label: label.to_owned(), ..Grant::new(principal.clone(), role) }).await
    }

    /// Makes a token; the grant has no faults.
    pub async fn grant(&self, grant: Grant) -> Result<Issued, EngineError> {
        let secret = self.secret();
        let token = self.token(grant, sha256_hex(&secret)).await?;
        match self.make(&token, |_| true).await? {
            true => Ok(Issued { id: token.id, secret }),
            false => Err(busy()),
        }
    }

    /// Says what a user of the broker may do; nothing if that is said already. The grant has
    /// no faults, and the user is the name of a principal.
    pub async fn grant_amqp(
        &self,
        user: &str,
        grant: Grant,
    ) -> Result<Option<String>, EngineError> {
        let place = format!("{AMQP_PREFIX}{user}");
        let token = self.token(grant, place.clone()).await?;
        if self.load::<Token>(&field(&place)).await?.is_some() {
            return Ok(None);
        }
        Ok(self.make(&token, |_| true).await?.then_some(token.id))
    }

    /// Makes a token unless one is alive; of two callers at once, one gets it.
    pub async fn create_first(
        &self,
        role: Role,
        principal: &Principal,
    ) -> Result<Option<Issued>, EngineError> {
        let label = "first token".to_owned();
        self.grant_first(Grant { label, ..Grant::new(principal.clone(), role) }).await
    }

    /// Makes a token unless one is alive, as [`Tokens::create_first`].
    pub async fn grant_first(&self, grant: Grant) -> Result<Option<Issued>, EngineError> {
        let secret = self.secret();
        let token = self.token(grant, sha256_hex(&secret)).await?;
        let made = self.make(&token, |count| count.alive == 0).await?;
        Ok(made.then_some(Issued { id: token.id, secret }))
    }

    async fn token(&self, grant: Grant, sha256: String) -> Result<Token, EngineError> {
        let now = self.engine.now().await?;
        let id = match sha256.starts_with(AMQP_PREFIX) {
            true => sha256_hex(&sha256),
            false => sha256.clone(),
        };
        Ok(Token {
            id: format!("k{}", &id[..12]),
            principal: grant.principal,
            roles: grant.roles,
            groups: grant.groups,
            ceiling: grant.ceiling,
            expires_at: grant.expires.map(|span| now.after(span)),
            label: standfast_domain::outcome::truncate(&grant.label, LABEL_BYTES_MAX),
            created_at: now,
            sha256,
        })
    }

    /// Writes a token if it is wanted; of changes at once, each is made on the count before it.
    async fn make(
        &self,
        token: &Token,
        wanted: impl Fn(Count) -> bool,
    ) -> Result<bool, EngineError> {
        let bytes = encode(token);
        for _ in 0..TRIES {
            let (count, version) = self.count().await?;
            if !wanted(count) {
                return Ok(false);
            }
            if count.alive >= TOKENS_MAX {
                if self.revoke_expired().await? {
                    continue;
                }
                let text = format!("{TOKENS_MAX} tokens are alive; revoke some first");
                return Err(StoreError::ReadOnly(text).into());
            }
            let count = Count { made: count.made + 1, alive: count.alive + 1 };
            let write = (field(&token.sha256), Some(bytes.clone()));
            if self.change(write, count, version, token, true).await? {
                return Ok(true);
            }
        }
        Err(busy())
    }

    /// Makes room by removing tokens that have expired; false if there are none.
    async fn revoke_expired(&self) -> Result<bool, EngineError> {
        let now = self.engine.now().await?;
        let mut any = false;
        for token in self.found("").await? {
            if token.expires_at.is_some_and(|at| at <= now) {
                any |= self.revoke(&token.id).await?;
            }
        }
        Ok(any)
    }

    /// Lists the tokens that were not revoked, oldest first; those that have expired too.
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

    /// Says who a secret speaks for; nothing if it is unknown, revoked or expired.
    pub async fn authenticate(&self, secret: &str) -> Result<Option<Identity>, EngineError> {
        Ok(match self.know(secret).await? {
            Known::Valid(credential) => Some(credential.identity),
            Known::Expired | Known::Unknown => None,
        })
    }

    /// Says what a secret is.
    pub async fn know(&self, secret: &str) -> Result<Known, EngineError> {
        self.look_up(&sha256_hex(secret)).await
    }

    /// Says what a user of the broker may do, if that was said.
    pub async fn know_amqp(&self, user: &str) -> Result<Known, EngineError> {
        self.look_up(&format!("{AMQP_PREFIX}{user}")).await
    }

    /// Says what a token, named by its id, is now.
    pub async fn know_id(&self, id: &str) -> Result<Known, EngineError> {
        let tokens = self.found(&format!("{id}|")).await?;
        match tokens.into_iter().find(|token| token.id == id) {
            Some(token) => self.look_up(&token.sha256).await,
            None => Ok(Known::Unknown),
        }
    }

    /// Says what a credential is now; nothing if it holds no more.
    pub async fn still(&self, credential: &Credential) -> Result<Option<Credential>, EngineError> {
        Ok(match self.look_up(&credential.place).await? {
            Known::Valid(credential) => Some(credential),
            Known::Expired | Known::Unknown => None,
        })
    }

    async fn look_up(&self, sha256: &str) -> Result<Known, EngineError> {
        let monotonic = self.engine.clock().monotonic();
        let cached = lock(&self.known).get(sha256).cloned();
        let credential = match cached {
            Some((at, known)) if monotonic.saturating_sub(at) < CACHED => known,
            Some(_) | None => {
                let Some((token, _)) = self.load::<Token>(&field(sha256)).await? else {
                    lock(&self.known).remove(sha256);
                    return Ok(Known::Unknown);
                };
                if !bool::from(token.sha256.as_bytes().ct_eq(sha256.as_bytes())) {
                    return Ok(Known::Unknown);
                }
                let (identity, expires_at) = (token.identity(), token.expires_at);
                let (token, place) = (token.id, sha256.to_owned());
                let known = Credential { token, identity, expires_at, place };
                self.keep(sha256, monotonic, known.clone());
                known
            }
        };
        let now = self.engine.now().await?;
        Ok(match credential.expires_at {
            Some(at) if at <= now => Known::Expired,
            Some(_) | None => Known::Valid(credential),
        })
    }

    fn keep(&self, sha256: &str, monotonic: Duration, credential: Credential) {
        let mut known = lock(&self.known);
        if known.len() >= CACHED_MAX {
            known.clear();
        }
        known.insert(sha256.to_owned(), (monotonic, credential));
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tokens_of_the_first_kind_are_read_and_new_ones_read_back() {
        let old = json!({
            "id": "k1", "principal": "user:ana", "role": "publisher", "label": "x",
            "created_at": 5, "sha256": "ab",
        });
        let token: Token = decode(old.to_string().as_bytes()).unwrap();
        assert_eq!(token.roles, BTreeSet::from([Role::Publisher]));
        assert!(token.groups.is_empty() && token.ceiling.is_open() && token.expires_at.is_none());
        let more = Token {
            roles: [Role::Publisher, Role::Worker].into(),
            groups: [Principal::new("group:g").unwrap()].into(),
            expires_at: Some(Time(9)),
            ..token
        };
        assert_eq!(decode::<Token>(&encode(&more)).unwrap(), more);
    }
}
