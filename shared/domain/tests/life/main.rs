//! Whole lives of tasks on a model of the store: scenarios of one rule each, and properties of
//! all plans under all schedules.

mod attempts;
mod effects;
mod endings;
mod hand_over;
mod model;
mod pauses;
mod properties;
mod scenarios;
mod stop_plans;
mod stops;
