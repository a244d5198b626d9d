//! The binary as users run it: commands, kills, resumes.
#![allow(clippy::unwrap_used)]

mod kill_resume;
