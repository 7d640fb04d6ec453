//! The words of policy in the vocabulary of the wire.

use proto::{ActionMode, ModeSource, Risk};

pub const fn wire_risk(risk: policy::Risk) -> Risk {
    match risk {
        policy::Risk::Read => Risk::Read,
        policy::Risk::Write => Risk::Write,
        policy::Risk::Danger => Risk::Danger,
    }
}

pub const fn wire_mode(mode: policy::Mode) -> ActionMode {
    match mode {
        policy::Mode::Allow => ActionMode::Allow,
        policy::Mode::RequireApproval => ActionMode::RequireApproval,
        policy::Mode::Deny => ActionMode::Deny,
    }
}

pub const fn wire_source(source: policy::ModeSource) -> ModeSource {
    match source {
        policy::ModeSource::AutomationOverride => ModeSource::AutomationOverride,
        policy::ModeSource::OrgDefault => ModeSource::OrgDefault,
        policy::ModeSource::InferredDefault => ModeSource::InferredDefault,
    }
}
