//! What became of a push. The outcome is stored in the data of its run's answer, and whoever started the push gets it
//! from there: nobody has to guess it from what git prints.

use gate::{CallOutcome, CallResult};
use proto::ToolErrorCode;
use proto::socket::GitCode;
use serde::{Deserialize, Serialize};

use crate::git::call::data;

/// The reason in the forge's report (`ng <ref> <reason>`) that git's receive-pack gives for a push from a shallow clone
/// that would make the forge's own repository shallow.
const SHALLOW_UPDATE: &str = "shallow update not allowed";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum PushOutcome {
    /// The forge updated every ref.
    Updated,
    /// The forge accepted the push. git did not ask for a report on each ref.
    Unreported,
    /// The forge refused at least one ref.
    Rejected {
        updated: usize,
        reason: RejectionReason,
    },
    /// The forge could not unpack the pack, so it updated nothing.
    UnpackFailed,
    /// Policy denied the push, so nothing reached the forge.
    Denied,
    /// The gateway may not connect to this forge.
    ForgeNotAllowed {
        reason: String,
    },
    CredentialRefused,
    NoRepository,
    UnexpectedStatus {
        status: u16,
    },
    /// The gateway could not connect, so nothing was pushed.
    Unreachable,
    /// Something of the gateway's own failed, so nothing was pushed.
    Unavailable,
    /// The gate did not let the push through for another reason than policy, so nothing reached the forge.
    NotForwarded,
    /// The connection broke or the report is malformed: the forge may have updated refs.
    Unknown,
}

/// Why the forge refused refs, as far as the gateway handles it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RejectionReason {
    /// The history behind a shallow clone's boundary is missing: a deeper clone may succeed.
    ShallowUpdate,
    Other,
}

impl RejectionReason {
    /// The one reason of a push, from the reasons for each refused ref.
    pub(super) fn of_all<'a>(reasons: impl IntoIterator<Item = &'a str>) -> Self {
        let mut reasons = reasons.into_iter().peekable();
        let shallow = reasons.peek().is_some() && reasons.all(|reason| reason == SHALLOW_UPDATE);
        if shallow { Self::ShallowUpdate } else { Self::Other }
    }
}

/// An outcome with its message for people.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PushResult {
    pub(super) outcome: PushOutcome,
    pub(super) message: String,
}

impl PushOutcome {
    /// The outcome of a push that the gate has answered.
    pub(super) fn of(answered: &CallResult) -> Self {
        match answered.outcome {
            CallOutcome::Failed(ToolErrorCode::PolicyDenied) => Self::Denied,
            CallOutcome::Success
            | CallOutcome::Failed(ToolErrorCode::ToolError | ToolErrorCode::DependencyDown) => {
                Self::deserialize(data(answered)).unwrap_or(Self::Unknown)
            }
            CallOutcome::Failed(ToolErrorCode::ToolTimeout) => Self::Unknown,
            _ => Self::NotForwarded,
        }
    }

    pub(crate) fn is_success(&self) -> bool {
        matches!(self, Self::Updated | Self::Unreported)
    }

    /// Whether the push had no effect and may succeed later.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable | Self::Unavailable)
    }

    pub(super) fn code(&self) -> GitCode {
        match self {
            Self::Updated | Self::Unreported => GitCode::Success,
            Self::Denied | Self::ForgeNotAllowed { .. } | Self::CredentialRefused => GitCode::AuthFailed,
            Self::Rejected { reason: RejectionReason::ShallowUpdate, .. } => GitCode::ShallowPushFailed,
            _ => GitCode::UnknownError,
        }
    }

    /// One sentence about a push of `refs` refs.
    pub(crate) fn text(&self, refs: usize) -> String {
        let text = match self {
            Self::Updated | Self::Unreported => return format!("pushed {refs} refs"),
            Self::Rejected { updated, .. } => return format!("the forge updated {updated} of {refs} refs"),
            Self::ForgeNotAllowed { reason } => return reason.clone(),
            Self::UnexpectedStatus { status } => return format!("the forge answered with status {status}"),
            Self::UnpackFailed => "the forge could not unpack the push",
            Self::Denied => "policy denied the push",
            Self::CredentialRefused => "the forge refused the organization's credential",
            Self::NoRepository => "the forge has no such repository",
            Self::Unreachable => "the forge cannot be reached: nothing was pushed",
            Self::Unavailable => "the gateway cannot connect to the forge now: nothing was pushed",
            Self::NotForwarded => "the push did not reach the forge",
            Self::Unknown => {
                "the forge's report is missing or malformed: whether it updated the refs is unknown"
            }
        };
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use gate::CallShare;
    use serde_json::json;

    use super::*;
    use crate::git::call::result;

    fn answered(outcome: CallOutcome, data: &serde_json::Value) -> CallResult {
        result(outcome, "x", data)
    }

    #[test]
    fn the_outcome_of_a_push_survives_in_the_answer_of_its_run() {
        for outcome in [
            PushOutcome::Updated,
            PushOutcome::Rejected { updated: 1, reason: RejectionReason::ShallowUpdate },
            PushOutcome::ForgeNotAllowed { reason: "port 8443 is closed".to_owned() },
            PushOutcome::UnexpectedStatus { status: 502 },
            PushOutcome::Unknown,
        ] {
            let mut data = serde_json::to_value(&outcome).unwrap();
            data["repository"] = json!("https://h/o/r");
            let stored = answered(CallOutcome::Failed(ToolErrorCode::ToolError), &data);
            assert_eq!(PushOutcome::of(&stored), outcome);
        }
    }

    #[test]
    fn an_answer_without_an_outcome_is_never_taken_for_a_success() {
        let nothing = serde_json::Value::Null;
        for (outcome, expected) in [
            (CallOutcome::Failed(ToolErrorCode::PolicyDenied), PushOutcome::Denied),
            (CallOutcome::Failed(ToolErrorCode::ToolTimeout), PushOutcome::Unknown),
            (CallOutcome::Failed(ToolErrorCode::ToolError), PushOutcome::Unknown),
            (CallOutcome::Failed(ToolErrorCode::InvalidRequest), PushOutcome::NotForwarded),
            (CallOutcome::Success, PushOutcome::Unknown),
            (CallOutcome::Unavailable, PushOutcome::NotForwarded),
            (CallOutcome::OverShare { share: CallShare::Calls, retry_after: 1 }, PushOutcome::NotForwarded),
        ] {
            assert_eq!(PushOutcome::of(&answered(outcome, &nothing)), expected);
        }
    }

    #[test]
    fn only_a_report_that_names_nothing_else_is_a_shallow_update() {
        assert_eq!(RejectionReason::of_all([SHALLOW_UPDATE; 2]), RejectionReason::ShallowUpdate);
        assert_eq!(RejectionReason::of_all([SHALLOW_UPDATE, "hook declined"]), RejectionReason::Other);
        assert_eq!(RejectionReason::of_all([]), RejectionReason::Other);
    }
}
