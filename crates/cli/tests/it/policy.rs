//! Policy from the operator's perspective: checked, explained, compared, replayed, locked, and overridden with a
//! grant.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::deadline::wait_for;
use crate::harness::{Machine, Server, ended};

const LANES: &str = include_str!("../../../../policy/lanes.yaml");
const ROLES: &str = include_str!("../../../../policy/roles.yaml");

/// Creates a directory with these policy files.
fn directory(machine: &Machine, name: &str, files: &[(&str, &str)]) -> (PathBuf, String) {
    let directory = machine.file(name);
    std::fs::create_dir_all(&directory).unwrap();
    for (file, text) in files {
        std::fs::write(directory.join(file), text).unwrap();
    }
    let shown = directory.display().to_string();
    (directory, shown)
}

/// A gateway with one working tool, `forecast.look`, which everybody may call.
struct Weather {
    /// Declared before the machine, so that the server is dropped before its files.
    server: Server,
    machine: Machine,
    token: String,
}

impl Weather {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
        let machine = Machine::new();
        let tools =
            format!("- {{name: forecast.look, method: GET, url: \"http://{address}/\", risk: read}}\n");
        let (_, dir) = directory(&machine, "policy", &[("tools.yaml", &tools)]);
        let machine = machine.with("PROLIFERATE_POLICY_DIR", &dir).with("CONNECTOR_ALLOWED_HOSTS", &address);
        let server = machine.serve();
        let token = machine.service();
        Self { server, machine, token }
    }

    fn call(&self, run: &str) -> (u16, Value) {
        let actor = json!({"actor_type": "system", "actor_id": "worker"});
        self.server.post("/v1/tool-calls", &self.token, &call(run, "actions.read", &actor, &json!({})))
    }

    /// Repeats a call until it gets this status: an operator's change takes up to a second to apply.
    fn call_until(&self, name: &str, wanted: u16) -> Value {
        let mut number = 0;
        wait_for(&format!("the status {wanted}"), || {
            number += 1;
            let (status, answer) = self.call(&format!("{name}-{number}"));
            (status == wanted).then_some(answer)
        })
    }
}

/// Answers one HTTP request that has no body.
fn answer(mut stream: std::net::TcpStream) {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0) {
        seen.extend(byte);
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
}

fn call(run: &str, lane: &str, actor: &Value, scope: &Value) -> Value {
    json!({"tool_name": "forecast.look", "operation": "forecast.look", "lane_id": lane, "actor": actor,
        "run_id": run, "scope": scope})
}

#[test]
fn every_mistake_is_named_with_its_file_and_line() {
    let machine = Machine::new();
    let built_in = machine.json(&["policy", "check"]);
    assert_eq!(built_in["ok"], true);
    let lanes = LANES.replace("AUTOMATION_AGENT, SERVICE, OPERATOR", "AUTOMATION_AGENT, OPERATOR");
    let (dir, shown) = directory(&machine, "broken", &[("lanes.yaml", &lanes), ("roles.yaml", ROLES)]);
    let found = machine.run(&["policy", "check", &shown]);
    assert_eq!(found.code, 1);
    let line = 1 + ROLES.lines().position(|line| line.contains("role_id: SERVICE")).unwrap();
    let role = found.out.lines().next().unwrap();
    assert!(role.starts_with(&format!("{}:", dir.join("roles.yaml").display())), "{role}");
    let number: usize =
        role.rsplit("roles.yaml:").next().unwrap().split(':').next().unwrap().parse().unwrap();
    assert!((line..line + 6).contains(&number), "{role}");
    assert!(found.out.lines().count() >= 5 && found.out.contains("lanes.yaml:"), "{}", found.out);

    let files = [("lanes.yaml", "lanes: 1"), ("roles.yaml", "- what"), ("tools.yaml", "tools: [{name: 1}]")];
    let (_, shown) = directory(&machine, "worse", &files);
    let found = machine.run(&["policy", "check", "--json", &shown]);
    let mistakes: Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!((found.code, mistakes["mistakes"].as_array().unwrap().len()), (1, 3), "{mistakes}");
    let nowhere = machine.run(&["policy", "check", &machine.file("nowhere").display().to_string()]);
    assert!(nowhere.code == 1 && nowhere.err.contains("nowhere"), "{}", nowhere.err);
    let server = machine.with("PROLIFERATE_POLICY_DIR", "/nowhere/at/all").run(&["serve"]);
    assert!(server.code == 2 && server.err.contains("PROLIFERATE_POLICY_DIR"), "{}", server.err);
}

#[test]
fn a_described_call_is_explained_check_by_check() {
    let machine = Machine::new();
    let service =
        ["policy", "explain", "--role", "SERVICE", "--lane", "actions.read", "--tool", "forecast.look"];
    let read = machine.json(&[&service[..], &["--risk", "read"]].concat());
    assert_eq!((&read["verdict"]["outcome"], read["steps"].as_array().unwrap().len()), (&json!("allow"), 14));
    let table = machine.run(&[&service[..], &["--risk", "danger"]].concat());
    assert_eq!(table.code, 0);
    assert!(
        table.out.contains("risk") && table.out.contains("denied by lane:actions.read:risk"),
        "{}",
        table.out
    );
    let nowhere = machine.json(&service);
    assert_eq!(nowhere["verdict"]["reason"], "the tool is not available", "nobody has described it");
    // The tool is looked up as in the gate: by its complete name, even if tool and operation are given separately.
    let (_, dir) = directory(
        &machine,
        "own",
        &[("tools.yaml", "- {name: forecast.look, url: 'http://x/', risk: read}")],
    );
    let split = ["--tool", "forecast", "--operation", "look", "--dir", &dir];
    let split = machine.json(&[&service[..6], &split].concat());
    assert_eq!(split["verdict"]["outcome"], "allow", "{split}");
    let own = [
        "policy",
        "explain",
        "--role",
        "CODING_AGENT",
        "--lane",
        "platform.coding",
        "--tool",
        "save_snapshot",
    ];
    let own = machine.json(&[&own[..], &["--case", "case-1"]].concat());
    assert_eq!(own["verdict"]["outcome"], "allow", "{own}");
    let locked = machine.json(&[&service[..], &["--risk", "read", "--locked"]].concat());
    assert_eq!(locked["verdict"]["rule_id"], "gate:safety_lock");
    let flagged = machine.json(&[&service[..], &["--risk", "read", "--flag", "cross_case_lookup"]].concat());
    assert_eq!(flagged["verdict"]["reason"], "lane prohibits cross_case_lookup");
    let write =
        ["policy", "explain", "--role", "SERVICE", "--lane", "artifacts.append", "--table", "artifacts"];
    assert_eq!(machine.json(&write)["verdict"]["reason"], "lane requires the scope field case_id");
    let write = machine.json(&[&write[..], &["--case", "case-1"]].concat());
    assert_eq!(write["verdict"]["outcome"], "allow");
    let glass = [
        "policy",
        "explain",
        "--role",
        "ORG_ADMIN",
        "--lane",
        "override.system",
        "--tool",
        "x.y",
        "--risk",
        "danger",
        "--scope",
        "override_ticket_id",
        "--scope",
        "override_reason",
    ];
    assert_eq!(machine.json(&glass)["verdict"]["outcome"], "deny");
    assert_eq!(machine.json(&[&glass[..], &["--granted"]].concat())["verdict"]["outcome"], "allow");
}

#[test]
fn the_mode_of_a_tool_is_set_listed_explained_and_recorded() {
    let machine = Machine::new();
    machine.json(&["orgs", "create", "--name", "one"]);
    let org = machine.first_org();
    let (_, dir) = directory(
        &machine,
        "own",
        &[("tools.yaml", "- {name: forecast.set, url: 'http://x/', risk: write}")],
    );
    let agent = ["policy", "explain", "--role", "CODING_AGENT", "--lane", "actions.write", "--tool"];
    let agent = [&agent[..], &["forecast.set", "--dir", &dir]].concat();
    let of_org = [&agent[..], &["--org", &org]].concat();
    for described in [machine.json(&agent), machine.json(&of_org)] {
        assert_eq!(described["verdict"]["outcome"], "ask", "{described}");
        assert_eq!(described["verdict"]["rule_id"], "mode:require_approval:inferred_default", "{described}");
        assert_eq!(described["mode"], json!({"mode": "require_approval", "source": "inferred_default"}));
    }
    let set =
        |mode: &str| machine.run(&["actions", "modes", "set", "tools:forecast.set", mode, "--org", &org]);
    let allowed = set("allow").out;
    assert!(allowed.starts_with("tools:forecast.set: allow\nwarning: nobody checked"), "{allowed}");
    let described = machine.json(&of_org);
    assert_eq!(described["verdict"]["outcome"], "allow", "{described}");
    assert_eq!(described["mode"], json!({"mode": "allow", "source": "org_default"}));
    let shown = machine.run(&of_org);
    assert!(shown.out.contains("mode allow (org_default)"), "{}", shown.out);
    assert_eq!(set("require_approval").code, 0);
    let listed = machine.json(&["actions", "modes", "ls"]);
    assert_eq!(
        (listed[0]["key"].as_str(), listed[0]["mode"].as_str()),
        (Some("tools:forecast.set"), Some("require_approval"))
    );
    let wrong = machine.run(&["actions", "modes", "set", "no-colon", "allow"]);
    assert!(wrong.code == 2 && wrong.err.contains("sourceId:actionId"), "{}", wrong.err);
    let mistyped = ["actions", "modes", "set", "tools:forecast.sett", "deny"];
    let wrong = ended(&machine.command(&mistyped).env("PROLIFERATE_POLICY_DIR", &dir).output().unwrap());
    assert!(wrong.code == 2 && wrong.err.contains("tools:forecast.set?"), "{}", wrong.err);
    let wrong = set("perhaps");
    assert!(wrong.code == 2 && wrong.err.contains("require_approval"), "{}", wrong.err);
    let changes = machine.run(&["audit", "tail"]);
    assert!(changes.out.contains("policy_change"), "{}", changes.out);
}

#[test]
fn a_mode_with_conditions_is_set_from_a_file_explained_and_removed() {
    let machine = Machine::new();
    let own = machine.file("own").display().to_string();
    let machine = machine.with("PROLIFERATE_POLICY_DIR", &own);
    let rule =
        json!({"when": {"properties": {"city": {"const": "Oslo"}}, "required": ["city"]}, "mode": "allow"});
    let example = |mode: &str| json!({"args": {"city": "Oslo"}, "mode": mode});
    let (_, dir) = directory(
        &machine,
        "own",
        &[
            ("tools.yaml", "- {name: forecast.set, url: 'http://x/', risk: write}"),
            ("right.json", &json!({"rules": [rule], "examples": [example("allow")]}).to_string()),
            ("wrong.json", &json!({"rules": [rule], "examples": [example("deny")]}).to_string()),
            ("oslo.json", r#"{"city": "Oslo"}"#),
            ("twice.json", r#"{"rules": [], "rules": []}"#),
        ],
    );
    machine.json(&["orgs", "create", "--name", "one"]);
    let file = |name: &str| format!("{dir}/{name}");
    let set = |name: &str| {
        let set = ["actions", "modes", "set", "tools:forecast.set", "deny", "--two-person", "--conditions"];
        machine.run(&[&set[..], &[&file(name)]].concat())
    };
    let wrong = set("wrong.json");
    assert!(
        wrong.code == 2 && wrong.err.contains("example 1 says deny, but rule 1 makes it allow"),
        "{}",
        wrong.err
    );
    assert_eq!(set("twice.json").code, 2, "a key that occurs twice");
    assert_eq!(set("right.json").out, "tools:forecast.set: deny, unless a rule matches, by two people\n");
    let listed = machine.json(&["actions", "modes", "ls"]);
    assert_eq!(
        (&listed[0]["mode"]["rules"], &listed[0]["source"]),
        (&json!([rule]), &json!("set")),
        "{listed}"
    );
    let shown = machine.run(&["actions", "modes", "ls"]).out;
    assert!(shown.contains("deny (1 rules), two people"), "{shown}");
    let org = machine.first_org();
    let explain = ["policy", "explain", "--role", "CODING_AGENT", "--lane", "actions.write", "--tool"];
    let explain = [&explain[..], &["forecast.set", "--dir", &dir, "--org", &org]].concat();
    let oslo = machine.run(&[&explain[..], &["--params", &file("oslo.json")]].concat());
    assert!(oslo.out.contains("mode allow (org_default, rule 1), two people must approve"), "{}", oslo.out);
    let other = machine.json(&explain);
    assert_eq!(other["verdict"]["rule_id"], "mode:deny:org_default:else", "{other}");
    let unset = || machine.run(&["actions", "modes", "unset", "tools:forecast.set"]);
    assert_eq!((unset().code, unset().code), (0, 1));
    assert_eq!(machine.json(&["actions", "modes", "ls"]), json!([]));
    assert_eq!(machine.run(&["audit", "verify"]).code, 0);
}

/// A gateway with a connector that is down, and a database with one query.
struct OwnSources {
    /// Declared before the machine, so that the server is dropped before its files.
    server: Server,
    machine: Machine,
    org: String,
    /// The key of a tool of the connector.
    tool: String,
    /// The key of the query.
    query: String,
}

impl OwnSources {
    fn new() -> Self {
        let machine = Machine::new();
        let (directory, dir) = directory(
            &machine,
            "own",
            &[("queries.yaml", "queries: [{name: top_users, description: Lists users, sql: SELECT 1}]")],
        );
        // Nobody listens there: the connector is down.
        let server =
            machine.serve_with(&[("DATABASE_FILES_DIR", &dir), ("CONNECTOR_ALLOWED_HOSTS", "127.0.0.1:1")]);
        let org = machine.first_org();
        let own = directory.join(&org);
        std::fs::create_dir(&own).unwrap();
        std::fs::write(own.join("shop.db"), []).unwrap();
        let id = |args: &[&str]| machine.json(args)["id"].as_str().unwrap().to_owned();
        let connector =
            id(&["connectors", "add", "--name", "docs", "--url", "http://127.0.0.1:1/mcp", "--auth", "none"]);
        let queries = format!("{dir}/queries.yaml");
        let database =
            id(&["databases", "add", "--name", "shop", "--sqlite", "shop.db", "--queries", &queries]);
        let (tool, query) = (format!("connector:{connector}:search"), format!("db:{database}:top_users"));
        Self { server, machine, org, tool, query }
    }

    /// Explains a call of an agent in the lane for reading.
    fn explain(&self, tool: &str, more: &[&str]) -> Value {
        let agent = ["policy", "explain", "--role", "CODING_AGENT", "--lane", "actions.read", "--tool", tool];
        self.machine.json(&[&agent[..], &["--org", &self.org], more].concat())
    }
}

#[test]
fn modes_of_connectors_databases_and_automations_are_explained() {
    let own = OwnSources::new();
    let OwnSources { server, machine, org, tool, query } = &own;
    let explain = |tool: &str, more: &[&str]| {
        let described = own.explain(tool, &[&["--risk", "read"], more].concat());
        described["verdict"]["rule_id"].as_str().unwrap().to_owned()
    };
    let set = |key: &str, mode: &str| {
        assert_eq!(machine.run(&["actions", "modes", "set", key, mode, "--org", org]).code, 0, "{key}");
    };
    let warned = machine.json(&["actions", "modes", "set", tool, "allow", "--org", org]);
    assert!(warned["warning"].as_str().unwrap().contains("only a running gateway asks"), "{warned}");
    assert_eq!(explain(tool, &[]), "mode:require_approval:org_default", "a mode is no review");
    set(tool, "deny");
    set(query, "require_approval");
    assert_eq!(explain(tool, &[]), "mode:deny:org_default");
    assert_eq!(explain(query, &[]), "mode:require_approval:org_default");

    let token = machine.run(&["token", "user"]).out;
    let new = json!({"name": "triage", "instructions": "Look at new issues."});
    let (status, made) = server.post("/v1/automations", token.trim(), &new);
    assert_eq!(status, 201, "{made}");
    let path = format!("/v1/automations/{}/action-modes", made["id"].as_str().unwrap());
    for key in [tool, query] {
        assert_eq!(server.put(&path, token.trim(), &json!({"key": key, "mode": "allow"})), 200);
    }
    assert_eq!(explain(query, &["--automation", "triage"]), "lane:actions.read");
    assert_eq!(
        explain(tool, &["--automation", "triage"]),
        "mode:deny:org_default",
        "no automation loosens what its organization denies"
    );
    let described = ["policy", "explain", "--role", "SERVICE", "--lane", "actions.read", "--tool", query];
    let unknown = machine.run(&[&described[..], &["--org", org, "--automation", "none"]].concat());
    assert!(unknown.code == 1 && unknown.err.contains("there is no automation"), "{}", unknown.err);
    assert_eq!(machine.run(&[&described[..], &["--automation", "triage"]].concat()).code, 2, "of which one?");
}

#[test]
fn what_nobody_has_reviewed_and_what_is_assumed_is_explained() {
    let own = OwnSources::new();
    let OwnSources { machine, tool, query, .. } = &own;
    // Nobody has reviewed what the server offers, so the call is not allowed although its risk would be.
    let unreviewed = own.explain(tool, &["--risk", "read"]);
    assert_eq!(unreviewed["verdict"]["rule_id"], "mode:require_approval:inferred_default", "{unreviewed}");
    assert_eq!(unreviewed["mode"]["reason"], "definition_drift", "{unreviewed}");
    let reason = unreviewed["verdict"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("nobody has reviewed the tool's definition"), "{reason}");
    let notes = unreviewed["notes"].to_string();
    assert!(
        notes.contains("assumes that its server offers this tool") && notes.contains("modes from "),
        "{notes}"
    );
    assert_eq!(unreviewed["policy"]["from"], "the built-in policy");
    assert_eq!(unreviewed["policy"]["pins"], machine.json(&["policy", "check"])["pins"]);
    // The risk of a connector is write, unless somebody has set another one; that of a query is known.
    assert_eq!(own.explain(tool, &[])["verdict"]["rule_id"], "lane:actions.read:risk");
    assert_eq!(own.explain(query, &[])["verdict"]["rule_id"], "lane:actions.read");
    for (tool, problem) in [
        (query.replace("top_users", "nothing"), "has no query \"nothing\""),
        (query.replace("top_users", "query"), "does not let agents write statements"),
        (tool.replace("connector:", "db:"), "Unknown database: "),
        ("connector:docs:search".to_owned(), "ID is a complete id"),
    ] {
        let unknown = own.explain(&tool, &[]);
        assert_eq!(unknown["verdict"]["reason"], "the tool is not available", "{unknown}");
        assert!(unknown["notes"][0].as_str().unwrap().contains(problem), "{unknown}");
    }
    let plain = ["policy", "explain", "--role", "CODING_AGENT", "--lane", "actions.read", "--tool", tool];
    let nowhere = machine.json(&[&plain[..], &["--risk", "read"]].concat());
    assert!(nowhere["notes"][0].as_str().unwrap().starts_with("without --org nobody knows"), "{nowhere}");
}

#[test]
fn a_shell_that_names_another_policy_than_the_gateway_is_told_so() {
    let machine = Machine::new();
    let server = machine.serve();
    let lanes = LANES.replace("max_minutes: 60", "max_minutes: 90");
    let (_, other) = directory(&machine, "other", &[("lanes.yaml", &lanes), ("roles.yaml", ROLES)]);
    let settings = |found: &str| {
        let found: Value = serde_json::from_str(found).unwrap();
        let checks = found["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["name"] == "settings").unwrap()
    };
    assert_eq!(settings(&machine.run(&["doctor", "--json"]).out)["state"], "ok");
    let with =
        |args: &[&str]| ended(&machine.command(args).env("PROLIFERATE_POLICY_DIR", &other).output().unwrap());
    let told = settings(&with(&["doctor", "--json"]).out);
    let detail = told["detail"].as_str().unwrap();
    assert!(told["state"] == "warning" && detail.contains("it last loaded lanes@"), "{told}");
    let explain = ["policy", "explain", "--role", "SERVICE", "--lane", "actions.read", "--tool", "a.b"];
    let told = with(&explain);
    assert!(told.err.contains("a gateway last loaded lanes@") && told.out.contains(&other), "{}", told.err);
    assert_eq!(server.stop(), 0);
}

#[test]
fn policies_are_compared_with_loosened_rules_first() {
    let machine = Machine::new();
    let lanes = LANES.replace("max_minutes: 60", "max_minutes: 90");
    let (_, looser) = directory(&machine, "looser", &[("lanes.yaml", &lanes), ("roles.yaml", ROLES)]);
    let (_, same) = directory(&machine, "same", &[("lanes.yaml", LANES), ("roles.yaml", ROLES)]);
    let changes = machine.json(&["policy", "diff", &looser]);
    assert_eq!(
        (changes.as_array().unwrap().len(), &changes[0]["effect"]),
        (1, &json!("loosens")),
        "{changes}"
    );
    let back = machine.json(&["policy", "diff", &looser, &same]);
    assert_eq!(
        (&back[0]["effect"], &back[0]["subject"]),
        (&json!("tightens"), &json!("lane override.system"))
    );
    assert_eq!(machine.json(&["policy", "diff", &same]), json!([]));
}

#[test]
fn a_lock_stops_every_call_and_an_unlock_lets_them_through() {
    let weather = Weather::new();
    let (status, answer) = weather.call("first-call");
    assert_eq!((status, &answer["outcome"]), (200, &json!("success")), "{answer}");
    assert_eq!(weather.machine.json(&["policy", "lock", "--reason", "a drill"])["locked"], true);
    let denied = weather.call_until("locked-call", 403);
    assert_eq!(denied["error"]["message"], "the global safety lock is engaged");
    assert_eq!(weather.machine.json(&["policy", "unlock", "--reason", "over"])["locked"], false);
    weather.call_until("free-call", 200);

    let events = weather.machine.json(&["audit", "tail", "--limit", "1000"]);
    let told: Vec<_> = events
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["event"])
        .filter(|event| event["target"]["name"] == "safety_lock")
        .map(|event| (event["target"]["operation"].clone(), event["outcome_reason"].clone()))
        .collect();
    assert_eq!(told, [(json!("lock"), json!("a drill")), (json!("unlock"), json!("over"))]);
    assert_eq!(weather.machine.run(&["policy", "lock", "--reason", " "]).code, 2);
    // The lock outlives the gateway, and applies to the next one from its first call.
    weather.machine.json(&["policy", "lock", "--reason", "for the night"]);
    let Weather { machine, server, token } = weather;
    assert_eq!(server.stop(), 0);
    let weather = Weather { server: machine.serve(), machine, token };
    assert_eq!(weather.call("after-restart").0, 403);
}

#[test]
fn a_replay_lists_every_verdict_that_would_flip() {
    let weather = Weather::new();
    let machine = &weather.machine;
    assert_eq!(weather.call("good-call-1").0, 200);
    let actor = json!({"actor_type": "system", "actor_id": "worker"});
    let denied = call("bad-call-1", "export.case", &actor, &json!({}));
    assert_eq!(weather.server.post("/v1/tool-calls", &weather.token, &denied).0, 403);

    let mut pinned = call("pinned-call-1", "actions.read", &actor, &json!({}));
    pinned["policy_versions"] = json!({"lanes": "a".repeat(40), "roles": "b".repeat(40)});
    assert_eq!(weather.server.post("/v1/tool-calls", &weather.token, &pinned).0, 403);

    let tools = std::fs::read_to_string(machine.file("policy").join("tools.yaml")).unwrap();
    let files = [("lanes.yaml", LANES), ("roles.yaml", ROLES), ("tools.yaml", &*tools)];
    let (_, same) = directory(machine, "same", &files);
    let none = machine.json(&["policy", "replay", &same]);
    assert_eq!(none, json!({"decisions": 3, "unreadable": 0, "pinned": 1, "flips": []}));
    let none = machine.run(&["policy", "replay", &same]);
    assert!(none.code == 0 && none.out.contains("1 denials by version pins are left out"), "{}", none.out);
    let rule = "prohibitions:\n  - {rule_id: no-forecast, reason: it always rains, tools: [forecast.*]}\n";
    let stricter = LANES.replace("prohibitions:\n", rule);
    let files = [("lanes.yaml", &*stricter), ("roles.yaml", ROLES), ("tools.yaml", &tools)];
    let (_, stricter) = directory(machine, "stricter", &files);
    let found = machine.run(&["policy", "replay", &stricter, "--json"]);
    let flips: Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!((found.code, flips["flips"].as_array().unwrap().len()), (1, 1), "{flips}");
    let flip = &flips["flips"][0];
    assert_eq!(
        (&flip["runId"], &flip["was"], &flip["now"]),
        (&json!("good-call-1"), &json!("allow"), &json!("deny"))
    );
    assert_eq!(flip["reason"], "it always rains");
    let table = machine.run(&["policy", "replay", &stricter, "--org", &machine.first_org()]);
    assert!(table.code == 1 && table.out.contains("allow → deny"), "{}", table.out);
    assert!(table.err.contains("1 of 3 verdicts"), "{}", table.err);
    // The same policy with a changed tool, or without any tool.
    for (name, tools) in [("danger", tools.replace("risk: read", "risk: danger")), ("none", "[]".to_owned())]
    {
        let (_, dir) = directory(machine, name, &[("tools.yaml", &tools)]);
        let found = machine.run(&["policy", "replay", &dir, "--json"]);
        let flips: Value = serde_json::from_str(&found.out).unwrap();
        assert_eq!((found.code, &flips["flips"][0]["runId"]), (1, &json!("good-call-1")), "{name}: {flips}");
    }
}

#[test]
fn a_break_glass_grant_is_valid_for_its_ticket_and_duration_only() {
    let weather = Weather::new();
    let Weather { machine, server, .. } = &weather;
    let (user, org) =
        (machine.json(&["users", "ls"])[0]["id"].as_str().unwrap().to_owned(), machine.first_org());
    let token = machine.run(&["token", "user"]).out.trim().to_owned();
    let attempt = |run: &str, ticket: &str| {
        let actor = json!({"actor_type": "human", "actor_id": user});
        let scope = json!({"override_ticket_id": ticket, "override_reason": "the house is on fire"});
        server.post("/v1/tool-calls", &token, &call(run, "override.system", &actor, &scope))
    };
    let (status, answer) = attempt("without-grant", "T-1");
    assert_eq!((status, &answer["outcome"]), (403, &json!("deny")), "{answer}");

    let grant = |ticket: &str, minutes: &str| {
        machine.run(&[
            "policy",
            "override",
            "grant",
            "--json",
            "--user",
            &user,
            "--org",
            &org,
            "--ticket",
            ticket,
            "--reason",
            "fire",
            "--minutes",
            minutes,
        ])
    };
    for (ticket, minutes) in [("T-1", "61"), ("T-1", "0"), ("", "5")] {
        assert_eq!(grant(ticket, minutes).code, 2, "{ticket} {minutes}");
    }
    let made = grant("T-1", "60");
    assert_eq!(made.code, 0, "{}", made.err);
    let (status, answer) = attempt("with-grant", "T-1");
    assert_eq!((status, &answer["outcome"]), (200, &json!("success")), "{answer}");
    assert_eq!(attempt("other-ticket", "T-2").0, 403);
    let events = machine.json(&["audit", "tail", "--org", &org, "--limit", "1000"]);
    let granted = |entry: &&Value| entry["event"]["target"]["name"] == "override_grant";
    let told = &events.as_array().unwrap().iter().find(granted).unwrap()["event"];
    assert_eq!((&told["action_type"], &told["outcome_reason"]), (&json!("override"), &json!("fire")));
    assert!(told["notes"].as_str().unwrap().contains("T-1"), "{told}");

    end_grants(machine);
    assert_eq!(attempt("after-its-time", "T-1").0, 403);
    let stranger = [
        "policy",
        "override",
        "grant",
        "--user",
        "00000000-0000-4000-8000-000000000001",
        "--org",
        &org,
        "--ticket",
        "T-3",
        "--reason",
        "fire",
        "--minutes",
        "5",
    ];
    let refused = machine.run(&stranger);
    assert!(refused.code == 1 && refused.err.contains("no member"), "{}", refused.err);
}

/// Moves the end of all grants into the past.
fn end_grants(machine: &Machine) {
    let file = machine.data_dir().join("proliferate.db").display().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(&format!("sqlite:{file}")).await.unwrap();
        let past = "UPDATE override_grants SET valid_from = '2020-01-01T00:00:00+00:00',
            valid_until = '2020-01-01T01:00:00+00:00'";
        sqlx::query(past).execute(&pool).await.unwrap();
        pool.close().await;
    });
}
