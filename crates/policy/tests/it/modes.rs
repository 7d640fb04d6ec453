//! Action modes: the most specific map wins, deny beats allow, and unknown values never allow.

use policy::{
    Hints, Mode, ModeDecision, ModeKey, ModeSource, Risk, apply_drift, decide, derive_risk, resolve_mode,
};
use serde_json::{Map, Value, json};

use crate::common::{policy, request};

fn map(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

fn resolve(automation: Option<Value>, org: Value, risk: Risk) -> (Mode, ModeSource, Option<String>) {
    let key = ModeKey::new("linear", "create_issue").unwrap();
    let ModeDecision { mode, source, reason, .. } =
        resolve_mode(&key, automation.map(map).as_ref(), &map(org), risk, None);
    (mode, source, reason)
}

#[test]
fn the_most_specific_map_wins() {
    let key = "linear:create_issue";
    let (automation, org) = (json!({key: "allow"}), json!({key: "require_approval"}));
    let expected = (Mode::Allow, ModeSource::AutomationOverride, None);
    assert_eq!(resolve(Some(automation.clone()), org.clone(), Risk::Danger), expected);
    assert_eq!(resolve(None, org, Risk::Read), (Mode::RequireApproval, ModeSource::OrgDefault, None));
    let others = json!({"linear:other": "deny", "sentry:create_issue": "deny"});
    for (risk, mode) in
        [(Risk::Read, Mode::Allow), (Risk::Write, Mode::RequireApproval), (Risk::Danger, Mode::Deny)]
    {
        assert_eq!(
            resolve(Some(others.clone()), others.clone(), risk),
            (mode, ModeSource::InferredDefault, None)
        );
    }
}

#[test]
fn an_automation_cannot_loosen_what_the_organization_denies() {
    let key = "linear:create_issue";
    let denied = (Mode::Deny, ModeSource::OrgDefault, None);
    assert_eq!(resolve(Some(json!({key: "allow"})), json!({key: "deny"}), Risk::Read), denied);
    let tightened = (Mode::Deny, ModeSource::AutomationOverride, None);
    assert_eq!(resolve(Some(json!({key: "deny"})), json!({key: "allow"}), Risk::Read), tightened);
}

#[test]
fn unknown_modes_deny() {
    let key = "linear:create_issue";
    for (value, reason) in [
        (json!({key: "Allow"}), "unknown_mode:Allow"),
        (json!({key: "always\n<b>"}), "unknown_mode:alwaysb"),
        (json!({key: true}), "unknown_mode:not_a_text"),
        (json!({"linear/create_issue": "allow"}), "unknown_mode:key_with_slash"),
    ] {
        for (automation, org) in [(Some(value.clone()), json!({})), (None, value.clone())] {
            let (mode, _, found) = resolve(automation, org, Risk::Read);
            assert_eq!((mode, found.as_deref()), (Mode::Deny, Some(reason)));
        }
    }
}

#[test]
fn mode_keys_need_a_colon() {
    for right in ["linear:create_issue", "connector:0198a7c2:tool/with/slash"] {
        assert!(right.parse::<ModeKey>().is_ok(), "{right}");
    }
    for wrong in ["", "linear", "linear/create_issue", ":x", "x:", "a/b:c", "a:b\n"] {
        assert!(wrong.parse::<ModeKey>().is_err(), "{wrong}");
    }
}

#[test]
fn drift_tightens_and_never_loosens() {
    let decision = |mode| ModeDecision::new(mode, ModeSource::OrgDefault);
    let same = apply_drift(decision(Mode::Allow), Some("h1"), "h1");
    assert_eq!(same, decision(Mode::Allow));
    for reviewed in [Some("h0"), None] {
        let drifted = apply_drift(decision(Mode::Allow), reviewed, "h1");
        assert_eq!(
            (drifted.mode, drifted.reason.as_deref()),
            (Mode::RequireApproval, Some("definition_drift"))
        );
        for mode in [Mode::RequireApproval, Mode::Deny] {
            assert_eq!(apply_drift(decision(mode), reviewed, "h1"), decision(mode));
        }
    }
}

#[test]
fn hints_of_a_tool_never_lower_its_risk() {
    let (destructive, read_only) =
        (Hints { destructive: true, read_only: true }, Hints { destructive: false, read_only: true });
    assert_eq!(derive_risk(None, read_only, Some(Risk::Write)), Risk::Write);
    assert_eq!(derive_risk(None, read_only, None), Risk::Write);
    assert_eq!(derive_risk(None, destructive, Some(Risk::Read)), Risk::Danger);
    assert_eq!(derive_risk(Some(Risk::Read), destructive, Some(Risk::Danger)), Risk::Read);
    assert_eq!(derive_risk(None, Hints::default(), Some(Risk::Read)), Risk::Read);
}

/// Any mode applies to agents; only an explicitly set `deny` applies to everybody else.
#[test]
fn modes_apply_to_agents_and_explicit_denials_to_everybody() {
    use policy::ActorClass::{Agent, Human, System};
    use policy::Outcome::{Allow, Deny};
    let (set, inferred) = (ModeSource::OrgDefault, ModeSource::InferredDefault);
    for (mode, source, agent, others) in [
        (Mode::Allow, set, Allow, Allow),
        (Mode::Allow, inferred, Allow, Allow),
        (Mode::RequireApproval, set, Deny, Allow),
        (Mode::RequireApproval, inferred, Deny, Allow),
        (Mode::Deny, inferred, Deny, Allow),
        (Mode::Deny, set, Deny, Deny),
        (Mode::Deny, ModeSource::AutomationOverride, Deny, Deny),
    ] {
        for (class, expected) in [(Agent, agent), (Human, others), (System, others)] {
            let mut request_with_mode = request();
            request_with_mode.mode = Some(ModeDecision::new(mode, source));
            // This test looks at the mode check alone; whether the class may use the lane is another check.
            let mut as_class = request_with_mode.clone();
            as_class.actor.actor_type = class;
            let steps = policy::explain(&policy(), &as_class).steps;
            let step = steps.iter().find(|step| step.check == policy::Check::Mode).unwrap();
            let outcome = if step.failed.is_some() { Deny } else { Allow };
            assert_eq!(outcome, expected, "{mode:?} {source:?} {class:?}");
            assert_eq!(step.rule_id, format!("mode:{}:{}", mode.as_str(), source.as_str()));
        }
    }
    let mut request_with_mode = request();
    request_with_mode.actor.actor_type = Agent;
    request_with_mode.mode = Some(ModeDecision::new(Mode::RequireApproval, inferred));
    let steps = policy::explain(&policy(), &request_with_mode).steps;
    let why = steps.last().unwrap().failed.clone().unwrap();
    assert!(why.contains("requires approval") && why.contains("an admin can allow it"), "{why}");
    assert!(why.chars().count() <= 200, "{why}");
}

#[test]
fn the_reason_names_the_mode_that_allowed_the_call() {
    let mut request_with_mode = request();
    request_with_mode.mode = Some(ModeDecision::new(Mode::Allow, ModeSource::OrgDefault));
    let verdict = decide(&policy(), &request_with_mode);
    assert_eq!(verdict.reason, "all checks of the lane passed; mode allow (org_default)");
}

#[test]
fn enum_names_match_the_database() {
    assert_eq!(Mode::parse("require_approval"), Some(Mode::RequireApproval));
    assert_eq!(Risk::parse("danger").map(Risk::as_str), Some("danger"));
    assert_eq!(ModeSource::AutomationOverride.as_str(), "automation_override");
    assert_eq!((Mode::parse("ALLOW"), Risk::parse("")), (None, None));
}
