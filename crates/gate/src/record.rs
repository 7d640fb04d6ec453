//! The records of a call: its run, events, artifacts and result, written in one transaction.

use ledger::{ActionType, ArtifactRef, Artifacts, Redactor};
use policy::{ModeDecision, Risk, Versions};
use proto::{RunKind, RunStatus, ToolErrorCode};
use serde::Serialize;
use serde_json::Value;
use store::{
    CallDetails, Change, Effect, Ended, GateWrite, JsonText, NewArtifact, NewEvent, NewInvocation, NewRun,
    Waiting,
};

use crate::approvals::MAX_WAITING;
use crate::judgement::{JudgedCall, Judgement};
use crate::request::ActionRequest;
use crate::result::{CallResult, Refusal};
use crate::tool::{Output, Tool};
use crate::vocabulary::{wire_mode, wire_risk, wire_source};
use crate::{Gate, artifacts};

/// The maximum size of parameters and results that are shown, as JSON.
pub const MAX_SHOWN_BYTES: usize = 10_240;
/// An approver must see everything that an approval executes; the caller could hide it otherwise.
pub(crate) const HIDDEN_PARAMETERS: &str = "a person must approve this call and would not see all of its parameters: keep them \
    below 10,240 bytes of JSON, without credentials and without fields that are named like one";

/// What a tool returned, and the files that it has stored.
pub(crate) struct Success {
    pub(crate) output: Output,
    pub(crate) evidence: Vec<ArtifactRef>,
}

impl From<Output> for Success {
    fn from(output: Output) -> Self {
        Self { output, evidence: Vec::new() }
    }
}

/// The output and the change of a tool within the database, or the reason why it refuses.
pub(crate) type Prepared = Result<(Output, Effect), Refusal>;

impl Gate {
    /// The claim of a call, with the decision about it.
    pub(crate) fn claim(&self, judgement: &Judgement) -> GateWrite {
        let Judgement { call, verdict, versions, redactor, .. } = judgement;
        let input = artifacts::input(call, redactor, self.audit.now());
        let run = self.new_run(judgement, input.as_ref(), None);
        GateWrite {
            change: Change::Begin(Box::new(run)),
            effect: None,
            artifacts: input.into_iter().collect(),
            invocation: invocation(judgement, None),
            events: vec![self.audit.decision(call, verdict, versions)],
        }
    }

    /// The claim of a call that ends at once, because it is refused or its effect is in our own database.
    pub(crate) fn claim_ended(&self, judgement: &Judgement, prepared: Prepared) -> (GateWrite, CallResult) {
        let Judgement { call, verdict, versions, redactor, .. } = judgement;
        let denied = matches!(&prepared, Err(refusal) if refusal.code == ToolErrorCode::PolicyDenied);
        let (outcome, effect) = match prepared {
            Ok((output, effect)) => (Ok(output.into()), Some(effect)),
            Err(refusal) => (Err(refusal), None),
        };
        let responder = if effect.is_some() { Responder::Tool } else { Responder::Gate };
        let end = self.finish(call, outcome, responder, versions);
        let status = if denied { RunStatus::Denied } else { end.ended.status };
        // Parameters of a refused call are not stored, because they were never accepted.
        let input = effect.as_ref().and_then(|_| artifacts::input(call, redactor, self.audit.now()));
        let run = self.new_run(judgement, input.as_ref(), Some(Ended { status, ..end.ended }));
        let mut events = vec![self.audit.decision(call, verdict, versions), end.event];
        events.extend(end.further_events);
        let artifacts = input.into_iter().chain(end.artifact).collect();
        let invocation = invocation(judgement, None);
        (
            GateWrite { change: Change::Begin(Box::new(run)), effect, artifacts, invocation, events },
            end.result,
        )
    }

    /// The claim of a call that waits for approval. Nothing but the request is stored, encrypted, because it contains what
    /// nobody may see. `None` if it cannot be encrypted.
    pub(crate) fn claim_waiting(&self, judgement: &Judgement) -> Option<GateWrite> {
        let Judgement { call, verdict, versions, .. } = judgement;
        let run = NewRun { waits: true, ..self.new_run(judgement, None, None) };
        let request = serde_json::to_string(call.request.as_ref()).ok()?;
        let id = call.request.action.as_ref()?.id;
        let waiting = Waiting {
            request: JsonText::of(&self.secrets.seal(run.org_id, id, &request)?),
            expires_at: run.created_at + self.calls.approval_lifetime,
            limit: MAX_WAITING,
        };
        let invocation = invocation(judgement, Some(waiting));
        let definition = invocation.as_ref().and_then(|new| new.definition_hash.as_deref());
        let event = self.audit.request(call, verdict, versions, definition);
        Some(GateWrite { invocation, ..GateWrite::new(Change::Begin(Box::new(run)), vec![event]) })
    }

    fn new_run(&self, judgement: &Judgement, input: Option<&NewArtifact>, end: Option<Ended>) -> NewRun {
        let Judgement { call, asked, verdict, versions, .. } = judgement;
        let request = &call.request;
        let own_input = input.and_then(|input| artifacts::new_reference(input, &request.run.id));
        let input_artifacts: Vec<_> = call.input_artifacts.iter().chain(own_input.as_ref()).collect();
        let decision = Decision { request: asked, outcome: verdict.outcome, rule_id: &verdict.rule_id };
        NewRun {
            org_id: request.caller.org,
            run_id: request.run.id.clone(),
            kind: call.kind(),
            lanes_version: versions.lanes.clone(),
            roles_version: versions.roles.clone(),
            parent_run_id: call.parent_run_id.clone(),
            root_run_id: judgement.root_run_id.clone(),
            run_name: None,
            case_id: call.case.clone(),
            session_id: request.caller.session,
            correlation_id: request.run.correlation.clone(),
            actor: JsonText::of(&request.caller.actor),
            role_id: request.caller.role.clone(),
            lane_id: Some(request.target.lane.clone()),
            call: Some(CallDetails {
                tool: request.target.tool.clone(),
                operation: request.target.operation.clone(),
                request_hash: request.request_hash.to_string(),
                decision: JsonText::of(&decision),
                instance: self.instance.id.clone(),
            }),
            inputs: JsonText::of(&Inputs {
                artifact_refs: &input_artifacts,
                parameters_hash_sha256: self.audit.parameters_hash(&request.target.parameters),
            }),
            retry_count: judgement.retry_count,
            retry_reason: request.run.retry_of.as_ref().map(|retry| retry.reason.clone()),
            created_at: self.audit.now(),
            waits: false,
            end,
        }
    }

    /// The write for the end of a claimed call, and the result for its caller.
    pub(crate) fn end(
        &self,
        call: &JudgedCall,
        instance: &str,
        outcome: Result<Success, Refusal>,
        versions: &Versions,
    ) -> (GateWrite, CallResult) {
        let end = self.finish(call, outcome, Responder::Tool, versions);
        let change = Change::End {
            org: call.request.caller.org,
            run_id: call.request.run.id.clone(),
            instance: Some(instance.to_owned()),
            ended: Box::new(end.ended),
        };
        let artifacts = end.artifact.into_iter().collect();
        let events = [end.event].into_iter().chain(end.further_events).collect();
        (GateWrite { change, effect: None, artifacts, invocation: None, events }, end.result)
    }

    fn finish(
        &self,
        call: &JudgedCall,
        outcome: Result<Success, Refusal>,
        responder: Responder,
        versions: &Versions,
    ) -> Finished {
        let refusal = outcome.as_ref().err().cloned();
        let mut event = self.audit.outcome(call, ActionType::ToolCall, refusal.as_ref(), versions);
        let (status, artifact, references, mut result) = match outcome {
            Ok(Success { output, evidence }) => {
                let stored = artifacts::output(call, &output.content(), self.audit.now());
                let references: Vec<ArtifactRef> = artifacts::new_reference(&stored, &call.request.run.id)
                    .into_iter()
                    .chain(evidence)
                    .collect();
                event.event.output_artifacts = Artifacts::try_from(references.clone()).unwrap_or_default();
                let result = CallResult::success(&call.request, output, &references);
                (RunStatus::Completed, Some(stored), references, result)
            }
            Err(refusal) => {
                let result = CallResult::refused(&call.request, &refusal);
                (RunStatus::Failed, None, Vec::new(), result)
            }
        };
        let hash = (responder == Responder::Tool).then(|| result.seal()).flatten();
        event.event.response_hash_sha256 = hash;
        let ended = self.build_ended(status, refusal.as_ref(), &references, &result, hash);
        let ended = Ended { started_at: call.started_at, ..ended };
        let further = if responder == Responder::Tool { further_actions(call) } else { Vec::new() };
        let record = |action| self.audit.outcome(call, action, refusal.as_ref(), versions);
        let further_events = further.into_iter().map(record).collect();
        Finished { ended, artifact, event, further_events, result }
    }

    /// The end of a call that the gate itself answers, and its event.
    pub(crate) fn ended_by_gate(
        &self,
        call: &JudgedCall,
        refusal: Refusal,
        versions: &Versions,
    ) -> (Ended, NewEvent) {
        let Finished { ended, event, .. } = self.finish(call, Err(refusal), Responder::Gate, versions);
        (ended, event)
    }

    fn build_ended(
        &self,
        status: RunStatus,
        refusal: Option<&Refusal>,
        outputs: &[ArtifactRef],
        result: &CallResult,
        response_hash: Option<ledger::Hash>,
    ) -> Ended {
        let outcome = refusal.map_or("success", |refusal| refusal.message.as_str());
        let error = refusal.map(|refusal| {
            let Refusal { code, message, retryable, .. } = refusal;
            JsonText::of(&RunError { error_code: *code, message, retryable: *retryable })
        });
        Ended {
            status,
            outcome: outcome.chars().take(200).collect(),
            error,
            answer: Some(JsonText::of(result)),
            response_hash: response_hash.map(|hash| hash.to_string()),
            outputs: JsonText::of(&Outputs { artifact_refs: outputs }),
            started_at: None,
            at: self.audit.now(),
        }
    }
}

/// The row of an invocation, if the call is one. A mode that nobody could look up is the default one.
fn invocation(judgement: &Judgement, waiting: Option<Waiting>) -> Option<Box<NewInvocation>> {
    let ActionRequest { id, integration, action, key } = judgement.call.request.action.clone()?;
    let tool = judgement.tool.as_deref();
    let risk = tool.map_or(Risk::Danger, Tool::risk);
    let mode = judgement.asked.mode.clone().unwrap_or_else(|| ModeDecision::inferred(risk));
    let definition = tool.and_then(Tool::definition);
    Some(Box::new(NewInvocation {
        id,
        integration,
        action,
        risk: wire_risk(risk),
        mode: wire_mode(mode.mode),
        mode_source: wire_source(mode.source),
        mode_reason: mode.reason,
        params: JsonText::of(&shown_parameters(judgement)),
        definition_hash: definition.map(|definition| definition.hash.to_string()),
        key_id: key,
        two_person: mode.two_person,
        waiting,
    }))
}

/// The parameters of a call as people may see them.
pub(crate) fn shown_parameters(judgement: &Judgement) -> Value {
    judgement.redactor.redact_and_truncate(&judgement.call.request.target.parameters, MAX_SHOWN_BYTES)
}

/// Whether people see less of a call than would be executed. Nobody can approve such a call.
pub(crate) fn hides_parameters(judgement: &Judgement) -> bool {
    shown_parameters(judgement) != judgement.call.request.target.parameters
}

/// A stored value as people may see it. Known secrets were removed when it was stored.
pub fn shown(value: &Value) -> Value {
    Redactor::default().redact_and_truncate(value, MAX_SHOWN_BYTES)
}

/// A stored text as people may see it. Known secrets were removed when it was stored.
pub fn shown_text(text: &str) -> String {
    Redactor::default().text(text)
}

/// The producer of the response. A refusal by the gate is not hashed as a tool's response, and causes no further
/// events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Responder {
    Tool,
    Gate,
}

/// A call that has ended: the records of it, and the result for its caller.
struct Finished {
    ended: Ended,
    artifact: Option<NewArtifact>,
    event: NewEvent,
    /// Events for the other actions of the call, such as an export or a database write.
    further_events: Vec<NewEvent>,
    result: CallResult,
}

// The JSON columns of a run, with the field names of the contract.

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

/// The actions that a call is recorded as besides a tool call.
fn further_actions(call: &JudgedCall) -> Vec<ActionType> {
    let kind = match call.kind() {
        RunKind::Export => Some(ActionType::Export),
        RunKind::DbWrite => Some(ActionType::DbWrite),
        _ => None,
    };
    // Every use of the break-glass lane is recorded as an override.
    kind.into_iter().chain(call.ticket.as_ref().map(|_| ActionType::Override)).collect()
}
