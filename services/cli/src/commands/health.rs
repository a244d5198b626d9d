//! `standfast health`: asks a process whether it is ready, for container health checks.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::look;
use crate::text;
use crate::wiring::processes::admin_addr;

/// Longest wait for an answer, below the usual time-outs of health checks.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes of an answer that are shown: more is not one of ours.
const SHOWN_BYTES_MAX: usize = 4096;

/// What may be typed.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  standfast health --admin-addr 127.0.0.1:9090")]
pub struct HealthArgs {
    /// Where the process answers its operator
    #[arg(long, env = "STANDFAST_ADMIN_ADDR", hide_env_values = true, value_name = "[HOST:]PORT")]
    #[arg(value_parser = admin_addr)]
    admin_addr: SocketAddr,
}

/// Asks `/readyz`; ready is exit code 0.
pub async fn execute(args: HealthArgs) -> Result<Exit, Failure> {
    let failed = |error: reqwest::Error| {
        let message = format!("failed to ask {}: {}", args.admin_addr, cause(&error));
        Failure::new(message).and("is the process running, with this --admin-addr?")
    };
    let client = reqwest::Client::builder().no_proxy().timeout(ANSWER_TIMEOUT).build();
    let url = format!("http://{}/readyz", args.admin_addr);
    let answer = client.map_err(failed)?.get(url).send().await.map_err(failed)?;
    let ready = answer.status().is_success();
    let body = answer.bytes().await.map_err(failed)?;
    let shown = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES_MAX)]);
    look::line(text::plain_lines(&shown).trim_end())?;
    Ok(if ready { Exit::Completed } else { Exit::Error })
}

/// Gives the innermost cause: the outer ones say only that a request failed.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
