//! A small policy and requests that it allows.

use policy::{
    Action, ActorClass, Claim, Files, Grant, Policy, PolicyError, Request, Risk, RunState, Versions,
};

pub(crate) const LANES: &str = "\
version: '1'
contract_version: v1
lanes:
  - lane_id: intake
    allowed_callers: {roles: [SERVICE, AGENT]}
    allowed_actions:
      tools: [transcription, ocr.run]
      risks: [read, write]
      writes: [{table: notes, mode: append}]
    scope: {requires: [case_id, run_id], prohibits: [raw_case_text]}
  - lane_id: shared
    allowed_callers: {roles: [SERVICE]}
    allowed_actions: {tools: ['*']}
    scope: {permits: [cross_case_lookup, external_export], prohibits: [external_export]}
  - lane_id: glass
    allowed_callers: {roles: [ADMIN]}
    allowed_actions: {tools: ['*']}
    scope: {requires: [override_ticket_id]}
    override: {max_minutes: 60}
prohibitions:
  - rule_id: no-deleting
    reason: nothing is deleted
    tools: ['*.delete']
  - rule_id: agents-see-no-scans
    reason: scans hold what agents may not see
    roles: [AGENT]
    tools: [ocr.*]
";

pub(crate) const ROLES: &str = "\
version: '1'
contract_version: v1
roles:
  - {role_id: SERVICE, class: system, privileges: {lanes: [intake, shared]}}
  - {role_id: AGENT, class: agent, privileges: {lanes: [intake]}}
  - {role_id: ADMIN, class: human, privileges: {lanes: [glass]}}
";

pub(crate) fn load(lanes: &str, roles: &str) -> Result<Policy, PolicyError> {
    Policy::load(Files { lanes: Some(lanes), roles: Some(roles), tools: None })
}

pub(crate) fn policy() -> Policy {
    load(LANES, ROLES).unwrap()
}

pub(crate) fn versions(policy: &Policy) -> Versions {
    policy.pins().versions()
}

/// A request that passes every check.
pub(crate) fn request() -> Request {
    Request {
        actor: Claim { actor_type: ActorClass::System, actor_id: "svc-1".to_owned() },
        claimed: None,
        role: "SERVICE".to_owned(),
        lane: "intake".to_owned(),
        action: tool("transcription", "transcription.run", Risk::Write),
        scope: ["case_id", "run_id"].map(String::from).into(),
        refs: Vec::new(),
        flags: [].into(),
        run: RunState::New,
        demanded: None,
        mode: None,
        locked: false,
        grant: None,
    }
}

/// A request in the break-glass lane that passes every check.
pub(crate) fn override_request() -> Request {
    Request {
        actor: Claim { actor_type: ActorClass::Human, actor_id: "admin-1".to_owned() },
        role: "ADMIN".to_owned(),
        lane: "glass".to_owned(),
        scope: ["override_ticket_id".to_owned()].into(),
        grant: Some(Grant {
            ticket: "INC-1".to_owned(),
            reason: "the database is down".to_owned(),
            from: 1_000,
            until: 1_000 + 3_600,
            now: 2_000,
        }),
        ..request()
    }
}

pub(crate) fn tool(tool_name: &str, operation: &str, risk: Risk) -> Action {
    let (tool_name, operation) = (tool_name.to_owned(), operation.to_owned());
    Action::Tool { tool_name, operation, risk, registered: true, writes: None }
}
