//! A task as two processes and a store live it, without any of them: a store of the few rules
//! that `commit.rs` states, and a world that decides, commits, follows up and checks.

pub mod check;
pub mod fair;
pub mod planned;
pub mod plans;
pub mod store;
pub mod world;
