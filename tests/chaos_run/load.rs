//! Who submits over HTTP and AMQP, and who stops tasks in mid-run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use serde_json::{Value, json};
use standfast_protocol::problem::ProblemKind;
use standfast_protocol::tasks::{StopMode, StopRequest, SubmitRequest};
use standfast_sdk::Client;
use standfast_tests::binary::Draw;
use standfast_tests::wait;
use tokio_util::sync::CancellationToken;

use crate::outside::Shop;
use crate::plans::{self, Places};

/// Of a hundred tasks, those that are stopped.
const STOPPED: u64 = 8;
/// How long one answer of the broker may take.
const CONFIRM: Duration = Duration::from_secs(10);

/// One submission.
#[derive(Clone, Debug)]
pub struct Sent {
    pub plan: Value,
    pub over_amqp: bool,
    /// True once the broker has confirmed it, or the api answered.
    pub promised: bool,
    /// The task's id, where an answer named it.
    pub task: Option<String>,
    /// True once a stop was asked for.
    pub stop: bool,
}

/// What all who make load share.
pub struct Load {
    /// One for each api.
    pub clients: Vec<Client>,
    pub amqp: String,
    pub exchange: String,
    pub token: String,
    pub ledger: PathBuf,
    pub shop: Arc<Shop>,
    pub sent: Mutex<BTreeMap<String, Sent>>,
    /// What went wrong that must not.
    pub faults: Mutex<Vec<String>>,
    /// Ends new load.
    pub enough: CancellationToken,
}

impl Load {
    pub fn sent(&self) -> MutexGuard<'_, BTreeMap<String, Sent>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes something that must not be.
    pub fn blame(&self, what: String) {
        println!("FAULT {what}");
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Gives a client of one of the apis.
    pub fn client(&self, draw: &mut Draw) -> &Client {
        &self.clients[draw.below(self.clients.len() as u64) as usize]
    }

    fn new_plan(&self, name: &str, draw: &mut Draw) -> Value {
        let (shop, orders) = (self.shop.url(), self.shop.file.as_path());
        plans::plan(&Places { ledger: &self.ledger, shop, orders }, name, draw)
    }

    fn remember(&self, name: &str, plan: Value, over_amqp: bool) {
        let sent = Sent { plan, over_amqp, promised: false, task: None, stop: false };
        self.sent().insert(name.to_owned(), sent);
    }

    /// Submits over HTTP until it is answered; gives the task's id.
    pub async fn submit(&self, name: &str, plan: &Value, draw: &mut Draw) -> (String, bool) {
        let request = SubmitRequest { plan: plan.clone(), plan_dir: None };
        loop {
            match self.client(draw).submit_keyed(&request, name).await {
                Ok(answer) => {
                    let mut sent = self.sent();
                    let sent = sent.get_mut(name).unwrap();
                    (sent.promised, sent.task) = (true, Some(answer.id.clone()));
                    return (answer.id, answer.created);
                }
                // The handlers outside are announced a moment after the start.
                Err(error) => match error.problem() {
                    Some(ProblemKind::InvalidPlan) if plan["kind"] == "outside" => {}
                    Some(
                        ProblemKind::InvalidPlan
                        | ProblemKind::InvalidJson
                        | ProblemKind::Unauthorized
                        | ProblemKind::Forbidden
                        | ProblemKind::KeyReused,
                    ) => {
                        self.blame(format!("{name} was refused: {error}"));
                        return (String::new(), false);
                    }
                    Some(_) | None => {}
                },
            }
            wait::pass(Duration::from_millis(300)).await;
        }
    }

    /// One publisher over HTTP; it stops some of its tasks.
    pub async fn over_http(self: Arc<Self>, number: u64, pause: Duration, mut draw: Draw) {
        let mut stopping = Vec::new();
        for count in 0.. {
            if self.enough.is_cancelled() {
                break;
            }
            let name = format!("h{number}-{count}");
            let plan = self.new_plan(&name, &mut draw);
            self.remember(&name, plan.clone(), false);
            let (task, _) = self.submit(&name, &plan, &mut draw).await;
            if draw.below(100) < STOPPED {
                self.sent().get_mut(&name).unwrap().stop = true;
                let after = Duration::from_millis(draw.below(8_000));
                let (load, draw) = (self.clone(), Draw::seeded(draw.below(u64::MAX)));
                stopping.push(tokio::spawn(async move { load.stop(&task, after, draw).await }));
            }
            wait::pass(pause).await;
        }
        for stopping in stopping {
            stopping.await.unwrap();
        }
    }

    /// Stops a task after a while; one that has ended meanwhile stays as it is.
    async fn stop(&self, task: &str, after: Duration, mut draw: Draw) {
        wait::pass(after).await;
        let request =
            StopRequest { mode: StopMode::Halt, reason: Some("chaos".to_owned()), digest: None };
        loop {
            match self.client(&mut draw).stop(task, &request).await {
                Ok(_) => return,
                Err(error) if error.problem() == Some(ProblemKind::NotApplicable) => return,
                Err(_) => wait::pass(Duration::from_millis(300)).await,
            }
        }
    }

    /// One publisher over AMQP, which only knows what the broker has confirmed.
    pub async fn over_amqp(self: Arc<Self>, pause: Duration, mut draw: Draw) {
        let mut line = None;
        for count in 0.. {
            if self.enough.is_cancelled() {
                return;
            }
            let name = format!("a-{count}");
            let plan = loop {
                let plan = self.new_plan(&name, &mut draw);
                // Their handlers may not be announced yet, and a rejected message is no loss.
                if plan["kind"] != "outside" {
                    break plan;
                }
            };
            self.remember(&name, plan.clone(), true);
            while !self.enough.is_cancelled() {
                if line.is_none() {
                    line = self.connect().await;
                }
                let Some((_, channel)) = &line else {
                    wait::pass(Duration::from_millis(500)).await;
                    continue;
                };
                let publishing = self.publish(channel, &name, &plan);
                match tokio::time::timeout(CONFIRM, publishing).await {
                    Ok(Some(())) => {
                        self.sent().get_mut(&name).unwrap().promised = true;
                        break;
                    }
                    Ok(None) | Err(_) => {
                        line = None;
                        wait::pass(Duration::from_millis(500)).await;
                    }
                }
            }
            wait::pass(pause).await;
        }
    }

    async fn connect(&self) -> Option<(Connection, Channel)> {
        let connecting = async {
            let properties = ConnectionProperties::default();
            let connection = Connection::connect(&self.amqp, properties).await.ok()?;
            let channel = connection.create_channel().await.ok()?;
            channel.confirm_select(ConfirmSelectOptions::default()).await.ok()?;
            Some((connection, channel))
        };
        tokio::time::timeout(CONFIRM, connecting).await.ok().flatten()
    }

    async fn publish(&self, channel: &Channel, name: &str, plan: &Value) -> Option<()> {
        let mut headers = FieldTable::default();
        let token = AMQPValue::LongString(self.token.as_str().into());
        headers.insert("standfast-token".into(), token);
        let properties = BasicProperties::default()
            .with_message_id(name.into())
            .with_headers(headers)
            .with_delivery_mode(2);
        let body = json!({ "plan": plan }).to_string().into_bytes();
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let exchange = self.exchange.as_str().into();
        let sent = channel.basic_publish(exchange, "submit".into(), options, &body, properties);
        match sent.await.ok()?.await.ok()? {
            Confirmation::Ack(None) => Some(()),
            Confirmation::Ack(Some(_)) | Confirmation::Nack(_) | Confirmation::NotRequested => None,
        }
    }
}
