//! Orphaned calls: claimed but never executed, or answered long ago. The tests insert the rows by hand, because no
//! instance can be made to die at exactly the right moment.

use proto::{RunKind, RunStatus, SessionId, ToolErrorCode};
use serde_json::{Value, json};
use store::{CallDetails, Change, Ended, GateWrite, JsonText, NewRun, Written};

use crate::call::Answer;
use crate::harness::Setup;
use crate::people::{sandbox_token, session};
use crate::world::{World, with, write_call};

/// The id of an instance that does not exist.
const DEAD_INSTANCE: &str = "an instance that died";

async fn worlds() -> [World; 2] {
    [World::on(Setup::sqlite()).await, World::on(Setup::postgres().await).await]
}

/// The database row of a call that `instance` has claimed.
async fn claimed(world: &World, call: &Value, instance: &str) -> NewRun {
    let text = |field: &str| call[field].as_str().unwrap().to_owned();
    // Make one real call, to learn how the gate records the caller of this token.
    let known = format!("known-{}", text("run_id"));
    world.call(&with(write_call(&known), "parameters", json!({}))).await;
    let known = world.run(&known).await;
    NewRun {
        org_id: world.team.org,
        run_id: text("run_id"),
        kind: RunKind::ToolGateway,
        lanes_version: known["policy_versions"]["lanes"].as_str().unwrap().to_owned(),
        roles_version: known["policy_versions"]["roles"].as_str().unwrap().to_owned(),
        parent_run_id: None,
        root_run_id: text("run_id"),
        run_name: None,
        case_id: Some(text("case_id")),
        session_id: None,
        correlation_id: Some(text("correlation_id")),
        actor: JsonText::of(&json!({"actor_type": "system", "actor_id": known["actor"]["actor_id"]})),
        role_id: "SERVICE".to_owned(),
        lane_id: Some(text("lane_id")),
        call: Some(CallDetails {
            tool: text("tool_name"),
            operation: text("operation"),
            request_hash: ledger::payload_hash(call).unwrap().to_string(),
            decision: JsonText::of(&json!({})),
            instance: instance.to_owned(),
        }),
        inputs: JsonText::of(&json!({"artifact_refs": []})),
        retry_count: 0,
        retry_reason: None,
        created_at: world.gateway.app.clock.now(),
        waits: false,
        end: None,
    }
}

async fn write(world: &World, run: NewRun) {
    let write = GateWrite::new(Change::Begin(Box::new(run)), Vec::new());
    let written = world.gateway.app.store.gate_write(write).await.unwrap();
    assert!(matches!(written, Written::Done), "{written:?}");
}

fn look_call(run: &str) -> Value {
    let call = with(write_call(run), "operation", json!("effect.look"));
    let call = with(call, "lane_id", json!("actions.read"));
    with(call, "parameters", json!({}))
}

/// The database has committed a claim, but the connection broke before the gateway received the confirmation.
#[tokio::test]
async fn a_claim_of_our_own_that_nobody_executes_is_not_waited_for() {
    for world in worlds().await {
        let call = write_call("run-00000001");
        let run = claimed(&world, &call, &world.gateway.app.process.instance).await;
        let before = world.effects();
        write(&world, run).await;
        for _ in 0..2 {
            let answer = world.call(&call).await;
            assert_eq!(answer.status, 502, "{}", answer.text());
            assert!(answer.text().contains("unknown"), "{}", answer.text());
        }
        assert_eq!(world.run("run-00000001").await["outcome"], "unknown");
        assert_eq!(world.effects(), before);
    }
}

#[tokio::test]
async fn a_read_orphaned_by_a_crash_is_repeated_unless_the_lock_forbids_it() {
    for world in worlds().await {
        let (asked, forbidden) = (look_call("run-00000001"), look_call("run-00000002"));
        for call in [&asked, &forbidden] {
            let run = claimed(&world, call, DEAD_INSTANCE).await;
            write(&world, run).await;
        }
        let answer = world.call(&asked).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let world = world.locked(true).await;
        let answer = world.call(&forbidden).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert_eq!(world.run("run-00000002").await["outcome"], "unknown");
    }
}

#[tokio::test]
async fn a_stored_answer_is_not_changed_by_later_decisions() {
    for world in worlds().await {
        let call = write_call("run-00000001");
        let first = world.call(&call).await;
        assert_eq!(first.status, 200, "{}", first.text());
        let world = world.locked(true).await;
        for _ in 0..2 {
            let again = world.call(&call).await;
            assert_eq!((again.status, again.json()), (200, first.json()));
        }
        assert_eq!(world.call(&write_call("run-00000002")).await.status, 403, "it is locked");
        assert_eq!((world.effects(), world.events("run-00000001").await.len()), (1, 2));
    }
}

/// A call of `save_snapshot` by the agent of a session.
struct Callback {
    session: SessionId,
    token: String,
}

impl Callback {
    /// The call and its run, which a gateway claimed before it died.
    async fn claimed(world: &World) -> (Self, NewRun) {
        let app = &world.gateway.app;
        let session = session(app, world.team.org).await;
        let token = sandbox_token(app, session).await;
        let place = json!([session.to_string(), "save_snapshot", "toolu_1"]).to_string();
        let id = format!("call_{}", &ledger::sha256(place.as_bytes()).to_string()[..40]);
        let named = with(write_call(&id), "tool_name", json!("save_snapshot"));
        let mut run = claimed(world, &with(named, "operation", json!("save_snapshot")), DEAD_INSTANCE).await;
        run.actor = JsonText::of(&json!({"actor_type": "agent", "actor_id": session.to_string()}));
        let body = json!({"tool": "save_snapshot", "tool_call_id": "toolu_1", "args": {}});
        run.call.as_mut().unwrap().request_hash = ledger::payload_hash(&body).unwrap().to_string();
        (Self { session, token }, run)
    }

    async fn send(&self, world: &World) -> Answer {
        let path = format!("/proliferate/{}/tools/save_snapshot", self.session);
        let body = json!({"tool_call_id": "toolu_1", "args": {}});
        world.gateway.post(&path, &body).bearer(&self.token).send().await
    }
}

/// On a 503, the tool inside the sandbox retries under the same id and would get the same answer for ever.
#[tokio::test]
async fn an_unreachable_tool_is_a_failure_for_the_agent() {
    for world in worlds().await {
        let (callback, mut run) = Callback::claimed(&world).await;
        let told = json!({"success": false, "result": "The store could not be reached."});
        run.end = Some(Ended {
            started_at: None,
            status: RunStatus::Failed,
            outcome: "The store could not be reached.".to_owned(),
            error: None,
            answer: Some(JsonText::of(&json!({
                "outcome": {"failed": ToolErrorCode::DependencyDown},
                "reply": {"outcome": "failure", "tool_name": "save_snapshot", "operation": "save_snapshot",
                    "run_id": run.run_id, "correlation_id": "toolu_1", "output_artifacts": []},
                "output": {"text": "The store could not be reached."},
            }))),
            response_hash: None,
            outputs: JsonText::of(&json!({"artifact_refs": []})),
            at: world.gateway.app.clock.now(),
        });
        write(&world, run).await;
        let answer = callback.send(&world).await;
        assert_eq!((answer.status, answer.json()), (200, told), "{}", answer.text());
    }
}

/// Snapshots are replayed by their run, so the retry of the callback executes the call again. The second retry gets the
/// stored result.
#[tokio::test]
async fn a_callback_whose_gateway_died_is_executed_again() {
    for world in worlds().await {
        let (callback, run) = Callback::claimed(&world).await;
        write(&world, run).await;
        for _ in 0..2 {
            let answer = callback.send(&world).await;
            assert_eq!((answer.status, &answer.json()["success"]), (200, &json!(false)), "{}", answer.text());
            assert!(
                answer.json()["result"].as_str().unwrap().contains("no running sandbox"),
                "{}",
                answer.text()
            );
        }
    }
}

/// An instance on this machine whose process is gone is dead, however recent its heartbeat.
#[tokio::test]
async fn calls_of_a_dead_process_on_this_machine_are_not_waited_for() {
    for world in worlds().await {
        let store = &world.gateway.app.store;
        let own = store.instance_processes().await.unwrap().remove(0).1;
        // Our own pid with another start time: a process that is gone and whose pid was reused.
        let (place, started) = own.rsplit_once(' ').unwrap();
        let gone = format!("{place} {}", started.parse::<u64>().unwrap() + 1);
        store.see_instance("neighbour", Some(&gone), world.gateway.app.clock.now()).await.unwrap();
        let (asks, writes) = (look_call("run-left-asks"), write_call("run-left-writes"));
        for call in [&asks, &writes] {
            let run = claimed(&world, call, "neighbour").await;
            write(&world, run).await;
        }
        let answer = world.call(&asks).await;
        assert_eq!(answer.status, 200, "it is asked again: {}", answer.text());
        let answer = world.call(&writes).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert!(answer.text().contains("unknown"), "{}", answer.text());
    }
}
