//! Turns records into what readers see. Everything here is pure: records and a time go in, the
//! protocol's types come out.

pub(crate) mod effect;
pub(crate) mod event;
pub(crate) mod explain;
pub(crate) mod hold;
pub(crate) mod log;
pub(crate) mod step;
pub(crate) mod stop;
pub(crate) mod task;
pub(crate) mod text;
