//! Where agents run: sandboxes with their supervisor inside and their only way out.

mod agent;
pub(crate) mod auto_start;
mod checkout;
mod forge;
mod git;
mod git_config;
mod key;
mod launch;
mod leave;
pub(crate) mod local_repo;
mod network;
mod pool;
mod prepare;
mod room;
mod sandboxes;
mod snapshot;

pub use agent::{Agent, Door};
#[cfg(test)]
pub(crate) use forge::repo_at;
pub(crate) use forge::{
    Access, AnswerReader, CommitScan, ForgeError, MOST_COMMIT_BYTES, NewPull, PullError, Pushed, Scan,
    Update as PushUpdate, UpdatesReader, Wanted as PushWanted, access, one_form, open_pull, place, rejection,
};
pub use git::{Git, GitError};
pub(crate) use git::{Pull, create_pull, failed as git_failed, is_branch};
pub(crate) use launch::sandbox_of;
pub use launch::{Launch, LaunchError};
pub(crate) use leave::{end_left_behind, leave};
pub use network::{Counted, Network, Networks, check_rules, outcome_of, proxy_of};
pub use pool::Pool;
pub(crate) use pool::keep as keep_pool;
pub(crate) use room::PUSH_GRANT;
pub use room::{Held, Inside, Room, Wanted};
pub use sandboxes::{Insecure, Sandboxes, SandboxesError};
pub use snapshot::{Saved, SnapshotError, snapshot};
