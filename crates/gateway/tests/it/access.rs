//! Access control: every cell of the permission table over HTTP, the same rows over the socket, and the page that
//! shows the table.

use gateway::access::{self, Act, CallerKind};
use gateway::edge::route_acts;
use proto::{Role, SessionType};
use serde_json::{Value, json};
use store::NewSession;

use crate::harness::TestGateway;
use crate::live::{Live, On, Socket};
use crate::people::{Person, api_key, person, sandbox_token, service_token, some_uuid};

const ACCESS_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/access.md");

#[test]
fn the_page_is_generated_from_the_table() {
    let page = std::fs::read_to_string(ACCESS_PAGE).unwrap_or_default();
    let same = page == access::document(&route_acts());
    assert!(same, "docs/access.md differs: cargo test -p gateway --test it write_access_page -- --ignored");
}

#[test]
#[ignore = "run by hand: it writes docs/access.md"]
fn write_access_page() {
    std::fs::write(ACCESS_PAGE, access::document(&route_acts())).unwrap();
}

/// One request, and the act whose permission it needs.
#[derive(Clone)]
pub(crate) struct Probe {
    operation: &'static str,
    act: Act,
    path: String,
    body: Value,
    /// The status codes that count as a refusal.
    refusals: &'static [u16],
}

/// Resources of the creator, new for every request.
pub(crate) struct Things {
    pub(crate) session: String,
    configuration: String,
    run: String,
    /// An API key of a user who makes no requests here.
    key: String,
}

const REFUSED_STATUSES: &[u16] = &[403];

pub(crate) fn probe(operation: &'static str, act: Act, path: &str, body: Value) -> Probe {
    Probe { operation, act, path: path.to_owned(), body, refusals: REFUSED_STATUSES }
}

fn of_identity(things: &Things) -> Vec<Probe> {
    let unknown = some_uuid();
    let key = format!("/v1/keys/{}", things.key);
    let ticket = |kind: &str| json!({"sessionId": things.session, "kind": kind});
    let null = || Value::Null;
    vec![
        probe("GET /v1/me", Act::Identify, "/v1/me", null()),
        probe("POST /v1/logout", Act::Identify, "/v1/logout", null()),
        probe("POST /v1/tickets", Act::MakeTicket, "/v1/tickets", ticket("socket")),
        probe("POST /v1/tickets", Act::ChangeSession, "/v1/tickets", ticket("proxy")),
        probe("DELETE /v1/tickets/{ticketId}", Act::MakeTicket, &format!("/v1/tickets/{unknown}"), null()),
        probe("GET /v1/keys", Act::ManageOwnKeys, "/v1/keys", null()),
        probe("POST /v1/keys", Act::ManageOwnKeys, "/v1/keys", json!({"name": "k"})),
        Probe {
            refusals: &[403, 404],
            ..probe("DELETE /v1/keys/{keyId}", Act::ManageOthersKeys, &key, null())
        },
        probe("GET /v1/device-logins/{userCode}", Act::ManageOwnKeys, "/v1/device-logins/ABCD-0000", null()),
        probe(
            "POST /v1/device-logins/{userCode}/approve",
            Act::ManageOwnKeys,
            "/v1/device-logins/ABCD-0000/approve",
            null(),
        ),
        probe(
            "POST /v1/device-logins/{userCode}/deny",
            Act::ManageOwnKeys,
            "/v1/device-logins/ABCD-0000/deny",
            null(),
        ),
    ]
}

fn of_organization(things: &Things) -> Vec<Probe> {
    let unknown = some_uuid();
    let email = |role: &str| json!({"email": format!("{}@new.example", some_uuid()), "role": role});
    let configuration = format!("/v1/configurations/{}", things.configuration);
    let null = || Value::Null;
    vec![
        probe("GET /v1/usage", Act::ReadOrganization, "/v1/usage", null()),
        probe("GET /v1/members", Act::ReadOrganization, "/v1/members", null()),
        probe("POST /v1/members", Act::ManageOrganization, "/v1/members", email("member")),
        probe("POST /v1/members", Act::ManageRoles, "/v1/members", email("admin")),
        probe(
            "PATCH /v1/members/{userId}",
            Act::ManageRoles,
            &format!("/v1/members/{unknown}"),
            json!({"role": "admin"}),
        ),
        probe(
            "DELETE /v1/members/{userId}",
            Act::ManageOrganization,
            &format!("/v1/members/{unknown}"),
            null(),
        ),
        probe("GET /v1/secrets", Act::ReadOrganization, "/v1/secrets", null()),
        probe("PUT /v1/secrets/{name}", Act::ManageOrganization, "/v1/secrets/A", json!({"value": "v"})),
        probe("DELETE /v1/secrets/{name}", Act::ManageOrganization, "/v1/secrets/A", null()),
        probe("GET /v1/egress", Act::ReadOrganization, "/v1/egress", null()),
        probe("PUT /v1/egress", Act::ManageOrganization, "/v1/egress", json!({})),
        probe("GET /v1/egress/records", Act::ReadOrganization, "/v1/egress/records", null()),
        probe("GET /v1/action-modes", Act::ReadOrganization, "/v1/action-modes", null()),
        probe("PUT /v1/action-modes", Act::SetActionModes, "/v1/action-modes", json!({})),
        probe("DELETE /v1/action-modes/{key}", Act::SetActionModes, "/v1/action-modes/a:b", null()),
        probe("GET /v1/repos", Act::ReadWorkspaces, "/v1/repos", null()),
        probe(
            "POST /v1/repos",
            Act::ManageOrganization,
            "/v1/repos",
            json!({"url": format!("https://example.com/{unknown}")}),
        ),
        probe("DELETE /v1/repos/{repoId}", Act::ManageOrganization, &format!("/v1/repos/{unknown}"), null()),
        probe("GET /v1/configurations", Act::ReadWorkspaces, "/v1/configurations", null()),
        probe(
            "POST /v1/configurations",
            Act::MakeConfiguration,
            "/v1/configurations",
            json!({"name": "c", "repos": []}),
        ),
        probe("GET /v1/configurations/{configurationId}", Act::ReadWorkspaces, &configuration, null()),
        probe(
            "PATCH /v1/configurations/{configurationId}",
            Act::ChangeConfiguration,
            &configuration,
            json!({"name": "d"}),
        ),
        probe("DELETE /v1/configurations/{configurationId}", Act::ManageOrganization, &configuration, null()),
        probe("GET /llm/v1/models", Act::AskModel, "/llm/v1/models", null()),
        probe("POST /llm/v1/messages", Act::AskModel, "/llm/v1/messages", json!({})),
        probe("POST /llm/v1/chat/completions", Act::AskModel, "/llm/v1/chat/completions", json!({})),
        probe(
            "POST /llm/v1/messages/count_tokens",
            Act::AskModel,
            "/llm/v1/messages/count_tokens",
            json!({}),
        ),
    ]
}

fn of_automations() -> Vec<Probe> {
    let (automation, run) =
        (format!("/v1/automations/{}", some_uuid()), format!("/v1/automation-runs/{}", some_uuid()));
    let (read, manage, act) = (Act::ReadOrganization, Act::ManageOrganization, Act::RunAutomation);
    let null = || Value::Null;
    let new = json!({"name": "a", "instructions": "Look."});
    let mut all = vec![
        probe("GET /v1/automations", read, "/v1/automations", null()),
        probe("POST /v1/automations", manage, "/v1/automations", new),
        probe("GET /v1/automations/{automationId}", read, &automation, null()),
        probe("PATCH /v1/automations/{automationId}", manage, &automation, json!({"name": "b"})),
        probe("DELETE /v1/automations/{automationId}", manage, &automation, null()),
        probe(
            "GET /v1/automations/{automationId}/action-modes",
            read,
            &format!("{automation}/action-modes"),
            null(),
        ),
        probe(
            "PUT /v1/automations/{automationId}/action-modes",
            Act::SetActionModes,
            &format!("{automation}/action-modes"),
            json!({"key": "a:b", "mode": "deny"}),
        ),
        probe(
            "DELETE /v1/automations/{automationId}/action-modes/{key}",
            Act::SetActionModes,
            &format!("{automation}/action-modes/a:b"),
            null(),
        ),
        probe(
            "GET /v1/automations/{automationId}/trigger-events",
            read,
            &format!("{automation}/trigger-events"),
            null(),
        ),
        probe(
            "GET /v1/automations/{automationId}/integrations",
            read,
            &format!("{automation}/integrations"),
            null(),
        ),
        probe(
            "PUT /v1/automations/{automationId}/integrations",
            manage,
            &format!("{automation}/integrations"),
            json!({"integrationIds": null}),
        ),
        probe("GET /v1/automations/{automationId}/runs", read, &format!("{automation}/runs"), null()),
        probe("POST /v1/automations/{automationId}/runs", act, &format!("{automation}/runs"), json!({})),
        probe("GET /v1/automation-runs", read, "/v1/automation-runs", null()),
        probe("GET /v1/automation-runs/{runId}", read, &run, null()),
    ];
    for (operation, body) in [
        ("POST /v1/automation-runs/{runId}/cancel", null()),
        ("POST /v1/automation-runs/{runId}/rerun", null()),
        ("POST /v1/automation-runs/{runId}/assign", json!({})),
        ("POST /v1/automation-runs/{runId}/resolve", json!({"outcome": "succeeded"})),
    ] {
        let last = operation.rsplit('/').next().unwrap();
        all.push(probe(operation, act, &format!("{run}/{last}"), body));
    }
    all
}

fn of_sessions(things: &Things, user: &str) -> Vec<Probe> {
    let at = |rest: &str| format!("/proliferate/{}{rest}", things.session);
    let new = |kind: &str, configuration: Value| {
        let mut body = json!({"sessionType": kind, "clientType": "web"});
        if !configuration.is_null() {
            body["configurationId"] = configuration;
        }
        body
    };
    let sessions = "/proliferate/sessions";
    let prompt = json!({"type": "prompt", "content": "x", "userId": user});
    let setup = new("setup", json!(things.configuration));
    let status = format!("/proliferate/sessions/{}/status", things.session);
    let (tool, call) = (at("/tools/save_snapshot"), json!({"tool_call_id": "call", "args": {}}));
    let null = || Value::Null;
    vec![
        probe("GET /proliferate/sessions", Act::Watch, sessions, null()),
        probe("POST /proliferate/sessions", Act::CreateSession, sessions, new("coding", null())),
        probe("POST /proliferate/sessions", Act::ChangeConfiguration, sessions, setup),
        probe("GET /proliferate/sessions/{id}/status", Act::ReadStatus, &status, null()),
        probe("GET /proliferate/{id}", Act::ReadStatus, &at(""), null()),
        probe("PATCH /proliferate/{id}", Act::ChangeSession, &at(""), json!({"title": "t"})),
        probe("DELETE /proliferate/{id}", Act::DeleteSession, &at(""), null()),
        probe("GET /proliferate/{id}/messages", Act::Watch, &at("/messages"), null()),
        probe("GET /proliferate/{id}/verification-media", Act::Watch, &at("/verification-media"), null()),
        Probe {
            refusals: &[401],
            ..probe("POST /proliferate/{id}/message", Act::Prompt, &at("/message"), prompt)
        },
        Probe {
            refusals: &[401],
            ..probe("PUT /proliferate/{id}/model", Act::Prompt, &at("/model"), json!({"modelId": "gpt-5.2"}))
        },
        probe("GET /v1/questions", Act::Watch, "/v1/questions", null()),
        probe("GET /v1/inbox", Act::Watch, "/v1/inbox", null()),
        probe("GET /v1/changes", Act::Watch, "/v1/changes", null()),
        Probe {
            refusals: &[401],
            ..probe(
                "POST /proliferate/{id}/questions/{questionId}/answer",
                Act::Prompt,
                &at("/questions/que_1/answer"),
                json!({"answers": [["A"]]}),
            )
        },
        probe("POST /proliferate/{id}/cancel", Act::Steer, &at("/cancel"), json!({})),
        probe("POST /proliferate/{id}/heartbeat", Act::Steer, &at("/heartbeat"), json!({})),
        probe("GET /proliferate/{id}/presence", Act::Watch, &at("/presence"), null()),
        probe("POST /proliferate/{id}/eager-start", Act::EagerStart, &at("/eager-start"), json!({})),
        probe("POST /proliferate/{id}/stop", Act::ChangeSession, &at("/stop"), json!({})),
        probe("POST /proliferate/{id}/exec", Act::EnterSandbox, &at("/exec"), json!({"command": ["true"]})),
        probe("GET /proliferate/{id}/files", Act::EnterSandbox, &at("/files?path=."), null()),
        probe("GET /proliferate/{id}/files/content", Act::EnterSandbox, &at("/files/content?path=a"), null()),
        probe(
            "PUT /proliferate/{id}/files/content",
            Act::EnterSandbox,
            &at("/files/content?path=a"),
            json!("a"),
        ),
        probe("GET /proliferate/{id}/diff", Act::EnterSandbox, &at("/diff"), null()),
        probe("GET /proliferate/{id}/logs", Act::EnterSandbox, &at("/logs"), null()),
        probe("POST /proliferate/{id}/tools/{tool}", Act::CallPlatformTool, &tool, call),
    ]
}

fn of_apps(things: &Things) -> Vec<Probe> {
    let at = |rest: &str| format!("/proliferate/{}{rest}", things.session);
    let service = json!({"name": "web", "command": "true"});
    let (null, steer) = (|| Value::Null, Act::UseServices);
    vec![
        probe("GET /v1/secret-files", Act::ReadOrganization, "/v1/secret-files", null()),
        probe(
            "PUT /v1/secret-files",
            Act::ManageOrganization,
            "/v1/secret-files",
            json!({"path": "app/key.pem", "content": "c"}),
        ),
        probe(
            "DELETE /v1/secret-files",
            Act::ManageOrganization,
            "/v1/secret-files?path=app/key.pem",
            null(),
        ),
        probe(
            "PATCH /v1/repos/{repoId}",
            Act::ManageOrganization,
            &format!("/v1/repos/{}", some_uuid()),
            json!({}),
        ),
        probe("POST /proliferate/{id}/finish-setup", Act::ChangeSession, &at("/finish-setup"), json!({})),
        probe("GET /proliferate/{id}/env", steer, &at("/env"), null()),
        probe("POST /proliferate/{id}/env", Act::ChangeSession, &at("/env"), json!({})),
        probe("POST /proliferate/{id}/env/apply", steer, &at("/env/apply"), json!({})),
        probe("POST /proliferate/{id}/env/scrub", steer, &at("/env/scrub"), json!({})),
        probe("GET /proliferate/{id}/services", steer, &at("/services"), null()),
        probe("POST /proliferate/{id}/services", steer, &at("/services"), service),
        probe("DELETE /proliferate/{id}/services/{name}", steer, &at("/services/web"), null()),
        probe(
            "POST /proliferate/{id}/services/{name}/restart",
            steer,
            &at("/services/web/restart"),
            json!({}),
        ),
        probe("GET /proliferate/{id}/services/{name}/logs", steer, &at("/services/web/logs"), null()),
        probe("POST /proliferate/{id}/test-services", Act::ChangeSession, &at("/test-services"), json!({})),
        probe("POST /proliferate/{id}/expose", steer, &at("/expose"), json!({"port": 3000})),
    ]
}

fn of_contract(things: &Things) -> Vec<Probe> {
    let run = format!("/v1/runs/{}", things.run);
    let null = || Value::Null;
    let mut all = vec![
        probe("POST /v1/tool-calls", Act::CallTool, "/v1/tool-calls", json!({})),
        probe("GET /v1/runs", Act::ReadRuns, "/v1/runs", null()),
        probe("GET /v1/runs/{runId}", Act::ReadRuns, "/v1/runs/run-unknown", null()),
        probe(
            "POST /v1/runs/{runId}/finish",
            Act::FinishRun,
            &format!("{run}/finish"),
            json!({"status": "completed"}),
        ),
        probe("GET /v1/audit/events", Act::ReadLedger, "/v1/audit/events", null()),
        probe("GET /v1/artifacts/{artifactId}", Act::ReadRuns, "/v1/artifacts/unknown", null()),
        probe(
            "GET /v1/artifacts/{artifactId}/content",
            Act::ReadRuns,
            "/v1/artifacts/unknown/content",
            null(),
        ),
    ];
    let kinds: [(Act, &[&str]); 3] = [
        (Act::StartAgentRun, &["agent", "orchestrator"]),
        (Act::StartToolRun, &["tool_gateway", "write_broker", "db_read", "db_write"]),
        (Act::StartGateRun, &["override", "export", "policy_change", "promotion", "system"]),
    ];
    for (act, kinds) in kinds {
        all.extend(
            kinds.iter().map(|kind| probe("POST /v1/runs", act, "/v1/runs", json!({"run_kind": kind}))),
        );
    }
    all
}

fn probes(things: &Things, user: &str) -> Vec<Probe> {
    let all = [
        of_identity(things),
        of_organization(things),
        of_automations(),
        of_sessions(things, user),
        of_apps(things),
        crate::access_actions::of_actions(things),
        crate::access_actions::of_databases(),
        crate::access_actions::of_notices(),
        of_contract(things),
    ];
    all.concat()
}

/// The columns of the permission table, and whether the caller counts as the creator.
const CALLER_COLUMNS: [(CallerKind, bool); 6] = [
    (CallerKind::Member, true),
    (CallerKind::Member, false),
    (CallerKind::Admin, false),
    (CallerKind::Owner, false),
    (CallerKind::Service, false),
    (CallerKind::Sandbox, true),
];

struct World {
    other: Person,
    admin: Person,
    owner: Person,
    service: String,
    live: Live,
}

impl World {
    async fn new() -> Self {
        let live = Live::echoing(On::Sqlite).await;
        let (app, org) = (&live.app, live.ada.org);
        let other = person(app, org, Role::Member).await;
        let (admin, owner) = (person(app, org, Role::Admin).await, person(app, org, Role::Owner).await);
        let service = service_token(app, Some(org));
        Self { other, admin, owner, service, live }
    }

    async fn things(&self) -> Things {
        let app = &self.live.app;
        let configuration = self.live.post("/v1/configurations", &json!({"name": "c", "repos": []})).await;
        let run = self.live.post("/v1/runs", &json!({"run_kind": "agent"})).await;
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Things {
            session: self.live.session().await,
            configuration: text(&configuration["id"]),
            run: text(&run["run_id"]),
            key: api_key(app, &person(app, self.live.ada.org, Role::Member).await).await.0.to_string(),
        }
    }

    async fn token(&self, (kind, creator): (CallerKind, bool), things: &Things) -> String {
        match kind {
            CallerKind::Member if creator => self.live.ada.token.clone(),
            CallerKind::Member => self.other.token.clone(),
            CallerKind::Admin => self.admin.token.clone(),
            CallerKind::Owner => self.owner.token.clone(),
            CallerKind::Service => self.service.clone(),
            CallerKind::Sandbox => sandbox_token(&self.live.app, things.session.parse().unwrap()).await,
        }
    }

    fn probes(&self, things: &Things) -> Vec<Probe> {
        probes(things, &self.live.ada.id.to_string())
    }
}

#[tokio::test]
async fn every_cell_of_the_table_holds_over_http() {
    let world = World::new().await;
    let count = world.probes(&world.things().await).len();
    for column in CALLER_COLUMNS {
        for number in 0..count {
            let things = world.things().await;
            let probe = world.probes(&things).swap_remove(number);
            let token = world.token(column, &things).await;
            let (method, _) = probe.operation.split_once(' ').unwrap();
            let (status, answer) = world.live.ask(method, &probe.path, Some(&token), &probe.body, None).await;
            let owns = column.1 && !is_foreign(&probe, column.0);
            let what = format!("{column:?}: {} {} ({:?}): {status} {answer}", method, probe.path, probe.act);
            if access::may(probe.act, column.0, owns) {
                assert!(![401, 403].contains(&status) && status < 500, "{what}");
            } else {
                let unseen = is_foreign(&probe, column.0) && status == 404;
                assert!(unseen || probe.refusals.contains(&status), "{what}");
            }
        }
    }
}

/// Whether the probed run belongs to another caller: a sandbox cannot finish the creator's run. A test below covers
/// the sandbox's own run.
fn is_foreign(probe: &Probe, kind: CallerKind) -> bool {
    probe.act == Act::FinishRun && kind == CallerKind::Sandbox
}

#[tokio::test]
async fn services_and_sandboxes_finish_their_own_runs_and_no_others() {
    let world = World::new().await;
    let things = world.things().await;
    let sandbox = world.token((CallerKind::Sandbox, true), &things).await;
    let stranger = {
        let app = &world.live.app;
        let (now, life) = (app.clock.now(), std::time::Duration::from_mins(1));
        let token = app.credentials.issuer.service("another", Some(world.live.ada.org), now, life);
        secrecy::ExposeSecret::expose_secret(&token).to_owned()
    };
    for (own, others) in [(&world.service, [&sandbox, &stranger]), (&sandbox, [&stranger, &world.service])] {
        let body = json!({"run_kind": "agent"});
        let (status, run) = world.live.ask("POST", "/v1/runs", Some(own), &body, None).await;
        assert_eq!(status, 201, "{run}");
        let path = format!("/v1/runs/{}/finish", run["run_id"].as_str().unwrap());
        let finish = async |token: &str| {
            world.live.ask("POST", &path, Some(token), &json!({"status": "completed"}), None).await.0
        };
        for other in others {
            assert!([403, 404].contains(&finish(other).await));
        }
        assert_eq!(finish(&world.other.token).await, 403, "another member");
        assert_eq!(finish(own).await, 200);
    }
}

#[tokio::test]
async fn every_operation_has_an_act_and_is_tried() {
    let gateway = TestGateway::sqlite().await;
    let described: Vec<String> =
        crate::document::operations(&gateway).await.iter().map(crate::document::Operation::name).collect();
    let mut acts = route_acts();
    acts.retain(|(name, _)| !name.contains("/git/"));
    assert_eq!(acts.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), described);
    let things = Things { session: "s".into(), configuration: "c".into(), run: "r".into(), key: "k".into() };
    let tried = probes(&things, "");
    for (name, act) in acts {
        let known = act == Act::Public || tried.iter().any(|probe| probe.operation == name);
        assert!(known, "no test tries who may call {name}");
    }
    for act in Act::ALL.iter().filter(|act| !matches!(act, Act::Public | Act::UseGitProxy)) {
        assert!(tried.iter().any(|probe| probe.act == *act), "no test tries {act:?}");
    }
}

#[tokio::test]
async fn a_session_of_a_service_has_every_member_as_its_creator() {
    let world = World::new().await;
    let app = &world.live.app;
    for (method, rest, body) in
        [("PATCH", "", json!({"title": "t"})), ("POST", "/stop", json!({})), ("DELETE", "", Value::Null)]
    {
        let id = app.rng.uuid(app.clock.now()).into();
        let new = NewSession::new(id, world.live.ada.org, SessionType::Coding, "attach", app.clock.now());
        app.store.create_session(new).await.unwrap();
        let path = format!("/proliferate/{id}{rest}");
        let ask = async |token: &str| world.live.ask(method, &path, Some(token), &body, None).await.0;
        assert_eq!(ask(&world.service).await, 403, "{method} {rest} by a service");
        assert_eq!(ask(&world.other.token).await, 200, "{method} {rest} by any member");
    }
}

/// Sends a command and returns its refusal, if any. A ping follows, so that every answer arrives before the pong.
async fn refusal(socket: &mut Socket, command: &Value) -> Option<String> {
    socket.send(command).await;
    socket.send(&json!({"type": "ping"})).await;
    let frames = socket.until_type("pong").await;
    let refusals = ["Unauthorized", "Not authorized to modify this session"];
    frames.iter().filter(|frame| frame["type"] == "error").find_map(|frame| {
        let message = frame["payload"]["message"].as_str().unwrap();
        refusals.contains(&message).then(|| message.to_owned())
    })
}

#[tokio::test]
async fn commands_over_the_socket_obey_the_same_rows() {
    let world = World::new().await;
    let commands = [
        (Act::Watch, json!({"type": "get_status"})),
        (Act::Watch, json!({"type": "get_messages"})),
        (Act::Watch, json!({"type": "get_git_status"})),
        (Act::Prompt, json!({"type": "prompt", "content": "x"})),
        (Act::Prompt, json!({"type": "set_model", "modelId": "gpt-5.2"})),
        (Act::Steer, json!({"type": "cancel"})),
        (Act::ChangeSession, json!({"type": "save_snapshot"})),
        (Act::ChangeSession, json!({"type": "run_auto_start", "runId": "r"})),
        (Act::ChangeSession, json!({"type": "git_create_branch", "branchName": "b"})),
        (Act::ChangeSession, json!({"type": "git_commit", "message": "m"})),
        (Act::ChangeSession, json!({"type": "git_push"})),
        (Act::ChangeSession, json!({"type": "git_create_pr", "title": "t"})),
    ];
    let things = world.things().await;
    world.live.running(&things.session).await;
    for column in CALLER_COLUMNS.into_iter().filter(|(kind, _)| *kind != CallerKind::Sandbox) {
        let token = world.token(column, &things).await;
        for (act, command) in &commands {
            let mut socket = world.live.try_watch(&things.session, &token, "").await.unwrap();
            let refused = refusal(&mut socket, command).await;
            // A service's connection has no user, so it can only watch.
            let silent = column.0 == CallerKind::Service && *act != Act::Watch;
            let expected = match access::may(*act, column.0, column.1) {
                _ if silent => Some("Unauthorized"),
                true => None,
                false => Some("Not authorized to modify this session"),
            };
            assert_eq!(refused.as_deref(), expected, "{column:?}: {command}");
        }
    }
}
