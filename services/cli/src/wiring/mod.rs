//! Puts ports and adapters together: the only place that names stores and brokers.

pub mod embedded;
pub mod endpoint;
