//! The stored request that an approval is bound to: nobody executes another one than was recorded, and nobody approves
//! parameters that they have not seen.

use secrecy::ExposeSecret as _;
use serde_json::json;
use store::{Invocation, JsonText, RequestEdit};

use crate::Gate;
use crate::approvals::{Approval, ApprovalError, WaitingCall};
use crate::judgement::Judgement;
use crate::record::{HIDDEN_PARAMETERS, hides_parameters, shown_parameters};
use crate::request::{CallRequest, RunRequest};

impl Gate {
    /// A request whose parameters have been edited. It keeps its run, and so the hash of what its caller has sent.
    pub(crate) fn edited_request(
        &self,
        WaitingCall { invocation, .. }: &WaitingCall,
        judgement: &Judgement,
    ) -> Result<RequestEdit, ApprovalError> {
        if hides_parameters(judgement) {
            return Err(ApprovalError::Changed(HIDDEN_PARAMETERS.to_owned()));
        }
        let edited = judgement.call.request.as_ref();
        let text = serde_json::to_string(edited).ok();
        let sealed = text.and_then(|text| self.secrets.seal(invocation.org_id, invocation.id, &text));
        let unsealed = || ApprovalError::Unavailable("it cannot be encrypted while it waits".to_owned());
        Ok(RequestEdit {
            request: JsonText::of(&sealed.ok_or_else(unsealed)?),
            params: JsonText::of(&shown_parameters(judgement)),
            hash: edited.binding().to_string(),
        })
    }

    /// The stored request, if it is the one that was recorded. A row that was changed since is not executed. What no column
    /// repeats, such as the parent run, a ticket or the correlation, cannot be changed in the database at all: the request is
    /// encrypted with authentication for this organization and this invocation, and an edit keeps everything but parameters.
    pub(crate) fn bound_request(&self, waiting: &WaitingCall) -> Result<CallRequest, ApprovalError> {
        let WaitingCall { invocation, run } = waiting;
        let changed = || ApprovalError::Changed("The request has changed since it was recorded".to_owned());
        let sealed = invocation.request.as_ref().ok_or_else(changed)?;
        let stored = self.secrets.unseal(invocation.org_id, invocation.id, sealed).ok_or_else(changed)?;
        let request: CallRequest = serde_json::from_str(stored.expose_secret()).map_err(|_| changed())?;
        let CallRequest { caller, target, action, .. } = &request;
        let bound = self.is_content_bound(&request, waiting)
            && run.request_hash.as_ref() == Some(&request.request_hash.to_string())
            && request.run.id == run.run_id
            && (caller.org, caller.session) == (run.org_id, run.session_id)
            && (json!(caller.actor), &caller.role) == (run.actor.clone(), &run.role_id)
            && run.lane_id.as_ref() == Some(&target.lane)
            && run.tool.as_ref() == Some(&target.tool)
            && run.operation.as_ref() == Some(&target.operation)
            && action.as_ref().is_some_and(|action| action.id == invocation.id);
        if bound { Ok(request) } else { Err(changed()) }
    }

    /// Whether the content of a stored request is what was recorded. The run of an invoked action is named after its
    /// invocation, and its hash is the binding. Other entry points hash what their caller sent; their runs have the
    /// keyed hash of the parameters.
    fn is_content_bound(&self, request: &CallRequest, WaitingCall { invocation, run }: &WaitingCall) -> bool {
        if let Some(edited) = &invocation.edited_hash {
            return *edited == request.binding().to_string();
        }
        if run.run_id == RunRequest::new_call(invocation.id.uuid(), None).id {
            return run.request_hash.as_ref() == Some(&request.binding().to_string());
        }
        let hash = self.audit.parameters_hash(&request.target.parameters).map(|hash| json!(hash));
        hash.is_some_and(|hash| run.inputs["parameters_hash_sha256"] == hash) && run.case_id == request.case
    }
}

/// Refuses an approval of other parameters than its approver has seen. Everybody has seen those of the caller, so an approval
/// without a hash counts for them. This is checked again when somebody else decides at the same time.
pub(crate) fn check_seen(
    invocation: &Invocation,
    Approval { request_hash, .. }: &Approval,
) -> Result<(), ApprovalError> {
    let changed = |what: &str| {
        Err(ApprovalError::Changed(format!(
            "{what}: look at them, and approve with the requestHash that you see"
        )))
    };
    match request_hash {
        None if invocation.edited_hash.is_some() => changed("Somebody has edited the parameters"),
        Some(seen) if Some(seen) != invocation.request_hash() => {
            changed("These are not the parameters of the request any more")
        }
        None | Some(_) => Ok(()),
    }
}
