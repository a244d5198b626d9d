//! Reads bytes that must be what their digest says.

use bytes::Bytes;
use reqwest::Method;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::http::{Http, unreachable_error};

/// Gives the SHA-256 of bytes in lower-case hex.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Reads the bytes at a path and refuses them if they are not those meant.
pub(crate) async fn checked(http: &Http, path: &str, digest: &str) -> Result<Bytes, Error> {
    let response = http.send(http.call(Method::GET, path).timeout(None)).await?;
    let url = response.url().clone();
    let bytes = response.bytes().await.map_err(|source| unreachable_error(&url, source))?;
    let found = sha256(&bytes);
    if found == digest {
        return Ok(bytes);
    }
    let why = format!("expected bytes with SHA-256 {digest}, found {found}");
    Err(Error::Unexpected { url: url.to_string(), why })
}
