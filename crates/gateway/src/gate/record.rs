//! What is written of a call, in all the places where it is told: its run, its events, its artifacts, its answer.

use ledger::{ActionType, ArtifactRef, Artifacts, payload_hash};
use policy::Versions;
use proto::{RunKind, RunStatus, ToolErrorCode};
use serde::Serialize;
use serde_json::{Value, json};
use store::{Called, Change, Effect, Ended, GateWrite, JsonText, NewArtifact, NewEvent, NewRun};

use super::call::{Answered, Call, Refusal, Result as CallResult};
use super::pipeline::Decided;
use super::question::Question;
use super::{Gate, artifacts};
use crate::sources::Output;

/// What a call within comes to: what it gives and changes, or why not.
pub(super) type Prepared = Result<(Output, Effect), Refusal>;

impl Gate {
    /// The claim of a call with the decision about it.
    pub(super) fn claim(&self, call: &Call, decided: &Decided) -> GateWrite {
        let events = vec![self.scribe.decision(call, &decided.verdict, &decided.versions)];
        let input = artifacts::input(call, self.scribe.now());
        let run = self.new_run(call, decided, input.as_ref(), None);
        GateWrite {
            change: Change::Begin(Box::new(run)),
            effect: None,
            artifacts: input.into_iter().collect(),
            events,
        }
    }

    /// The same for a call that ends with its claim: it is refused, or its effect is in our own database.
    pub(super) fn claim_ended(
        &self,
        call: &Call,
        decided: &Decided,
        prepared: Prepared,
    ) -> (GateWrite, Answered) {
        let denied = matches!(&prepared, Err(refusal) if refusal.code == ToolErrorCode::PolicyDenied);
        let (result, effect) = match prepared {
            Ok((output, effect)) => (Ok(output), Some(effect)),
            Err(refusal) => (Err(refusal), None),
        };
        let asked = if effect.is_some() { Asked::Tool } else { Asked::Nobody };
        let end = self.finish(call, result, asked, &decided.versions);
        let status = if denied { RunStatus::Denied } else { end.ended.status };
        // What is refused is not kept: its content was never accepted.
        let input = effect.as_ref().and_then(|_| artifacts::input(call, self.scribe.now()));
        let run = self.new_run(call, decided, input.as_ref(), Some(Ended { status, ..end.ended }));
        let mut events = vec![self.scribe.decision(call, &decided.verdict, &decided.versions), end.event];
        events.extend(end.also);
        let artifacts = input.into_iter().chain(end.artifact).collect();
        (GateWrite { change: Change::Begin(Box::new(run)), effect, artifacts, events }, end.answered)
    }

    fn new_run(
        &self,
        call: &Call,
        decided: &Decided,
        input: Option<&NewArtifact>,
        end: Option<Ended>,
    ) -> NewRun {
        let own_input = input.and_then(|input| artifacts::new_reference(input, &call.run_id));
        let input_artifacts: Vec<_> = call.input_artifacts.iter().chain(own_input.as_ref()).collect();
        let Question { request, retried, .. } = &decided.question;
        let above = decided.question.above();
        NewRun {
            org_id: call.org,
            run_id: call.run_id.clone(),
            kind: call.kind(),
            lanes_version: decided.versions.lanes.clone(),
            roles_version: decided.versions.roles.clone(),
            parent_run_id: above.map(|run| run.run_id.clone()),
            root_run_id: above.map_or_else(|| call.run_id.clone(), |run| run.root_run_id.clone()),
            run_name: None,
            case_id: call.case.clone(),
            session_id: call.session,
            correlation_id: call.correlation.clone(),
            actor: JsonText::of(&call.actor),
            role_id: call.role.to_owned(),
            lane_id: Some(call.lane.clone()),
            call: Some(Called {
                tool: call.tool.clone(),
                operation: call.operation.clone(),
                request_hash: call.request_hash.to_string(),
                decision: JsonText::of(&Decision {
                    request,
                    outcome: decided.verdict.outcome,
                    rule_id: &decided.verdict.rule_id,
                }),
                instance: self.instance.clone(),
            }),
            inputs: JsonText::of(&Inputs {
                artifact_refs: &input_artifacts,
                parameters_hash_sha256: self.parameters_hash(&call.parameters),
            }),
            retry_count: retried.as_ref().map_or(0, |run| run.retry_count + 1),
            retry_reason: call.retry_of.as_ref().map(|(_, reason)| reason.clone()),
            created_at: self.scribe.now(),
            end,
        }
    }

    /// What is written when a claimed call has ended, and what its caller is told.
    pub(super) fn outcome(
        &self,
        call: &Call,
        instance: &str,
        result: Result<Output, Refusal>,
        versions: &Versions,
    ) -> (GateWrite, Answered) {
        let end = self.finish(call, result, Asked::Tool, versions);
        let change = Change::End {
            org: call.org,
            run_id: call.run_id.clone(),
            instance: Some(instance.to_owned()),
            ended: Box::new(end.ended),
        };
        let artifacts = end.artifact.into_iter().collect();
        let events = [end.event].into_iter().chain(end.also).collect();
        (GateWrite { change, effect: None, artifacts, events }, end.answered)
    }

    /// The end of a call, in all the places where it is told.
    fn finish(
        &self,
        call: &Call,
        result: Result<Output, Refusal>,
        asked: Asked,
        versions: &Versions,
    ) -> Finished {
        let refused = result.as_ref().err().cloned();
        let mut event = self.scribe.outcome(call, ActionType::ToolCall, refused.as_ref(), versions);
        let (status, artifact, result) = match result {
            Ok(output) => {
                let kept = artifacts::output(call, &output.content(), self.scribe.now());
                let references: Vec<ArtifactRef> =
                    artifacts::new_reference(&kept, &call.run_id).into_iter().collect();
                event.event.output_artifacts = Artifacts::try_from(references.clone()).unwrap_or_default();
                (RunStatus::Completed, Some(kept), CallResult::Done(output, references))
            }
            Err(refusal) => (RunStatus::Failed, None, CallResult::Refused(refusal)),
        };
        let mut body = call.body(&result);
        let hash = payload_hash(&body).ok().filter(|_| asked == Asked::Tool);
        event.event.response_hash_sha256 = hash;
        if let (Some(hash), Some(Value::Null)) = (hash, body.get("response_hash_sha256")) {
            body["response_hash_sha256"] = json!(hash.to_string());
        }
        let answered = Answered { outcome: result.outcome(), body };
        let ended = self.ended(status, &result, &answered, hash);
        let also = if asked == Asked::Tool { also(call) } else { Vec::new() };
        let tell = |action| self.scribe.outcome(call, action, refused.as_ref(), versions);
        let also = also.into_iter().map(tell).collect();
        Finished { ended, artifact, event, also, answered }
    }

    fn ended(
        &self,
        status: RunStatus,
        result: &CallResult,
        answered: &Answered,
        response_hash: Option<ledger::Hash>,
    ) -> Ended {
        let (outcome, error, outputs) = match result {
            CallResult::Done(_, references) => ("success".to_owned(), None, references.as_slice()),
            CallResult::Refused(refusal) => {
                let (error_code, message) = (refusal.code, &refusal.message);
                let error = RunError { error_code, message, retryable: refusal.retryable };
                (message.chars().take(200).collect(), Some(JsonText::of(&error)), [].as_slice())
            }
        };
        Ended {
            status,
            outcome,
            error,
            answer: Some(JsonText::of(answered)),
            response_hash: response_hash.map(|hash| hash.to_string()),
            outputs: JsonText::of(&Outputs { artifact_refs: outputs }),
            at: self.scribe.now(),
        }
    }
}

/// Who was asked before a call ended. Where nobody was, there is no response to be hashed, and it was a call and nothing
/// else.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Tool,
    Nobody,
}

/// A call that has ended: what is kept of it, and what its caller is told.
struct Finished {
    ended: Ended,
    artifact: Option<NewArtifact>,
    event: NewEvent,
    /// What else it was, beside a call.
    also: Vec<NewEvent>,
    answered: Answered,
}

// What a run keeps as JSON, in the words of the contract.

#[derive(Serialize)]
struct Decision<'a> {
    request: &'a policy::Request,
    outcome: policy::Outcome,
    rule_id: &'a str,
}

#[derive(Serialize)]
struct Inputs<'a> {
    artifact_refs: &'a [&'a ArtifactRef],
    parameters_hash_sha256: Option<ledger::Hash>,
}

#[derive(Serialize)]
struct Outputs<'a> {
    artifact_refs: &'a [ArtifactRef],
}

#[derive(Serialize)]
struct RunError<'a> {
    error_code: ToolErrorCode,
    message: &'a str,
    retryable: bool,
}

/// What else a call is, beside a call of a tool.
fn also(call: &Call) -> Vec<ActionType> {
    let kind = match call.kind() {
        RunKind::Export => Some(ActionType::Export),
        RunKind::DbWrite => Some(ActionType::DbWrite),
        _ => None,
    };
    // Whatever is done with a broken glass, it is told that the glass was broken.
    kind.into_iter().chain(call.ticket.as_ref().map(|_| ActionType::Override)).collect()
}
