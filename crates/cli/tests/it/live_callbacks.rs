//! `save_snapshot` by a real agent in the sandbox that is frozen meanwhile: the gateway dies at every step of the callback.
//! The snapshot is made once, and the agent gets the answer.

use serde_json::Value;

use crate::gate::dead;
use crate::live::{Real, Watching, tokens};

fn running(real: &Real) -> Watching {
    let mut socket = real.watch("");
    socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
    socket
}

/// The calls of the session, each of which must have succeeded.
fn completed_calls(real: &Real) -> usize {
    let runs = real.get(&format!("/v1/runs?limit=200&run_kind=tool_gateway&case_id={}", real.session));
    let runs = runs["runs"].as_array().unwrap().clone();
    assert!(runs.iter().all(|run| run["status"] == "completed"), "{runs:?}");
    runs.len()
}

fn snapshot_of(frames: &[Value]) -> String {
    let text = tokens(frames);
    let saved = text.strip_prefix("It said: Snapshot saved to session: ");
    saved.unwrap_or_else(|| panic!("{text} {frames:?}")).to_owned()
}

#[test]
fn a_snapshot_is_made_once_wherever_the_gateway_dies() {
    let mut real = Real::start();
    drop(running(&real));
    let mut made = Vec::new();
    for point in ["gate-decided", "gate-claimed", "gate-executed", "gate-settled"] {
        real.restart_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        let mut socket = running(&real);
        socket.prompt("please save the files");
        dead(real.server.take().unwrap());
        real.server = Some(real.machine.serve());
        made.push(snapshot_of(&real.watch("").until_type("turn_complete")));
        assert_eq!(completed_calls(&real), made.len(), "{point}");
        let copies = std::fs::read_dir(real.machine.data_dir().join("sandboxes/snapshots")).unwrap();
        assert_eq!(copies.count(), made.len(), "{point}: one copy for each call");
    }
}
