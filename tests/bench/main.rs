//! The benchmark beside its measure: each job on Standfast and as the least loop that is durable
//! at all, in turn, on the same Redis and RabbitMQ, in one run. Beside that, on request: the jobs
//! embedded, the jobs over processes of their own, and what grows with tasks. See
//! `docs/PERFORMANCE.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it prints what it measures")]

mod options;

mod fleet;
mod ground;
mod growth;
mod least;
mod memory;
mod report;
mod rounds;

use clap::Parser;

use crate::options::Options;

/// That of the `standfast` binary, for both sides.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(&options))
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let shown = match (options.growth, options.processes) {
        (true, _) => growth::all(options).await?,
        (false, true) => fleet::all(options).await?.json(),
        (false, false) => rounds::all(options).await?.json(),
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&shown)?);
    }
    Ok(())
}
