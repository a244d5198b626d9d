//! A worker with one handler, `shout`. See `README.md` for how to run it.

use standfast_sdk::{Context, Error, HandlerError, Worker};

#[derive(serde::Deserialize)]
struct Shout {
    text: String,
}

#[derive(serde::Serialize)]
struct Shouted {
    text: String,
}

async fn shout(context: Context, input: Shout) -> Result<Shouted, HandlerError> {
    context.log(format!("attempt {} shouts", context.attempt()));
    Ok(Shouted { text: input.text.to_uppercase() })
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::var("STANDFAST_URL").unwrap_or("http://127.0.0.1:8080".to_owned());
    let token = std::env::var("STANDFAST_TOKEN").unwrap_or_default();
    let worker = Worker::connect(&url, token)?.queue("default").concurrency(4);
    worker.handler("shout", shout).run().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_shouts() {
        let input = std::collections::BTreeMap::from([("text", "hello")]);
        let ended = standfast_sdk::testing::run_handler(shout, input).await;
        assert_eq!(ended.output().expect("it succeeds")["text"], "HELLO");
    }
}
