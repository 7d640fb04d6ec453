//! Test services: a scripted model, a network that fails on command, and a recorder that counts what really
//! happened. Everything listens on a free loopback port and stops when it is dropped.
//!
//! The recorder and the proxy are outside the program under test, so an invariant is never checked only by
//! the program that must uphold it.

mod acp;
mod agent;
mod effects;
mod fault;
mod forge;
pub mod fuzz;
mod mcp_everything;
mod model;
mod pump;
mod serve;
mod tls;
mod vendor;

pub use self::agent::{Abort, AgentBehavior, AgentRequest, FakeAgent, Turn};
pub use acp::{Acp, AcpServer};
pub use effects::{Effect, EffectRecorder, Plan};
pub use fault::{Counts, Direction, FaultProxy};
pub use forge::Forge;
pub use mcp_everything::McpEverything;
pub use model::{ModelRequest, ScriptedModel};
pub use tls::TlsFront;
pub use vendor::{Vendor, VendorAnswer, VendorRequest};
