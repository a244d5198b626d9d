//! `standfast dead`: messages that could not be accepted.

use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use standfast_brokers::rabbitmq::{
    DELIVERY_LIMIT, Pass, Pick, REJECTED_LIST_MAX, RabbitBroker, RejectedMessage,
};
use standfast_domain::time::Time;
use standfast_engine::ports::BrokerError;
use standfast_protocol::problem::Problem;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::look::{self, Look};
use crate::show::quantities::{bytes, count, when};
use crate::show::table::Table;
use crate::text;
use crate::wiring::brokers::{self, BrokerArgs};

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  standfast dead list
  standfast dead requeue order-4711      sends it again to where it was first sent
  standfast dead drop --all")]
pub struct DeadArgs {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// Show them with the reason; they stay
    List(ListArgs),
    /// Send them again to where they were first sent
    Requeue(PickArgs),
    /// Remove them for good
    Drop(PickArgs),
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Messages to show
    #[arg(long, default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=REJECTED_LIST_MAX as u64))]
    limit: u64,
    /// Print JSON, bodies included
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

#[derive(Args, Debug)]
struct PickArgs {
    /// The message's id; of one without, the name that `dead list` shows
    #[arg(required_unless_present = "all")]
    id: Option<String>,
    /// All that are there now
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    broker: BrokerArgs,
}

/// Carries out one of the three.
pub async fn execute(args: DeadArgs) -> Result<Exit, Failure> {
    match args.command {
        DeadCommand::List(args) => list(args).await,
        DeadCommand::Requeue(args) => {
            let broker = brokers::connect(&args.broker).await?;
            let done = broker.rejected_requeue(&pick(&args)).await;
            finish(broker, done, &args, "sent again").await
        }
        DeadCommand::Drop(args) => {
            let broker = brokers::connect(&args.broker).await?;
            let done = broker.rejected_drop(&pick(&args)).await;
            finish(broker, done, &args, "dropped").await
        }
    }
}

fn pick(args: &PickArgs) -> Pick {
    args.id.clone().map_or(Pick::All, Pick::One)
}

async fn finish(
    broker: RabbitBroker,
    done: Result<Pass, BrokerError>,
    args: &PickArgs,
    what: &str,
) -> Result<Exit, Failure> {
    broker.close().await;
    let pass = done.map_err(brokers::failure)?;
    if let (0, [], Some(id)) = (pass.done, &pass.stay[..], &args.id) {
        let message = format!("there is no rejected message `{id}`");
        return Err(Failure::new(message).and("see: standfast dead list"));
    }
    let done = format!("{} {what}", count(pass.done as u64, "message"));
    if pass.stay.is_empty() {
        look::line(&done)?;
        return Ok(Exit::Completed);
    }
    let failure = Failure::new(format!("{done}, {} not", pass.stay.len()));
    Err(pass.stay.iter().fold(failure, |failure, why| failure.and(text::plain(why))))
}

async fn list(args: ListArgs) -> Result<Exit, Failure> {
    let broker = brokers::connect(&args.broker).await?;
    let limit = usize::try_from(args.limit).unwrap_or(REJECTED_LIST_MAX);
    let messages = broker.rejected_list(limit).await;
    broker.close().await;
    let messages = messages.map_err(brokers::failure)?;
    if args.json {
        let shown: Vec<Value> = messages.iter().map(as_json).collect();
        look::json(&json!({ "messages": shown }))?;
        return Ok(Exit::Completed);
    }
    if messages.is_empty() {
        look::note("no rejected messages");
    }
    look::lines(table(&messages, &Look::of_stdout()))?;
    Ok(Exit::Completed)
}

fn table(messages: &[RejectedMessage], look: &Look) -> Vec<String> {
    let columns = [("MESSAGE", 36), ("SENT TO", 10), ("SIZE", 10), ("REJECTED", 24)];
    let mut table = Table::new(&[&columns[..], &[("WHY", usize::MAX)]].concat());
    for message in messages {
        table.row(vec![
            message.name(),
            message.routing_key.clone().unwrap_or_else(|| "unknown".to_owned()),
            bytes(message.body.len() as u64),
            message.at.map(|at| when(&at.rfc3339(), look)).unwrap_or_default(),
            message.reason.as_deref().map(why).unwrap_or_default(),
        ]);
    }
    table.lines(look)
}

/// Gives the sentence of a problem, or what the broker's own word means.
fn why(reason: &str) -> String {
    if let Ok(problem) = serde_json::from_str::<Problem>(reason) {
        return problem.to_string();
    }
    match reason {
        "delivery_limit" => {
            format!("{DELIVERY_LIMIT} deliveries ended without an answer (delivery_limit)")
        }
        "maxlen" => "the queue had no room for it (maxlen)".to_owned(),
        "expired" => "nobody took it in time (expired)".to_owned(),
        other => other.to_owned(),
    }
}

fn as_json(message: &RejectedMessage) -> Value {
    json!({
        "name": message.name(),
        "message_id": message.message_id,
        "routing_key": message.routing_key,
        "reason": message.reason.as_deref().map(parsed),
        "rejected_at": message.at.map(Time::rfc3339),
        "headers": message.headers,
        "body": body(&message.body),
    })
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Shows a body as it came, if it is text; else as text with what is not replaced.
fn body(body: &Bytes) -> String {
    String::from_utf8_lossy(body).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::samples::terminal;

    #[test]
    fn a_message_is_shown_with_its_reason() {
        let reason = r#"{"type":"x","title":"t","status":422,"detail":"the plan has a fault"}"#;
        let message = |id: Option<&str>, reason: &str| RejectedMessage {
            message_id: id.map(str::to_owned),
            routing_key: Some("submit".into()),
            reason: Some(reason.into()),
            headers: Vec::new(),
            body: Bytes::from_static(b"{\xff}"),
            at: Some(Time(1_795_961_000_000)),
        };
        let messages = [message(Some("order-4711"), reason), message(None, "delivery_limit\u{1b}")];
        insta::assert_snapshot!(table(&messages, &terminal(100)).join("\n"));
        assert_eq!(as_json(&messages[0])["reason"]["status"], 422);
        assert_eq!(as_json(&messages[1])["body"], "{\u{fffd}}");
    }
}
