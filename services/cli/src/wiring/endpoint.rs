//! `DIR/endpoint`: how other processes of the same user find the one that holds DIR.
//!
//! Only one process can open DIR. It writes here where its api listens and a token for it, in
//! a file that only its owner may read, and removes it when it ends. After a crash the file
//! stays behind, so whoever reads it asks the api before anything else.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use standfast_protocol::paths::HEALTH;

/// The file's name within DIR.
const FILE: &str = "endpoint";
/// Longest wait for the api of this machine to say that it lives.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the holder of a folder listens.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Address of its api, on a loopback address.
    pub url: String,
    /// A token that acts as the folder's owner.
    pub token: String,
    /// Its process.
    pub pid: u32,
    /// Whether it also works: a command that opened the folder for itself does not.
    pub works: bool,
}

/// Leaves out the token.
impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("url", &self.url)
            .field("pid", &self.pid)
            .field("works", &self.works)
            .finish_non_exhaustive()
    }
}

/// The written file; removed when this is dropped.
#[derive(Debug)]
pub struct Written {
    path: PathBuf,
}

impl Drop for Written {
    fn drop(&mut self) {
        // What stays behind is asked before it is believed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Writes the file, whole or not at all. The caller holds the folder.
pub fn write(dir: &Path, endpoint: &Endpoint) -> std::io::Result<Written> {
    let path = dir.join(FILE);
    let new = dir.join(format!("{FILE}.new"));
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&new)?.write_all(&serde_json::to_vec(endpoint)?)?;
    std::fs::rename(&new, &path)?;
    Ok(Written { path })
}

/// Gives the endpoint of a folder if its api answers.
pub async fn answering(dir: &Path) -> Option<Endpoint> {
    let bytes = tokio::fs::read(dir.join(FILE)).await.ok()?;
    let endpoint: Endpoint = serde_json::from_slice(&bytes).ok()?;
    // The token is not sent yet: after a crash someone else may listen at that address.
    let client = reqwest::Client::builder().no_proxy().timeout(ANSWER_TIMEOUT).build().ok()?;
    let answer = client.get(format!("{}{HEALTH}", endpoint.url)).send().await.ok()?;
    let alive: Value = answer.json().await.ok()?;
    alive["version"].is_string().then_some(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_is_the_owners_and_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = Endpoint {
            url: "http://127.0.0.1:9".to_owned(),
            token: "secret".to_owned(),
            pid: 7,
            works: true,
        };
        std::fs::write(dir.path().join("endpoint.new"), "left behind").unwrap();
        let written = write(dir.path(), &endpoint).unwrap();
        let path = dir.path().join(FILE);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        let read: Endpoint = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(read, endpoint);
        assert!(!format!("{read:?}").contains("secret"));
        assert_eq!(answering(dir.path()).await, None, "nobody listens there");
        drop(written);
        assert!(!path.exists());
    }
}
