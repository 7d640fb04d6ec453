//! Automations with real agents in real sandboxes: from a signed webhook to the end of the run.

use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use testkit::ScriptedModel;

use crate::deadline::{until, wait_for};
use crate::gate::dead;
use crate::live::{Real, http};

const SECRET: &str = "0123456789abcdef-of-the-webhook";
const SILENT_MODEL_SCRIPT: &str = "[[rule]]\n[[rule.step]]\ntext = \"I have nothing to report.\"\n";

const SYSTEM_PROMPT: &str = "You are the librarian of this team.";

/// A gateway with an automation, and the model of its agents.
struct World {
    real: Real,
    model: ScriptedModel,
    automation: String,
    _threads: tokio::runtime::Runtime,
}

impl World {
    fn start() -> Self {
        Self::with(&[])
    }

    fn with(more: &[(&str, &str)]) -> Self {
        let threads = tokio::runtime::Runtime::new().unwrap();
        let script = model::Script::parse(SILENT_MODEL_SCRIPT).unwrap();
        let model = threads.block_on(ScriptedModel::start(script)).unwrap();
        let url = model.url();
        let settings =
            [("ANTHROPIC_API_KEY", "sk-test"), ("ANTHROPIC_BASE_URL", url.as_str()), ("WARM_POOL_SIZE", "0")];
        let real = Real::serving(&[&settings[..], more].concat());
        let made = real.post(
            "/v1/automations",
            &json!({"name": "triage", "instructions": "Triage the issue.", "systemPrompt": SYSTEM_PROMPT,
                "webhook": {"scheme": "generic", "secret": SECRET}}),
        );
        let automation = made["id"].as_str().unwrap().to_owned();
        Self { real, model, automation, _threads: threads }
    }

    /// Sends a signed webhook, and returns the id of the run that it starts.
    fn fire(&self, body: &str) -> String {
        let time = clock::Clock::system().now().timestamp().to_string();
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        for part in [time.as_bytes(), b".", body.as_bytes()] {
            mac.update(part);
        }
        let signature = format!("t={time},v1={}", hex::encode(mac.finalize().into_bytes()));
        let url = self.real.server().url(&format!("/v1/hooks/{}", self.automation));
        let request = http().post(url).header("x-proliferate-signature", signature).body(body.to_owned());
        let answer = request.send().unwrap();
        assert_eq!(answer.status(), 202);
        answer.json::<Value>().unwrap()["runId"].as_str().unwrap().to_owned()
    }

    fn run(&self, id: &str) -> Value {
        self.real.get(&format!("/v1/automation-runs/{id}"))
    }

    /// Waits until the run has one of these states.
    fn until(&self, id: &str, wanted: &[&str]) -> Value {
        wait_for(&format!("the run {id} to be one of {wanted:?}"), || {
            Some(self.run(id)).filter(|run| wanted.contains(&run["status"].as_str().unwrap()))
        })
    }

    /// Waits until the agent of the run asks something.
    fn until_waiting(&self, id: &str) -> Value {
        let asks = || Some(self.run(id)).filter(|run| run["waitingFor"] == "question");
        wait_for("a question of the agent", asks)
    }

    /// Waits until the session has this status.
    fn until_session(&self, id: &str, wanted: &str) -> Value {
        wait_for(&format!("the session to be {wanted}"), || {
            let sessions = self.real.get("/proliferate/sessions");
            let mut sessions = sessions["sessions"].as_array().unwrap().iter();
            sessions.find(|one| one["id"] == *id && one["status"] == wanted).cloned()
        })
    }

    /// Waits until `/metrics` has this line.
    fn until_metric(&self, wanted: &str) {
        let client = http();
        until(&format!("/metrics to have {wanted}"), || {
            let metrics = client.get(self.real.server().url("/metrics")).send().unwrap().text().unwrap();
            metrics.lines().any(|line| line == wanted)
        });
    }

    fn script(&self, text: &str) {
        self.model.set_script(model::Script::parse(text).unwrap());
    }
}

/// An agent that reads the event and reports success.
fn reporting(run: &str) -> String {
    script(run, &[&shell("cat ~/.proliferate/trigger-context.json")])
}

/// An agent that saves its files before it has done all of its work.
fn saving(run: &str) -> String {
    let first = shell("cat ~/.proliferate/trigger-context.json; touch saved");
    script(run, &[&first, r#"{ name = "save_snapshot", input = {} }"#, &shell("touch unsaved")])
}

fn shell(command: &str) -> String {
    format!(r#"{{ name = "bash", input = {{ command = "{command}", description = "Works" }} }}"#)
}

/// An agent that asks which label to use before it reports. The answer is the result of its question, or its next prompt.
fn asking(run: &str) -> String {
    let ask = r#"{ name = "question", input = { questions = [{ question = "Which label?", header = "Label", options = [{ label = "bug", description = "It is broken" }, { label = "idea", description = "It is new" }] }] } }"#;
    script(run, &[ask]).replace(
        ECHO_MODEL_SCRIPT,
        &format!("[[rule]]\nwhen = \"which label\"\n{}{ECHO_MODEL_SCRIPT}", report(run)),
    )
}

const ECHO_MODEL_SCRIPT: &str = "[[rule]]\n[[rule.step]]\ntext = \"You said: {prompt}\"\n";

/// The steps with which an agent reports.
fn report(run: &str) -> String {
    format!(
        r##"[[rule.step]]
tool = [{{ name = "automation_complete", input = {{ run_id = "{run}", completion_id = "run:{run}:completion", outcome = "succeeded", summary_markdown = "# Done\n\nIt is a duplicate.", citations = ["https://example.com/issues/7"] }} }}]
[[rule.step]]
text = "Reported: {{tool_result}}"

"##
    )
}

/// An agent that calls these tools, and then reports.
fn script(run: &str, calls: &[&str]) -> String {
    let steps: Vec<_> = calls.iter().map(|call| format!("[[rule.step]]\ntool = [{call}]\n")).collect();
    let (calls, report) = (steps.concat(), report(run));
    format!(
        r#"
[[rule]]
system = "title generator"
[[rule.step]]
text = "A title"

[[rule]]
when = "triage the issue"
{calls}
{report}{ECHO_MODEL_SCRIPT}"#
    )
}

/// How many of the rows that a report settles say that it was made: the run, its event, and its session's outcome and
/// summary.
const SETTLED: &str =
    "SELECT CAST((SELECT count(*) FROM automation_runs WHERE status = 'succeeded' AND completion IS NOT NULL)
    + (SELECT count(*) FROM trigger_events WHERE status = 'completed')
    + (SELECT count(*) FROM sessions WHERE outcome = 'succeeded')
    + (SELECT count(*) FROM sessions WHERE summary IS NOT NULL) AS TEXT)";
/// Messages that were saved before the agent had finished them.
const OPEN_MESSAGES: &str = "SELECT CAST(count(*) AS TEXT) FROM messages WHERE NOT is_complete";

fn kinds(run: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    run["events"].as_array().unwrap().iter().map(|event| (text(&event["kind"]), text(&event["to"]))).collect()
}

#[test]
fn a_signed_webhook_becomes_a_run_that_succeeds() {
    let world = World::start();
    let run = world.fire(r#"{"issue": {"number": 7, "title": "canary-of-the-event"}}"#);
    world.script(&saving(&run));
    let done = world.until(&run, &["succeeded", "failed", "needs_human", "timed_out"]);
    assert_eq!(done["status"], "succeeded", "{done}");
    assert_eq!(done["completion"]["citations"], json!(["https://example.com/issues/7"]));
    assert_eq!(done["completion"]["summaryMarkdown"], "# Done\n\nIt is a duplicate.");
    let log: Vec<_> = kinds(&done).into_iter().map(|(_, to)| to).collect();
    assert_eq!(log, ["queued", "ready", "running", "succeeded"], "{done}");

    // The agent saw the event, the contract, and the automation's own prompt in place of the base.
    let asked: Vec<String> = world
        .model
        .requests()
        .iter()
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .collect();
    assert!(asked.iter().any(|body| body.contains("canary-of-the-event")), "the agent did not see the event");
    assert!(asked.iter().any(|body| body.contains(&format!("run:{run}:completion"))));
    assert!(
        asked.iter().any(|body| body.contains(SYSTEM_PROMPT) && body.contains("must report the outcome"))
    );
    assert!(!asked.iter().any(|body| body.contains("smallest change")), "the base is there too");
    let session = done["sessionId"].as_str().unwrap();
    let ended = world.until_session(session, "stopped");
    assert_eq!(
        (&ended["outcome"], &ended["summary"]),
        (&json!("succeeded"), &done["completion"]["summaryMarkdown"])
    );
    assert_eq!(ended["automation"]["name"], "triage");
    assert!(world.real.sandboxes().is_empty(), "the sandbox has ended");
    let messages = world.real.get(&format!("/proliferate/{session}/messages"));
    assert!(messages.to_string().contains("automation_complete"), "the conversation stays: {messages}");
    let events = world.real.get(&format!("/v1/automations/{}/trigger-events", world.automation));
    assert_eq!(events["triggerEvents"][0]["status"], "completed");
    let snapshots = world.real.sql("SELECT CAST(count(*) AS TEXT) FROM snapshots");
    assert_eq!(snapshots.as_deref(), Some("1"), "the sandbox ended without another snapshot");
    world.until_metric("proliferate_live_sessions 0");
    later_files_are_gone(world, session);
}

/// A prompt after the end of the run starts from the last snapshot. Client and agent are told.
fn later_files_are_gone(mut world: World, session: &str) {
    session.clone_into(&mut world.real.session);
    let mut socket = world.real.watch("");
    socket.prompt("anything left?");
    let frames = socket.until_type("turn_complete");
    let told = "Starting from the last snapshot: later files are gone";
    assert!(
        frames.iter().any(|frame| frame["type"] == "status" && frame["payload"]["message"] == told),
        "{frames:?}"
    );
    let prompt = frames.iter().find(|frame| frame["type"] == "message").unwrap();
    assert_eq!(prompt["payload"]["content"], "anything left?", "the note is for the agent only");
    let note = "Files that were changed after it are gone.";
    let noted = world.model.requests().into_iter().map(|request| request.json()).find(|body| {
        let text = body["messages"].to_string();
        text.contains(note) && text.contains("anything left?")
    });
    let noted = noted.unwrap();
    // The run has ended, so there is nothing to report.
    let system = noted["system"].to_string();
    assert!(system.contains(SYSTEM_PROMPT) && !system.contains("report the outcome"), "{system}");
    assert!(!noted["tools"].to_string().contains("automation_complete"), "{}", noted["tools"]);
    assert_eq!(world.real.shell(&world.real.sandbox(), "ls"), "saved");
}

/// Whoever tries an automation without the key of a model sees its run end.
#[test]
fn the_built_in_model_ends_its_run_and_says_that_it_did_not_do_the_task() {
    let world = World::start();
    world.model.set_script(model::Script::built_in());
    let run = world.fire("{}");
    let done = world.until(&run, &["succeeded", "failed", "needs_human", "timed_out"]);
    assert_eq!(done["status"], "succeeded", "{done}");
    let summary = done["completion"]["summaryMarkdown"].as_str().unwrap();
    assert!(summary.contains("built-in model") && summary.contains("**not** done the task"), "{done}");
}

#[test]
fn a_run_that_is_never_completed_times_out() {
    let world = World::start();
    let run = world.fire("{}");
    let running = world.until(&run, &["running"]);
    world.real.sql("UPDATE automation_runs SET deadline_at = '2020-01-01T00:00:00+00:00' RETURNING 'x'");
    let ended = world.until(&run, &["timed_out", "failed"]);
    assert_eq!((&ended["status"], &ended["completion"]), (&json!("timed_out"), &Value::Null), "{ended}");
    world.until_session(running["sessionId"].as_str().unwrap(), "stopped");
    let machine = &world.real.machine;
    let resolve = |outcome: &str| machine.run(&["runs", "resolve", &run[..13], outcome, "--json"]);
    let wrong = resolve("finished");
    assert!(wrong.code == 2 && wrong.err.contains("succeeded"), "{}", wrong.err);
    let by_hand = ["runs", "resolve", &run, "succeeded", "--comment", "done by hand"];
    let resolved = machine.json(&by_hand);
    assert_eq!((&resolved["id"], &resolved["status"]), (&json!(run), &json!("succeeded")), "{resolved}");
    let last = world.run(&run)["events"].as_array().unwrap().last().unwrap().clone();
    assert!(last.to_string().contains("done by hand"), "{last}");
    assert_eq!(resolve("failed").code, 1, "it is settled");
}

#[test]
fn a_run_whose_session_is_deleted_fails() {
    let world = World::start();
    let run = world.fire("{}");
    let running = world.until(&run, &["running"]);
    world.real.delete(&format!("/proliferate/{}", running["sessionId"].as_str().unwrap()));
    let ended = world.until(&run, &["failed"]);
    assert_eq!(ended["statusReason"], "its session was deleted");
}

#[test]
fn a_run_waits_for_an_answer_and_continues() {
    let world = World::start();
    let run = world.fire("{}");
    world.script(&asking(&run));
    let waiting = world.until_waiting(&run);
    assert_eq!((&waiting["status"], &waiting["waitingFor"]), (&json!("running"), &json!("question")));
    // Its deadline stands still, however long the answer takes.
    world.real.sql("UPDATE automation_runs SET deadline_at = datetime('now') || '+00:00' RETURNING 'x'");
    let questions = world.real.get("/v1/questions");
    let (question, session) =
        (&questions["questions"][0]["questionId"], waiting["sessionId"].as_str().unwrap());
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(world.run(&run)["status"], "running");
    world.real.sql("UPDATE automation_runs SET deadline_at = '2099-01-01T00:00:00+00:00' RETURNING 'x'");
    let path = format!("/proliferate/{session}/questions/{}/answer", question.as_str().unwrap());
    world.real.post(&path, &json!({"answers": [["bug"]]}));
    let done = world.until(&run, &["succeeded", "failed", "needs_human", "timed_out"]);
    assert_eq!(done["status"], "succeeded", "{done}");
    let waits = kinds(&done).iter().filter(|(kind, _)| kind == "waiting").count();
    assert_eq!(waits, 2, "the begin and the end of the wait: {done}");
}

/// Nobody answers for longer than the idle grace, so the run keeps no sandbox. The answer starts one, and the run goes on.
#[test]
fn a_run_whose_question_outlives_its_sandbox_continues_with_the_answer() {
    let world = World::with(&[("QUESTION_IDLE_GRACE_SECONDS", "1")]);
    let run = world.fire("{}");
    world.script(&asking(&run));
    let waiting = world.until_waiting(&run);
    let session = waiting["sessionId"].as_str().unwrap();
    world.until_session(session, "paused");
    assert!(world.real.sandboxes().is_empty(), "{:?}", world.real.sandboxes());
    let parked = world.run(&run);
    assert_eq!(
        (&parked["status"], &parked["waitingFor"]),
        (&json!("running"), &json!("question")),
        "{parked}"
    );
    let question = world.real.get("/v1/questions")["questions"][0]["questionId"].clone();
    let path = format!("/proliferate/{session}/questions/{}/answer", question.as_str().unwrap());
    world.real.post(&path, &json!({"answers": [["bug"]]}));
    let done = world.until(&run, &["succeeded", "failed", "needs_human", "timed_out"]);
    assert_eq!(done["status"], "succeeded", "{done}");
    let waits = kinds(&done).iter().filter(|(kind, _)| kind == "waiting").count();
    assert_eq!(waits, 2, "the begin and the end of the wait: {done}");
    world.until_session(session, "stopped");
}

/// The gateway dies after each step of starting and ending a run. The next one goes on, with one session, one prompt and
/// one report.
#[test]
fn a_crash_between_two_steps_neither_loses_nor_repeats_one() {
    for point in [
        "automation-session-created",
        "automation-ready",
        "automation-prompted",
        "automation-reported",
        "gate-settled",
        "automation-ending",
    ] {
        let mut world = World::start();
        world.real.restart_with(&[("FAILPOINTS", &format!("{point}=return"))]);
        let run = world.fire("{}");
        world.script(&reporting(&run));
        dead(world.real.server.take().unwrap());
        let (settled, open) = (world.real.sql(SETTLED), world.real.sql(OPEN_MESSAGES));
        let expected = if point == "gate-settled" { ("4", "1") } else { ("0", "0") };
        if point != "automation-ending" {
            let found = (settled.as_deref().unwrap(), open.as_deref().unwrap());
            assert_eq!(found, expected, "{point}: a report is settled in one transaction");
        }
        world.real.server = Some(world.real.machine.serve());
        let done = world.until(&run, &["succeeded", "failed", "timed_out"]);
        assert_eq!(done["status"], "succeeded", "{point}: {done}");
        let sessions = world.real.get("/proliferate/sessions");
        assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1, "{point}");
        let session = done["sessionId"].as_str().unwrap();
        let messages = world.real.get(&format!("/proliferate/{session}/messages")).to_string();
        assert_eq!(messages.matches("Triage the issue.").count(), 1, "{point}: {messages}");
        world.until_session(session, "stopped");
        let ends = kinds(&world.run(&run)).into_iter().filter(|(kind, _)| kind == "completion").count();
        assert_eq!(ends, 1, "{point}");
    }
}
