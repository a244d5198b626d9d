//! Says things to all listeners at once, over a fanout exchange, without confirms.
//!
//! What is said is a hint that saves time; nobody waits for it, and it may be lost. So it has a
//! channel of its own, on which a fault harms nothing else, and a line that is cut when it is
//! full. The exchange is declared on each new channel: someone may have deleted it.

use std::time::Duration;

use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel};
use standfast_engine::ports::BrokerError;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::connection::{Link, Live, Pauses, channel};
use super::settings::{Names, PREFIX, short};
use super::topology;

/// Words that wait while the broker is away; more are dropped. Some 200 bytes each.
const WAITING_MAX: usize = 10_000;
/// Not persistent, in AMQP's numbers: a word is of no use after a restart.
const TRANSIENT: u8 = 1;
/// Longest wait for a word to be written: a broker that reads nothing gets it later or never.
const WRITE_BOUND: Duration = Duration::from_secs(5);

/// Speaks for as long as it lives.
pub(crate) struct Teller {
    waiting: mpsc::Sender<Bytes>,
    telling: AbortHandle,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.telling.abort();
    }
}

impl Teller {
    /// Begins to speak over a connection.
    pub(crate) fn start(names: Names, link: Link) -> Self {
        let (waiting, said) = mpsc::channel(WAITING_MAX);
        let telling = tokio::spawn(speak(names, link, said)).abort_handle();
        Self { waiting, telling }
    }

    /// Takes a word, or drops it if too many wait.
    pub(crate) fn tell(&self, body: Bytes) {
        if self.waiting.try_send(body).is_err() {
            debug!("a control message was dropped; heartbeats tell the same");
        }
    }
}

/// Opens channel after channel and sends what waits. A fault that stays is logged once.
async fn speak(names: Names, link: Link, mut said: mpsc::Receiver<Bytes>) {
    let mut next = None;
    let mut pauses = Pauses::new();
    let mut warned = false;
    loop {
        if next.is_none() {
            next = said.recv().await;
        }
        let Some(live) = link.unblocked().await.filter(|_| next.is_some()) else { return };
        let fault = match open(&names, &live).await {
            Ok(channel) => {
                (pauses, warned) = (Pauses::new(), false);
                send(&names, &channel, &mut next, &mut said).await
            }
            Err(fault) => Some(fault),
        };
        let Some(fault) = fault else { return };
        if !warned {
            warn!(%fault, "workers hear of stops by their heartbeats alone; retrying");
            warned = true;
        }
        tokio::time::sleep(pauses.next()).await;
    }
}

async fn open(names: &Names, live: &Live) -> Result<Channel, BrokerError> {
    let channel = channel(live).await?;
    topology::declare_control(&channel, names).await?;
    Ok(channel)
}

/// Sends until the channel fails; none once nobody speaks any more.
async fn send(
    names: &Names,
    channel: &Channel,
    next: &mut Option<Bytes>,
    said: &mut mpsc::Receiver<Bytes>,
) -> Option<BrokerError> {
    loop {
        let body = match next {
            Some(body) => body.clone(),
            None => next.insert(said.recv().await?).clone(),
        };
        match timeout(WRITE_BOUND, publish(names, channel, &body)).await {
            Ok(Ok(())) => *next = None,
            Ok(Err(fault)) => return Some(fault),
            Err(_) => {
                *next = None; // whether it was written is not known, and it is old by now
                return Some(BrokerError::Unavailable("it reads nothing".to_owned()));
            }
        }
    }
}

async fn publish(names: &Names, channel: &Channel, body: &[u8]) -> Result<(), BrokerError> {
    let properties = BasicProperties::default()
        .with_delivery_mode(TRANSIENT)
        .with_content_type(short("application/json")?)
        .with_app_id(short(PREFIX)?);
    let options = BasicPublishOptions { mandatory: false, immediate: false };
    let exchange = short(names.control_exchange())?;
    let sent = channel.basic_publish(exchange, short("")?, options, body, properties).await;
    sent.map(drop).map_err(|error| BrokerError::Unavailable(error.to_string()))
}
