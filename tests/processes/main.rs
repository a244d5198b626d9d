//! The binary as users run it: commands, fleets of processes, kills, resumes.
#![allow(clippy::unwrap_used)]

mod attempts;
mod control;
mod disturbed;
mod embedded;
mod kill_resume;
mod queues;
mod starts;
mod stops;
mod tools;
mod uncertain;
mod workers;
