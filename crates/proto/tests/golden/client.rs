//! Messages from clients. The first block contains the exact bytes that the old client library was observed
//! to send.

use proto::socket::{AutoStartCommand, AutoStartMode, ClientMessage};

fn s(text: &str) -> String {
    text.to_owned()
}

pub(crate) fn goldens() -> Vec<(&'static str, ClientMessage)> {
    let mut all = observed();
    all.extend(from_specification());
    all
}

fn observed() -> Vec<(&'static str, ClientMessage)> {
    vec![
        (
            r#"{"type":"prompt","content":"p","images":["data:image/png;base64,AA"]}"#,
            ClientMessage::Prompt { content: s("p"), images: Some(vec![s("data:image/png;base64,AA")]) },
        ),
        (r#"{"type":"prompt","content":"q"}"#, ClientMessage::Prompt { content: s("q"), images: None }),
        (r#"{"type":"save_snapshot"}"#, ClientMessage::SaveSnapshot { message: None }),
        (
            r#"{"type":"run_auto_start","runId":"r1","mode":"test","commands":[{"name":"n","command":"c"}]}"#,
            ClientMessage::RunAutoStart {
                run_id: s("r1"),
                mode: Some(AutoStartMode::Test),
                commands: Some(vec![AutoStartCommand {
                    name: s("n"),
                    command: s("c"),
                    cwd: None,
                    workspace_path: None,
                }]),
            },
        ),
        (r#"{"type":"get_git_status"}"#, ClientMessage::GetGitStatus { workspace_path: None }),
        (
            r#"{"type":"get_git_status","workspacePath":"api"}"#,
            ClientMessage::GetGitStatus { workspace_path: Some(s("api")) },
        ),
        (
            r#"{"type":"git_commit","message":"m","files":[]}"#,
            ClientMessage::GitCommit {
                message: s("m"),
                include_untracked: false,
                files: Some(vec![]),
                workspace_path: None,
            },
        ),
        (
            r#"{"type":"git_create_pr","title":"t","baseBranch":"main"}"#,
            ClientMessage::GitCreatePr {
                title: s("t"),
                body: None,
                base_branch: Some(s("main")),
                workspace_path: None,
            },
        ),
        (r#"{"type":"cancel"}"#, ClientMessage::Cancel),
        (r#"{"type":"set_model","modelId":"gpt-5.2"}"#, ClientMessage::SetModel { model_id: s("gpt-5.2") }),
        (r#"{"type":"ping"}"#, ClientMessage::Ping),
    ]
}

fn from_specification() -> Vec<(&'static str, ClientMessage)> {
    vec![
        (r#"{"type":"get_status"}"#, ClientMessage::GetStatus),
        (r#"{"type":"get_messages"}"#, ClientMessage::GetMessages),
        (
            r#"{"type":"save_snapshot","message":"before lunch"}"#,
            ClientMessage::SaveSnapshot { message: Some(s("before lunch")) },
        ),
        (
            r#"{"type":"run_auto_start","runId":"r2"}"#,
            ClientMessage::RunAutoStart { run_id: s("r2"), mode: None, commands: None },
        ),
        (
            r#"{"type":"run_auto_start","runId":"r3","mode":"start",
                "commands":[{"name":"web","command":"npm run dev","cwd":"app","workspacePath":"repo"}]}"#,
            ClientMessage::RunAutoStart {
                run_id: s("r3"),
                mode: Some(AutoStartMode::Start),
                commands: Some(vec![AutoStartCommand {
                    name: s("web"),
                    command: s("npm run dev"),
                    cwd: Some(s("app")),
                    workspace_path: Some(s("repo")),
                }]),
            },
        ),
        (
            r#"{"type":"answer_question","questionId":"que_1","answers":[["A","B"],["a text"]]}"#,
            ClientMessage::AnswerQuestion {
                question_id: s("que_1"),
                answers: vec![vec![s("A"), s("B")], vec![s("a text")]],
            },
        ),
        (
            r#"{"type":"git_create_branch","branchName":"fix/login","workspacePath":"api"}"#,
            ClientMessage::GitCreateBranch { branch_name: s("fix/login"), workspace_path: Some(s("api")) },
        ),
        (
            r#"{"type":"git_commit","message":"m","includeUntracked":true,"files":["a b.ts"],"workspacePath":"."}"#,
            ClientMessage::GitCommit {
                message: s("m"),
                include_untracked: true,
                files: Some(vec![s("a b.ts")]),
                workspace_path: Some(s(".")),
            },
        ),
        (r#"{"type":"git_push"}"#, ClientMessage::GitPush { branch_name: None, workspace_path: None }),
        (
            r#"{"type":"git_push","branchName":"work","workspacePath":"api"}"#,
            ClientMessage::GitPush { branch_name: Some(s("work")), workspace_path: Some(s("api")) },
        ),
        (
            r#"{"type":"git_create_pr","title":"t","body":"b","baseBranch":"dev","workspacePath":"api"}"#,
            ClientMessage::GitCreatePr {
                title: s("t"),
                body: Some(s("b")),
                base_branch: Some(s("dev")),
                workspace_path: Some(s("api")),
            },
        ),
    ]
}
