//! The benchmark beside its measure: each job on Standfast and as the least loop that is durable
//! at all, in turn, on the same Redis and RabbitMQ, in one run. See `docs/PERFORMANCE.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it prints what it measures")]

mod ground;
mod least;
mod options;
mod report;
mod rounds;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    let options = options::Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(rounds::all(&options))
}
