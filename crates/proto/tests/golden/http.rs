//! Bodies of HTTP requests and responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use proto::http::{
    ActionCatalog, ActionGuide, ActionInfo, ActionPreference, ActionPreferenceList, ActionSource,
    AgentConfig, CliConfiguration, ConfigurationChoice, CreateSession, CreateSessionError, CreatedSandbox,
    CreatedSession, ErrorBody, Health, Invocation, InvocationDenied, InvocationList, InvocationPending,
    InvocationReply, InvokeAction, InvokeReply, Liveness, ManagedConfiguration, Me, MediaFile, MediaFiles,
    MediaUrl, OkReply, PostMessage, PromptReply, RunState, SessionInfo, SessionStatusReply, SshOptions,
    TokenSource, ToolCallback, ToolCallbackReply, UnavailableSource,
};
use proto::socket::MessageSource;
use proto::{
    ActionMode, AutomationRef, BillingCode, ClientType, ErrorCode, InvocationStatus, ModeSource, Origin,
    PauseReason, ReasoningEffort, RepoRef, Risk, Role, SandboxMode, Session, SessionMetrics, SessionStatus,
    SessionType,
};
use serde_json::{Value, json};

use super::{check, id};

fn s(text: &str) -> String {
    text.to_owned()
}

fn ten_oclock() -> DateTime<Utc> {
    DateTime::from_timestamp(1_771_581_600, 0).unwrap()
}

fn create(text: &str) -> CreateSession {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// The smallest valid body, as the old client library sends it.
const CREATE_OBSERVED: &str =
    r#"{"organizationId":"o","configurationId":"c","sessionType":"coding","clientType":"web"}"#;

#[test]
fn create_session_as_observed() {
    let meant = create(r#"{"sessionType":"coding","clientType":"web"}"#);
    let meant = CreateSession { organization_id: Some(s("o")), configuration_id: Some(s("c")), ..meant };
    assert_eq!((meant.session_type, meant.client_type), (SessionType::Coding, ClientType::Web));
    check(CREATE_OBSERVED, &meant);
    assert_eq!(meant.configuration_choice(), Ok(ConfigurationChoice::Existing("c")));
    assert_eq!(meant.effective_sandbox_mode(), SandboxMode::Deferred);
    assert_eq!(meant.ssh(), Ok(None));
}

#[test]
fn create_session_with_all_fields() {
    let meant = CreateSession {
        organization_id: None,
        configuration_id: None,
        managed_configuration: None,
        cli_configuration: Some(CliConfiguration { local_path_hash: s("h"), display_name: Some(s("app")) }),
        session_type: SessionType::Cli,
        client_type: ClientType::Cli,
        client_metadata: json!({"channelId": "C1", "n": null}).as_object().cloned(),
        sandbox_mode: Some(SandboxMode::Deferred),
        snapshot_id: Some(s("snap")),
        initial_prompt: Some(s("do it")),
        title: Some(s("t")),
        agent_config: Some(AgentConfig {
            model_id: Some(s("claude-opus-4-6")),
            tools: Some(vec![s("verify")]),
            reasoning_effort: Some(ReasoningEffort::Deep),
        }),
        system_prompt: Some(s("be brief")),
        automation_id: Some(id(1)),
        trigger_id: Some(id(2)),
        trigger_event_id: Some(id(3)),
        trigger_context: json!({"issue": 7}).as_object().cloned(),
        integration_ids: Some(vec![id(4)]),
        ssh_options: Some(SshOptions {
            public_keys: vec![s("ssh-ed25519 AAAA")],
            local_path: Some(s("/home/ann/app")),
            git_token: Some(s("hunter2")),
            env_vars: Some(BTreeMap::from([(s("A"), s("hunter3"))])),
        }),
    };
    check(
        r#"{"cliConfiguration":{"localPathHash":"h","displayName":"app"},"sessionType":"cli","clientType":"cli",
            "clientMetadata":{"channelId":"C1","n":null},"sandboxMode":"deferred","snapshotId":"snap",
            "initialPrompt":"do it","title":"t","agentConfig":{"modelId":"claude-opus-4-6","tools":["verify"],"reasoningEffort":"deep"},"systemPrompt":"be brief",
            "automationId":"00000000-0000-0000-0000-000000000001","triggerId":"00000000-0000-0000-0000-000000000002",
            "triggerEventId":"00000000-0000-0000-0000-000000000003","triggerContext":{"issue":7},
            "integrationIds":["00000000-0000-0000-0000-000000000004"],
            "sshOptions":{"publicKeys":["ssh-ed25519 AAAA"],"localPath":"/home/ann/app","gitToken":"hunter2",
            "envVars":{"A":"hunter3"}}}"#,
        &meant,
    );
    assert_eq!(meant.effective_sandbox_mode(), SandboxMode::Immediate, "SSH needs a sandbox immediately");
    let shown = format!("{meant:?}");
    assert!(!shown.contains("hunter") && shown.contains("[secret]"), "{shown}");
}

#[test]
fn at_most_one_configuration_may_be_given() {
    let with = |fields: &str| create(&format!(r#"{{"sessionType":"coding","clientType":"web"{fields}}}"#));
    let (c, m, l) = (
        r#","configurationId":"c""#,
        r#","managedConfiguration":{}"#,
        r#","cliConfiguration":{"localPathHash":"h"}"#,
    );
    assert_eq!(with("").configuration_choice(), Ok(ConfigurationChoice::Scratch));
    let managed = ManagedConfiguration { repo_ids: None };
    assert_eq!(with(m).configuration_choice(), Ok(ConfigurationChoice::Managed(&managed)));
    let cli = CliConfiguration { local_path_hash: s("h"), display_name: None };
    assert_eq!(with(l).configuration_choice(), Ok(ConfigurationChoice::Cli(&cli)));
    for several in [[c, m, ""], [c, l, ""], [m, l, ""], [c, m, l]] {
        let request = with(&several.concat());
        assert_eq!(
            request.configuration_choice(),
            Err(CreateSessionError::SeveralConfigurations),
            "{several:?}"
        );
    }
    check(
        r#"{"repoIds":["00000000-0000-0000-0000-000000000001"]}"#,
        &ManagedConfiguration { repo_ids: Some(vec![id(1)]) },
    );
}

#[test]
fn create_session_rejects_unknown_values_missing_fields_and_ssh_without_keys() {
    let refused = [
        (r#"{"clientType":"web"}"#, "sessionType"),
        (r#"{"sessionType":"coding"}"#, "clientType"),
        (r#"{"sessionType":"terminal","clientType":"web"}"#, "coding, setup, cli"),
        (r#"{"sessionType":"coding","clientType":"fax"}"#, "web, slack, cli, automation"),
        (r#"{"sessionType":"coding","clientType":"web","sandboxMode":"later"}"#, "immediate, deferred"),
        (r#"{"sessionType":"coding","clientType":"web","triggerId":"t1"}"#, "trigger id"),
    ];
    for (text, reason) in refused {
        let error = serde_json::from_str::<CreateSession>(text).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let keyless =
        create(r#"{"sessionType":"cli","clientType":"cli","sshOptions":{"publicKeys":[]},"later":1}"#);
    assert_eq!(keyless.ssh(), Err(CreateSessionError::NoPublicKeys));
}

#[test]
fn created_session() {
    let deferred = CreatedSession {
        session_id: id(1),
        configuration_id: Some(id(2)),
        status: SessionStatus::Pending,
        gateway_url: s("https://g"),
        has_snapshot: false,
        is_new_configuration: true,
        sandbox: None,
    };
    check(
        r#"{"sessionId":"00000000-0000-0000-0000-000000000001","configurationId":"00000000-0000-0000-0000-000000000002",
            "status":"pending","gatewayUrl":"https://g","hasSnapshot":false,"isNewConfiguration":true}"#,
        &deferred,
    );
    let sandbox = |host: Option<&str>, ssh_port| CreatedSandbox {
        sandbox_id: s("sb"),
        preview_url: None,
        ssh_host: host.map(s),
        ssh_port,
    };
    check(r#"{"sandboxId":"sb","previewUrl":null}"#, &sandbox(None, None));
    let immediate = CreatedSession {
        configuration_id: None,
        status: SessionStatus::Running,
        sandbox: Some(sandbox(Some("h"), Some(22))),
        ..deferred
    };
    check(
        r#"{"sessionId":"00000000-0000-0000-0000-000000000001","configurationId":null,"status":"running",
            "gatewayUrl":"https://g","hasSnapshot":false,"isNewConfiguration":true,
            "sandbox":{"sandboxId":"sb","previewUrl":null,"sshHost":"h","sshPort":22}}"#,
        &immediate,
    );
}

#[test]
fn status_distinguishes_a_failed_check_from_no_check() {
    let reply = |sandbox_alive| SessionStatusReply {
        state: RunState::Running,
        status: SessionStatus::Paused,
        terminated_at: None,
        reason: None,
        sandbox_id: Some(s("sb")),
        sandbox_alive,
    };
    check(r#"{"state":"running","status":"paused","sandboxId":"sb"}"#, &reply(None));
    check(
        r#"{"state":"running","status":"paused","sandboxId":"sb","sandboxAlive":null}"#,
        &reply(Some(Liveness::Unknown)),
    );
    check(
        r#"{"state":"running","status":"paused","sandboxId":"sb","sandboxAlive":true}"#,
        &reply(Some(Liveness::Alive)),
    );
    check(
        r#"{"state":"running","status":"paused","sandboxId":"sb","sandboxAlive":false}"#,
        &reply(Some(Liveness::Gone)),
    );
    check(
        r#"{"state":"terminated","status":"stopped","terminatedAt":"2026-02-20T10:00:00.000Z","reason":"snapshot_failed"}"#,
        &SessionStatusReply {
            state: RunState::Terminated,
            status: SessionStatus::Stopped,
            terminated_at: Some(ten_oclock()),
            reason: Some(s("snapshot_failed")),
            sandbox_id: None,
            sandbox_alive: None,
        },
    );
}

#[test]
fn session_info_has_a_numeric_expiry() {
    let known = SessionInfo {
        session_id: id(1),
        sandbox_id: Some(s("sb")),
        status: SessionStatus::Running,
        preview_url: Some(s("https://p")),
        ssh_host: Some(s("h")),
        ssh_port: Some(2222),
        expires_at: Some(ten_oclock()),
    };
    check(
        r#"{"sessionId":"00000000-0000-0000-0000-000000000001","sandboxId":"sb","status":"running",
            "previewUrl":"https://p","sshHost":"h","sshPort":2222,"expiresAt":1771581600000}"#,
        &known,
    );
    check(
        r#"{"sessionId":"00000000-0000-0000-0000-000000000001","sandboxId":null,"status":"pending",
            "previewUrl":null,"sshHost":null,"sshPort":null,"expiresAt":null}"#,
        &SessionInfo {
            session_id: id(1),
            sandbox_id: None,
            status: SessionStatus::Pending,
            preview_url: None,
            ssh_host: None,
            ssh_port: None,
            expires_at: None,
        },
    );
}

#[test]
fn prompts() {
    check(
        r#"{"type":"prompt","content":"hi","userId":"u","source":"slack"}"#,
        &PostMessage::Prompt {
            content: s("hi"),
            user_id: Some(s("u")),
            source: Some(MessageSource::Slack),
            images: None,
        },
    );
    check(
        r#"{"type":"prompt","content":"hi","images":["data:image/png;base64,AA"]}"#,
        &PostMessage::Prompt {
            content: s("hi"),
            user_id: None,
            source: None,
            images: Some(vec![s("data:image/png;base64,AA")]),
        },
    );
    for text in
        [r#"{"type":"cancel"}"#, r#"{"content":"hi"}"#, r#"{"type":"prompt","content":"x","source":"fax"}"#]
    {
        assert!(serde_json::from_str::<PostMessage>(text).is_err(), "{text}");
    }
}

#[test]
fn small_bodies() {
    check(r#"{"status":"ok"}"#, &Health::ok());
    check(r#"{"ok":true}"#, &OkReply::OK);
    check(r#"{"ok":true,"messageId":"msg_1"}"#, &PromptReply { ok: true, message_id: s("msg_1") });
    check(r#"{"url":"https://u"}"#, &MediaUrl { url: s("https://u") });
    let file = MediaFile {
        key: s("sessions/s1/verification/1/a b.png"),
        name: s("a b.png"),
        path: s("a b.png"),
        content_type: s("image/png"),
        size: 7,
        last_modified: ten_oclock(),
    };
    check(
        r#"{"files":[{"key":"sessions/s1/verification/1/a b.png","name":"a b.png","path":"a b.png",
            "contentType":"image/png","size":7,"lastModified":"2026-02-20T10:00:00.000Z"}]}"#,
        &MediaFiles { files: vec![file] },
    );
}

#[test]
fn me_for_a_person_and_for_a_service() {
    check(
        r#"{"userId":"00000000-0000-0000-0000-000000000001","orgId":"00000000-0000-0000-0000-000000000002",
            "role":"admin","source":"cli"}"#,
        &Me { user_id: Some(id(1)), org_id: Some(id(2)), role: Some(Role::Admin), source: TokenSource::Cli },
    );
    check(
        r#"{"userId":null,"orgId":null,"role":null,"source":"service"}"#,
        &Me { user_id: None, org_id: None, role: None, source: TokenSource::Service },
    );
}

#[test]
fn errors() {
    check(
        r#"{"error":"Session not found","code":"not_found"}"#,
        &ErrorBody::new(ErrorCode::NotFound, "Session not found"),
    );
    check(
        r#"{"error":"No credits","code":"payment_required","details":{"billingCode":"NO_CREDITS"}}"#,
        &ErrorBody::billing(BillingCode::NoCredits, "No credits"),
    );
    check(
        r#"{"error":"Session not available","code":"unavailable","details":{"reason":"x"}}"#,
        &ErrorBody {
            details: Some(json!({"reason": "x"})),
            ..ErrorBody::new(ErrorCode::Unavailable, "Session not available")
        },
    );
}

#[test]
fn tool_callbacks() {
    let args = json!({"message": "m"}).as_object().cloned().unwrap();
    check(
        r#"{"tool_call_id":"t1","args":{"message":"m"}}"#,
        &ToolCallback { tool_call_id: s("t1"), args, version: None },
    );
    let bare: ToolCallback = serde_json::from_str(r#"{"tool_call_id":"t1"}"#).unwrap();
    assert!(bare.args.is_empty());
    for text in ["{}", r#"{"tool_call_id":7}"#, r#"{"tool_call_id":"t","args":[]}"#] {
        assert!(serde_json::from_str::<ToolCallback>(text).is_err(), "{text}");
    }
    check(
        r#"{"success":true,"result":"Snapshot saved to session: s1","data":{"snapshotId":"s1","target":"session"}}"#,
        &ToolCallbackReply {
            success: true,
            result: s("Snapshot saved to session: s1"),
            data: json!({"snapshotId": "s1", "target": "session"}).as_object().cloned(),
        },
    );
    check(
        r#"{"success":false,"result":"Snapshot failed: no"}"#,
        &ToolCallbackReply { success: false, result: s("Snapshot failed: no"), data: None },
    );
}

#[test]
fn action_catalog_guide_and_invocation_request() {
    let source = |integration_id, integration: &str, display_name: Option<&str>| ActionSource {
        integration_id,
        integration: s(integration),
        display_name: display_name.map(s),
        actions: vec![ActionInfo {
            name: s("get_issue"),
            description: s("One issue"),
            risk_level: Risk::Read,
            params: Arc::new(json!({"type": "object"})),
            mode: ActionMode::Allow,
            mode_source: ModeSource::InferredDefault,
            conditions: None,
        }],
    };
    check(
        r#"{"integrations":[
            {"integrationId":"00000000-0000-0000-0000-000000000001","integration":"linear","displayName":null,"actions":
                [{"name":"get_issue","description":"One issue","riskLevel":"read","params":{"type":"object"},
                    "mode":"allow","modeSource":"inferred_default"}]},
            {"integrationId":null,"integration":"connector:x","displayName":"Docs","actions":
                [{"name":"get_issue","description":"One issue","riskLevel":"read","params":{"type":"object"},
                    "mode":"allow","modeSource":"inferred_default"}]}]}"#,
        &ActionCatalog {
            integrations: vec![
                source(Some(id(1)), "linear", None),
                source(None, "connector:x", Some("Docs")),
            ],
            unavailable: Vec::new(),
        },
    );
    let unavailable = UnavailableSource { integration: s("db:x"), problem: s("it is down") };
    check(
        r#"{"integrations":[],"unavailable":[{"integration":"db:x","problem":"it is down"}]}"#,
        &ActionCatalog { integrations: Vec::new(), unavailable: vec![unavailable] },
    );
    check(
        r#"{"preferences":[{"sourceId":"linear","actionId":null,"enabled":false}]}"#,
        &ActionPreferenceList {
            preferences: vec![ActionPreference { source_id: s("linear"), action_id: None, enabled: false }],
        },
    );
    check(
        r##"{"integration":"linear","guide":"# Linear"}"##,
        &ActionGuide { integration: s("linear"), guide: s("# Linear") },
    );
    let params = json!({"issueId": "L-1"}).as_object().cloned().unwrap();
    check(
        r#"{"integration":"linear","action":"get_issue","params":{"issueId":"L-1"}}"#,
        &InvokeAction { integration: s("linear"), action: s("get_issue"), params },
    );
    let bare: InvokeAction =
        serde_json::from_str(r#"{"integration":"linear","action":"list_issues"}"#).unwrap();
    assert!(bare.params.is_empty());
}

const PENDING: &str = r#"{"id":"00000000-0000-0000-0000-000000000001","sessionId":"00000000-0000-0000-0000-000000000002",
    "organizationId":"00000000-0000-0000-0000-000000000003","integrationId":null,"integration":"connector:x",
    "action":"drop","riskLevel":"danger","mode":"require_approval","modeSource":"org_default",
    "modeReason":"definition_drift","params":{"a":1},"edited":false,"requestHash":"ab12","status":"pending","result":null,
    "error":null,"deniedReason":null,"durationMs":null,"twoPerson":false,
    "firstApprovedBy":null,"firstApprovedAt":null,"approvedBy":null,
    "approvedAt":null,"completedAt":null,"expiresAt":"2026-02-20T10:00:00.000Z","createdAt":"2026-02-20T10:00:00.000Z"}"#;

const DONE: &str = r#"{"id":"00000000-0000-0000-0000-000000000001","sessionId":"00000000-0000-0000-0000-000000000002",
    "organizationId":"00000000-0000-0000-0000-000000000003","integrationId":"00000000-0000-0000-0000-000000000004",
    "integration":"connector:x","action":"drop","riskLevel":"danger","mode":"allow","modeSource":"inferred_default",
    "modeReason":null,"params":{"a":1},"edited":false,"requestHash":null,"status":"failed","result":{"b":2},"error":"no",
    "deniedReason":"policy",
    "durationMs":12,"twoPerson":true,"firstApprovedBy":"00000000-0000-0000-0000-000000000006",
    "firstApprovedAt":"2026-02-20T10:00:00.000Z",
    "approvedBy":"00000000-0000-0000-0000-000000000005","approvedAt":"2026-02-20T10:00:00.000Z",
    "completedAt":"2026-02-20T10:00:00.250Z","expiresAt":null,"createdAt":"2026-02-20T10:00:00.000Z"}"#;

fn pending() -> Invocation {
    Invocation {
        id: id(1),
        session_id: Some(id(2)),
        organization_id: id(3),
        integration_id: None,
        integration: s("connector:x"),
        action: s("drop"),
        risk_level: Risk::Danger,
        mode: ActionMode::RequireApproval,
        mode_source: ModeSource::OrgDefault,
        mode_reason: Some(s("definition_drift")),
        params: json!({"a": 1}),
        edited: false,
        request_hash: Some(s("ab12")),
        status: InvocationStatus::Pending,
        result: Value::Null,
        error: None,
        denied_reason: None,
        duration_ms: None,
        two_person: false,
        first_approved_by: None,
        first_approved_at: None,
        approved_by: None,
        approved_at: None,
        completed_at: None,
        expires_at: Some(ten_oclock()),
        created_at: ten_oclock(),
    }
}

#[test]
fn invocations_always_have_all_fields() {
    check(PENDING, &pending());
    let done = Invocation {
        integration_id: Some(id(4)),
        mode: ActionMode::Allow,
        mode_source: ModeSource::InferredDefault,
        mode_reason: None,
        request_hash: None,
        status: InvocationStatus::Failed,
        result: json!({"b": 2}),
        error: Some(s("no")),
        denied_reason: Some(s("policy")),
        duration_ms: Some(12),
        two_person: true,
        first_approved_by: Some(id(6)),
        first_approved_at: Some(ten_oclock()),
        approved_by: Some(id(5)),
        approved_at: Some(ten_oclock()),
        completed_at: DateTime::from_timestamp_millis(1_771_581_600_250),
        expires_at: None,
        ..pending()
    };
    check(DONE, &done);
}

#[test]
fn replies_to_an_invocation_request() {
    let around = |rest: &str| format!(r#"{{"invocation":{PENDING}{rest}}}"#);
    check(&around(r#","result":null"#), &InvokeReply { invocation: pending(), result: Value::Null });
    check(
        &around(r#","message":"Action requires approval""#),
        &InvocationPending { invocation: pending(), message: s("Action requires approval") },
    );
    check(
        &around(r#","error":"Action denied","code":"action_denied""#),
        &InvocationDenied { invocation: pending(), error: s("Action denied"), code: ErrorCode::ActionDenied },
    );
    check(&around(""), &InvocationReply { invocation: pending() });
    check(&format!(r#"{{"invocations":[{PENDING}]}}"#), &InvocationList { invocations: vec![pending()] });
}

#[test]
fn session_as_the_api_returns_it() {
    let text = r#"{"id":"00000000-0000-0000-0000-000000000001","repoId":null,
        "organizationId":"00000000-0000-0000-0000-000000000002","createdBy":null,"sessionType":"coding",
        "status":"paused","sandboxId":null,"snapshotId":"snap","configurationId":null,"configurationName":null,
        "branchName":null,"parentSessionId":null,"title":null,"titleStatus":null,
        "startedAt":"2026-02-20T10:00:00.000Z","lastActivityAt":"2026-02-20T10:00:00.000Z","endedAt":null,
        "pausedAt":"2026-02-20T10:00:00.000Z","pauseReason":"inactivity","promptSnippet":"Fix it","origin":"web",
        "clientType":null,"automationId":"00000000-0000-0000-0000-000000000003",
        "automation":{"id":"00000000-0000-0000-0000-000000000003","name":"Triage"},"slackThreadUrl":null,
        "outcome":null,"summary":null,"prUrls":["https://github.com/a/b/pull/1"],
        "metrics":{"toolCalls":1,"messagesExchanged":2,"activeSeconds":3},"latestTask":null}"#;
    let session: Session = serde_json::from_str(text).unwrap();
    check(text, &session);
    assert_eq!(session.status, SessionStatus::Paused);
    assert_eq!(session.pause_reason, Some(PauseReason::Inactivity));
    assert_eq!(session.paused_at, Some(ten_oclock()));
    assert_eq!(session.origin, Origin::Web);
    assert_eq!(session.automation, Some(AutomationRef { id: id(3), name: s("Triage") }));
    assert_eq!(
        session.metrics,
        Some(SessionMetrics { tool_calls: 1, messages_exchanged: 2, active_seconds: 3 })
    );
    let detail = Session { initial_prompt: Some(s("Fix it all")), repo: Some(repo()), ..session };
    let written = serde_json::to_value(&detail).unwrap();
    assert_eq!(written["initialPrompt"], "Fix it all");
    assert_eq!(written["repo"]["githubRepoName"], "a/b");
}

fn repo() -> RepoRef {
    RepoRef {
        id: id(9),
        github_repo_name: s("a/b"),
        github_url: s("https://github.com/a/b"),
        default_branch: s("main"),
    }
}
