//! Modes that depend on the arguments: the first rule that matches decides, examples are checked, and what cannot be
//! checked is refused.

use policy::{
    Branch, Check, Mode, ModeDecision, ModeKey, ModeSetting, ModeSettingError, ModeSource, Risk, resolve_mode,
};
use serde_json::{Map, Value, json};

use crate::common::{policy, request};

/// Allows the channel `#dev`, denies `#all`, and asks for every other.
fn channels() -> Value {
    let channel = |name: &str| json!({"properties": {"channel": {"const": name}}, "required": ["channel"]});
    json!({
        "rules": [{"when": channel("#dev"), "mode": "allow"}, {"when": channel("#all"), "mode": "deny"}],
        "else": "require_approval",
        "examples": [
            {"args": {"channel": "#dev"}, "mode": "allow"},
            {"args": {}, "mode": "require_approval"},
        ],
    })
}

fn resolve(automation: Option<&Value>, org: Option<&Value>, arguments: Option<&Value>) -> ModeDecision {
    let key = ModeKey::new("slack", "send").unwrap();
    let map = |value: &Value| Map::from_iter([(key.as_str().to_owned(), value.clone())]);
    let org = org.map(map).unwrap_or_default();
    resolve_mode(&key, automation.map(map).as_ref(), &org, Risk::Write, arguments)
}

#[test]
fn the_first_rule_that_matches_the_arguments_decides() {
    let set = channels();
    for (arguments, mode, branch) in [
        (Some(json!({"channel": "#dev"})), Mode::Allow, Branch::Rule(1)),
        (Some(json!({"channel": "#all"})), Mode::Deny, Branch::Rule(2)),
        (Some(json!({"channel": "#dev "})), Mode::RequireApproval, Branch::Else),
        (Some(json!({})), Mode::RequireApproval, Branch::Else),
        (None, Mode::RequireApproval, Branch::Else),
    ] {
        let decided = resolve(None, Some(&set), arguments.as_ref());
        let expected =
            ModeDecision { branch: Some(branch), ..ModeDecision::new(mode, ModeSource::OrgDefault) };
        assert_eq!(decided, expected, "{arguments:?}");
    }
    let rows = json!({
        "rules": [{"when": {"properties": {"rows": {"maximum": 100}}, "required": ["rows"]}, "mode": "allow"}],
        "else": "require_approval",
    });
    for (rows_asked, mode) in [(100, Mode::Allow), (101, Mode::RequireApproval)] {
        assert_eq!(resolve(None, Some(&rows), Some(&json!({"rows": rows_asked}))).mode, mode);
    }
}

#[test]
fn an_automation_cannot_loosen_what_the_organization_denies_for_the_same_arguments() {
    let (allow, set) = (json!("allow"), channels());
    for (channel, mode, source) in [
        ("#all", Mode::Deny, ModeSource::OrgDefault),
        ("#dev", Mode::Allow, ModeSource::AutomationOverride),
        ("#other", Mode::Allow, ModeSource::AutomationOverride),
    ] {
        let decided = resolve(Some(&allow), Some(&set), Some(&json!({ "channel": channel })));
        assert_eq!((decided.mode, decided.source), (mode, source), "{channel}");
    }
    let denied_else = json!({"else": "deny", "rules": set["rules"]});
    assert_eq!(resolve(Some(&allow), Some(&denied_else), None).mode, Mode::Deny);
    assert_eq!(
        resolve(Some(&set), Some(&json!("allow")), Some(&json!({"channel": "#all"}))).mode,
        Mode::Deny
    );
    assert_eq!(resolve(Some(&allow), Some(&json!({"rules": 7})), None).mode, Mode::Deny);
}

#[test]
fn two_people_are_needed_if_either_map_says_so() {
    let (one, two) = (json!("require_approval"), json!({"else": "require_approval", "twoPerson": true}));
    for (automation, org, expected) in
        [(Some(&one), &two, true), (Some(&two), &one, true), (None, &two, true), (Some(&one), &one, false)]
    {
        assert_eq!(resolve(automation, Some(org), None).two_person, expected);
    }
}

#[test]
fn an_example_that_contradicts_is_refused_with_a_sentence() {
    let mut set = channels();
    set["examples"][1] = json!({"args": {"channel": "#all"}, "mode": "allow"});
    let error = ModeSetting::parse(&set).err().unwrap();
    assert_eq!(error.to_string(), "example 2 says allow, but rule 2 makes it deny: correct one of them");
    let decided = resolve(None, Some(&set), Some(&json!({"channel": "#dev"})));
    assert_eq!(
        (decided.mode, decided.reason.as_deref()),
        (Mode::Deny, Some("unknown_mode:wrong_conditions"))
    );
}

#[test]
fn a_condition_that_cannot_be_checked_or_has_no_bounds_is_refused() {
    let nested = (0..30).fold(json!({}), |inner, _| json!({ "not": inner }));
    let exponential = (0..17).fold(
        json!({"properties": {"x": {}}}),
        |inner, _| json!({"if": inner, "then": true, "unevaluatedProperties": false}),
    );
    for (when, part) in [
        (json!({"propertes": {"channel": {"const": "#dev"}}}), "propertes is not a keyword"),
        (json!({"properties": {"a": {"Type": "string"}}}), "Type is not a keyword"),
        (json!({"allOf": [{"$ref": "#"}]}), "$ref is not a keyword"),
        (json!({"$schema": "http://127.0.0.1/schema"}), "$schema is not a keyword"),
        (json!({"properties": {"a": {"format": "mail"}}}), "rule 1"),
        (json!({"properties": {"a": {"pattern": r"(a)\1"}}}), "rule 1"),
        (json!({"properties": {"a": {"pattern": "(a{1000}){1000}"}}}), "/properties/a/pattern"),
        (json!({"patternProperties": {"^(a{100}){100}$": {}}}), "more than 64 KiB"),
        (json!({"anyOf": vec![json!({"pattern": "a"}); 51]}), "50 patterns"),
        (
            json!({"patternProperties": (0..51).map(|n| (n.to_string(), json!({}))).collect::<Map<_, _>>()}),
            "50 patterns",
        ),
        (json!({"type": 7}), "rule 1"),
        (json!({"allOf": {}}), "rule 1"),
        (json!("allow"), "a JSON Schema is an object"),
        (nested, "levels"),
        (exponential, "unevaluatedProperties is not a keyword"),
        (json!({"contains": {"unevaluatedItems": false}}), "unevaluatedItems is not a keyword"),
        (json!({"description": "x".repeat(20_000)}), "16384 bytes"),
    ] {
        let set = json!({"rules": [{"when": when, "mode": "allow"}], "else": "deny"});
        let error = ModeSetting::parse(&set).err().unwrap().to_string();
        assert!(error.contains(part), "{when}: {error}");
        assert_eq!(resolve(None, Some(&set), Some(&json!({}))).mode, Mode::Deny, "{when}");
    }
    let rule = json!({"when": {}, "mode": "allow"});
    for (set, part) in [
        (json!({"rules": [rule]}), "else"),
        (json!({"rules": [{"when": {}, "mode": "perhaps"}], "else": "deny"}), "perhaps"),
        (json!({"else": "deny", "also": 1}), "also"),
        (json!({"rules": vec![rule; 21], "else": "deny"}), "20 rules"),
    ] {
        let error = ModeSetting::parse(&set).err().unwrap();
        assert!(!matches!(error, ModeSettingError::Unknown(_)));
        assert!(error.to_string().contains(part), "{set}: {error}");
    }
}

/// A rule of 400 conditions for each item of a list.
fn wide(mode: &str, otherwise: &str) -> Value {
    let branches: Vec<_> = (0..400).map(|at| json!({"const": at})).collect();
    json!({"rules": [{"when": {"properties": {"l": {"items": {"anyOf": branches}}}}, "mode": mode}], "else": otherwise})
}

#[test]
fn arguments_that_are_too_large_for_the_conditions_get_the_strictest_mode() {
    let (few, many) = (json!({"l": [1, 2]}), json!({"l": vec![1; 30_000]}));
    for (mode, otherwise, strictest) in [
        ("allow", "require_approval", Mode::RequireApproval),
        ("deny", "allow", Mode::Deny),
        ("require_approval", "allow", Mode::RequireApproval),
    ] {
        let decided = |arguments: &Value| resolve(None, Some(&wide(mode, otherwise)), Some(arguments));
        assert_eq!(decided(&few).mode.as_str(), mode);
        let large = decided(&many);
        assert_eq!((large.mode, large.reason), (strictest, None), "{mode} or {otherwise}");
    }
}

#[test]
fn examples_that_take_too_long_are_refused() {
    let mut set = wide("allow", "deny");
    let mut with = |count: usize| {
        set["examples"] = json!(vec![json!({"args": {"l": vec![1; 100]}, "mode": "allow"}); count]);
        ModeSetting::parse(&set).map(drop)
    };
    assert_eq!(with(1), Ok(()));
    assert_eq!(with(20), Err(ModeSettingError::Examples));
}

#[test]
fn a_condition_may_have_the_usual_patterns() {
    for (pattern, fits, other) in [
        (r"^[\w.+-]+@example\.com$", "me@example.com", "me@example.org"),
        (r"^(feature|fix)/[a-z0-9-]{1,60}$", "fix/a-1", "main"),
        (r"^\s*[Ss][Ee][Ll][Ee][Cc][Tt]\s+", " SELECT 1", "DELETE"),
    ] {
        let rules = json!([{"when": {"properties": {"a": {"pattern": pattern}}}, "mode": "allow"}]);
        let set = json!({"rules": rules, "else": "deny"});
        for (text, mode) in [(fits, Mode::Allow), (other, Mode::Deny)] {
            assert_eq!(resolve(None, Some(&set), Some(&json!({"a": text}))).mode, mode, "{pattern} {text}");
        }
    }
}

#[test]
fn the_rule_that_decided_is_named() {
    let decided = resolve(None, Some(&channels()), Some(&json!({"channel": "#dev"})));
    let explained = policy::explain(&policy(), &policy::Request { mode: Some(decided), ..request() });
    let step = explained.steps.iter().find(|step| step.check == Check::Mode).unwrap();
    assert_eq!(step.rule_id, "mode:allow:org_default:rule-1");
    assert!(explained.verdict.reason.ends_with("mode allow (org_default, rule 1)"), "{explained:?}");
    let stored = serde_json::to_value(explained.mode.clone()).unwrap();
    assert_eq!(stored, json!({"mode": "allow", "source": "org_default", "branch": {"rule": 1}}));
    assert_eq!(serde_json::from_value::<Option<ModeDecision>>(stored).unwrap(), explained.mode);
}
