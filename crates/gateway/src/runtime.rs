//! Running agents: sandboxes, the supervisor inside each of them, and the proxy that is their only
//! route to the network.

mod actions_guide;
mod agent;
mod agent_file;
mod agent_programs;
pub(crate) mod auto_start;
mod command;
pub(crate) mod env_files;
mod environment;
mod file_write;
mod key;
mod launch;
mod network;
mod pool;
mod prepare;
mod repositories;
mod retire;
mod sandbox_handle;
mod sandboxes;
mod service;
pub(crate) mod services;
mod snapshot;
mod system;
mod written_files;

pub use self::agent::Agent;
pub(crate) use agent_file::{AgentContents, AgentFile};
pub use agent_programs::{BrowserPrograms, NoBrowser};
pub(crate) use command::{Command, CommandEnd, RunCommand, RunningCommand};
pub use environment::EnvironmentError;
pub(crate) use environment::{Applied, Environment, keep_environments};
pub(crate) use file_write::{FileWrite, WriteFile};
pub(crate) use launch::sandbox_of;
pub use launch::{Launch, LaunchError};
pub use network::{CountingRecorder, Network, Networks, check_rules, outcome_of, proxy_of};
pub use pool::Pool;
pub(crate) use pool::keep as keep_pool;
pub(crate) use prepare::SERVICE as AGENT_SERVICE;
pub(crate) use repositories::{Checkout, Repositories};
pub(crate) use retire::{end_retired_sandboxes, retire_sandbox};
pub use sandbox_handle::{ConnectedSandbox, RunningSandbox, SandboxHandle, SandboxRequest};
pub(crate) use sandbox_handle::{GIT_CONFIG, GIT_IDENTITY, OWN_FOLDER};
pub use sandboxes::{Insecure, Sandboxes, SandboxesError};
pub(crate) use service::Inward;
pub use service::{Runtime, RuntimeSettings};
pub(crate) use snapshot::keep_files;
pub use snapshot::{Saved, SnapshotError};
