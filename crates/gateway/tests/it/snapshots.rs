//! Who can save the files of a session, and who can start from the snapshot: nobody from another organization's.

use gate::Governance;
use proto::socket::SnapshotTarget;
use proto::{OrgId, SessionType};
use serde_json::{Value, json};
use store::{NewSession, NewSnapshot, SessionFilter};

use crate::harness::Setup;
use crate::live::{Live, On, Socket, is_status};
use crate::people::{Person, org, person};

/// Creates a session in the organization with this snapshot.
async fn with_snapshot(live: &Live, org: OrgId, id: &str) {
    let now = live.app.clock.now();
    let session = live.app.rng.uuid(now).into();
    let new = NewSession::new(session, org, SessionType::Coding, "local", now);
    live.app.store.create_session(new).await.unwrap();
    let owner = live.app.store.own_session(session, "test").await.unwrap().owner;
    let sandbox_provider = live.app.runtime.sandboxes.engine().to_owned();
    let (id, run_id) = (id.to_owned(), format!("run of {id}"));
    let new = NewSnapshot { id, target: SnapshotTarget::Session, sandbox_provider, run_id, at: now };
    live.app.store.record_snapshot(&owner, new).await.unwrap();
}

/// Engages the safety lock, which a restarted gateway knows at once.
async fn lock(live: &Live) {
    let app = &live.app;
    let governance = Governance {
        settings: app.config.gate_settings(),
        store: &app.store,
        clock: &app.clock,
        rng: &app.rng,
        operator: "host:tester",
    };
    governance.lock(true, "a test").await.unwrap();
}

fn from(snapshot: &str) -> Value {
    json!({"sessionType": "coding", "clientType": "web", "snapshotId": snapshot})
}

#[tokio::test]
async fn foreign_and_missing_snapshots_answer_alike() {
    let live = Live::start(On::Sqlite).await;
    let other = org(&live.app).await;
    with_snapshot(&live, other, "theirs").await;
    with_snapshot(&live, live.ada.org, "ours").await;
    let sessions = async || live.app.store.sessions(live.ada.org, SessionFilter::default(), 50, None).await;
    let before = sessions().await.unwrap().len();
    let ask = async |snapshot: &str, more: &Value| {
        let mut body = from(snapshot);
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, None).await
    };
    let managed = json!({"managedConfiguration": {}});
    live.add_repo("https://example.com/app.git").await;
    let unknown = ask("unknown", &json!({})).await;
    assert_eq!((unknown.0, &unknown.1["error"]), (404, &json!("This snapshot does not exist")));
    for id in ["theirs", "", "../../etc", "UNKNOWN"] {
        assert_eq!(ask(id, &json!({})).await, unknown, "{id}");
        assert_eq!(ask(id, &managed).await, unknown, "{id}");
    }
    assert_eq!(sessions().await.unwrap().len(), before, "a session was made");
    let made = live.app.store.configurations(live.ada.org).await.unwrap();
    assert_eq!(made.len(), 0, "a configuration was made");
    let (status, made) = ask("ours", &json!({})).await;
    assert_eq!((status, &made["hasSnapshot"]), (201, &json!(true)));
}

#[tokio::test]
async fn a_session_with_a_foreign_snapshot_does_not_boot() {
    let setup = Setup::sqlite();
    let data_dir = setup.data_dir();
    let live = Live::local(setup).await;
    let other = org(&live.app).await;
    with_snapshot(&live, other, "theirs").await;
    let now = live.app.clock.now();
    for half in [false, true] {
        let session = live.app.rng.uuid(now).into();
        let new = NewSession::new(session, live.ada.org, SessionType::Coding, "local", now);
        let new = NewSession { snapshot_id: Some("theirs".to_owned()), ..new };
        live.app.store.create_session(new).await.unwrap();
        // The state that a gateway leaves when it is killed before it has copied all files of the snapshot.
        let directory = data_dir.join("sandboxes/sandboxes").join(session.to_string());
        if half {
            std::fs::create_dir_all(directory.join("home.draft")).unwrap();
        }
        let mut socket = live.watch(&session.to_string()).await;
        let said = socket.until(|frame| is_status(frame, "error")).await.pop().unwrap();
        let message = said["payload"]["message"].as_str().unwrap();
        assert!(message.contains("the snapshot that this session starts from"), "{message}");
        assert_eq!((directory.exists(), directory.join("home").exists()), (half, false));
    }
}

#[tokio::test]
async fn a_snapshot_needs_a_member_who_may_change_the_session_and_a_provider_that_can() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let bob = person(&live.app, live.ada.org, proto::Role::Member).await;
    let mut theirs = live.try_watch(&session, &bob.token, "").await.unwrap();
    theirs.send(&json!({"type": "save_snapshot"})).await;
    let refused = theirs.until_type("error").await.pop().unwrap();
    assert_eq!(refused["payload"]["message"], "Not authorized to modify this session");
    let service = crate::people::service_token(&live.app, Some(live.ada.org));
    let mut nobody = live.try_watch(&session, &service, "").await.unwrap();
    nobody.send(&json!({"type": "save_snapshot"})).await;
    nobody.send(&json!({"type": "run_auto_start", "runId": "r"})).await;
    for _ in 0..2 {
        assert_eq!(nobody.until_type("error").await.pop().unwrap()["payload"]["message"], "Unauthorized");
    }
    let mut ours = live.running(&session).await;
    ours.send(&json!({"type": "save_snapshot"})).await;
    let result = ours.until_type("snapshot_result").await.pop().unwrap();
    assert!(result["seq"].is_number(), "everyone is told");
    let payload = &result["payload"];
    assert_eq!((&payload["success"], &payload["target"]), (&json!(false), &json!("session")));
    assert!(payload["error"].as_str().unwrap().contains("durable snapshots"), "{payload}");
    ours.send(&json!({"type": "run_auto_start", "runId": "r1", "commands": [{"name": "n", "command": "c"}]}))
        .await;
    let output = ours.until_type("auto_start_output").await.pop().unwrap();
    assert_eq!(output["payload"]["runId"], "r1");
    let entry = &output["payload"]["entries"][0];
    assert_eq!((&entry["name"], &entry["exitCode"]), (&json!("Error"), &json!(1)), "{entry}");
}

/// What the ledger has of a member's calls at a session: action, outcome and role.
async fn recorded(live: &Live, session: &str) -> Vec<[String; 3]> {
    let page = live.get(&format!("/v1/audit/events?case_id={session}")).await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let events = page["events"].as_array().unwrap().iter();
    let calls = events.filter(|event| event["lane_id"] == "session.change");
    calls.map(|event| [&event["action_type"], &event["outcome"], &event["role_id"]].map(text)).collect()
}

#[tokio::test]
async fn acts_of_members_in_a_sandbox_pass_the_gate_and_the_ledger() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    let save = async |socket: &mut Socket| {
        socket.send(&json!({"type": "save_snapshot"})).await;
        let result = socket.until_type("snapshot_result").await.pop().unwrap();
        result["payload"]["error"].as_str().unwrap().to_owned()
    };
    assert!(save(&mut socket).await.contains("durable snapshots"));
    let call = |action: &str, outcome: &str| [action, outcome, "OPERATOR"].map(str::to_owned);
    let first = [call("authz_decision", "allow"), call("tool_call", "failure")];
    assert_eq!(recorded(&live, &session).await, first);

    lock(&live).await;
    let live = live.restarted().await;
    let mut socket = live.running(&session).await;
    let refused = save(&mut socket).await;
    assert!(refused.contains("lock"), "{refused}");
    let denied = [call("authz_decision", "deny"), call("tool_call", "deny")];
    assert_eq!(recorded(&live, &session).await, [first, denied].concat());
}

#[tokio::test]
async fn a_member_saves_no_session_of_others_over_the_api() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let bob = person(&live.app, live.ada.org, proto::Role::Member).await;
    let call = |who: &Person, run: &str| {
        json!({
            "tool_name": "save_snapshot", "operation": "save_snapshot", "lane_id": "session.change",
            "actor": {"actor_type": "human", "actor_id": who.id}, "case_id": session, "run_id": run,
            "correlation_id": "why-1", "parameters": {},
        })
    };
    for (who, run, problem) in
        [(&bob, "run-bob-1", "Only whoever made it"), (&live.ada, "run-ada-1", "durable snapshots")]
    {
        let (_, answer) = live.ask("POST", "/v1/tool-calls", Some(&who.token), &call(who, run), None).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(problem), "{answer}");
    }
}
