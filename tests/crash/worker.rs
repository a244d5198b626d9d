//! A worker of the SDK whose handler `pay` orders something over HTTP as an effect, and which ends
//! itself with -9 at the place in it that `DIE` names.

use standfast_sdk::{Context, EffectClass, Error, HandlerError, SendError, Worker};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long after its intent the order may be sent, and how long its answer may take: short,
/// because nobody repeats anything before that.
const WINDOW: Duration = Duration::from_secs(4);
const ANSWER: Duration = Duration::from_secs(6);

#[derive(Clone, Deserialize, Serialize)]
struct Order {
    url: String,
    class: String,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let set = |name| std::env::var(name).unwrap_or_default();
    let worker = Worker::connect(&set("STANDFAST_URL"), set("STANDFAST_TOKEN"))?;
    worker.queue(set("QUEUE")).concurrency(4).handler("pay", pay).run().await
}

async fn pay(context: Context, order: Order) -> Result<Value, HandlerError> {
    if order.class == "checkable" {
        let effect = context.checkable("pay", order, found, send);
        return effect.window(WINDOW).request_timeout(ANSWER).await;
    }
    let class = match order.class.as_str() {
        "idempotent" => EffectClass::Idempotent,
        _ => EffectClass::Irreversible,
    };
    context.effect("pay", class, order, send).window(WINDOW).request_timeout(ANSWER).await
}

async fn send(order: Order, key: String) -> Result<Value, SendError> {
    die("before");
    let request = reqwest::Client::new().post(&order.url).header("idempotency-key", key);
    let answer = request.send().await?;
    die("sent");
    let text = answer.text().await?;
    die("answered");
    Ok(serde_json::from_str(&text)?)
}

async fn found(order: Order, _: String) -> Result<Option<Value>, HandlerError> {
    let answer = reqwest::get(&order.url).await?;
    Ok(answer.status().is_success().then_some(Value::Null))
}

/// Ends the process at once if this is the place.
fn die(place: &str) {
    if std::env::var("DIE").is_ok_and(|named| named == place) {
        let pid = std::process::id().to_string();
        let _ = std::process::Command::new("kill").args(["-9", &pid]).status();
        std::thread::park();
    }
}
