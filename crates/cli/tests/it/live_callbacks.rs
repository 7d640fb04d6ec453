//! `save_snapshot` by a real agent in the sandbox that is frozen meanwhile: its connection is cut at every step of the
//! callback, and the gateway dies at every step. The snapshot is made once, and the agent gets the answer.

use std::io::Write as _;
use std::process::{Child, ChildStdin, Stdio};

use serde_json::Value;

use crate::deadline::Lines;
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

fn copies(real: &Real) -> usize {
    std::fs::read_dir(real.machine.data_dir().join("sandboxes/snapshots")).unwrap().count()
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
        assert_eq!(copies(&real), made.len(), "{point}: one copy for each call");
    }
}

const CUTTING_PROXY_SOURCE: &str = include_str!("../fixtures/cutting_proxy.mjs");
/// The ports inside of the proxy and the gateway.
const PROXY_PORTS: [&str; 2] = ["4099", "4098"];
/// Sends the callbacks of the agent's tool through the proxy. The agent reads the file of the tool when it starts,
/// and never answers a request that comes too early.
const DIVERT_PLUGIN_COMMAND: &str = r##"sed -i 's#process.env.PROLIFERATE_GATEWAY_URL#"http://127.0.0.1:4099"#' \
        ~/.proliferate/agent/tool/save_snapshot.js
    old=$(pgrep -f '^/opt/agent serve'); kill -9 $old
    until new=$(pgrep -f '^/opt/agent serve') && [ "$new" != "$old" ] && curl -sfm 1 http://127.0.0.1:4096/global/health
        do sleep 0.1; done"##;

/// A real agent whose callbacks pass a proxy in its sandbox. The gateway knows nothing of it.
struct Diverted {
    real: Real,
    proxy: Child,
    faults: ChildStdin,
    said: Lines,
}

impl Diverted {
    fn start() -> Self {
        let mut real = Real::start();
        drop(running(&real));
        let sandbox = real.sandbox();
        // A gateway that sees its agent restart would write the agent's files anew.
        assert_eq!(real.server.take().unwrap().stop(), 0);
        real.shell(&sandbox, DIVERT_PLUGIN_COMMAND);
        let node =
            ["node", "--input-type=module", "-e", CUTTING_PROXY_SOURCE, PROXY_PORTS[0], PROXY_PORTS[1]];
        let arguments = [&["sandbox", "exec", sandbox.as_str(), "--"], &node[..]].concat();
        let mut command = real.machine.command(&arguments);
        let mut proxy = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (faults, said) = (proxy.stdin.take().unwrap(), proxy.stdout.take().unwrap());
        real.server = Some(real.machine.serve());
        let mut diverted = Self { real, proxy, faults, said: Lines::of(said) };
        assert_eq!(diverted.line(), "ready");
        diverted
    }

    fn line(&mut self) -> String {
        self.said.next().unwrap_or_default().trim().to_owned()
    }

    /// Plans the faults of the next connections.
    fn plan(&mut self, faults: &str) {
        writeln!(self.faults, "{faults}").unwrap();
        assert_eq!(self.line(), "planned");
    }
}

impl Drop for Diverted {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

#[test]
fn a_snapshot_is_made_once_wherever_the_agents_connection_is_cut() {
    let mut diverted = Diverted::start();
    let mut socket = running(&diverted.real);
    let faults = ["to_gateway 60", "to_gateway 330", "request", "to_agent 0", "to_agent 120"];
    for (made, fault) in faults.iter().enumerate() {
        diverted.plan(fault);
        socket.prompt("please save the files");
        snapshot_of(&socket.until_type("turn_complete"));
        assert_eq!(diverted.line(), format!("cut {fault}"));
        assert_eq!(completed_calls(&diverted.real), made + 1, "{fault}");
        assert_eq!(copies(&diverted.real), made + 1, "{fault}: one copy for each call");
    }
}

/// The gateway dies in the middle of the call, and the first connection to the next one is cut too.
#[test]
fn a_snapshot_is_made_once_although_gateway_and_connection_fail() {
    let mut diverted = Diverted::start();
    for (made, point) in ["gate-claimed", "gate-executed", "gate-settled"].into_iter().enumerate() {
        diverted.real.restart_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        let mut socket = running(&diverted.real);
        diverted.plan("none,to_agent 0");
        socket.prompt("please save the files");
        dead(diverted.real.server.take().unwrap());
        diverted.real.server = Some(diverted.real.machine.serve());
        snapshot_of(&diverted.real.watch("").until_type("turn_complete"));
        assert_eq!(diverted.line(), "cut to_agent 0", "{point}");
        assert_eq!(completed_calls(&diverted.real), made + 1, "{point}");
        assert_eq!(copies(&diverted.real), made + 1, "{point}: one copy for each call");
    }
}
