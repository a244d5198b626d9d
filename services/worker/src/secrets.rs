//! Secrets from the worker's environment or from files.

use std::path::PathBuf;

use crate::handlers::{SecretFault, Secrets};

/// What stands before a secret's name in the environment.
const PREFIX: &str = "STANDFAST_SECRET_";

/// Looks for `STANDFAST_SECRET_NAME`, then for a file `NAME` in the folder of secrets.
#[derive(Clone, Debug, Default)]
pub struct EnvironmentSecrets {
    /// A folder with one file a secret, as container platforms mount it.
    pub folder: Option<PathBuf>,
}

impl Secrets for EnvironmentSecrets {
    fn resolve(&self, name: &str) -> Result<String, SecretFault> {
        if let Ok(value) = std::env::var(format!("{PREFIX}{name}")) {
            return Ok(value);
        }
        let Some(folder) = &self.folder else { return Err(SecretFault::Unknown(name.to_owned())) };
        match std::fs::read_to_string(folder.join(name)) {
            Ok(text) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(SecretFault::Unknown(name.to_owned()))
            }
            Err(error) => {
                Err(SecretFault::Unreadable { name: name.to_owned(), why: error.to_string() })
            }
        }
    }
}
