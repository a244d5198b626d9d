//! The benchmark's jobs: the same worker loop, engine and scheduler as everywhere, with a handler
//! that does nothing, over a store and a broker that the caller has opened; and the same api and
//! intake, for those that submit from outside.
//!
//! Absent from it: any setting that a worker of an installation does not have, the products
//! behind the ports, and what a figure is compared with.

mod job;
mod jobs;
mod system;

mod front;
mod site;

mod figures;
mod meter;
mod noop;

pub use figures::{Figures, Latency, Sample};
pub use front::{Exchange, Front};
pub use job::{Job, Size};
pub use jobs::{JobError, growing, run, singles};
pub use meter::{Meter, Used};
pub use noop::Noop;
pub use site::{Site, Sites, queue};
pub use system::{Door, Entrance, Stands, System, SystemError};
