//! `automation_complete`: the agent of an automation reports the outcome of its run, which ends the run.

use std::sync::Arc;
use std::time::Duration;

use clock::{Clock, crash_point};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Within};
use proto::http::Completion;
use proto::{AgentMode, AutomationRunId, CompletionOutcome, SessionId};
use serde::Deserialize;
use serde_json::{Value, json};
use store::{AutomationRun, Effect, JsonText, RunCompletion, Store};

use super::live_sandboxes::LiveSandboxes;
use super::platform::{Implementation, PlatformTool, ToolHost, session_with, store_failure};

pub(super) static TOOL: PlatformTool = PlatformTool {
    name: "automation_complete",
    aliases: &["automation.complete"],
    argument_aliases: &[("runId", "run_id"), ("completionId", "completion_id")],
    version: 1,
    description: "Report the outcome of this automation run. This ends the run and its sandbox, so call it once, as the \
        last thing you do.",
    guidance: |_: AgentMode| {
        "reports the outcome of the run and ends it: `succeeded`, `failed` or `needs_human`. Call it exactly once, as \
        the last thing you do; the run does not end without it."
    },
    schema,
    place: ToolHost::Gateway {
        timeout: Duration::from_secs(30),
        implement: |platform| {
            let (store, clock) = (platform.store.clone(), platform.clock.clone());
            Implementation::Within(Box::new(AutomationComplete {
                store,
                clock,
                live: platform.sandboxes.clone(),
            }))
        },
    },
};

struct AutomationComplete {
    store: Store,
    clock: Clock,
    live: Arc<dyn LiveSandboxes>,
}

#[derive(Deserialize)]
struct Arguments {
    run_id: String,
    completion_id: String,
    outcome: CompletionOutcome,
    summary_markdown: Option<String>,
    #[serde(default)]
    citations: Vec<String>,
    diff_ref: Option<String>,
    test_report_ref: Option<String>,
    #[serde(default)]
    side_effect_refs: Vec<String>,
}

fn schema() -> Value {
    let line = |longest: u32, why: &str| json!({"type": "string", "minLength": 1, "maxLength": longest, "format": "line", "description": why});
    let list =
        |why: &str| json!({"type": "array", "maxItems": 100, "items": line(2000, why), "description": why});
    json!({
        "type": "object",
        "properties": {
            "run_id": line(100, "The run, as the prompt names it"),
            "completion_id": line(200, "The completion id, as the prompt names it. A repeated report has the same"),
            "outcome": {
                "type": "string",
                "enum": ["succeeded", "failed", "needs_human"],
                "description": "succeeded: the task is done; failed: it cannot be done; needs_human: a person has to decide or to help",
            },
            "summary_markdown": {"type": "string", "maxLength": 65_536, "format": "lines",
                "description": "What you did and found, for people"},
            "citations": list("A source: a URL, or a path with a line"),
            "diff_ref": line(2000, "Where the changes are: a branch, a commit or a pull request"),
            "test_report_ref": line(2000, "Where the report of the tests is"),
            "side_effect_refs": list("Something that was changed elsewhere"),
        },
        "required": ["run_id", "completion_id", "outcome"],
        "additionalProperties": false,
    })
}

impl Within for AutomationComplete {
    fn prepare<'a>(&'a self, call: &'a CallRequest) -> BoxFuture<'a, Result<(Output, Effect), Failure>> {
        async move {
            let session = session_with(&self.store, call, &TOOL).await?;
            let invalid =
                |_| Failure::Invalid("Invalid arguments: they are not of the expected form".to_owned());
            let arguments = Arguments::deserialize(&call.target.parameters).map_err(invalid)?;
            let run = self.run(call, &arguments, session.id).await?;
            let completion = completion(arguments);
            check_repeated(&run, &completion)?;
            let transcript = self.live.open_transcript(session.id).await.map_err(Failure::Down)?;
            crash_point("automation-reported");
            let effect = RunCompletion {
                org: run.org_id,
                run: run.id,
                trigger_event: run.trigger_event_id,
                session: session.id,
                outcome: completion.outcome,
                completion_id: completion.completion_id.clone(),
                summary: completion.summary_markdown.clone(),
                completion: JsonText::of(&completion),
                transcript,
                at: self.clock.now(),
            };
            let output = Output { text: "Automation run completed".to_owned(), data: None };
            Ok((output, Effect::CompleteRun(Box::new(effect))))
        }
        .boxed()
    }
}

impl AutomationComplete {
    /// The run that the agent names, if it is the one of this session.
    async fn run(
        &self,
        call: &CallRequest,
        arguments: &Arguments,
        session: SessionId,
    ) -> Result<AutomationRun, Failure> {
        let unknown =
            || Failure::Refused("Run not found: run_id must be the one that the prompt names.".to_owned());
        let id: AutomationRunId = arguments.run_id.parse().map_err(|_| unknown())?;
        let run =
            self.store.automation_run(call.caller.org, id).await.map_err(|error| store_failure(&error))?;
        run.filter(|run| run.session_id == Some(session)).ok_or_else(unknown)
    }
}

fn completion(arguments: Arguments) -> Completion {
    Completion {
        completion_id: arguments.completion_id,
        outcome: arguments.outcome,
        summary_markdown: arguments.summary_markdown,
        citations: arguments.citations,
        diff_ref: arguments.diff_ref,
        test_report_ref: arguments.test_report_ref,
        side_effect_refs: arguments.side_effect_refs,
    }
}

/// Refuses a report that differs from an earlier one, and one of a run that has ended otherwise.
fn check_repeated(run: &AutomationRun, completion: &Completion) -> Result<(), Failure> {
    let refused = |why: String| Err(Failure::Refused(why));
    match &run.completion_id {
        Some(id) if *id != completion.completion_id => {
            refused("This run was completed before, under another completion_id.".to_owned())
        }
        // Compared by structure: the database may store the fields in another order.
        Some(_) if run.completion != serde_json::to_value(completion).ok() => {
            refused("This run was completed before under this completion_id, with other contents.".to_owned())
        }
        None if run.status.has_ended() => refused(format!("This run is {} already.", run.status)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::platform::tests::problems;
    use super::*;

    fn report(field: &str, value: Value) -> Value {
        let mut report = json!({"run_id": "r", "completion_id": "c", "outcome": "succeeded"});
        report[field] = value;
        report
    }

    #[test]
    fn every_problem_is_named_by_field_and_limit() {
        assert_eq!(problems(&TOOL, &report("summary_markdown", json!("# Done\n\n- it"))), "");
        assert_eq!(problems(&TOOL, &report("citations", json!(["https://example.com/1"]))), "");
        for (wrong, part) in [
            (json!({}), "run_id is required"),
            (report("completion_id", json!("")), "completion_id"),
            (report("outcome", json!("fine")), "outcome must be"),
            (report("citations", json!([7])), "citations[0]"),
            (
                report("summary_markdown", json!("x".repeat(65_537))),
                "summary_markdown must have at most 65536",
            ),
            (report("extra", json!(1)), "extra"),
        ] {
            let text = problems(&TOOL, &wrong);
            assert!(text.contains(part), "{wrong}: {text}");
        }
    }
}
