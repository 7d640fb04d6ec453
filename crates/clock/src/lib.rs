//! Time and randomness, the only crate that may read the system clock or draw random bytes, and the points at which tests
//! crash the process.
//!
//! Everything else takes a [`Clock`] or an [`Rng`] as a parameter (enforced by `clippy.toml`), so that
//! expiry, ids and retries can be tested without waiting and a failing test can be reproduced.

mod crash;
mod rng;
mod time;

pub use crash::crash_point;
pub use rng::Rng;
pub use time::Clock;
