//! One connection that is opened again for as long as the process lives.
//!
//! The library's own recovery stays off: it gives up after some minutes, does not bring back
//! channels that the broker closed, and leaves their consumers waiting for ever. Here a loop
//! opens the connection, watches it, and on its loss opens the next; whoever needs it waits
//! for the newest one. Publishing and consuming each have their own, because a broker with a
//! memory or disk alarm stops reading from connections that publish, acknowledgements included.

use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures::StreamExt;
use lapin::{Connection, ConnectionProperties, ErrorKind, Event};
use standfast_engine::ports::BrokerError;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval, sleep, timeout, timeout_at};
use tracing::{info, warn};

use super::counters::Counts;
use super::probe;
use super::settings::{CALL_BOUND, RabbitSettings};

/// First and longest pause between two attempts. The first is short, since most losses are a
/// restart of the broker's listener; the longest is what a person waits after mending it.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A connection that lived this long starts the pauses anew; one that dies at once does not.
pub(crate) const STABLE: Duration = Duration::from_secs(5);
/// Longest wait for the broker's greeting and the log-in: RabbitMQ itself allows that long.
const HANDSHAKE_BOUND: Duration = Duration::from_secs(10);
/// How often the connection's state is looked at, should an event have been missed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Longest wait for a polite goodbye.
const CLOSE_BOUND: Duration = Duration::from_secs(2);

/// The connection of the moment.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) connection: Arc<Connection>,
    /// Rises with each connection, so that an old one is never mistaken for the newest.
    pub(crate) generation: u64,
}

/// What is known of the connection.
#[derive(Clone, Default)]
pub(crate) struct LinkState {
    pub(crate) live: Option<Live>,
    /// The broker's reason while it reads nothing from publishers.
    pub(crate) blocked: Option<String>,
    /// Why the last attempt failed or the last connection was lost; none while connected.
    pub(crate) fault: Option<LinkFault>,
    generation: u64,
}

impl LinkState {
    fn is_refused(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.refused)
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkFault {
    pub(crate) text: String,
    /// True if trying again is of no use before a person changes something.
    pub(crate) refused: bool,
}

/// A handle to one kept connection; the loop ends with the last handle's owner.
#[derive(Clone)]
pub(crate) struct Link {
    state: watch::Receiver<LinkState>,
}

/// Ends a kept connection's loop when dropped.
pub(crate) struct Keeper(AbortHandle);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// Starts the loop; `purpose` names the connection in the broker's lists and in the log.
    pub(crate) fn start(
        settings: Arc<RabbitSettings>,
        purpose: &'static str,
        counts: Arc<Counts>,
    ) -> (Self, Keeper) {
        let (sender, state) = watch::channel(LinkState::default());
        let task = tokio::spawn(keep(settings, purpose, counts, sender));
        (Self { state }, Keeper(task.abort_handle()))
    }

    /// Gives what is known now.
    pub(crate) fn state(&self) -> LinkState {
        self.state.borrow().clone()
    }

    /// Waits for a connection without end; none once the loop has ended.
    pub(crate) async fn wait(&self) -> Option<Live> {
        let mut state = self.state.clone();
        let found = state.wait_for(|state| state.live.is_some()).await.ok()?;
        found.live.clone()
    }

    /// Waits without end for a connection that the broker reads from; none once the loop has
    /// ended.
    pub(crate) async fn unblocked(&self) -> Option<Live> {
        let mut state = self.state.clone();
        let open = |state: &LinkState| state.live.is_some() && state.blocked.is_none();
        let found = state.wait_for(open).await.ok()?;
        found.live.clone()
    }

    /// Waits until the connection of a generation is lost or another has come.
    pub(crate) async fn after(&self, generation: u64) {
        let mut state = self.state.clone();
        let other = |state: &LinkState| {
            state.live.as_ref().is_none_or(|live| live.generation != generation)
        };
        let _ = state.wait_for(other).await; // the loop's end is one too
    }

    /// Waits for a connection until `deadline`.
    pub(crate) async fn by(&self, deadline: Instant) -> Result<Live, BrokerError> {
        match timeout_at(deadline, self.wait()).await {
            Ok(Some(live)) => Ok(live),
            Ok(None) => Err(BrokerError::Unavailable("the connection is closed".to_owned())),
            Err(_) => Err(BrokerError::Unavailable(self.why())),
        }
    }

    /// Waits until the first attempts settle: connected, refused for good, or out of time.
    pub(crate) async fn settled(&self, deadline: Instant) -> Result<(), BrokerError> {
        let mut state = self.state.clone();
        let wait = state.wait_for(|state| state.live.is_some() || state.is_refused());
        match timeout_at(deadline, wait).await {
            Ok(Ok(state)) if state.live.is_some() => Ok(()),
            Ok(_) | Err(_) => Err(BrokerError::Unavailable(self.why())),
        }
    }

    /// True if the broker lets us in no more.
    pub(crate) fn is_refused(&self) -> bool {
        self.state.borrow().is_refused()
    }

    fn why(&self) -> String {
        let fault = self.state.borrow().fault.clone();
        fault.map_or_else(|| "no answer yet".to_owned(), |fault| fault.text)
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(PAUSE_FIRST)
        .with_max_delay(PAUSE_MAX)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Gives pauses that grow with jitter and never end.
pub(crate) struct Pauses(ExponentialBackoff);

impl Pauses {
    pub(crate) fn new() -> Self {
        Self(pauses())
    }

    pub(crate) fn next(&mut self) -> Duration {
        self.0.next().unwrap_or(PAUSE_MAX)
    }
}

/// Opens, watches, opens again. Losing and regaining are logged once each.
async fn keep(
    settings: Arc<RabbitSettings>,
    purpose: &'static str,
    counts: Arc<Counts>,
    state: watch::Sender<LinkState>,
) {
    let mut pauses = Pauses::new();
    let mut warned = false;
    let (mut ever, mut again) = (false, false);
    loop {
        let opened = open(&settings, purpose, again).await;
        again = true;
        match opened {
            Ok(connection) => {
                if ever {
                    counts.reconnections.add(1);
                }
                if warned {
                    info!(purpose, broker = %settings.place(), "connected to the broker again");
                }
                ever = true;
                let since = Instant::now();
                let reason = live(Arc::new(connection), &state).await;
                warn!(purpose, broker = %settings.place(), %reason, "lost the broker; retrying");
                warned = true;
                if since.elapsed() >= STABLE {
                    pauses = Pauses::new();
                }
            }
            Err(fault) => {
                if !warned {
                    warn!(purpose, reason = %fault.text, "the broker is not reached; retrying");
                    warned = true;
                }
                state.send_modify(|state| state.fault = Some(fault));
            }
        }
        sleep(pauses.next()).await;
    }
}

/// Opens a connection. A try that is not the first asks for the greeting beforehand: a log-in
/// that is never answered cannot be called off, its thread and its socket stay, and a broker that
/// hangs for a day would collect thousands of them.
async fn open(
    settings: &RabbitSettings,
    purpose: &str,
    again: bool,
) -> Result<Connection, LinkFault> {
    if again {
        match timeout(HANDSHAKE_BOUND, probe::greeting(settings)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(unreached(settings, &error)),
            Err(_) => return Err(silent(settings)),
        }
    }
    let name = format!("{} {purpose}", settings.names.exchange());
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let attempt = Connection::connect_uri(settings.uri.clone(), properties);
    match timeout(HANDSHAKE_BOUND, attempt).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(fault_of(settings, &error)),
        Err(_) => Err(silent(settings)),
    }
}

fn silent(settings: &RabbitSettings) -> LinkFault {
    LinkFault { text: format!("{} gave no answer to the log-in", settings.place()), refused: false }
}

/// Says in whole words why the broker was not reached, and whether it said no.
fn fault_of(settings: &RabbitSettings, error: &lapin::Error) -> LinkFault {
    let place = settings.place();
    match error.kind() {
        ErrorKind::ProtocolError(fault) if fault.get_id() == 403 => LinkFault {
            text: format!(
                "{place} refuses user `{}`: check user and password ({})",
                settings.user(),
                fault.get_message()
            ),
            refused: true,
        },
        ErrorKind::ProtocolError(fault) if fault.get_id() == 530 => LinkFault {
            text: format!(
                "{place} lets user `{}` not in: create the virtual host and grant access ({})",
                settings.user(),
                fault.get_message()
            ),
            refused: true,
        },
        ErrorKind::IOError(fault) => unreached(settings, fault),
        _ => LinkFault { text: format!("{place}: {error}"), refused: false },
    }
}

fn unreached(settings: &RabbitSettings, error: &std::io::Error) -> LinkFault {
    let text = error.to_string();
    let text = if text.contains("lookup address") || text.contains("resolve") {
        format!("the host `{}` is unknown: {text}", settings.host())
    } else {
        format!("{}: {text}", settings.place())
    };
    LinkFault { text, refused: false }
}

/// Shows a connection to all who wait and watches it until it ends; gives the reason.
async fn live(connection: Arc<Connection>, state: &watch::Sender<LinkState>) -> String {
    // Events are handed to one listener only, so this is the only one.
    let mut events = Box::pin(connection.events_listener());
    state.send_modify(|state| {
        state.generation += 1;
        let generation = state.generation;
        state.live = Some(Live { connection: connection.clone(), generation });
        state.blocked = None;
        state.fault = None;
    });
    let mut look = interval(LOOK_EVERY);
    let mut last_error = None;
    let reason = loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Event::ConnectionBlocked(reason)) => {
                    warn!(%reason, "the broker blocks publishers");
                    state.send_modify(|state| state.blocked = Some(reason));
                }
                Some(Event::ConnectionUnblocked) => {
                    info!("the broker takes messages again");
                    state.send_modify(|state| state.blocked = None);
                }
                // Errors of single channels come here too; their owners see to those.
                Some(Event::Error(error)) => last_error = Some(error.to_string()),
                Some(_) => {}
                None => break "the connection ended".to_owned(),
            },
            _ = look.tick() => {}
        }
        if !connection.status().connected() {
            break last_error.unwrap_or_else(|| "the connection ended".to_owned());
        }
    };
    state.send_modify(|state| {
        state.live = None;
        state.blocked = None;
        state.fault = Some(LinkFault { text: reason.clone(), refused: false });
    });
    reason
}

/// Says goodbye; what a frozen broker does not answer is left to its heartbeats.
pub(crate) async fn goodbye(link: &Link) {
    let Some(live) = link.state().live else { return };
    leave(&live).await;
}

/// Opens a connection that is one owner's alone, and that nobody opens again.
pub(crate) async fn separate(
    settings: &RabbitSettings,
    purpose: &str,
) -> Result<Live, BrokerError> {
    let connection = open(settings, purpose, true).await;
    let connection = connection.map_err(|fault| BrokerError::Unavailable(fault.text))?;
    Ok(Live { connection: Arc::new(connection), generation: 0 })
}

/// Closes a connection, politely if the broker answers in time.
pub(crate) async fn leave(live: &Live) {
    let Ok(text) = super::settings::short("goodbye") else { return };
    let _ = timeout(CLOSE_BOUND, live.connection.close(200, text)).await;
}

/// Opens a channel within [`CALL_BOUND`].
pub(crate) async fn channel(live: &Live) -> Result<lapin::Channel, BrokerError> {
    match timeout(CALL_BOUND, live.connection.create_channel()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(error)) => Err(BrokerError::Unavailable(error.to_string())),
        Err(_) => Err(BrokerError::Unavailable("no answer to opening a channel".to_owned())),
    }
}
