//! What a Redis or a process of ours can go through without anybody's help: it is named while it
//! lasts, work waits, and afterwards everything goes on as if nothing had been.
#![allow(clippy::unwrap_used)]

mod gone;
mod growth;
mod ledger;
mod older;
mod recovery;
mod shutdown;
mod stalled;
mod trouble;
