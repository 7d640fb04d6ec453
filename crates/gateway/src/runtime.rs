//! Where agents run: sandboxes with their supervisor inside and their only way out.

mod key;
mod network;
mod room;
mod sandboxes;

pub use network::{Network, Networks, check_rules, proxy_of};
pub use room::{Room, Wanted};
pub use sandboxes::{Insecure, Sandboxes, SandboxesError};
