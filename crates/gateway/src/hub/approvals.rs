//! The invocations of a session that wait for approval, as everybody who watches the session sees them.

use clock::Clock;
use proto::SessionId;
use proto::socket::OpenApproval;
use store::{Invocation, Store, StoreError};

/// An invocation that waits, with its arguments redacted and truncated.
pub(crate) fn open_approval(invocation: &Invocation) -> OpenApproval {
    OpenApproval {
        invocation_id: invocation.id,
        integration: invocation.integration.clone(),
        action: invocation.action.clone(),
        risk_level: invocation.risk,
        mode_reason: invocation.mode_reason.clone(),
        params: invocation.params.clone(),
        expires_at: invocation.expires_at,
        two_person: invocation.two_person,
        first_approved_by: invocation.first_approved_by,
        request_hash: invocation.request_hash().cloned(),
    }
}

/// The invocations of a session that can be approved now, the oldest first.
pub(super) async fn waiting_approvals(
    store: &Store,
    clock: &Clock,
    session: SessionId,
) -> Result<Vec<OpenApproval>, StoreError> {
    let waiting = store.waiting_invocations(session, clock.now()).await?;
    Ok(waiting.iter().map(open_approval).collect())
}
