//! What has gone wrong in systems of this kind, each as a promise that it does not here: over
//! real connections, on both stores, with strange and with large values.
#![allow(clippy::unwrap_used)]

mod burst;
mod crash;
mod durability;
mod fidelity;
mod intake;
mod names;
mod paging;
mod retention;
mod returned;
mod secrecy;
mod sizes;
mod streams;
mod support;
mod timers;
mod topology;
