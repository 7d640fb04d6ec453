//! Time and randomness, the only place that may ask the machine for either, and the points at which tests crash it.
//!
//! Everything else takes a [`Clock`] or an [`Rng`] as a parameter (`clippy.toml` says so), so that expiry,
//! ids and retries can be tested without waiting and a failing run can be repeated.

mod crash;
mod rng;
mod time;

pub use crash::crash_point;
pub use rng::Rng;
pub use time::Clock;
