//! Processes killed at named points (`standfast_engine::crash`): at each of them everything goes
//! on, and nothing that was stored is done again. What started is counted outside of the product,
//! by the handlers themselves, in a file.
#![allow(clippy::unwrap_used)]

mod doomed;
mod effects;
mod ledger;
mod release;
mod replies;
mod steps;
mod submissions;
