//! `save_snapshot` by a real agent in the sandbox that is frozen meanwhile: its connection breaks at every step of the
//! callback, or the gateway dies there. The snapshot is made once, and the agent gets the answer.

use serde_json::{Value, json};

use crate::gate::dead;
use crate::live::{Real, Watching, tokens};

/// A proxy inside the sandbox, between the agent and the gateway. It cuts one connection as `/tmp/cut` says: after so
/// many bytes in one direction, or once the whole request has been passed on.
const PROXY: &str = r"
const net = require('net'), fs = require('fs');
net.createServer((client) => {
  let cut = {};
  try {
    cut = JSON.parse(fs.readFileSync('/tmp/cut'));
    fs.unlinkSync('/tmp/cut');
  } catch {}
  const gateway = net.connect(4098, '127.0.0.1');
  const end = () => {
    client.resetAndDestroy();
    gateway.destroy();
    fs.appendFileSync('/tmp/cuts', 'x');
  };
  const whole = (seen) => {
    const head = seen.indexOf('\r\n\r\n');
    const length = /content-length: (\d+)/i.exec(seen.subarray(0, head).toString());
    return head > 0 && seen.length >= head + 4 + Number(length[1]);
  };
  const pass = (from, to, direction) => {
    let seen = Buffer.alloc(0);
    from.on('data', (data) => {
      const left = cut.direction === direction ? cut.bytes - seen.length : Infinity;
      seen = Buffer.concat([seen, data]);
      if (data.length >= left) to.write(data.subarray(0, left), end);
      else if (cut.direction === 'request' && to === gateway && whole(seen)) to.write(data, end);
      else to.write(data);
    });
    from.on('end', () => to.end());
    from.on('error', () => to.destroy());
  };
  pass(client, gateway, 'toGateway');
  pass(gateway, client, 'toAgent');
}).listen(4099, '127.0.0.1');
";

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

/// Makes the agent call the proxy. It loads its tools only once, so it is started again while no gateway is there that
/// would write its files anew.
fn divert(real: &mut Real, sandbox: &str) {
    assert_eq!(real.server.take().unwrap().stop(), 0);
    let change = "cd ~/.proliferate/agent/tool; pkill -9 -f '^/opt/agent'; \
        sed -i 's|process.env.PROLIFERATE_GATEWAY_URL|\"http://127.0.0.1:4099\"|' save_snapshot.js; \
        until node -e \"fetch('http://127.0.0.1:4096/global/health').catch(() => process.exit(1))\"; do sleep 0.1; done; \
        grep -c 4099 save_snapshot.js";
    assert_eq!(real.shell(sandbox, change), "1");
    real.server = Some(real.machine.serve());
}

#[test]
fn a_snapshot_is_made_once_wherever_the_connection_of_the_agent_breaks() {
    let mut real = Real::start();
    drop(running(&real));
    let sandbox = real.sandbox();
    let listens = "proliferate services start --name proxy --command 'node /tmp/proxy.js'; \
        until node -e \"fetch('http://127.0.0.1:4099/health').catch(() => process.exit(1))\"; do sleep 0.1; done";
    real.shell(&sandbox, &format!("cat > /tmp/proxy.js <<'END'\n{PROXY}\nEND\n{listens}"));
    divert(&mut real, &sandbox);
    let mut socket = running(&real);
    let cuts = [
        json!({"direction": "toGateway", "bytes": 0}),
        json!({"direction": "toGateway", "bytes": 60}),
        json!({"direction": "toGateway", "bytes": 330}),
        json!({"direction": "request"}),
        json!({"direction": "toAgent", "bytes": 0}),
        json!({"direction": "toAgent", "bytes": 15}),
        json!({"direction": "toAgent", "bytes": 120}),
    ];
    let mut made = Vec::new();
    for cut in &cuts {
        real.shell(&sandbox, &format!("echo '{cut}' > /tmp/cut.new; mv /tmp/cut.new /tmp/cut"));
        socket.prompt("please save the files");
        made.push(snapshot_of(&socket.until_type("turn_complete")));
        assert_eq!(real.shell(&sandbox, "wc -c < /tmp/cuts"), made.len().to_string(), "{cut}");
        assert_eq!(completed_calls(&real), made.len(), "{cut}");
    }
    let last = real.sql("SELECT snapshot_id FROM sessions");
    assert_eq!(last.as_ref(), made.last());
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), cuts.len(), "one snapshot for each call");
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
