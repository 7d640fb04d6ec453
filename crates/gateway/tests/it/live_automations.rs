//! Runs of automations with a fake agent and a clock that the tests move: reports, deadlines, questions that nobody answers,
//! and sessions that end before their run does.

use std::time::Duration;

use clock::Clock;
use proto::Role;
use serde_json::{Value, json};
use testkit::Turn;

use crate::harness::{Setup, within};
use crate::live::{Live, On, id, on_both};
use crate::logs::Captured;
use crate::people::{person, sandbox_token, some_uuid, user_token};

on_both! {
    a_report_counts_once_and_only_from_the_session_of_its_run
    an_unanswered_question_makes_the_run_need_a_human
}

/// A gateway with an automation that has a run, whose agent has the prompt.
struct World {
    live: Live,
    clock: Clock,
    automation: String,
    run: String,
    session: String,
    turn: Turn,
}

impl World {
    async fn start(setup: Setup) -> Self {
        let clock = Clock::manual(Clock::system().now());
        let live = Live::with(setup.clock(&clock)).await;
        let automation = automation(&live).await;
        let started = live.post(&format!("/v1/automations/{automation}/runs"), &json!({})).await;
        let run = started["id"].as_str().unwrap().to_owned();
        let turn = live.next_turn().await;
        let mut world = Self { live, clock, automation, run, session: String::new(), turn };
        let running = world.until(|run| run["status"] == "running").await;
        running["sessionId"].as_str().unwrap().clone_into(&mut world.session);
        world
    }

    async fn restarted(self) -> Self {
        Self { live: self.live.restarted().await, ..self }
    }

    /// Sends a request with a new token, because the clock moves by more than the lifetime of one.
    async fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let token = user_token(&self.live.app, self.live.ada.id, self.live.ada.org);
        self.live.ask(method, path, Some(&token), body, None).await
    }

    async fn run(&self) -> Value {
        self.ask("GET", &format!("/v1/automation-runs/{}", self.run), &Value::Null).await.1
    }

    /// Waits until the run is so.
    async fn until(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let seen = async {
            loop {
                let run = self.run().await;
                if is_so(&run) {
                    return run;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let Ok(run) = tokio::time::timeout(Duration::from_mins(1), seen).await else {
            panic!("the run stays as it is: {}", self.run().await);
        };
        run
    }

    async fn until_session_is(&self, status: &str) {
        let path = format!("/proliferate/{}", self.session);
        within(async { while self.ask("GET", &path, &Value::Null).await.1["status"] != status {} }).await;
    }

    /// A tool call of a session's agent.
    async fn call(&self, session: &str, tool: &str, args: &Value) -> (bool, String) {
        let body = json!({"tool_call_id": some_uuid().to_string(), "args": args});
        let path = format!("/proliferate/{session}/tools/{tool}");
        let token = sandbox_token(&self.live.app, id(session)).await;
        let (status, answer) = self.live.ask("POST", &path, Some(&token), &body, None).await;
        assert_eq!(status, 200, "{answer}");
        (answer["success"].as_bool().unwrap(), answer["result"].as_str().unwrap().to_owned())
    }

    fn report(&self) -> Value {
        json!({"run_id": self.run, "completion_id": format!("run:{}:completion", self.run),
            "outcome": "succeeded", "summary_markdown": "# Done"})
    }

    /// Lets the agent ask `que_1`, and waits until the run shows it.
    async fn ask_a_question(&self) {
        self.turn.begin();
        self.turn.ask("que_1");
        self.until(|run| run["waitingFor"] == "question").await;
    }
}

async fn automation(live: &Live) -> String {
    let admin = person(&live.app, live.ada.org, Role::Admin).await.token;
    let body = json!({"name": "triage", "instructions": "Look at the issue."});
    let (status, made) = live.ask("POST", "/v1/automations", Some(&admin), &body, None).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_str().unwrap().to_owned()
}

/// Starts a run, and returns the session that is created for it.
async fn session_of_run(live: &Live) -> String {
    let automation = automation(live).await;
    live.post(&format!("/v1/automations/{automation}/runs"), &json!({})).await;
    within(async {
        loop {
            let runs = live.get(&format!("/v1/automations/{automation}/runs")).await;
            if let Some(session) = runs["runs"][0]["sessionId"].as_str() {
                return session.to_owned();
            }
        }
    })
    .await
}

fn waits(run: &Value) -> Vec<&str> {
    let events = run["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "waiting");
    events.map(|event| event["detail"].as_str().unwrap()).collect()
}

async fn a_report_counts_once_and_only_from_the_session_of_its_run(on: On) {
    let world = World::start(on.setup().await).await;
    let app = &world.live.app;
    // An agent of another automation, one of a person's session, and one in another mode try to end the run.
    let stranger = world.live.session_with(&json!({"clientType": "automation"})).await;
    let stranger_token = sandbox_token(app, id(&stranger)).await;
    let (done, text) = world.call(&stranger, "automation_complete", &world.report()).await;
    assert!(!done && text.contains("Run not found"), "{text}");
    let coding = world.live.session().await;
    let (done, text) = world.call(&coding, "automation_complete", &world.report()).await;
    assert!(!done && text.contains("only available in automation sessions"), "{text}");
    let path = format!("/proliferate/{}/tools/automation_complete", world.session);
    let body = json!({"tool_call_id": "call_1", "args": world.report()});
    assert_eq!(world.live.ask("POST", &path, Some(&stranger_token), &body, None).await.0, 403);
    assert_eq!(world.run().await["status"], "running");

    // The agent has said something, but has not finished its message.
    world.turn.begin();
    world.turn.say("I am about to report.");
    let mut socket = world.live.watch(&world.session).await;
    socket.until(|frame| frame.to_string().contains("about to report")).await;
    let (done, text) = world.call(&world.session, "automation.complete", &world.report()).await;
    assert!(done, "{text}");
    // All of it is settled when the agent has the reply, and not when its session ends.
    let ended = world.run().await;
    assert_eq!(
        (&ended["status"], &ended["completion"]["summaryMarkdown"]),
        (&json!("succeeded"), &json!("# Done"))
    );
    let events = world.live.get(&format!("/v1/automations/{}/trigger-events", world.automation)).await;
    assert_eq!(events["triggerEvents"][0]["status"], "completed");
    let record = app.store.session_any(id(&world.session)).await.unwrap().unwrap();
    assert_eq!(
        (record.outcome, record.summary.as_deref()),
        (Some(proto::Outcome::Succeeded), Some("# Done"))
    );
    let saved = app.store.transcript(id(&world.session), 65_536).await.unwrap();
    let last = saved.messages.last().unwrap();
    assert_eq!((last.content.as_str(), last.is_complete), ("I am about to report.", false));
    let shown = world.live.init(&world.session).await["payload"]["messages"].as_array().unwrap().clone();
    let same = shown.iter().filter(|message| message["content"] == "I am about to report.").count();
    assert_eq!(same, 1, "a client sees the open message once: {shown:?}");

    let (done, _) = world.call(&world.session, "automation_complete", &world.report()).await;
    assert!(done, "the same report again");
    let mut renamed = world.report();
    for (name, alias) in [("run_id", "runId"), ("completion_id", "completionId")] {
        let value = renamed.as_object_mut().unwrap().remove(name).unwrap();
        renamed[alias] = value;
    }
    let (done, text) = world.call(&world.session, "automation_complete", &renamed).await;
    assert!(done, "the same report with other names: {text}");
    for (field, value, why) in [
        ("outcome", json!("failed"), "other contents"),
        ("completion_id", json!("another"), "another completion_id"),
    ] {
        let mut other = world.report();
        other[field] = value;
        let (done, text) = world.call(&world.session, "automation_complete", &other).await;
        assert!(!done && text.contains(why), "{text}");
    }
    let ended = world.run().await;
    let ends =
        ended["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "completion").count();
    assert_eq!((&ended["status"], ends), (&json!("succeeded"), 1), "{ended}");
    // The session has not ended so far, because the clock stood still.
    assert_eq!(world.live.status(&world.session).await["status"], "running");
    world.clock.advance(Duration::from_secs(4));
    world.until_session_is("stopped").await;
}

async fn an_unanswered_question_makes_the_run_need_a_human(on: On) {
    let world = World::start(on.setup().await).await;
    world.ask_a_question().await;
    // Far beyond the deadline of a run, which stands still.
    world.clock.advance(Duration::from_hours(7 * 24 - 1));
    let world = world.restarted().await;
    assert_eq!(world.run().await["status"], "running");
    world.clock.advance(Duration::from_hours(2));
    let world = world.restarted().await;
    let ended = world.until(|run| run["status"] != "running").await;
    assert_eq!(
        (&ended["status"], &ended["statusReason"]),
        (&json!("needs_human"), &json!("nobody answered the agent's question"))
    );
    assert_eq!(waits(&ended).len(), 2, "the begin and the end of the wait: {ended}");
    let (status, settled) = world
        .ask("POST", &format!("/v1/automation-runs/{}/resolve", world.run), &json!({"outcome": "failed"}))
        .await;
    assert_eq!((status, &settled["status"]), (200, &json!("failed")), "a person settles it: {settled}");
}

#[tokio::test]
async fn the_deadline_of_a_run_stands_still_while_its_agent_waits() {
    let world = World::start(Setup::sqlite()).await;
    let due = world.run().await["deadlineAt"].as_str().unwrap().to_owned();
    world.ask_a_question().await;
    world.clock.advance(Duration::from_hours(30));
    let path = format!("/proliferate/{}/questions/que_1/answer", world.session);
    let (status, answer) = world.ask("POST", &path, &json!({"answers": [["A"]]})).await;
    assert_eq!(status, 200, "{answer}");
    let going_on = world.until(|run| run["waitingFor"].is_null()).await;
    assert_eq!((&going_on["status"], waits(&going_on)), (&json!("running"), vec!["question", "answered"]));
    let time = |text: &str| chrono::DateTime::parse_from_rfc3339(text).unwrap();
    let moved = time(going_on["deadlineAt"].as_str().unwrap()) - time(&due);
    assert_eq!(moved.num_hours(), 30);
    world.clock.advance(Duration::from_hours(3));
    let ended = world.until(|run| run["status"] != "running").await;
    assert_eq!(ended["status"], "timed_out");
    world.until_session_is("stopped").await;
}

#[tokio::test]
async fn a_run_ends_with_its_session() {
    let world = World::start(Setup::sqlite()).await;
    let admin = person(&world.live.app, world.live.ada.org, Role::Admin).await.token;
    let path = format!("/proliferate/{}/stop", world.session);
    let (status, answer) = world.live.ask("POST", &path, Some(&admin), &json!({}), None).await;
    assert_eq!(status, 200, "{answer}");
    let ended = world.until(|run| run["status"] != "running").await;
    assert_eq!(
        (&ended["status"], &ended["statusReason"]),
        (&json!("failed"), &json!("its session is stopped: stopped"))
    );
}

/// The database cancels the run in the moment in which its session is stored.
#[tokio::test]
async fn a_run_that_is_cancelled_while_its_session_is_created_prompts_no_agent() {
    let live = Live::with(Setup::postgres().await).await;
    let automation = automation(&live).await;
    let cancel = "CREATE FUNCTION cancel() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE automation_runs SET status = 'cancelled', completed_at = queued_at; RETURN NEW; END $$;
        CREATE TRIGGER cancel AFTER INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION cancel()";
    live.gateway.setup.sql(cancel).await;
    let started = live.post(&format!("/v1/automations/{automation}/runs"), &json!({})).await;
    let admin = person(&live.app, live.ada.org, Role::Admin).await.token;
    let deleted = async {
        loop {
            let path = "/v1/audit/events?limit=1000";
            let (_, found) = live.ask("GET", path, Some(&admin), &Value::Null, None).await;
            let events = found["events"].as_array().unwrap().iter().map(Value::to_string);
            if events.into_iter().any(|event| event.contains("session") && event.contains("delete")) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(deleted).await;
    let run = live.get(&format!("/v1/automation-runs/{}", started["id"].as_str().unwrap())).await;
    assert_eq!((&run["status"], &run["sessionId"]), (&json!("cancelled"), &Value::Null), "{run}");
    let (_, sessions) = live.ask("GET", "/proliferate/sessions", Some(&admin), &Value::Null, None).await;
    assert_eq!(sessions["sessions"], json!([]), "{sessions}");
}

/// The sessions of cancelled runs are ended by the runner; until then the automation stays.
#[tokio::test]
async fn an_automation_can_be_removed_once_the_sessions_of_its_cancelled_runs_have_ended() {
    let world = World::start(Setup::sqlite()).await;
    let admin = person(&world.live.app, world.live.ada.org, Role::Admin).await.token;
    let path = format!("/v1/automations/{}", world.automation);
    let remove = async || world.live.ask("DELETE", &path, Some(&admin), &Value::Null, None).await;
    assert_eq!(remove().await.0, 409, "its run has not ended");
    let (status, cancelled) =
        world.ask("POST", &format!("/v1/automation-runs/{}/cancel", world.run), &Value::Null).await;
    assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")), "{cancelled}");
    let removed = async {
        loop {
            match remove().await {
                (200, _) => return,
                (409, _) => tokio::time::sleep(Duration::from_millis(50)).await,
                other => panic!("{other:?}"),
            }
        }
    };
    within(removed).await;
    world.until_session_is("stopped").await;
    assert_eq!(world.ask("GET", &format!("/v1/automation-runs/{}", world.run), &Value::Null).await.0, 404);
}

/// Nobody watches either session, and neither has anything to do. The automation's is kept connected when the lifetime of
/// its sandbox is over, until its run has ended; the other one sleeps.
#[tokio::test]
async fn the_session_of_an_automation_counts_as_having_a_client() {
    let live = Live::with(Setup::sqlite().set("SANDBOX_LIFETIME_SECONDS", "1")).await;
    live.agent.behave(|manner| manner.echoes = true);
    let automation = automation(&live).await;
    live.post(&format!("/v1/automations/{automation}/runs"), &json!({})).await;
    within(live.agent.wait_for_asked("/prompt_async", 1)).await;
    let connected = live.agent.asked("/event").len();
    within(live.agent.wait_for_asked("/event", connected + 2)).await;
    let runs = live.get(&format!("/v1/automations/{automation}/runs")).await;
    let session = runs["runs"][0]["sessionId"].as_str().unwrap();
    assert_eq!(live.get(&format!("/proliferate/{session}")).await["status"], "running");
    let other = live.session().await;
    live.prompt(&other, "hello").await;
    let becomes = async |session: &str, status: &str| {
        let path = format!("/proliferate/{session}");
        within(async { while live.get(&path).await["status"] != status {} }).await;
    };
    becomes(&other, "paused").await;

    let run = runs["runs"][0]["id"].as_str().unwrap();
    let report =
        json!({"run_id": run, "completion_id": format!("run:{run}:completion"), "outcome": "succeeded"});
    let token = sandbox_token(&live.app, id(session)).await;
    let (path, call) = (
        format!("/proliferate/{session}/tools/automation_complete"),
        json!({"tool_call_id": "call_1", "args": report}),
    );
    let (status, reported) = live.ask("POST", &path, Some(&token), &call, None).await;
    assert_eq!((status, &reported["success"]), (200, &json!(true)), "{reported}");
    becomes(session, "stopped").await;
    live.prompt(session, "anything left?").await;
    becomes(session, "paused").await;
}

/// Nobody watches any of the sessions. The boot is tried again only for the run of an automation, and not because somebody
/// created a session with the client type of automations.
#[tokio::test]
async fn a_failed_boot_is_tried_again_only_for_the_run_of_an_automation() {
    let live = Live::unreachable(On::Sqlite).await;
    for (kind, attempts) in [("run", 3), ("automation", 1), ("web", 1)] {
        let log = Captured::start();
        let session = if kind == "run" {
            session_of_run(&live).await
        } else {
            let session = live.session_with(&json!({"clientType": kind})).await;
            live.eager_start(&session).await;
            session
        };
        let path = format!("/proliferate/{session}");
        within(async { while live.get(&path).await["status"] != "failed" {} }).await;
        let text = log.text();
        let failed = |line: &&str| line.contains("could not be booted") && line.contains(&session);
        assert_eq!(text.lines().filter(failed).count(), attempts, "{kind}: {text}");
    }
}
