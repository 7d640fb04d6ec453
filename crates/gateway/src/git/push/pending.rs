//! A push with its body, as an effect of the gate. The call owns it, and drops it when it ends.

use std::sync::Arc;

use clock::crash_point;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit};
use parking_lot::Mutex;

use super::{Push, forward};
use crate::git::{GitService, object};

pub(super) struct PendingPush {
    git: Arc<GitService>,
    push: Mutex<Option<Push>>,
}

impl PendingPush {
    pub(super) fn new(git: &Arc<GitService>, push: Push) -> Self {
        Self { git: git.clone(), push: Mutex::new(Some(push)) }
    }
}

impl Outside for PendingPush {
    /// Another push may have happened in between, and the body is gone.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        _: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        let push = self.push.lock().take();
        async move {
            let forwarded = || Failure::Refused("this push was forwarded before".to_owned());
            let push = push.ok_or_else(forwarded)?;
            let (refs, mut data) = (push.ref_count(), push.description());
            let outcome = forward(&self.git, permit, push).await;
            crash_point("push-forwarded");
            data.extend(object(&outcome));
            let text = outcome.text(refs);
            if outcome.is_success() {
                return Ok(Output { text, data: Some(data) });
            }
            let failure = if outcome.is_retryable() { Failure::Down(text) } else { Failure::Refused(text) };
            Err(Failure::Described(Box::new(failure), data))
        }
        .boxed()
    }
}
