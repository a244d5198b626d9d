//! `standfast api`: the HTTP api of an installation.

use std::net::SocketAddr;

use clap::Args;
use standfast_api::auth::Access;
use standfast_api::serve;
use standfast_domain::time::Span;

use crate::commands::worker::claim_length;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::wiring::processes::{InstallationArgs, Process, listen};
use crate::wiring::retain::RetainArgs;
use crate::wiring::stores;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast api --redis redis://127.0.0.1:6379 --amqp amqp://127.0.0.1:5672/%2f \\
      --blobs file:///var/lib/standfast/blobs

Beyond a loopback address it listens only once a token exists: standfast token create.")]
pub struct ApiArgs {
    /// Where it listens
    #[arg(long, env = "STANDFAST_LISTEN", value_name = "HOST:PORT", hide_env_values = true)]
    #[arg(default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// A host name under which it is reached, without port; may be repeated. Requests that name
    /// another are refused; without any, all are taken that carry a token
    #[arg(long = "public-host", env = "STANDFAST_PUBLIC_HOST", value_name = "HOST")]
    #[arg(hide_env_values = true, value_delimiter = ',')]
    public_hosts: Vec<String>,
    #[command(flatten)]
    retain: RetainArgs,
    /// How long a claim lasts unless renewed; the same for all processes of an installation.
    /// Hidden: shorter than the usual 30 s serves tests, and drops attempts when the store is slow.
    #[arg(long, env = "STANDFAST_CLAIM_LENGTH", value_name = "SPAN", hide = true)]
    #[arg(value_parser = claim_length, default_value = "30s")]
    claim_length: Span,
    #[command(flatten)]
    installation: InstallationArgs,
}

/// Serves until told to end.
pub async fn execute(args: ApiArgs) -> Result<Exit, Failure> {
    // Without the broker submissions are still taken, so the api does not wait for it.
    let started = Process::start(&args.installation, None, false).await?;
    let Some(mut process) = started else { return Ok(Exit::Completed) };
    process.parts.claim_length = args.claim_length;
    process.parts.retention = args.retain.retain;
    process.parts.public_hosts = args.public_hosts;
    let loopback = args.listen.ip().is_loopback();
    if !loopback && !process.parts.tokens.any().await.map_err(stores::failure)? {
        let message = format!("{} can be reached by others, and no token exists", args.listen);
        let advice = "standfast token create --role admin --principal user:NAME";
        return Err(Failure::new(message).and(format!("make one first: {advice}")));
    }
    let listener = listen(args.listen).await?;
    let access = Access::Tokens { open_if_none: loopback };
    let admin = process.watch().await?;
    let api = process.parts.api(access, loopback, admin, process.shutdown.clone());
    tracing::info!(address = %args.listen, "the api listens");
    let served = tokio::select! {
        served = serve(listener, api) => served,
        () = process.hurry.cancelled() => Ok(()),
    };
    served.map_err(|error| Failure::new(format!("failed to serve: {error}")))?;
    Ok(process.end().await)
}
