//! Seals: who sent a message that could not be accepted, in words that nobody else can write.
//!
//! A rejected message keeps neither its token nor, once an operator sends it again, the user
//! that the broker has validated. A seal takes their place: it names the sender, and is an HMAC
//! (RFC 2104, with SHA-256) over that name and the message, under a key that only the store
//! has. It is good for this message alone, which leads to the same task as often as it comes; so
//! whoever reads one has gained nothing.

use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};
use standfast_domain::commit::{Commit, Guard, Scope};
use subtle::ConstantTimeEq;

use crate::ports::Load;
use crate::{Engine, EngineError};

const FIELD: &str = "seal-key";
/// Bytes of a block of SHA-256, to which the key is padded.
const BLOCK: usize = 64;

/// By what a sender was known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A token, by its id.
    Token(String),
    /// A user of the broker.
    User(String),
}

impl Sender {
    fn text(&self) -> String {
        match self {
            Self::Token(id) => format!("token:{id}"),
            Self::User(name) => format!("user:{name}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("token", id) => Some(Self::Token(id.to_owned())),
            ("user", name) => Some(Self::User(name.to_owned())),
            _ => None,
        }
    }
}

/// What a seal is for.
#[derive(Clone, Copy, Debug)]
pub struct Sealed<'a> {
    /// The message's id.
    pub message_id: &'a str,
    /// Where it was sent.
    pub routing_key: &'a str,
    /// What it says.
    pub body: &'a [u8],
}

/// Makes and checks seals.
#[derive(Debug, Default)]
pub(crate) struct Seals(Mutex<Option<Vec<u8>>>);

impl Seals {
    /// Seals a message as sent by somebody.
    pub async fn seal(
        &self,
        engine: &Engine,
        sender: &Sender,
        of: &Sealed<'_>,
    ) -> Result<String, EngineError> {
        let (key, name) = (self.key(engine).await?, sender.text());
        Ok(format!("{} {name}", hex::encode(hmac(&key, &name, of))))
    }

    /// Says who sent a message by its seal; nothing if it is not one of this installation for
    /// this message.
    pub async fn open(
        &self,
        engine: &Engine,
        seal: &str,
        of: &Sealed<'_>,
    ) -> Result<Option<Sender>, EngineError> {
        let Some((found, name)) = seal.split_once(' ') else { return Ok(None) };
        let right = hex::encode(hmac(&self.key(engine).await?, name, of));
        let same = bool::from(found.as_bytes().ct_eq(right.as_bytes()));
        Ok(Sender::read(name).filter(|_| same))
    }

    /// Reads the installation's key; of processes that make one at once, one does.
    async fn key(&self, engine: &Engine) -> Result<Vec<u8>, EngineError> {
        if let Some(key) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(key.clone());
        }
        let key = loop {
            let load = Load { scope: Scope::Installation, fields: vec![FIELD.to_owned()] };
            let (_, records) = engine.store().load(&[load]).await?;
            if let Some(stored) = records.into_iter().flatten().next().flatten() {
                break stored.bytes.to_vec();
            }
            let fresh = [engine.random(), engine.random(), engine.random()].concat();
            let commit = Commit {
                id: engine.commit_id(),
                scope: Scope::Installation,
                guards: vec![Guard { field: FIELD.to_owned(), version: None }],
                writes: vec![(FIELD.to_owned(), Some(fresh))],
                first_event: 0,
                events: Vec::new(),
                indexes: Vec::new(),
                returns: Vec::new(),
            };
            engine.commit_raw(commit).await?;
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.clone());
        Ok(key)
    }
}

/// Authenticates a sender's name and a message, each part behind its length.
fn hmac(key: &[u8], name: &str, of: &Sealed<'_>) -> [u8; 32] {
    let mut data = Vec::with_capacity(of.body.len() + 512);
    for part in [name.as_bytes(), of.message_id.as_bytes(), of.routing_key.as_bytes(), of.body] {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part);
    }
    hmac_sha256(key, &data)
}

/// HMAC with SHA-256; the key has at most a block.
fn hmac_sha256(key: &[u8], data: &[u8]) -> [u8; 32] {
    assert!(key.len() <= BLOCK, "longer keys would have to be hashed first");
    let pad = |with: u8| {
        let mut block = [with; BLOCK];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(data).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authentication_is_that_of_the_standard() {
        for (key, data, right) in [
            // RFC 4231, cases 1 and 2.
            (
                &[0x0b; 20][..],
                "Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
        ] {
            assert_eq!(hex::encode(hmac_sha256(key, data.as_bytes())), right);
        }
    }

    #[test]
    fn a_seal_is_of_every_part_and_of_none_shifted() {
        let of = |message_id, routing_key, body| Sealed { message_id, routing_key, body };
        let one = hmac(b"k", "user:a", &of("m", "submit", b"{}"));
        for other in [
            hmac(b"l", "user:a", &of("m", "submit", b"{}")),
            hmac(b"k", "user:b", &of("m", "submit", b"{}")),
            hmac(b"k", "user:a", &of("n", "submit", b"{}")),
            hmac(b"k", "user:a", &of("m", "stop", b"{}")),
            hmac(b"k", "user:a", &of("m", "submit", b"[]")),
            hmac(b"k", "user:am", &of("", "submit", b"{}")),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn senders_read_back() {
        for sender in [Sender::Token("k1".into()), Sender::User("a:b".into())] {
            assert_eq!(Sender::read(&sender.text()), Some(sender));
        }
        assert_eq!(Sender::read("x"), None);
    }
}
