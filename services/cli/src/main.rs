//! The `standfast` command: runs plans, asks and steers tasks, and starts the services.
//!
//! No rule of the task system is in here: commands ask an api, which may be one that they
//! start themselves over a folder.

mod args;
mod commands;
mod connect;
mod plan_file;
mod progress;
mod show;
mod wiring;

mod exit;
mod failure;
mod look;
mod text;

use std::process::ExitCode;

// Why not the system's: `docs/PERFORMANCE.md`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match args::parse(std::env::args_os()) {
        Ok(arguments) => commands::execute(arguments.command).into(),
        Err(error) => commands::refuse(&error).into(),
    }
}
