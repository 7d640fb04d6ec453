//! The platform tools of agents: which modes have them, what a sandbox with other files is told, and what they save.

use proto::http::AgentConfig;
use proto::{AgentMode, ClientType, ConfigurationId, OrgId, Role, SessionId, SessionType};
use serde_json::{Value, json};
use store::{JsonText, NewArtifact, NewConfiguration, NewEvidence, NewEvidenceFile, NewSession};

use crate::call::Answer;
use crate::harness::TestGateway;
use crate::people::{OrgOf3, sandbox_token, service_token, session, some_uuid};

const TOOLS_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent-tools.md");

#[test]
fn the_page_is_generated_from_the_tables() {
    let page = std::fs::read_to_string(TOOLS_PAGE).unwrap_or_default();
    let same = page == gateway::agent_tools_document();
    assert!(
        same,
        "docs/agent-tools.md differs: cargo test -p gateway --test it write_tools_page -- --ignored"
    );
}

#[test]
#[ignore = "run by hand: it writes docs/agent-tools.md"]
fn write_tools_page() {
    std::fs::write(TOOLS_PAGE, gateway::agent_tools_document()).unwrap();
}

/// A session without a sandbox; the test calls back in its agent's place.
struct Agent<'a> {
    gateway: &'a TestGateway,
    session: SessionId,
    token: String,
}

impl<'a> Agent<'a> {
    async fn of(gateway: &'a TestGateway, team: &OrgOf3, mode: AgentMode, tools: Option<&[&str]>) -> Self {
        let app = &gateway.app;
        let id = SessionId::from(some_uuid());
        let kind = if mode == AgentMode::Setup { SessionType::Setup } else { SessionType::Coding };
        let client = if mode == AgentMode::Automation { ClientType::Automation } else { ClientType::Web };
        let configuration = match mode {
            AgentMode::Scratch => None,
            _ => Some(configuration(gateway, team).await),
        };
        let tools = tools.map(|tools| tools.iter().map(|tool| (*tool).to_owned()).collect());
        let new = NewSession {
            configuration_id: configuration,
            client_type: Some(client),
            agent_config: Some(AgentConfig { tools, ..AgentConfig::default() }),
            ..NewSession::new(id, team.org, kind, "local", app.clock.now())
        };
        app.store.create_session(new).await.unwrap();
        assert_eq!(app.store.session_any(id).await.unwrap().unwrap().mode(), mode);
        Self { gateway, session: id, token: sandbox_token(app, id).await }
    }

    async fn send(&self, tool: &str, body: &Value) -> Answer {
        let path = format!("/proliferate/{}/tools/{tool}", self.session);
        self.gateway.post(&path, body).bearer(&self.token).send().await
    }

    /// Calls a tool and returns whether it succeeded, and its text.
    async fn call(&self, tool: &str, args: &Value) -> (bool, String) {
        let answer = self.send(tool, &json!({"tool_call_id": some_uuid().to_string(), "args": args})).await;
        assert_eq!(answer.status, 200, "{tool}: {}", answer.text());
        let body = answer.json();
        (body["success"].as_bool().unwrap(), body["result"].as_str().unwrap().to_owned())
    }
}

async fn configuration(gateway: &TestGateway, team: &OrgOf3) -> ConfigurationId {
    let id = ConfigurationId::from(some_uuid());
    let new = NewConfiguration {
        id,
        org_id: team.org,
        name: "app".to_owned(),
        sandbox_provider: "local".to_owned(),
        repos: Vec::new(),
        created_by: None,
        at: gateway.app.clock.now(),
    };
    gateway.app.store.create_configuration(new).await.unwrap();
    id
}

fn arguments(tool: &str) -> Value {
    match tool {
        "save_service_commands" => json!({"commands": [{"name": "web", "command": "npm start"}]}),
        "save_env_files" => json!({"files": [{"path": ".env", "format": "dotenv", "mode": "secret",
            "keys": [{"key": "API_KEY", "required": true}]}]}),
        _ => json!({}),
    }
}

#[tokio::test]
async fn each_mode_has_its_tools_and_no_others() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        for mode in AgentMode::ALL {
            let agent = Agent::of(&gateway, &team, *mode, None).await;
            for tool in ["save_service_commands", "save_env_files"] {
                let (done, result) = agent.call(tool, &arguments(tool)).await;
                assert_eq!(done, *mode == AgentMode::Setup, "{mode}: {result}");
                let only = format!("{tool} is only available in setup sessions.");
                assert!(done || result == only, "{mode}: {result}");
            }
            for name in ["automation_complete", "automation.complete"] {
                let report = json!({"run_id": "r", "completion_id": "c", "outcome": "succeeded"});
                let (done, result) = agent.call(name, &report).await;
                let expected = match mode {
                    AgentMode::Automation => "Run not found",
                    _ => "automation_complete is only available in automation sessions.",
                };
                assert!(!done && result.starts_with(expected), "{mode}: {result}");
            }
            // It exists in every mode, and this session has no sandbox to save.
            let (done, result) = agent.call("save_snapshot", &json!({})).await;
            assert!(!done && result.starts_with("Snapshot failed"), "{mode}: {result}");
            // It runs inside the sandbox.
            let inside = agent.send("request_env_variables", &json!({"tool_call_id": "a"})).await;
            assert_eq!(inside.status, 404, "{}", inside.text());
        }
    }
}

/// What the session is for decides its mode, and not whether it mentions an automation.
#[tokio::test]
async fn a_session_that_mentions_an_automation_has_no_tools_of_automations() {
    let gateway = TestGateway::sqlite().await;
    let team = OrgOf3::new(&gateway.app).await;
    let body = json!({"name": "triage", "instructions": "Look."});
    let made = gateway.post("/v1/automations", &body).bearer(team.token(Role::Admin)).send().await.json();
    let session = SessionId::from(some_uuid());
    let new = NewSession {
        automation_id: Some(made["id"].as_str().unwrap().parse().unwrap()),
        client_type: Some(ClientType::Web),
        ..NewSession::new(session, team.org, SessionType::Coding, "local", gateway.app.clock.now())
    };
    gateway.app.store.create_session(new).await.unwrap();
    let record = gateway.app.store.session_any(session).await.unwrap().unwrap();
    assert_eq!((record.mode(), record.automation_id.is_some()), (AgentMode::Scratch, true));
    let agent = Agent { gateway: &gateway, session, token: sandbox_token(&gateway.app, session).await };
    let report = json!({"run_id": "r", "completion_id": "c", "outcome": "succeeded"});
    let (done, result) = agent.call("automation_complete", &report).await;
    assert!(!done && result.contains("only available in automation sessions"), "{result}");
}

#[tokio::test]
async fn a_session_has_only_the_tools_that_it_was_created_with() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let agent = Agent::of(&gateway, &team, AgentMode::Setup, Some(&["save_env_files"])).await;
        assert!(agent.call("save_env_files", &arguments("save_env_files")).await.0);
        let (done, result) = agent.call("save_service_commands", &arguments("save_service_commands")).await;
        assert!(!done && result.contains("is not one of the tools"), "{result}");
        // Naming a tool of another mode does not add it.
        let agent = Agent::of(&gateway, &team, AgentMode::Coding, Some(&["save_env_files"])).await;
        let (done, result) = agent.call("save_env_files", &arguments("save_env_files")).await;
        assert!(!done && result.contains("only available in setup"), "{result}");
    }
}

#[tokio::test]
async fn a_session_is_not_created_with_an_unknown_tool() {
    let gateway = TestGateway::sqlite().await;
    let team = OrgOf3::new(&gateway.app).await;
    let body =
        |tools: Value| json!({"sessionType": "coding", "clientType": "web", "agentConfig": {"tools": tools}});
    for (tools, status) in
        [(json!(["save_snapshot"]), 201), (json!([]), 201), (json!(["save_snapshots"]), 400)]
    {
        let answer = gateway.post("/proliferate/sessions", &body(tools)).bearer(team.token(Role::Member));
        let answer = answer.send().await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(status == 201 || answer.text().contains("agentConfig.tools"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_call_of_an_outdated_tool_file_is_refused_unless_it_was_executed_before() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let agent = Agent::of(&gateway, &team, AgentMode::Setup, None).await;
        let body = |id: &str, version: u32| json!({"tool_call_id": id, "args": arguments("save_env_files"), "version": version});
        let first = agent.send("save_env_files", &body("done", 2)).await.json();
        assert_eq!(first["success"], true, "{first}");
        let stale = agent.send("save_env_files", &body("new", 7)).await;
        assert_eq!((stale.status, &stale.json()["success"]), (200, &json!(false)), "{}", stale.text());
        let result = stale.json()["result"].as_str().unwrap().to_owned();
        assert!(result.contains("version 7") && result.contains("version 2"), "{result}");
        assert_eq!(agent.send("save_env_files", &body("done", 7)).await.json(), first);
        // The id of the stale call was not used.
        assert_eq!(agent.send("save_env_files", &body("new", 2)).await.json()["success"], true);
    }
}

#[tokio::test]
async fn a_setup_agent_saves_into_its_configuration() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let agent = Agent::of(&gateway, &team, AgentMode::Setup, None).await;
        let record = gateway.app.store.session_any(agent.session).await.unwrap().unwrap();
        let configuration = record.configuration_id.unwrap();
        let body = json!({"tool_call_id": "a", "args": arguments("save_env_files")});
        let answer = agent.send("save_env_files", &body).await.json();
        assert_eq!(answer["result"], "Saved 1 environment files: .env");
        assert_eq!(answer["data"], json!({"configurationId": configuration, "fileCount": 1}));
        assert!(agent.call("save_service_commands", &arguments("save_service_commands")).await.0);
        let saved = gateway.app.store.configuration(team.org, configuration).await.unwrap().unwrap();
        let files = json!([{"workspacePath": ".", "path": ".env", "format": "dotenv", "mode": "secret",
            "keys": [{"key": "API_KEY", "required": true}]}]);
        assert_eq!(saved.env_files, Some(files));
        assert_eq!(saved.service_commands, Some(json!([{"name": "web", "command": "npm start"}])));
        let (done, result) =
            agent.call("save_env_files", &json!({"files": [{"path": "../x", "mode": "plain"}]})).await;
        for part in
            ["files[0].path must be a path inside", "files[0].mode", "files[0].format is required", "keys"]
        {
            assert!(!done && result.contains(part), "{result}");
        }
    }
}

#[tokio::test]
async fn the_description_of_the_api_has_the_arguments_of_every_tool() {
    let document = serde_json::to_value(gateway::edge::api_document()).unwrap();
    for tool in [
        "save_snapshot",
        "verify",
        "save_service_commands",
        "save_env_files",
        "request_env_variables",
        "automation_complete",
    ] {
        let schema = &document["components"]["schemas"][format!("{tool}_args")];
        assert_eq!(schema["type"], "object", "{tool}: {schema}");
    }
    let commands = &document["components"]["schemas"]["save_service_commands_args"]["properties"]["commands"];
    assert_eq!(commands["maxItems"], 10, "{commands}");
}

/// Sandboxes refuse such a list, so that it would break every session of the configuration.
#[tokio::test]
async fn environment_files_that_no_sandbox_could_write_are_not_saved() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let agent = Agent::of(&gateway, &team, AgentMode::Setup, None).await;
        let file = |directory: &str, path: &str| {
            json!({"workspacePath": directory, "path": path, "format": "dotenv", "mode": "secret",
                "keys": [{"key": "API_KEY", "required": true}]})
        };
        for (files, part) in [
            (json!([file(".", ".")]), "files[0].path must be a file inside the workspace"),
            (json!([file(".", ".env"), file(".", "./")]), "files[1].path must be a file"),
            (json!([file("app", "config/")]), "files[0].path must be a file"),
            (
                json!([file("app", ".git/hooks/pre-commit")]),
                "app/.git/hooks/pre-commit is in a directory .git",
            ),
            (json!([file(".", "*")]), "files[0].path: * contains *"),
            (json!([file("app", ".env"), file(".", "app//.env")]), "files names the same file twice"),
            (json!([file(".", "app"), file("app", ".env")]), "files names app as a file, and app/.env in it"),
        ] {
            let (done, result) = agent.call("save_env_files", &json!({ "files": files })).await;
            assert!(!done && result.starts_with("Invalid arguments: ") && result.contains(part), "{result}");
        }
        let record = gateway.app.store.session_any(agent.session).await.unwrap().unwrap();
        let saved =
            gateway.app.store.configuration(team.org, record.configuration_id.unwrap()).await.unwrap();
        assert_eq!(saved.unwrap().env_files, None);
        assert!(agent.call("save_env_files", &json!({"files": [file("./app", "./.env")]})).await.0);
    }
}

/// Stores evidence of a session, as its tool does. Returns the prefix of its keys.
async fn upload(gateway: &TestGateway, org: OrgId, session: SessionId, content: &[u8]) -> String {
    let (case, hash) = (session.to_string(), ledger::sha256(content).to_string());
    let name = json!([org.to_string(), case, "evidence", hash]).to_string();
    let prefix = format!("sessions/{session}/verification/1-a/");
    let artifact = NewArtifact {
        org_id: org,
        artifact_id: format!("art_{}", &ledger::sha256(name.as_bytes()).to_string()[..40]),
        kind: "evidence".to_owned(),
        hash,
        case_id: Some(case),
        content_type: "text/plain".to_owned(),
        lineage: JsonText::of(&json!({"derived_from": [], "run_id": "run-00000001"})),
        at: gateway.app.clock.now(),
        content: content.to_vec(),
    };
    let files = vec![NewEvidenceFile { key: format!("{prefix}a b.log"), artifact }];
    let (run_id, at) = ("run-00000001".to_owned(), gateway.app.clock.now());
    let new = NewEvidence { org_id: org, session_id: session, run_id, files, at };
    // A call that is executed again replaces its files.
    let store = &gateway.app.store;
    for _ in 0..2 {
        assert_eq!(store.evidence_size(session, "run-00000001").await.unwrap(), 0, "its own does not count");
        store.save_evidence(new.clone()).await.unwrap();
    }
    let size = i64::try_from(content.len()).unwrap();
    assert_eq!(store.evidence_size(session, "run-00000002").await.unwrap(), size);
    prefix
}

#[tokio::test]
async fn evidence_is_served_to_callers_who_may_watch_its_session() {
    for gateway in TestGateway::both().await {
        let (team, others) = (OrgOf3::new(&gateway.app).await, OrgOf3::new(&gateway.app).await);
        let mut sessions = Vec::new();
        for org in [team.org, team.org, others.org] {
            let id = session(&gateway.app, org).await;
            sessions.push((id, upload(&gateway, org, id, b"it works").await));
        }
        let member = team.token(Role::Member).to_owned();
        let get = |session: SessionId, query: String, token: String| {
            let path = format!("/proliferate/{session}/verification-media{query}");
            let gateway = &gateway;
            async move { gateway.get(&path).bearer(&token).send().await }
        };
        let (own, prefix) = sessions[0].clone();
        let listed = get(own, format!("?prefix={prefix}"), member.clone()).await.json();
        let file = &listed["files"][0];
        assert_eq!(
            (&file["name"], &file["path"], &file["size"]),
            (&json!("a b.log"), &json!("a b.log"), &json!(8))
        );
        assert_eq!(listed["files"].as_array().unwrap().len(), 1, "{listed}");
        let url = get(own, format!("?key={prefix}a%20b.log"), member.clone()).await.json();
        assert!(url["url"].as_str().unwrap().contains("a+b.log&stream=true"), "{url}");
        let content = get(own, format!("?key={prefix}a+b.log&stream=true"), member.clone()).await;
        assert_eq!((content.status, &content.body[..]), (200, &b"it works"[..]));
        for (name, value) in [
            ("content-type", "text/plain"),
            ("content-length", "8"),
            ("cache-control", "private, max-age=3600"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(content.header(name), Some(value), "{name}");
        }
        assert_eq!(get(own, String::new(), member.clone()).await.status, 400);
        let unknown = get(own, format!("?key={prefix}nothing.log"), member.clone()).await;
        assert_eq!(unknown.status, 404, "{}", unknown.text());
        // The key of a file of another session is refused, also if the caller may read that session.
        for (_, foreign) in &sessions[1..] {
            for query in
                [format!("?key={foreign}a%20b.log"), format!("?prefix={foreign}"), "?prefix=sessions/".into()]
            {
                let answer = get(own, query, member.clone()).await;
                assert_eq!(answer.status, 400, "{}", answer.text());
            }
        }
        let text = get(own, "?key=nonsense".to_owned(), member.clone()).await.text();
        assert!(text.contains(&format!("key must start with sessions/{own}/verification/")), "{text}");
        let (session, query) = (sessions[2].0, format!("?prefix={}", sessions[2].1));
        assert_eq!(get(session, query, member).await.status, 404, "a session of another organization");
        let query = format!("?prefix={prefix}");
        let service = service_token(&gateway.app, Some(team.org));
        assert_eq!(get(own, query.clone(), service).await.status, 200);
        let sandbox = sandbox_token(&gateway.app, own).await;
        assert_eq!(get(own, query, sandbox).await.status, 403);
        let events =
            gateway.get("/v1/audit/events?limit=100").bearer(team.token(Role::Owner)).send().await.json();
        let reads =
            events["events"].as_array().unwrap().iter().filter(|event| event["action_type"] == "db_read");
        assert_eq!(reads.count(), 1, "the content was read once");
    }
}
