//! What tests stand on: a model that follows a script, a network that fails on command, and a recorder that
//! counts what really happened. Everything listens on loopback at a free port and stops when it is dropped.
//!
//! The recorder and the proxy are outside of what they test, so an invariant is never proved by the word of
//! the program that has to keep it.

mod agent;
mod effects;
mod fault;
mod forge;
pub mod fuzz;
mod model;
mod pump;
mod serve;
mod tls;

pub use agent::{Abort, Asked, FakeAgent, Manner, Turn};
pub use effects::{Effect, EffectRecorder, Plan};
pub use fault::{Counts, Direction, FaultProxy};
pub use forge::Forge;
pub use model::{Recorded, ScriptedModel};
pub use tls::TlsFront;
