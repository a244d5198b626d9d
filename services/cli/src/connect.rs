//! How a command finds its server.
//!
//! ```text
//! --url given ──yes──▶ that api
//!   │no
//! DIR/endpoint names an api that answers ──yes──▶ that one
//!   │no
//! open DIR here: an api of its own, for as long as the command lasts
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use standfast_domain::ids::Principal;
use standfast_sdk::Client;

use crate::commands::token::principal;
use crate::failure::Failure;
use crate::wiring::embedded::{self, Embedded};
use crate::wiring::endpoint::{self, Endpoint};

/// Where state is kept unless another folder is named.
pub const DATA_DEFAULT: &str = "./.standfast";
/// How long a call is repeated while an api does not answer: a person waits.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names the state or the server that a command works with.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// Folder of the state, where no api is named
    #[arg(long, env = "STANDFAST_DATA", hide_env_values = true, value_name = "DIR")]
    #[arg(default_value = DATA_DEFAULT)]
    pub data: PathBuf,
    /// Address of an api; its token is read from STANDFAST_TOKEN
    #[arg(long, env = "STANDFAST_URL", hide_env_values = true, value_name = "URL")]
    pub url: Option<String>,
    /// Act for another, such as user:ben: whoever owns the state's folder is trusted; an api
    /// that is shared refuses it
    #[arg(long = "as", value_name = "PRINCIPAL", value_parser = principal)]
    pub acting_as: Option<Principal>,
}

impl Place {
    /// Gives the arguments that make another command work with the same state; empty where
    /// the defaults do.
    pub fn arguments(&self) -> String {
        let acting = self.acting_as.as_ref().map(|who| format!(" --as {}", quoted(who.as_str())));
        format!("{}{}", self.server(), acting.unwrap_or_default())
    }

    /// Says that nobody works on the folder, and which command goes on with a task or with all.
    pub fn idle(&self, task: Option<&str>) -> String {
        let task = task.map_or_else(String::new, |task| format!(" {task}"));
        let place = self.arguments();
        format!("nobody works on this state now; go on with: standfast run --resume{task}{place}")
    }

    fn server(&self) -> String {
        if let Some(url) = &self.url {
            return format!(" --url {}", quoted(url));
        }
        match self.data == Path::new(DATA_DEFAULT) {
            true => String::new(),
            false => format!(" --data {}", quoted(&self.data.to_string_lossy())),
        }
    }
}

/// Quotes a word for a shell where it needs to be.
fn quoted(word: &str) -> String {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+=,~".contains(letter);
    match !word.is_empty() && word.chars().all(safe) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// What a command may do about state that does not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Say so.
    Refuse,
    /// Make it.
    Create,
}

/// A server that answers.
pub struct Connection {
    /// To ask it with.
    pub client: Client,
    /// Whether it is on this machine, so that it may read a plan's folder.
    pub loopback: bool,
    /// The api of this process, where the command opened the state itself: nobody works on it.
    pub own: Option<Embedded>,
}

impl Connection {
    /// Ends what was opened for this command.
    pub async fn close(self) {
        if let Some(own) = self.own {
            own.close().await;
        }
    }
}

/// Finds the server, or becomes one.
pub async fn connect(place: &Place, missing: Missing) -> Result<Connection, Failure> {
    if let Some(url) = &place.url {
        let token = std::env::var("STANDFAST_TOKEN").unwrap_or_default();
        let client = acting(Client::new(url, token)?, place.acting_as.as_ref())?;
        let client = client.patience(PATIENCE);
        return Ok(Connection { client, loopback: is_loopback(url), own: None });
    }
    if let Some(endpoint) = endpoint::answering(&place.data).await {
        return to(&endpoint, place.acting_as.as_ref(), None);
    }
    if missing == Missing::Refuse {
        demand_state(&place.data, "an api with --url")?;
    }
    let own = embedded::open(&place.data).await?;
    let endpoint = own.endpoint().clone();
    to(&endpoint, place.acting_as.as_ref(), Some(own))
}

/// Refuses a folder without state, rather than making some there; `other` is what may be named
/// instead of a folder.
pub fn demand_state(data: &Path, other: &str) -> Result<(), Failure> {
    if embedded::exists(data) {
        return Ok(());
    }
    let message = format!("there is no state in {}", data.display());
    let advice = format!("run a plan first, name its folder with --data, or {other}");
    Err(Failure::new(message).and(advice))
}

/// Connects to an api on this machine.
pub fn to(
    endpoint: &Endpoint,
    acting_as: Option<&Principal>,
    own: Option<Embedded>,
) -> Result<Connection, Failure> {
    let client = acting(Client::new(&endpoint.url, &endpoint.token)?, acting_as)?;
    let client = client.patience(PATIENCE);
    Ok(Connection { client, loopback: true, own })
}

fn acting(client: Client, acting_as: Option<&Principal>) -> Result<Client, Failure> {
    match acting_as {
        Some(principal) => Ok(client.acting_as(principal.as_str())?),
        None => Ok(client),
    }
}

/// Says whether an address is this machine's own.
fn is_loopback(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let ip = address.parse::<std::net::IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for url in ["http://127.0.0.1:1", "http://localhost:8080/x", "http://[::1]:80"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://10.0.0.1", "https://localhost.example", "http://[::2]", "x"] {
            assert!(!is_loopback(url), "{url}");
        }
    }

    #[test]
    fn commands_are_told_where_the_state_is() {
        let place = |data: &str, url: Option<&str>| Place {
            data: data.into(),
            url: url.map(str::to_owned),
            acting_as: None,
        };
        assert_eq!(place(DATA_DEFAULT, None).arguments(), "");
        assert_eq!(place("/srv/it's", None).arguments(), r" --data '/srv/it'\''s'");
        assert_eq!(place("x", Some("http://a:1")).arguments(), " --url http://a:1");
        let idle = place("x", None).idle(Some("t1"));
        assert!(idle.ends_with("go on with: standfast run --resume t1 --data x"), "{idle}");
        let acting_as = Some(Principal::new("user:ben").unwrap());
        let acting = Place { acting_as, ..place(DATA_DEFAULT, None) };
        assert_eq!(acting.arguments(), " --as user:ben");
    }
}
