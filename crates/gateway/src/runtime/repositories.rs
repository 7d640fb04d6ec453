//! The git operations that a launch needs. The `git` module, a layer above this one, implements them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use secrecy::SecretString;
use store::SessionRecord;

use super::launch::LaunchError;
use super::sandbox_handle::ConnectedSandbox;

/// Puts a session's repositories into its sandbox.
pub(crate) trait Repositories: Send + Sync {
    /// Configures git in the sandbox, and clones or updates the session's repositories.
    fn check_out(self: Arc<Self>, checkout: Checkout<'_>) -> BoxFuture<'_, Result<(), LaunchError>>;
}

/// The parameters of a checkout.
pub(crate) struct Checkout<'a> {
    pub(crate) sandbox: ConnectedSandbox,
    pub(crate) session: &'a SessionRecord,
    /// The sandbox's own token, with which git inside authenticates to the gateway.
    pub(crate) token: &'a SecretString,
    /// Whether the files are a copy of another session's, and may be outdated.
    pub(crate) is_copy: bool,
    /// Reports the stage that starts.
    pub(crate) stage: &'a (dyn Fn(&'static str) -> BoxFuture<'a, ()> + Sync),
}
