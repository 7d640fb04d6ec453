//! Pushes and pull requests are calls of the gate, whoever starts them: decided before anything reaches the forge,
//! recorded with their outcome, and refused in a way that makes git print the reason.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use testkit::Forge;

use crate::deadline::until;
use crate::gate::dead;
use crate::live::Watching;
use crate::live_forge::{Stage, ask, git};

const LANES: &str = include_str!("../../../../policy/lanes.yaml");
const ROLES: &str = include_str!("../../../../policy/roles.yaml");
const LOCKED: &str = "Denied by policy: the global safety lock is engaged";

/// A session on a private repository.
pub(crate) fn at_work(more: &[(&str, &str)]) -> (Stage, Watching) {
    let mut stage = Stage::with(more);
    stage.set_token(Forge::TOKEN);
    let socket = stage.work();
    (stage, socket)
}

impl Stage {
    /// All calls of the session, oldest first.
    fn all_calls(&self) -> Vec<Value> {
        let path = format!("/v1/runs?case_id={}&run_kind=tool_gateway", self.real.session);
        let mut runs = self.real.get(&path)["runs"].as_array().unwrap().clone();
        runs.reverse();
        runs
    }

    /// The calls of the session that change something, oldest first.
    pub(crate) fn calls(&self) -> Vec<Value> {
        let all = self.all_calls().into_iter();
        all.filter(|call| call["tool_versions"]["tool"] != "git.fetch").collect()
    }

    /// The reads at the forge, oldest first, once none is open.
    fn ended_reads(&self) -> Vec<Value> {
        let reads = || {
            let all = self.all_calls().into_iter();
            all.filter(|call| call["tool_versions"]["tool"] == "git.fetch").collect::<Vec<_>>()
        };
        until("the reads to end", || reads().iter().all(|read| read["status"] != "running"));
        reads()
    }

    fn events(&self, run: &Value) -> Vec<Value> {
        let path = format!("/v1/audit/events?run_id={}", run["run_id"].as_str().unwrap());
        self.real.get(&path)["events"].as_array().unwrap().clone()
    }

    /// The output of a push from the agent's shell, whether it succeeds or not.
    pub(crate) fn push(&self, arguments: &str) -> String {
        self.shell(&format!("git push {arguments} 2>&1 || echo FAILED"))
    }

    /// Makes the forge refuse updates of this branch.
    fn close_branch(&self, name: &str) {
        let hook = self.directory.path().join("ada/app.git/hooks/update");
        let text =
            format!("#!/bin/sh\n[ $1 != refs/heads/{name} ] || {{ echo this branch is closed; exit 1; }}\n");
        std::fs::write(&hook, text).unwrap();
        std::fs::set_permissions(hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        git(&self.directory.path().join("ada/app.git"), &["config", "receive.advertisePushOptions", "true"]);
    }

    pub(crate) fn commit(&self, message: &str) {
        self.shell(&format!("git commit -q --allow-empty -m '{message}'"));
    }

    pub(crate) fn verify(&self) {
        let verified = self.real.machine.run(&["audit", "verify"]);
        assert_eq!(verified.code, 0, "{} {}", verified.out, verified.err);
    }
}

fn kinds(events: &[Value]) -> Vec<(&str, &str)> {
    events.iter().map(|e| (e["action_type"].as_str().unwrap(), e["outcome"].as_str().unwrap())).collect()
}

#[test]
fn every_push_is_one_gate_call_and_the_safety_lock_stops_it() {
    let (stage, mut socket) = at_work(&[]);
    stage.commit("second");
    assert_eq!(ask(&mut socket, &json!({"type": "git_push"}))["code"], "SUCCESS");
    stage.commit("third");
    assert!(!stage.push("").contains("FAILED"));
    assert_eq!(stage.pushed("main"), "third");

    let calls = stage.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    let commits = ["HEAD~1", "HEAD"].map(|name| stage.shell(&format!("git rev-parse {name}")));
    let who = [("human", "ORG_ADMIN"), ("agent", "CODING_AGENT")];
    for ((call, who), commit) in calls.iter().zip(who).zip(commits) {
        assert_eq!((call["status"].as_str(), call["outcome"].as_str()), (Some("completed"), Some("success")));
        assert_eq!(call["tool_versions"]["tool"], "git.push");
        let actor =
            (call["actor"]["actor_type"].as_str().unwrap(), call["actor"]["role_id"].as_str().unwrap());
        assert_eq!((actor, &call["actor"]["lane_id"]), (who, &json!("git.publish")));
        let events = stage.events(call);
        assert_eq!(kinds(&events), [("authz_decision", "allow"), ("tool_call", "success")]);
        assert!(events.iter().all(|event| event["correlation_id"] == "refs/heads/main"), "{events:?}");
        // The repository and its ref updates are stored as an artifact of the case.
        let kept = events[1]["output_artifacts"][0]["artifact_id"].as_str().unwrap();
        let path = format!("/v1/artifacts/{kept}/content?case_id={}", stage.real.session);
        let data = stage.real.get(&path)["data"].clone();
        assert_eq!(data["outcome"], "updated");
        assert_eq!(data["repository"], format!("{}/ada/app", stage.forge.url()));
        let update = &data["updates"][0];
        assert_eq!((&update["ref"], &update["new"]), (&json!("refs/heads/main"), &json!(commit)));
    }
    // Larger than git's post buffer: git sends a probe first, and then a body without a length.
    stage.shell("head -c 3000000 /dev/urandom > large && git add large && git commit -qm large");
    assert!(!stage.push("").contains("FAILED"));
    assert_eq!((stage.pushed("main").as_str(), stage.calls().len()), ("large", 3));

    // A refusal by the forge reaches the user of git, the person who asked for the push, and the run.
    stage.close_branch("closed");
    let said = stage.push("origin HEAD:refs/heads/closed HEAD:refs/heads/open");
    assert!(said.contains("remote: this branch is closed") && said.contains("FAILED"), "{said}");
    let call = stage.calls().pop().unwrap();
    let told = (call["status"].as_str().unwrap(), call["error"]["message"].as_str().unwrap());
    assert_eq!(told, ("failed", "the forge updated 1 of 2 refs"));
    assert_eq!(stage.pushed("open"), "large");
    stage.shell("git branch closed");
    let refused = ask(&mut socket, &json!({"type": "git_push", "branchName": "closed"}));
    let told = (&refused["code"], &refused["message"]);
    assert_eq!(told, (&json!("UNKNOWN_ERROR"), &json!("this branch is closed")), "{refused}");
    push_options_are_refused(&stage);

    stage.shell("git push -q origin HEAD:refs/heads/topic && git branch topic");
    stage.shell("git config branch.topic.remote origin && git config branch.topic.merge refs/heads/topic");
    stage.shell("git fetch -q origin topic:refs/remotes/origin/topic");
    let machine = &stage.real.machine;
    assert_eq!(machine.json(&["policy", "lock", "--reason", "a drill"])["locked"], true);
    let locked = (0..100).any(|number| {
        stage.commit(&format!("late {number}"));
        stage.push("").contains(LOCKED)
    });
    assert!(locked, "the safety lock has no effect");
    let (posted, before) = (stage.forge.posted(), stage.pushed("main"));
    stage.shell("head -c 3000000 /dev/urandom > large && git add large && git commit -qm larger");
    let said = stage.push("");
    assert!(said.contains(&format!("remote: {LOCKED}")), "{said}");
    let denied = ask(&mut socket, &json!({"type": "git_push"}));
    assert_eq!((&denied["code"], &denied["message"]), (&json!("AUTH_FAILED"), &json!(LOCKED)), "{denied}");
    assert_eq!((stage.forge.posted(), stage.pushed("main")), (posted, before), "something reached the forge");
    let calls = stage.all_calls();
    for call in &calls[calls.len() - 2..] {
        assert_eq!(call["status"], "denied", "{call}");
        assert_eq!(kinds(&stage.events(call)), [("authz_decision", "deny"), ("tool_call", "deny")]);
    }
    no_pull_request_while_locked(&stage, &mut socket);
    assert_eq!(machine.json(&["policy", "unlock", "--reason", "over"])["locked"], false);
    assert!((0..100).any(|_| !stage.push("").contains("FAILED")), "it stays locked");
    assert_eq!(stage.pushed("main"), "larger");
    a_push_that_cannot_be_recorded_is_not_forwarded(&stage);
    a_shallow_push_has_its_own_code(&stage, &mut socket);
    stage.verify();
}

fn push_options_are_refused(stage: &Stage) {
    stage.commit("with options");
    let said = stage.push("-o merge_request.create");
    assert!(said.contains("remote: Push options are not supported"), "{said}");
    assert_eq!(stage.pushed("main"), "large");
}

fn no_pull_request_while_locked(stage: &Stage, socket: &mut Watching) {
    let posted = stage.forge.posted();
    stage.shell("git checkout -q topic");
    let denied = ask(socket, &json!({"type": "git_create_pr", "title": "A change"}));
    assert_eq!((&denied["code"], &denied["message"]), (&json!("AUTH_FAILED"), &json!(LOCKED)), "{denied}");
    let call = stage.all_calls().pop().unwrap();
    // A read that is still open since the last request is not judged again; then the pull request itself is denied.
    let tool = call["tool_versions"]["tool"].as_str().unwrap();
    assert!(["git.fetch", "git.create_pull_request"].contains(&tool), "{call}");
    assert_eq!(kinds(&stage.events(&call)), [("authz_decision", "deny"), ("tool_call", "deny")]);
    assert_eq!((stage.forge.posted(), stage.forge.pulls().len()), (posted, 0));
    stage.shell("git checkout -q main");
}

/// Pushes a branch with a shallow history that the forge does not have and that a deeper clone does not complete.
fn a_shallow_push_has_its_own_code(stage: &Stage, socket: &mut Watching) {
    stage.shell("git init -q /tmp/old && cd /tmp/old && git commit -q --allow-empty -m a");
    stage.shell("cd /tmp/old && git commit -q --allow-empty -m b");
    stage.shell("git fetch -q --depth 1 file:///tmp/old HEAD:refs/heads/shallow");
    let refused = ask(socket, &json!({"type": "git_push", "branchName": "shallow"}));
    assert_eq!(refused["code"], "SHALLOW_PUSH_FAILED", "{refused}");
    // git prints the same error to the agent.
    let printed = stage.push("origin shallow");
    assert!(printed.contains("shallow update not allowed"), "{printed}");
}

fn a_push_that_cannot_be_recorded_is_not_forwarded(stage: &Stage) {
    stage
        .real
        .sql("CREATE TRIGGER deaf BEFORE INSERT ON ledger_events BEGIN SELECT RAISE(ABORT, 'deaf'); END");
    stage.commit("unheard");
    let posted = stage.forge.posted();
    let said = stage.push("");
    assert!(said.contains("the call could not be recorded"), "{said}");
    assert_eq!(stage.forge.posted(), posted);
    stage.real.sql("DROP TRIGGER deaf");
    assert!(!stage.push("").contains("FAILED"));
    assert_eq!(stage.pushed("main"), "unheard");
}

#[test]
fn every_fetch_is_one_gate_call_and_the_safety_lock_stops_it() {
    let (stage, _socket) = at_work(&[]);
    let who =
        |read: &Value| ["role_id", "lane_id"].map(|field| read["actor"][field].as_str().unwrap().to_owned());
    let cloned = stage.ended_reads();
    assert_eq!(cloned.iter().map(who).collect::<Vec<_>>(), [["SYSTEM", "platform.system"]], "{cloned:?}");
    git(&stage.directory.path().join("ada/app.git"), &["branch", "fresh", "main"]);
    stage.shell("git fetch -q origin fresh");
    let fetched = stage.ended_reads();
    // A git that pauses between its requests for longer than a read stays open needs a second one.
    let reads: Vec<_> = fetched.iter().skip(1).map(who).collect();
    assert!(
        !reads.is_empty() && reads.iter().all(|read| read == &["CODING_AGENT", "git.read"]),
        "{fetched:?}"
    );
    for read in &fetched {
        assert_eq!(kinds(&stage.events(read)), [("authz_decision", "allow"), ("tool_call", "success")]);
    }
    assert_eq!(stage.real.machine.json(&["policy", "lock", "--reason", "a drill"])["locked"], true);
    until("the safety lock to stop a fetch", || {
        stage.shell("git fetch origin 2>&1 || true").contains(&format!("remote: {LOCKED}"))
    });
    let denied = stage.ended_reads().pop().unwrap();
    assert_eq!(kinds(&stage.events(&denied)), [("authz_decision", "deny"), ("tool_call", "deny")]);
    stage.verify();
}

#[test]
fn a_lane_that_is_closed_to_agents_lets_people_push_and_open_pull_requests() {
    let directory = tempfile::tempdir().unwrap();
    let agents = "roles: [SETUP_AGENT, CODING_AGENT, AUTOMATION_AGENT, OPERATOR, ORG_ADMIN]";
    let example = "        - {role: CODING_AGENT, tool: git.push, risk: write, scope: [case_id, run_id]}\n";
    assert!(LANES.contains(agents) && LANES.contains(example));
    let (before, publish) = LANES.split_once("- lane_id: git.publish").unwrap();
    let publish = publish.replacen(agents, "roles: [OPERATOR, ORG_ADMIN]", 1).replacen(example, "", 1);
    let lanes = format!("{before}- lane_id: git.publish{publish}");
    std::fs::write(directory.path().join("lanes.yaml"), lanes).unwrap();
    let roles = ROLES.lines().map(|line| {
        if line.contains("platform.") { line.replace("git.publish, ", "") } else { line.to_owned() }
    });
    std::fs::write(directory.path().join("roles.yaml"), roles.collect::<Vec<_>>().join("\n")).unwrap();
    let (stage, mut socket) = at_work(&[("PROLIFERATE_POLICY_DIR", directory.path().to_str().unwrap())]);

    stage.shell("git checkout -q -b work && git commit -q --allow-empty -m change");
    let said = stage.push("origin work");
    assert!(said.contains("remote: Denied by policy: the lane is not open to the caller's role"), "{said}");
    assert_eq!(stage.forge.posted(), [""; 0]);
    let made = ask(&mut socket, &json!({"type": "git_create_pr", "title": "A change", "body": "why"}));
    assert_eq!(made["code"], "SUCCESS", "{made}");
    assert_eq!(stage.pushed("work"), "change");
    let calls = stage.calls();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all: Vec<_> = calls
        .iter()
        .map(|call| text(&call["tool_versions"]["tool"]) + " " + &text(&call["status"]))
        .collect();
    assert_eq!(all, ["git.push denied", "git.push completed", "git.create_pull_request completed"]);
    assert_eq!(kinds(&stage.events(&calls[2])), [("authz_decision", "allow"), ("tool_call", "success")]);
    assert_eq!(calls[2]["correlation_id"], "work");

    // The sandbox's own token opens no pull request, in whatever lane.
    let token = stage.shell("echo $SANDBOX_MCP_AUTH_TOKEN");
    let call = |tool: &str, lane: &str| {
        json!({
            "tool_name": tool, "operation": tool, "lane_id": lane, "case_id": stage.real.session,
            "actor": {"actor_type": "agent", "actor_id": stage.real.session}, "run_id": format!("by-hand-{lane}"),
            "parameters": {"repository": format!("{}/ada/app", stage.forge.url()), "title": "t", "body": "", "head": "work", "base": "main"},
        })
    };
    for lane in ["git.publish", "actions.write", "platform.coding"] {
        let client = reqwest::blocking::Client::builder().no_proxy().build().unwrap();
        let request = client.post(stage.real.server().url("/v1/tool-calls")).bearer_auth(&token);
        let body = call("git.create_pull_request", lane).to_string();
        let answer = request.header("content-type", "application/json").body(body).send().unwrap();
        assert_eq!(answer.status().as_u16(), 403, "{lane}");
    }
    assert_eq!(stage.forge.pulls().len(), 1);
    stage.verify();
}

#[test]
fn a_push_interrupted_by_a_gateway_crash_is_unknown_and_not_retried() {
    let (mut stage, socket) = at_work(&[]);
    drop(socket);
    // The first call of a push is the read of the forge's refs.
    for (point, action, reached) in
        [("gate-claimed", "1*off->return", false), ("push-forwarded", "return", true)]
    {
        stage.real.restart_with(&[("FAILPOINTS", &format!("{point}={action}"))]);
        let mut socket = stage.real.watch("");
        socket.until(|frame| frame["type"] == "status" && frame["payload"]["status"] == "running");
        stage.commit(point);
        let posted = stage.forge.posted().len();
        assert!(stage.push("").contains("FAILED"));
        dead(stage.real.server.take().unwrap());
        stage.real.server = Some(stage.real.machine.serve());
        assert_eq!(stage.pushed("main") == point, reached, "{point}");
        let last = || stage.calls().pop().unwrap();
        until(&format!("the push to be given up after {point}"), || last()["outcome"] == "unknown");
        assert_eq!(kinds(&stage.events(&last())), [("authz_decision", "allow"), ("tool_call", "failure")]);
        assert_eq!(stage.forge.posted().len() - posted, usize::from(reached), "{point}: it was done again");
    }
    stage.verify();
}
