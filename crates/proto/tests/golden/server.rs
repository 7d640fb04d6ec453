//! Messages from the server.

use chrono::DateTime;
use proto::socket::{
    ActionOutcome, AutoStartEntry, Frame, GitAction, GitChange, GitCode, GitCommit, GitResult, GitState,
    InitConfig, Message, MessageRole, MessageSource, OpenApproval, OpenQuestion, Part, QuestionItem,
    QuestionKind, QuestionOption, ServerMessage, SnapshotTarget, ToolCall, ToolStatus, TurnOutcome,
    WireStatus,
};
use proto::{InvocationStatus, Risk};
use serde_json::{Value, json};

use super::id;

/// A user message with an image, an answer with a tool call, and an answer that has just started.
pub(crate) const INIT_VECTOR: [&str; 3] = [
    r#"{"id":"m1","role":"user","content":"hi","isComplete":true,"createdAt":1,"parts":[{"type":"text","text":"hi"},{"type":"image","image":"data:image/png;base64,AA"}]}"#,
    r#"{"id":"m2","role":"assistant","content":"ok","isComplete":true,"createdAt":2,"toolCalls":[{"id":"c","tool":"bash","args":{"command":"ls"},"result":"x","status":"completed","startedAt":3,"completedAt":3}],"parts":[{"type":"tool","toolCallId":"c","toolName":"bash","args":{"command":"ls"},"result":"x","status":"completed"},{"type":"text","text":"ok"}]}"#,
    r#"{"id":"m3","role":"assistant","content":"","isComplete":false,"createdAt":4}"#,
];

type Golden = (&'static str, Frame);

pub(crate) fn goldens() -> Vec<Golden> {
    [conversation(), turns(), tools(), sandbox(), git(), actions(), stream()].concat()
}

fn s(text: &str) -> String {
    text.to_owned()
}

fn one(text: &'static str, message: ServerMessage) -> Golden {
    (text, Frame::to_one(message))
}

fn numbered(text: &'static str, seq: i64, message: ServerMessage) -> Golden {
    (text, Frame::broadcast(message, seq))
}

fn message(id: &str, role: MessageRole, content: &str, created_at: i64) -> Message {
    Message {
        id: s(id),
        role,
        content: s(content),
        is_complete: role == MessageRole::User,
        created_at,
        sender_id: None,
        source: None,
        tool_calls: vec![],
        parts: vec![],
        interrupted: false,
        error: None,
    }
}

fn empty_init() -> ServerMessage {
    ServerMessage::Init {
        messages: Vec::new(),
        earlier: 0,
        config: None,
        questions: Vec::new(),
        approvals: Vec::new(),
    }
}

/// A message with a text part and a tool call, whose turn failed.
fn interrupted() -> Message {
    let call = ToolCall {
        id: s("c"),
        tool: s("bash"),
        args: json!({"command": "ls"}),
        result: None,
        status: ToolStatus::Running,
        started_at: 1_771_581_600_000,
        completed_at: None,
    };
    Message {
        tool_calls: vec![call],
        parts: vec![
            Part::Text { text: s("par"), part_id: Some(s("p")) },
            Part::Tool {
                tool_call_id: s("c"),
                tool_name: s("bash"),
                args: json!({"command": "ls"}),
                result: None,
                status: ToolStatus::Running,
            },
        ],
        interrupted: true,
        error: Some(s("the model refuses")),
        ..message("m2", MessageRole::Assistant, "par", 2)
    }
}

fn conversation() -> Vec<Golden> {
    let from_slack = Message {
        sender_id: Some(s("u")),
        source: Some(MessageSource::Slack),
        parts: vec![Part::Image { image: s("https://h/i.png") }, Part::Text { text: s("hi"), part_id: None }],
        ..message("m1", MessageRole::User, "hi", 1)
    };
    vec![
        (
            r#"{"type":"init","payload":{"messages":[{"id":"m2","role":"assistant","content":"par","isComplete":false,
                "createdAt":2,"interrupted":true,"error":"the model refuses",
                "toolCalls":[{"id":"c","tool":"bash","args":{"command":"ls"},"status":"running","startedAt":1771581600000}],
                "parts":[{"type":"text","text":"par","partId":"p"},
                    {"type":"tool","toolCallId":"c","toolName":"bash","args":{"command":"ls"},"status":"running"}]}],
                "earlier":7,"config":{"previewTunnelUrl":"https://p"}},"seq":41,"epoch":3}"#,
            Frame {
                message: ServerMessage::Init {
                    messages: vec![interrupted()],
                    earlier: 7,
                    config: Some(InitConfig { preview_tunnel_url: s("https://p") }),
                    questions: Vec::new(),
                    approvals: Vec::new(),
                },
                seq: Some(41),
                seq_from: None,
                epoch: Some(3),
            },
        ),
        one(r#"{"type":"init","payload":{"messages":[]}}"#, empty_init()),
        numbered(
            r#"{"type":"message","payload":{"id":"m1","role":"user","content":"hi","isComplete":true,"createdAt":1,
                "senderId":"u","source":"slack","parts":[{"type":"image","image":"https://h/i.png"},
                {"type":"text","text":"hi"}]},"seq":1}"#,
            1,
            ServerMessage::Message(from_slack),
        ),
        numbered(
            r#"{"type":"message","payload":{"id":"m3","role":"assistant","content":"","isComplete":false,"createdAt":4},"seq":2}"#,
            2,
            ServerMessage::Message(message("m3", MessageRole::Assistant, "", 4)),
        ),
        one(
            r#"{"type":"error","payload":{"message":"Failed to send prompt"}}"#,
            ServerMessage::Error { message: s("Failed to send prompt") },
        ),
        one(r#"{"type":"pong"}"#, ServerMessage::Pong),
        one(
            r#"{"type":"title_update","payload":{"title":"Fix the login"}}"#,
            ServerMessage::TitleUpdate { title: s("Fix the login") },
        ),
        one(
            r#"{"type":"model_update","payload":{"modelId":"gpt-5.2"}}"#,
            ServerMessage::ModelUpdate { model_id: s("gpt-5.2") },
        ),
        one(
            r#"{"type":"file_edit","payload":{"path":"src/a.rs","diff":"+ x"}}"#,
            ServerMessage::FileEdit { path: s("src/a.rs"), diff: s("+ x") },
        ),
        one(
            r#"{"type":"artifact_created","payload":{"path":"out/report.md","title":"Report"}}"#,
            ServerMessage::ArtifactCreated { path: s("out/report.md"), title: s("Report") },
        ),
    ]
}

fn turns() -> Vec<Golden> {
    let token = |token: &str| ServerMessage::Token { message_id: s("m"), part_id: s("p"), token: s(token) };
    vec![
        numbered(
            r#"{"type":"token","payload":{"messageId":"m","partId":"p","token":"a"},"seq":7}"#,
            7,
            token("a"),
        ),
        (
            r#"{"type":"token","payload":{"messageId":"m","partId":"p","token":"abc"},"seq":9,"seqFrom":7}"#,
            Frame { message: token("abc"), seq: Some(9), seq_from: Some(7), epoch: None },
        ),
        numbered(
            r#"{"type":"text_part_complete","payload":{"messageId":"m","partId":"p","text":"abc"},"seq":10}"#,
            10,
            ServerMessage::TextPartComplete { message_id: s("m"), part_id: s("p"), text: s("abc") },
        ),
        numbered(
            r#"{"type":"message_complete","payload":{"messageId":"m"},"seq":11}"#,
            11,
            ServerMessage::MessageComplete { message_id: s("m") },
        ),
        numbered(
            r#"{"type":"message_cancelled","payload":{"messageId":"m"},"seq":12}"#,
            12,
            ServerMessage::MessageCancelled { message_id: Some(s("m")) },
        ),
        numbered(
            r#"{"type":"message_cancelled","payload":{},"seq":13}"#,
            13,
            ServerMessage::MessageCancelled { message_id: None },
        ),
    ]
}

fn tools() -> Vec<Golden> {
    let start = |message_id: Option<&str>, args: Value| ServerMessage::ToolStart {
        message_id: message_id.map(s),
        part_id: s("p"),
        tool_call_id: s("c"),
        tool: s("request_env_variables"),
        args,
    };
    let metadata = json!({"summary": [{"id": "x", "tool": "read", "state": {"status": "running", "title": "t"}}],
        "sessionId": "oc2"});
    vec![
        numbered(
            r#"{"type":"tool_start","payload":{"messageId":"m","partId":"p","toolCallId":"c",
                "tool":"request_env_variables","args":{"keys":[{"key":"A"}]}},"seq":20}"#,
            20,
            start(Some("m"), json!({"keys": [{"key": "A"}]})),
        ),
        one(
            r#"{"type":"tool_start","payload":{"partId":"p","toolCallId":"c","tool":"request_env_variables","args":{}}}"#,
            start(None, json!({})),
        ),
        numbered(
            r#"{"type":"tool_metadata","payload":{"toolCallId":"c","tool":"task","title":"Look around","metadata":
                {"summary":[{"id":"x","tool":"read","state":{"status":"running","title":"t"}}],"sessionId":"oc2"}},"seq":21}"#,
            21,
            ServerMessage::ToolMetadata {
                tool_call_id: s("c"),
                tool: s("task"),
                title: Some(s("Look around")),
                metadata: metadata.as_object().cloned(),
            },
        ),
        one(
            r#"{"type":"tool_metadata","payload":{"toolCallId":"c","tool":"task"}}"#,
            ServerMessage::ToolMetadata {
                tool_call_id: s("c"),
                tool: s("task"),
                title: None,
                metadata: None,
            },
        ),
        numbered(
            r#"{"type":"tool_end","payload":{"partId":"p","toolCallId":"c","tool":"bash","result":" ","durationMs":0},"seq":22}"#,
            22,
            ServerMessage::ToolEnd {
                part_id: s("p"),
                tool_call_id: s("c"),
                tool: s("bash"),
                result: s(" "),
                duration_ms: 0,
                status: None,
            },
        ),
        numbered(
            r#"{"type":"tool_end","payload":{"partId":"p","toolCallId":"c","tool":"read","result":"no such file","durationMs":3,"status":"error"},"seq":23}"#,
            23,
            ServerMessage::ToolEnd {
                part_id: s("p"),
                tool_call_id: s("c"),
                tool: s("read"),
                result: s("no such file"),
                duration_ms: 3,
                status: Some(ToolStatus::Error),
            },
        ),
    ]
}

fn sandbox() -> Vec<Golden> {
    let status = |status: WireStatus, message: &str| ServerMessage::Status { status, message: s(message) };
    vec![
        one(
            r#"{"type":"status","payload":{"status":"resuming","message":"Connecting to coding agent..."}}"#,
            status(WireStatus::Resuming, "Connecting to coding agent..."),
        ),
        numbered(
            r#"{"type":"status","payload":{"status":"running"},"seq":30}"#,
            30,
            status(WireStatus::Running, ""),
        ),
        numbered(
            r#"{"type":"preview_url","payload":{"url":"https://p"},"seq":31}"#,
            31,
            ServerMessage::PreviewUrl { url: s("https://p") },
        ),
        numbered(
            r#"{"type":"snapshot_result","payload":{"success":true,"snapshotId":"s1","target":"configuration"},"seq":32}"#,
            32,
            ServerMessage::SnapshotResult {
                success: true,
                snapshot_id: Some(s("s1")),
                error: None,
                target: SnapshotTarget::Configuration,
            },
        ),
        numbered(
            r#"{"type":"snapshot_result","payload":{"success":false,"error":"disk full","target":"session"},"seq":33}"#,
            33,
            ServerMessage::SnapshotResult {
                success: false,
                snapshot_id: None,
                error: Some(s("disk full")),
                target: SnapshotTarget::Session,
            },
        ),
        numbered(
            r#"{"type":"auto_start_output","payload":{"runId":"r1","entries":[{"name":"web","workspacePath":"repo",
                "cwd":"app","output":"up","exitCode":null,"logFile":"/tmp/web.log"},
                {"name":"Error","output":"no such command","exitCode":1}]},"seq":34}"#,
            34,
            ServerMessage::AutoStartOutput { run_id: s("r1"), entries: auto_start_entries() },
        ),
        numbered(r#"{"type":"session_paused","seq":35}"#, 35, ServerMessage::SessionPaused),
        numbered(r#"{"type":"session_resumed","seq":36}"#, 36, ServerMessage::SessionResumed),
    ]
}

fn auto_start_entries() -> Vec<AutoStartEntry> {
    vec![
        AutoStartEntry {
            name: s("web"),
            workspace_path: Some(s("repo")),
            cwd: Some(s("app")),
            output: s("up"),
            exit_code: None,
            log_file: Some(s("/tmp/web.log")),
        },
        AutoStartEntry {
            name: s("Error"),
            workspace_path: None,
            cwd: None,
            output: s("no such command"),
            exit_code: Some(1),
            log_file: None,
        },
    ]
}

fn git() -> Vec<Golden> {
    let change = |path: &str, index: &str, worktree: &str| GitChange {
        path: s(path),
        index_status: s(index),
        worktree_status: s(worktree),
    };
    let state = GitState {
        branch: s("main"),
        staged_changes: vec![change("from.ts -> to.ts", "R", ".")],
        unstaged_changes: vec![change("src/a b.ts", ".", "M")],
        untracked_files: vec![s("un tracked.txt")],
        conflicted_files: vec![s("conflict.ts")],
        commits: vec![GitCommit {
            sha: s("ab12"),
            message: s("first"),
            author: s("Ann"),
            date: s("2026-02-20T10:00:00+01:00"),
        }],
        ahead: Some(2),
        behind: None,
        is_busy: true,
        ..GitState::default()
    };
    let result = |action, code, message: &str, pr_url: Option<&str>| {
        let success = code == GitCode::Success;
        ServerMessage::GitResult(GitResult {
            action,
            success,
            code,
            message: s(message),
            pr_url: pr_url.map(s),
        })
    };
    vec![
        one(
            r#"{"type":"git_status","payload":{"branch":"main","detached":false,
                "stagedChanges":[{"path":"from.ts -> to.ts","indexStatus":"R","worktreeStatus":"."}],
                "unstagedChanges":[{"path":"src/a b.ts","indexStatus":".","worktreeStatus":"M"}],
                "untrackedFiles":["un tracked.txt"],"conflictedFiles":["conflict.ts"],
                "commits":[{"sha":"ab12","message":"first","author":"Ann","date":"2026-02-20T10:00:00+01:00"}],
                "ahead":2,"behind":null,"isShallow":false,"isBusy":true,"rebaseInProgress":false,"mergeInProgress":false}}"#,
            ServerMessage::GitStatus(state),
        ),
        one(
            r#"{"type":"git_result","payload":{"action":"get_status","success":false,"code":"UNKNOWN_ERROR","message":"Invalid workspace path"}}"#,
            result(GitAction::GetStatus, GitCode::UnknownError, "Invalid workspace path", None),
        ),
        one(
            r#"{"type":"git_result","payload":{"action":"create_pr","success":true,"code":"SUCCESS","message":"Pull request created","prUrl":"https://github.com/a/b/pull/1"}}"#,
            result(
                GitAction::CreatePr,
                GitCode::Success,
                "Pull request created",
                Some("https://github.com/a/b/pull/1"),
            ),
        ),
    ]
}

fn actions() -> Vec<Golden> {
    let waiting = |expires_at| OpenApproval {
        invocation_id: id(1),
        integration: s("linear"),
        action: s("create_issue"),
        risk_level: Risk::Write,
        mode_reason: None,
        params: json!({"title": "t"}),
        expires_at,
        two_person: false,
        first_approved_by: None,
        request_hash: Some(s("ab12")),
    };
    let request = |expires_at| ServerMessage::ActionApprovalRequest(waiting(expires_at));
    let completed = |outcome| ServerMessage::ActionCompleted { invocation_id: id(1), outcome };
    vec![
        numbered(
            r#"{"type":"action_approval_request","payload":{"invocationId":"00000000-0000-0000-0000-000000000001",
                "integration":"linear","action":"create_issue","riskLevel":"write","params":{"title":"t"},
                "expiresAt":"2026-02-20T10:00:00.000Z","requestHash":"ab12"},"seq":50}"#,
            50,
            request(DateTime::from_timestamp(1_771_581_600, 0)),
        ),
        one(
            r#"{"type":"action_approval_request","payload":{"invocationId":"00000000-0000-0000-0000-000000000001",
                "integration":"linear","action":"create_issue","riskLevel":"write","params":{"title":"t"},"expiresAt":"","requestHash":"ab12"}}"#,
            request(None),
        ),
        one(
            r#"{"type":"init","payload":{"messages":[],"approvals":[{"invocationId":"00000000-0000-0000-0000-000000000001",
                "integration":"linear","action":"create_issue","riskLevel":"write","modeReason":"definition_drift",
                "params":{"title":"t"},"expiresAt":"2026-02-20T10:00:00.000Z","requestHash":"ab12"}]}}"#,
            ServerMessage::Init {
                messages: Vec::new(),
                earlier: 0,
                config: None,
                questions: Vec::new(),
                approvals: vec![OpenApproval {
                    mode_reason: Some(s("definition_drift")),
                    ..waiting(DateTime::from_timestamp(1_771_581_600, 0))
                }],
            },
        ),
        numbered(
            r#"{"type":"action_approval_result","payload":{"invocationId":"00000000-0000-0000-0000-000000000001",
                "status":"denied","approvedBy":"00000000-0000-0000-0000-000000000002"},"seq":51}"#,
            51,
            ServerMessage::ActionApprovalResult {
                invocation_id: id(1),
                status: InvocationStatus::Denied,
                approved_by: id(2),
            },
        ),
        numbered(
            r#"{"type":"action_completed","payload":{"invocationId":"00000000-0000-0000-0000-000000000001",
                "status":"completed","result":null},"seq":52}"#,
            52,
            completed(ActionOutcome::Completed { result: Value::Null }),
        ),
        numbered(
            r#"{"type":"action_completed","payload":{"invocationId":"00000000-0000-0000-0000-000000000001",
                "status":"failed","error":"Linear API 500: no"},"seq":53}"#,
            53,
            completed(ActionOutcome::Failed { error: s("Linear API 500: no") }),
        ),
    ]
}

fn stream() -> Vec<Golden> {
    vec![
        one(r#"{"type":"gap","payload":{"from":8,"to":41}}"#, ServerMessage::Gap { from: 8, to: 41 }),
        numbered(
            r#"{"type":"turn_complete","payload":{"messageIds":["m2","m3"],"outcome":"cancelled"},"seq":60}"#,
            60,
            ServerMessage::TurnComplete {
                message_ids: vec![s("m2"), s("m3")],
                outcome: TurnOutcome::Cancelled,
            },
        ),
        numbered(
            r#"{"type":"queue","payload":{"length":2},"seq":61}"#,
            61,
            ServerMessage::Queue { length: 2 },
        ),
        numbered(
            r#"{"type":"question","payload":{"questionId":"que_1","kind":"question","questions":[{"question":"Which?",
                "header":"Pick","options":[{"label":"A","description":"a"}],"multiple":false,"custom":true}]},"seq":62}"#,
            62,
            ServerMessage::Question(question()),
        ),
        one(
            r#"{"type":"init","payload":{"messages":[],"questions":[{"questionId":"que_1","kind":"question","questions":[
                {"question":"Which?","header":"Pick","options":[{"label":"A","description":"a"}],"multiple":false,
                "custom":true}]}]}}"#,
            ServerMessage::Init {
                messages: Vec::new(),
                earlier: 0,
                config: None,
                questions: vec![question()],
                approvals: Vec::new(),
            },
        ),
        numbered(
            r#"{"type":"question_answered","payload":{"questionId":"que_1","answers":[["A"]],"by":"u1"},"seq":63}"#,
            63,
            ServerMessage::QuestionAnswered {
                question_id: s("que_1"),
                answers: vec![vec![s("A")]],
                by: Some(s("u1")),
            },
        ),
        numbered(
            r#"{"type":"question_answered","payload":{"questionId":"que_1","answers":[]},"seq":64}"#,
            64,
            ServerMessage::QuestionAnswered { question_id: s("que_1"), answers: Vec::new(), by: None },
        ),
    ]
}

fn question() -> OpenQuestion {
    OpenQuestion {
        question_id: s("que_1"),
        kind: QuestionKind::Question,
        questions: vec![QuestionItem {
            question: s("Which?"),
            header: s("Pick"),
            options: vec![QuestionOption { label: s("A"), description: s("a") }],
            multiple: false,
            custom: true,
        }],
    }
}
