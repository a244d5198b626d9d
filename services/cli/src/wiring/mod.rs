//! Puts ports and adapters together: the only place that names stores and brokers.

pub mod brokers;
pub mod embedded;
pub mod endpoint;
pub mod examine;
pub mod handlers;
pub mod logging;
pub mod parts;
pub mod processes;
pub mod retain;
pub mod signals;
pub mod stores;
pub mod watch;
