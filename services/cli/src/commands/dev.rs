//! `standfast dev`: a whole installation in one process, over one folder.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tokio::net::TcpListener;

use crate::connect::DATA_DEFAULT;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::wiring::embedded::{self, Work};
use crate::wiring::logging::{self, LogArgs};
use crate::wiring::processes::listen;
use crate::wiring::signals::Interrupts;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast dev
  standfast submit examples/release-notes.yaml --wait      in another terminal

Commands with the same --data find it by themselves. The api also answers at --listen, without a
token as long as none was ever made.")]
pub struct DevArgs {
    /// Where the api listens, a loopback address
    #[arg(long, env = "STANDFAST_LISTEN", value_name = "HOST:PORT", hide_env_values = true)]
    #[arg(default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Folder of the state
    #[arg(long, env = "STANDFAST_DATA", value_name = "DIR", hide_env_values = true)]
    #[arg(default_value = DATA_DEFAULT)]
    data: PathBuf,
    #[command(flatten)]
    work: Work,
    #[command(flatten)]
    log: LogArgs,
}

/// Works on the folder until told to end.
pub async fn execute(args: DevArgs) -> Result<Exit, Failure> {
    if !args.listen.ip().is_loopback() {
        let message = format!("{} can be reached by others", args.listen);
        let advice = "use a loopback address here, or `standfast api` for an installation";
        return Err(Failure::usage(message).and(advice));
    }
    logging::start(&args.log)?;
    let mut interrupts = Interrupts::listen()?;
    let listener: TcpListener = listen(args.listen).await?;
    let embedded = embedded::work(&args.data, args.work, Some(listener)).await?;
    let data = args.data.display();
    look::note(&format!("api at http://{} · state in {data} · Ctrl-C ends it", args.listen));
    interrupts.next().await;
    look::note("ending: what runs is handed back; Ctrl-C again ends at once");
    tokio::select! {
        () = embedded.close() => Ok(Exit::Completed),
        () = interrupts.next() => Ok(Exit::Interrupted),
    }
}
