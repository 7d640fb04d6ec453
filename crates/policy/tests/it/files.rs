//! Policy files are parsed strictly, and every error names its line.

use policy::{Auth, Files, Method, Policy, Risk};

use crate::common::{LANES, ROLES, load};

#[test]
fn the_built_in_policy_and_the_example_load() {
    let built_in = Policy::load(Files::default()).unwrap();
    let roles =
        ["SETUP_AGENT", "CODING_AGENT", "AUTOMATION_AGENT", "SERVICE", "SYSTEM", "OPERATOR", "ORG_ADMIN"];
    assert!(roles.iter().all(|role| built_in.role(role).is_some()));
    assert_eq!(built_in.pins(), Policy::load(Policy::BUILT_IN).unwrap().pins());
    let example = Policy::load(Files {
        lanes: Some(include_str!("../../../../policy/examples/transcription/lanes.yaml")),
        roles: Some(include_str!("../../../../policy/examples/transcription/roles.yaml")),
        tools: Some(include_str!("../../../../policy/examples/transcription/tools.yaml")),
    })
    .unwrap();
    let tool = example.tool("transcription.run").unwrap();
    assert_eq!((tool.method, tool.risk, tool.timeout_ms), (Method::Post, Risk::Write, 60_000));
    assert_eq!(tool.auth, Auth::Bearer { key: "TRANSCRIPTION_KEY".to_owned() });
    assert_eq!(tool.schema["properties"]["speakers"]["maximum"], 8);
    assert_eq!(example.tool("ocr.run").unwrap().schema, serde_json::json!({}));
    assert_ne!(example.pins().lanes, built_in.pins().lanes);
}

#[test]
fn every_built_in_rule_has_examples() {
    // Without examples, a typo could open a rule unnoticed.
    let text = Policy::BUILT_IN.lanes.unwrap();
    let rules = text.matches("- lane_id:").count() + text.matches("- rule_id:").count();
    assert!(rules >= 10);
    assert_eq!(text.matches("    examples:\n      match:\n        - {").count(), rules);
    assert_eq!(text.matches("      not_match:\n        - {").count(), rules);
}

/// The error for `LANES` or `ROLES` with one text replaced by another.
fn load_error(from: &str, to: &str) -> String {
    let (lanes, roles) = (LANES.replacen(from, to, 1), ROLES.replacen(from, to, 1));
    assert!(lanes != LANES || roles != ROLES, "the sample files do not contain {from}");
    load(&lanes, &roles).map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
}

#[test]
fn mistakes_are_reported_with_their_line() {
    for (from, to, expected) in [
        ("lane_id: shared", "lane_id: intake", "lanes.yaml:11: the lane `intake` is defined twice"),
        ("    override:", "    overide:", "lanes.yaml:19: unknown key `overide`"),
        (
            "[SERVICE, AGENT]}",
            "[SERVICE, AGENT, GHOST]}",
            "lanes.yaml:5: the lane `intake` lists the role `GHOST`",
        ),
        ("[SERVICE, AGENT]}", "[SERVICE]}", "roles.yaml:5: the role `AGENT` lists the lane `intake`"),
        (
            "lanes: [glass]",
            "lanes: [glass, nowhere]",
            "roles.yaml:6: the role `ADMIN` lists the lane `nowhere`",
        ),
        ("class: agent", "class: robot", "roles.yaml:5: `class` must be one of system, agent, human"),
        (
            "contract_version: v1",
            "contract_version: v2",
            "lanes.yaml:2: `contract_version` must be one of v1",
        ),
        ("mode: append", "mode: replace", "lanes.yaml:9: `mode` must be one of append, upsert"),
        ("risks: [read, write]", "risks: [read, wrong]", "lanes.yaml:8: `risks` must be one of"),
        ("max_minutes: 60", "max_minutes: 0", "lanes.yaml:19: `max_minutes` must be a number from 1 to 1440"),
        ("{max_minutes: 60}", "{}", "lanes.yaml:19: an override lane needs `max_minutes`"),
        (
            "permits: [cross_case_lookup",
            "permits: [bypass_audit",
            "lanes.yaml:14: no lane may permit `bypass_audit`",
        ),
        ("    tools: ['*.delete']\n", "", "lanes.yaml:21: a prohibition must name"),
        ("lane_id: glass", "lane_id: 'a b'", "lanes.yaml:15: `lane_id` contains a name"),
        ("tools: [transcription", "tools: ['*a*b*c*d*e*'", "lanes.yaml:7: a name may contain at most"),
        ("tools: [transcription", "tools: [ocr.run", "lanes.yaml:7: `ocr.run` is listed twice in `tools`"),
        ("version: '1'\n", "", "lanes.yaml:1: `version` is missing"),
        (
            "    override: {max_minutes: 60}",
            "    audit: {required: false}",
            "lanes.yaml:19: audit cannot be switched off",
        ),
        ("  - lane_id: shared", "  - &x\n    lane_id: shared", "lanes.yaml:11: anchors"),
    ] {
        let message = load_error(from, to);
        assert!(message.starts_with(expected), "{to}: {message}");
    }
}

#[test]
fn lanes_and_roles_must_be_given_together() {
    let alone = Files { lanes: Some(LANES), ..Files::default() };
    assert!(Policy::load(alone).unwrap_err().to_string().starts_with("roles.yaml:1: the file is missing"));
    let tools = Files { tools: Some("[]"), ..Files::default() };
    assert!(Policy::load(tools).is_ok());
}

#[test]
fn a_failing_example_rejects_the_file() {
    let with =
        |examples: &str| load_error("    override:", &format!("    examples:\n{examples}    override:"));
    let right = "{role: ADMIN, tool: x, scope: [override_ticket_id]}";
    let wrong = "{role: ADMIN, tool: x}";
    assert_eq!(
        with(&format!("      match:\n        - {right}\n      not_match:\n        - {wrong}\n")),
        "accepted"
    );
    let should =
        "lanes.yaml:21: this example should be allowed, but lane requires the scope field override_ticket_id";
    assert_eq!(with(&format!("      match:\n        - {wrong}\n")), should);
    let should_not = "lanes.yaml:21: this example should be denied, but is allowed";
    assert_eq!(with(&format!("      not_match:\n        - {right}\n")), should_not);
    let elsewhere = with("      not_match:\n        - {role: ADMIN, tool: x, lane: intake}\n");
    assert_eq!(
        elsewhere,
        "lanes.yaml:21: the example of a lane is always a call in that lane; remove `lane`"
    );
    let prohibited = load_error(
        "    roles: [AGENT]\n",
        "    roles: [AGENT]\n    examples: {match: [{role: SERVICE, tool: ocr.run}]}\n",
    );
    assert_eq!(prohibited, "lanes.yaml:27: this example should be prohibited, but is not");
    let spared = load_error(
        "    roles: [AGENT]\n",
        "    roles: [AGENT]\n    examples: {not_match: [{role: AGENT, tool: ocr.run}]}\n",
    );
    assert_eq!(spared, "lanes.yaml:27: this example should not be prohibited, but is");
}

#[test]
fn tools_are_parsed_strictly() {
    let load = |tools: &str| {
        let policy = Policy::load(Files { tools: Some(tools), ..Files::default() });
        policy.map_or_else(|error| error.to_string(), |_| "accepted".to_owned())
    };
    assert_eq!(load("- {name: a.b, url: 'https://h/x'}"), "accepted");
    assert_eq!(load("- {name: a.b, url: 'https://h/x', writes: {table: notes, mode: append}}"), "accepted");
    assert_eq!(load("tools:\n  - {name: a.b, url: 'http://h'}"), "accepted");
    for (tool, expected) in [
        ("- {name: a, url: 'ftp://h'}", "tools.yaml:1: `url` must be"),
        ("- {name: a, url: 'https://u:p@h/'}", "tools.yaml:1: `url` must be"),
        ("- {name: a, url: 'https://h/ x'}", "tools.yaml:1: `url` must be"),
        ("- {name: a, url: 'https:///x'}", "tools.yaml:1: `url` must be"),
        ("- {name: a, url: 'https://h', auth: 'bearer'}", "tools.yaml:1: `auth` must be"),
        ("- {name: a, url: 'https://h', auth: \"header:A\\r\\nB:K\"}", "tools.yaml:1: `auth` must be"),
        ("- {name: a, url: 'https://h', schema: [1]}", "tools.yaml:1: `schema` must be a map"),
        ("- {name: a, url: 'https://h', timeout_ms: -1}", "tools.yaml:1: `timeout_ms` must be"),
        ("- {name: a, url: 'https://h', method: CONNECT}", "tools.yaml:1: `method` must be"),
        ("- {name: 'a*', url: 'https://h'}", "tools.yaml:1: the name of a tool"),
        ("- {name: a, url: 'https://h', writes: notes}", "tools.yaml:1: a write must be a map"),
        ("- {name: a, url: 'https://h', writes: {table: notes, mode: drop}}", "tools.yaml:1: `mode` must be"),
        (
            "- {name: a, url: 'https://h'}\n- {name: a, url: 'https://h'}",
            "tools.yaml:2: the tool `a` is defined twice",
        ),
    ] {
        assert!(load(tool).starts_with(expected), "{tool}: {}", load(tool));
    }
}
