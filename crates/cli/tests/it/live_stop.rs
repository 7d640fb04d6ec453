//! `stop` with real sandboxes: files are saved before the sandbox ends, even if the gateway dies meanwhile, and the
//! next prompt continues with them. Agents also continue after the gateway itself stops.

use std::process::Stdio;

use serde_json::json;

use crate::deadline::{Lines, finish};
use crate::gate::dead;
use crate::live_expiry::{InTheWay, answer, info, lasting, says};

#[test]
fn a_stopped_session_continues_with_its_files_and_its_memory() {
    let real = lasting("3600");
    let mut socket = real.watch("");
    answer(&mut socket, "please write it");
    let stopped = real.machine.run(&["session", "stop", &real.session, "--url", &real.server().url("")]);
    assert_eq!(stopped.code, 0, "{}", stopped.err);
    says(&mut socket, "stopped");
    let now = info(&real);
    assert_eq!((&now["status"], real.sandboxes()), (&json!("stopped"), Vec::new()), "{now}");
    assert_eq!(real.sql("SELECT outcome FROM sessions").as_deref(), Some("completed"));
    // A second stop has nothing to save, and loses nothing.
    real.post(&format!("/proliferate/{}/stop", real.session), &json!({}));
    assert!(answer(&mut socket, "please read it").contains("precious"));
}

#[test]
fn a_session_that_cannot_be_saved_keeps_running_until_its_files_are_discarded() {
    let real = lasting("3600");
    let mut socket = real.watch("");
    answer(&mut socket, "please write it");
    let in_the_way = InTheWay::of(real.machine.data_dir().join("sandboxes/snapshots"));
    let path = format!("/proliferate/{}/stop", real.session);
    assert_eq!(real.try_post(&path, &json!({})), 409);
    let stop = |more: &[&str]| {
        let url = real.server().url("");
        real.machine.run(&[&["session", "stop", &real.session, "--url", &url], more].concat())
    };
    let refused = stop(&[]);
    assert_eq!(refused.code, 1, "{}", refused.out);
    assert!(refused.err.contains("not stopped") && refused.err.contains("--discard"), "{}", refused.err);
    assert!(answer(&mut socket, "please read it").contains("precious"));
    let discarded = stop(&["--discard"]);
    assert_eq!(discarded.code, 0, "{}", discarded.err);
    drop(in_the_way);
    assert_eq!(real.sandboxes(), [""; 0]);
    assert!(!answer(&mut socket, "please read it").contains("precious"));
}

#[test]
fn files_survive_a_gateway_that_dies_in_the_middle_of_a_stop() {
    for point in ["sandbox-saved", "sandbox-retired"] {
        let mut real = lasting("3600");
        real.restart_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        answer(&mut real.watch(""), "please write it");
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let url = real.server().url(&format!("/proliferate/{}/stop", real.session));
        assert!(client.post(url).bearer_auth(real.key()).send().is_err(), "{point}");
        dead(real.server.take().unwrap());
        real.server = Some(real.machine.serve());
        assert!(answer(&mut real.watch(""), "please read it").contains("precious"), "{point}");
    }
}

#[test]
fn stopping_the_gateway_lists_running_agents_and_can_end_them() {
    let mut real = lasting("3600");
    answer(&mut real.watch(""), "please write it");
    real.server.take().unwrap().stop();
    let stop = |arguments: &[&str]| {
        let mut command =
            real.machine.command(&[&["up", "--json", "--listen", "127.0.0.1:0"], arguments].concat());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = Lines::of(child.stdout.take().unwrap()).next();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        String::from_utf8(finish("the gateway", child).stderr).unwrap()
    };
    let running = || {
        let all = real.machine.json(&["sandbox", "ls"]);
        all.as_array().unwrap().iter().filter(|one| one["state"] == "running").count()
    };
    let said = stop(&[]);
    assert!(said.contains("agents keep running") && said.contains(&real.session), "{said}");
    assert!(said.contains("sandbox halt --all"), "{said}");
    assert_eq!(running(), 1);
    let said = stop(&["--stop-agents"]);
    assert!(said.contains("ended the agents"), "{said}");
    assert_eq!((running(), real.sandboxes().len()), (0, 1), "its files are kept");
    assert!(!stop(&[]).contains("keep running"));

    real.server = Some(real.machine.serve());
    assert!(answer(&mut real.watch(""), "please read it").contains("precious"));
    let halted = real.machine.json(&["sandbox", "halt", "--all"]);
    assert_eq!(halted["ended"], json!([real.session]));
}
