//! Keeps Standfast's records, events and indexes: [`redis::RedisStore`] for an installation of
//! many processes, [`redb::RedbStore`] for one process and one file.
//!
//! Absent from here is every rule: a store moves bytes, compares versions and answers what the
//! `Store` port asks. Both are held to one conformance suite.
//!
//! What a repeated commit is answered: one with events is recognised by its id at its first
//! event's number for ever; one without events by its id on the first record it writes, for as
//! long as nobody else writes that record. A commit that only removes records or changes
//! indexes leaves nothing to recognise it by: it is judged anew, its index changes and
//! unguarded removals come to the same, and a guard on what it removed refuses it, with the
//! absence shown in `returns`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod redb;
pub mod redis;

mod limits;
