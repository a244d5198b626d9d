//! `./tests/chaos`: a fleet under load while everything around it breaks, and a count of what was
//! promised. See docs/TESTING.md.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod demon;
mod load;
mod oracle;
mod outside;
mod people;
mod plans;
mod run;
mod site;

use std::process::ExitCode;
use std::time::Duration;

#[tokio::main]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
    let (Some(seconds), Some(seed)) = (number(), number()) else {
        println!("usage: ./tests/chaos [MINUTES] [--seed N]");
        return ExitCode::from(64);
    };
    ExitCode::from(u8::from(run::run(Duration::from_secs(seconds), seed).await > 0))
}
