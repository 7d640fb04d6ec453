//! Agents that somebody else runs: the gateway names each capability that their provider lacks, and keeps working.

use serde_json::json;

use crate::live::{Live, On};

#[tokio::test]
async fn git_and_snapshots_name_the_missing_capability_and_the_session_continues() {
    let live = Live::echoing(On::Sqlite).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    for (message, action) in [
        (json!({"type": "get_git_status"}), "get_status"),
        (json!({"type": "git_create_branch", "branchName": "x"}), "create_branch"),
        (json!({"type": "git_commit", "message": "x"}), "commit"),
        (json!({"type": "git_push"}), "push"),
        (json!({"type": "git_create_pr", "title": "x"}), "create_pr"),
    ] {
        socket.send(&message).await;
        let said = socket.until_type("git_result").await.pop().unwrap()["payload"].clone();
        assert_eq!((&said["action"], &said["success"]), (&json!(action), &json!(false)), "{said}");
        assert_eq!(said["message"], "the attach provider has no access to files");
    }
    socket.send(&json!({"type": "save_snapshot"})).await;
    let said = socket.until_type("snapshot_result").await.pop().unwrap()["payload"].clone();
    assert_eq!(said["success"], false, "{said}");
    assert!(said["error"].as_str().unwrap().contains("durable snapshots"), "{said}");
    socket.prompt("hello").await;
    socket.until_type("turn_complete").await;
    let status = live.status(&session).await;
    assert_eq!(status["status"], "running", "{status}");
}
