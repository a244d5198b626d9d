//! The benchmark's jobs: the same worker loop, engine and scheduler as everywhere, with a handler
//! that does nothing, over a store and a broker that the caller has opened.
//!
//! Absent from it: any setting that a worker of an installation does not have, the products
//! behind the ports, and what a figure is compared with.

mod figures;
mod jobs;
mod meter;
mod noop;
mod site;

pub use figures::{Figures, Latency, Sample};
pub use jobs::{
    Job, JobError, Size, chains, growing, latency, run, singles, submitted, timers, wide,
};
pub use meter::{Meter, Used};
pub use noop::Noop;
pub use site::{Site, SiteError, Sites, queue};
