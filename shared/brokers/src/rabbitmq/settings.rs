//! Where the broker is and what our things on it are called.

use std::fmt;
use std::time::Duration;

use lapin::types::ShortString;
use lapin::uri::AMQPUri;
use standfast_domain::ids::{Queue, check_name};
use standfast_engine::ports::{BrokerError, Source};

/// Seconds between heartbeats unless the URL says otherwise: a dead peer is noticed after twice
/// that. The broker's own default of 60 s would leave a worker deaf for two minutes.
pub const HEARTBEAT_SECONDS: u16 = 10;

/// What every name on the broker starts with unless another prefix is set.
pub const PREFIX: &str = "standfast";

/// Longest wait for one exchange with the broker that is not a publish: opening a channel,
/// declaring, counting, acknowledging. A healthy broker answers within milliseconds.
pub const CALL_BOUND: Duration = Duration::from_secs(5);

/// Bytes of the smallest frame that we work with, which is RabbitMQ's default: all headers of a
/// message go into one, a rejected one's with its problem too, and a larger frame than agreed
/// ends the connection.
const FRAME_BYTES_MIN: u32 = 131_072;

/// The query parameters that a URL may carry.
const PARAMETERS: [&str; 5] =
    ["heartbeat", "frame_max", "channel_max", "connection_timeout", "auth_mechanism"];

/// Says what is wrong with a broker's URL or prefix; the text fits after "failed to".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read the broker's settings: {0}")]
pub struct SettingsFault(String);

/// How to reach RabbitMQ, and the prefix of all names there.
#[derive(Clone)]
pub struct RabbitSettings {
    pub(crate) uri: AMQPUri,
    pub(crate) names: Names,
}

impl RabbitSettings {
    /// Reads `amqp://USER:PASSWORD@HOST:PORT/VHOST?heartbeat=10` (or `amqps`). User and
    /// password default to `guest`, an empty virtual host means `/`, and an unknown parameter
    /// is refused rather than ignored.
    pub fn parse(url: &str) -> Result<Self, SettingsFault> {
        check_parameters(url)?;
        let mut uri: AMQPUri = url.parse().map_err(|fault: String| {
            let form = "amqp://USER:PASSWORD@HOST:5672/VHOST";
            SettingsFault(format!("expected a URL such as {form}, found a fault: {fault}"))
        })?;
        if let Some(host) = bracketed_host(url) {
            // The URL parser hands out no host for an IPv6 address and would take localhost.
            uri.authority.host = host;
        }
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        if uri.query.frame_max.is_some_and(|bytes| (1..FRAME_BYTES_MIN).contains(&bytes)) {
            let reason = format!("`frame_max` is at least {FRAME_BYTES_MIN}: headers fill a frame");
            return Err(SettingsFault(reason));
        }
        match uri.query.heartbeat {
            None => uri.query.heartbeat = Some(HEARTBEAT_SECONDS),
            Some(0) => {
                let reason = "`heartbeat=0` would never notice a dead broker; use 5 to 60 seconds";
                return Err(SettingsFault(reason.to_owned()));
            }
            Some(_) => {}
        }
        Ok(Self { uri, names: Names { prefix: PREFIX.to_owned() } })
    }

    /// Sets another prefix, so that several installations can share a broker.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, SettingsFault> {
        check_name(prefix).map_err(|fault| SettingsFault(format!("the prefix: {fault}")))?;
        if prefix.starts_with("amq.") {
            let reason = "the prefix `amq.` belongs to the broker; choose another";
            return Err(SettingsFault(reason.to_owned()));
        }
        prefix.clone_into(&mut self.names.prefix);
        Ok(self)
    }

    /// Gives the names of exchanges and queues under these settings.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Gives host, port and virtual host, without the password.
    pub fn place(&self) -> String {
        format!("{}:{}, virtual host `{}`", self.host(), self.uri.authority.port, self.uri.vhost)
    }

    pub(crate) fn host(&self) -> &str {
        &self.uri.authority.host
    }

    pub(crate) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }
}

impl fmt::Debug for RabbitSettings {
    /// Shows everything but the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSettings")
            .field("place", &self.place())
            .field("user", &self.user())
            .field("prefix", &self.names.prefix)
            .finish_non_exhaustive()
    }
}

fn check_parameters(url: &str) -> Result<(), SettingsFault> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    for name in query.split('&').filter_map(|pair| pair.split('=').next()) {
        if !name.is_empty() && !PARAMETERS.contains(&name) {
            let known = PARAMETERS.join(", ");
            let reason = format!("unknown parameter `{name}` in the URL; known are {known}");
            return Err(SettingsFault(reason));
        }
    }
    Ok(())
}

fn bracketed_host(url: &str) -> Option<String> {
    let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
    let host = authority.rsplit('@').next()?.strip_prefix('[')?;
    Some(host.split_once(']')?.0.to_owned())
}

/// What our exchanges and queues are called. A prefix has up to 64 bytes and so has a queue's
/// own name: no name here reaches the 255 bytes of AMQP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// The direct exchange that other services publish to: `standfast`.
    pub fn exchange(&self) -> String {
        self.prefix.clone()
    }

    /// The exchange of messages that died: `standfast.dead`.
    pub fn dead_exchange(&self) -> String {
        format!("{}.dead", self.prefix)
    }

    /// The queue of what other services send: `standfast.intake`.
    pub fn intake(&self) -> String {
        format!("{}.intake", self.prefix)
    }

    /// The queue that wakes the workers of `queue`: `standfast.steps.QUEUE`.
    pub fn steps(&self, queue: &Queue) -> String {
        format!("{}.steps.{queue}", self.prefix)
    }

    /// The queue of step messages that died: `standfast.dead.steps`.
    pub fn dead_steps(&self) -> String {
        format!("{}.dead.steps", self.prefix)
    }

    /// The queue of what could not be accepted: `standfast.rejected`.
    pub fn rejected(&self) -> String {
        format!("{}.rejected", self.prefix)
    }

    /// The exchange of what all workers are to hear at once: `standfast.control`.
    pub fn control_exchange(&self) -> String {
        format!("{}.control", self.prefix)
    }

    /// The queue of one that listens to it: `standfast.control.LISTENER`.
    pub fn control(&self, listener: &str) -> String {
        format!("{}.control.{listener}", self.prefix)
    }

    /// The queue that is never declared: what is published to it proves that publishing works.
    pub(crate) fn pulse(&self) -> String {
        format!("{}.pulse", self.prefix)
    }

    pub(crate) fn source(&self, source: &Source) -> String {
        match source {
            Source::Steps(queue) => self.steps(queue),
            Source::Intake => self.intake(),
            Source::DeadSteps => self.dead_steps(),
            Source::Control { listener } => self.control(listener),
        }
    }
}

/// Makes an AMQP short string; the library's `into` panics on more than 255 bytes.
pub(crate) fn short(text: impl Into<String>) -> Result<ShortString, BrokerError> {
    ShortString::try_new(text).map_err(|fault| BrokerError::Refused(fault.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_url_gets_the_defaults() {
        let settings = RabbitSettings::parse("amqp://mq.example.org/").unwrap();
        assert_eq!(settings.place(), "mq.example.org:5672, virtual host `/`");
        assert_eq!(settings.user(), "guest");
        assert_eq!(settings.uri.query.heartbeat, Some(HEARTBEAT_SECONDS));
        assert_eq!(settings.names().rejected(), "standfast.rejected");
    }

    #[test]
    fn the_password_is_not_shown() {
        let settings =
            RabbitSettings::parse("amqps://ana:s3cret@[::1]:7/jobs?heartbeat=5").unwrap();
        assert!(!format!("{settings:?}").contains("s3cret"), "{settings:?}");
        assert_eq!(settings.place(), "::1:7, virtual host `jobs`");
        assert_eq!(settings.uri.query.heartbeat, Some(5));
    }

    #[test]
    fn faults_are_named() {
        for (url, word) in [
            ("amqp://h/?heartbeats=3", "heartbeats"),
            ("amqp://h/?heartbeat=0", "heartbeat=0"),
            ("amqp://h/?frame_max=8192", "131072"),
            ("http://h/", "scheme"),
            ("h:5672", "URL"),
        ] {
            let fault = RabbitSettings::parse(url).unwrap_err().to_string();
            assert!(fault.contains(word), "{url}: {fault}");
        }
        let settings = RabbitSettings::parse("amqp://h").unwrap();
        for prefix in ["", "a/b", "amq.x", &"a".repeat(65)] {
            assert!(settings.clone().with_prefix(prefix).is_err(), "{prefix}");
        }
    }
}
