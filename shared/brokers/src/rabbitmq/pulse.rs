//! Publishes to nobody again and again, to know whether publishing is possible.
//!
//! An open connection does not say so: the broker tells of an alarm only to who publishes, a
//! right that was taken away shows at the next publish, and a broker that hangs keeps its
//! connections open. So a message without a queue goes out every few seconds; the broker confirms
//! it and drops it. It takes the same way as step messages do, the default exchange, and needs the
//! same right. Each goes over a new channel, because a channel asks for a right once and remembers
//! the answer for as long as it is in use.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, ErrorKind};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::connection::{Link, Live, channel};
use super::settings::{RabbitSettings, short};

/// How often it publishes. Three may fail before an operator's usual 30 s are over.
const EVERY: Duration = Duration::from_secs(5);
/// How soon it publishes again after a failure, so that health turns good soon.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a lost connection or an alarm may take to be known as that: twice the time between
/// two looks at the connection.
const SETTLED: Duration = Duration::from_secs(1);
/// Longest wait for the confirm; a healthy broker answers within milliseconds.
const BOUND: Duration = Duration::from_secs(5);

/// Publishes for as long as it lives.
pub(crate) struct Pulse {
    fault: watch::Receiver<Option<Fault>>,
    beating: AbortHandle,
}

/// Why publishing failed, and over which connection.
#[derive(Clone)]
struct Fault {
    generation: u64,
    text: String,
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

impl Pulse {
    /// Begins to publish over a connection.
    pub(crate) fn start(settings: Arc<RabbitSettings>, link: Link) -> Self {
        let (told, fault) = watch::channel(None);
        let beating = tokio::spawn(beat(settings, link, told)).abort_handle();
        Self { fault, beating }
    }

    /// Says why publishing is not possible over the connection of that generation.
    pub(crate) fn fault(&self, generation: u64) -> Option<String> {
        let fault = self.fault.borrow();
        fault.as_ref().filter(|fault| fault.generation == generation).map(|f| f.text.clone())
    }
}

/// Publishes again and again. Losing and regaining are logged once each.
async fn beat(settings: Arc<RabbitSettings>, link: Link, told: watch::Sender<Option<Fault>>) {
    loop {
        let Some(live) = link.unblocked().await else { return };
        let generation = live.generation;
        let failed = publish(&settings, &live).await.err();
        if failed.is_some() {
            sleep(SETTLED).await;
        }
        let ended = link.state().live.is_none_or(|live| live.generation != generation);
        if ended || (failed.is_some() && link.state().blocked.is_some()) {
            continue; // the connection itself tells what is wrong
        }
        let before = told.borrow().is_some();
        match &failed {
            Some(text) if !before => warn!(reason = %text, "publishing is not possible"),
            None if before => info!("publishing is possible again"),
            Some(_) | None => {}
        }
        let pause = if failed.is_some() { AGAIN } else { EVERY };
        told.send_replace(failed.map(|text| Fault { generation, text }));
        tokio::select! {
            () = sleep(pause) => {}
            () = link.after(generation) => {}
        }
    }
}

async fn publish(settings: &RabbitSettings, live: &Live) -> Result<(), String> {
    let explained = |error: &lapin::Error| explain(settings, error);
    let attempt = async {
        let channel = channel(live).await.map_err(|fault| fault.to_string())?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        select.await.map_err(|error| explained(&error))?;
        let to_nobody = short(settings.names.pulse()).map_err(|fault| fault.to_string())?;
        let exchange = short("").map_err(|fault| fault.to_string())?;
        let options = BasicPublishOptions { mandatory: false, immediate: false };
        let properties = BasicProperties::default();
        let sent = channel.basic_publish(exchange, to_nobody, options, b"", properties);
        let confirm = sent.await.map_err(|error| explained(&error))?;
        confirm.await.map_err(|error| explained(&error))?;
        channel.close(200, short("published").map_err(|fault| fault.to_string())?).await.ok();
        Ok(())
    };
    match timeout(BOUND, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("the broker confirms nothing within {} s", BOUND.as_secs())),
    }
}

/// Says what to do about a broker that said no.
fn explain(settings: &RabbitSettings, error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(fault) if fault.get_id() == 403 => format!(
            "the user `{}` may not publish; grant it `write` on `amq.default` and the prefix ({})",
            settings.user(),
            fault.get_message()
        ),
        _ => error.to_string(),
    }
}
