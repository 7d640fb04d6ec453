//! `POST /mcp`: the gate as an MCP server. A program with an API key of the scope `mcp`, or the agent of a session, lists
//! and calls the actions that it may use, under the same modes, approvals and limits as `actions/invoke`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Bytes;
use axum::extract::FromRequest as _;
use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{AttemptError, CallOutcome, CallResult};
use ledger::Outcome;
use mcp::server::{Answer, OfferedTool, ToolPage, Toolbox, ToolboxError};
use policy::Hints;
use proto::http::{ActionInfo, Invocation, InvokeAction};
use proto::{ActionMode, InvocationStatus, JsonObject, Risk, iso};
use serde_json::{Value, json};
use store::StoreError;

use super::attempts::record_refusal;
use super::auth::McpCaller;
use super::{ApiError, Body};
use crate::actions::{ActionCaller, ActionError, is_invalid, shown_invocation};
use crate::app::AppState;

/// The name of this route in the ledger.
const ROUTE_NAME: &str = "mcp";
/// The tool that returns what became of a call. It has no slug, so no action can have its name.
const GET_INVOCATION: &str = "get_invocation";
/// The most tools on one page of a list, and about the most bytes. The next page begins after the last name.
const PAGE_TOOLS: usize = 500;
const PAGE_BYTES: usize = 1024 * 1024;

const INSTRUCTIONS: &str = "Each tool reads or changes something outside, such as an issue or a message. Some calls need \
    a person's approval: they return at once with an invocation id, and nothing is executed until somebody approves. \
    Then say that an approval waits, go on with other work, and fetch the result later with get_invocation. Do not \
    repeat such a call, and do not try to get around a denial.";

/// Answers one message of an MCP client (streamable HTTP, without sessions).
#[utoipa::path(post, path = "/mcp", tag = "actions", request_body = serde_json::Value,
    responses((status = 200, description = "The answer to a request", body = serde_json::Value),
        (status = 202, description = "A notification was received"),
        (status = "default", description = "As the Model Context Protocol refuses")))]
pub(super) async fn serve(
    app: AppState,
    McpCaller(caller): McpCaller,
    mut headers: HeaderMap,
    request: axum::extract::Request,
) -> Result<Response, ApiError> {
    let message = match Body::<Value>::from_request(request, &app).await {
        Ok(Body(message)) => message,
        Err(refusal) => return Err(record_refusal(&app, &caller.attempt(ROUTE_NAME), refusal).await),
    };
    headers.remove(header::AUTHORIZATION);
    // The SDK wants a host, and in a sandbox any name leads here.
    headers.insert(header::HOST, HeaderValue::from_static("gateway"));
    let mut request = Request::new(Bytes::from(message.to_string()));
    *request.method_mut() = Method::POST;
    *request.headers_mut() = headers;
    let tools = Arc::new(Tools { app, caller, called: AtomicBool::new(false) });
    let response =
        mcp::server::answer(tools.clone(), ("proliferate", env!("CARGO_PKG_VERSION")), request).await;
    let is_call = message["method"] == "tools/call";
    // The SDK refuses what is no message, and a call without a name or with arguments of another shape, on its own.
    if !response.status().is_success() || (is_call && !tools.called.load(Ordering::Relaxed)) {
        let attempt = tools.caller.attempt(ROUTE_NAME);
        tools.app.gate.record_attempt(&attempt, Outcome::Failure, "malformed message").await?;
    }
    Ok(response.map(axum::body::Body::from))
}

/// The tools of one caller.
struct Tools {
    app: AppState,
    caller: ActionCaller,
    /// Whether the message was a well-formed call of a tool.
    called: AtomicBool,
}

impl Toolbox for Tools {
    fn instructions(&self) -> &'static str {
        INSTRUCTIONS
    }

    fn list(&self, after: Option<String>) -> BoxFuture<'_, Result<ToolPage, ToolboxError>> {
        async move {
            let actions = self.app.actions.tools(&self.caller).await.map_err(unavailable)?;
            // What is denied for all arguments is not offered; a call of it is still recorded, and says why.
            let usable = |action: &ActionInfo| action.mode != ActionMode::Deny || action.conditions.is_some();
            let offered = actions.into_iter().filter(|(_, action)| usable(action));
            let mut tools: Vec<_> = offered.map(|(name, action)| offer(name, action)).collect();
            let place = tools.partition_point(|tool| tool.name.as_str() < GET_INVOCATION);
            tools.insert(place, get_invocation());
            Ok(page(tools, after.as_deref()))
        }
        .boxed()
    }

    fn call(&self, name: String, arguments: JsonObject) -> BoxFuture<'_, Result<Answer, ToolboxError>> {
        async move {
            self.called.store(true, Ordering::Relaxed);
            match name.as_str() {
                GET_INVOCATION => self.look_up(&arguments).await,
                _ => self.invoke(&name, arguments).await,
            }
        }
        .boxed()
    }
}

impl Tools {
    async fn invoke(&self, name: &str, params: JsonObject) -> Result<Answer, ToolboxError> {
        let Self { app, caller, .. } = self;
        if let Err(over) = app.actions.take(caller) {
            return Ok(failure(over.to_string()));
        }
        let Some((integration, action)) = app.actions.find_tool(caller, name).await.map_err(unavailable)?
        else {
            return Err(self.refuse_unknown("There is no such tool; list the tools again").await);
        };
        match app.actions.invoke(caller, InvokeAction { integration, action, params }).await {
            Ok((result, Some(invocation))) => {
                let invocation = shown_invocation(&invocation, app.clock.now());
                Ok(answer_about(&invocation, Some(&result)))
            }
            // The gate has recorded nothing, so nothing was done. It counts what is beyond a share.
            Ok((result, None)) if matches!(result.outcome, CallOutcome::OverShare { .. }) => {
                Ok(failure(result.text().to_owned()))
            }
            Ok((result, None)) => self.refuse(Outcome::Failure, gate::shown_text(result.text())).await,
            Err(ActionError::Unknown(_)) => {
                Err(self.refuse_unknown("This tool does not exist any more; list the tools again").await)
            }
            Err(disabled @ ActionError::Disabled(_)) => {
                self.refuse(Outcome::Deny, disabled.to_string()).await
            }
            Err(ActionError::Source(error)) => {
                tracing::warn!(%error, "an action could not be called");
                let problem = "The integration cannot be reached now; nothing was executed".to_owned();
                self.refuse(Outcome::Failure, problem).await
            }
            Err(ActionError::Store(error)) => Err(unavailable(error)),
        }
    }

    /// Records the attempt to call a tool, which was not executed for a reason that the model should read.
    async fn refuse(&self, outcome: Outcome, problem: String) -> Result<Answer, ToolboxError> {
        match self.app.gate.record_attempt(&self.caller.attempt(ROUTE_NAME), outcome, &problem).await {
            Ok(()) => Ok(failure(problem)),
            Err(error) => Err(unrecorded_error(error)),
        }
    }

    /// Records the attempt to call a tool that does not exist.
    async fn refuse_unknown(&self, problem: &str) -> ToolboxError {
        let attempt = self.caller.attempt(ROUTE_NAME);
        match self.app.gate.record_attempt(&attempt, Outcome::Failure, "unknown tool").await {
            Ok(()) => ToolboxError::Invalid(problem.to_owned()),
            Err(error) => unrecorded_error(error),
        }
    }

    /// What became of a call of this caller, and of no other.
    async fn look_up(&self, arguments: &JsonObject) -> Result<Answer, ToolboxError> {
        let Self { app, caller, .. } = self;
        let id = arguments.get("invocationId").and_then(Value::as_str).and_then(|id| id.parse().ok());
        let found = match id {
            Some(id) => app.store.invocation(caller.org(), id).await.map_err(unavailable)?,
            None => None,
        };
        let found = found.filter(|found| caller.has_requested(found));
        let not_yours = || failure("invocationId is not the id of an invocation of yours".to_owned());
        Ok(found
            .map_or_else(not_yours, |found| answer_about(&shown_invocation(&found, app.clock.now()), None)))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
fn unavailable(error: StoreError) -> ToolboxError {
    tracing::error!(%error, "a request of an MCP client failed");
    ToolboxError::Unavailable("The gateway cannot read its database now; try again".to_owned())
}

/// The attempt could not be recorded. The error says whether the caller's share is used up, and nothing about the database.
fn unrecorded_error(error: AttemptError) -> ToolboxError {
    match error {
        AttemptError::Store(error) => unavailable(error),
        AttemptError::OverShare(over) => ToolboxError::Unavailable(over.to_string()),
    }
}

fn failure(text: String) -> Answer {
    Answer { data: json!({ "error": text }), text, failed: true }
}

fn offer(name: String, action: ActionInfo) -> OfferedTool {
    let ActionInfo { mut description, risk_level, params, mode, conditions, .. } = action;
    if conditions.is_some() {
        description.push_str(
            "\n\nWhether it needs a person's approval or is denied depends on the arguments; get_invocation fetches \
             the result of a call that waits.",
        );
    } else if mode == ActionMode::RequireApproval {
        description.push_str("\n\nNeeds a person's approval; get_invocation fetches the result.");
    }
    let input_schema = params.as_object().cloned().unwrap_or_default();
    let hints = Hints { destructive: risk_level == Risk::Danger, read_only: risk_level == Risk::Read };
    OfferedTool { name, description, input_schema, hints }
}

fn get_invocation() -> OfferedTool {
    let schema = json!({"type": "object", "properties": {"invocationId": {"type": "string", "format": "uuid",
        "description": "The id that the call returned"}}, "required": ["invocationId"]});
    OfferedTool {
        name: GET_INVOCATION.to_owned(),
        description:
            "Returns what became of an earlier call: its result, or whether it still waits for a person's \
            approval, runs, was denied, has failed or has expired."
                .to_owned(),
        input_schema: schema.as_object().cloned().unwrap_or_default(),
        hints: Hints { destructive: false, read_only: true },
    }
}

/// The tools after a name, as many as a page holds. They are in the order of their names.
fn page(tools: Vec<OfferedTool>, after: Option<&str>) -> ToolPage {
    let rest = tools.into_iter().filter(|tool| after.is_none_or(|after| tool.name.as_str() > after));
    let (mut page, mut bytes) = (ToolPage::default(), 0);
    for tool in rest {
        bytes += tool.description.len() + json!(tool.input_schema).to_string().len();
        let full = page.tools.len() == PAGE_TOOLS || bytes > PAGE_BYTES;
        if let Some(last) = page.tools.last().filter(|_| full) {
            page.next = Some(last.name.clone());
            break;
        }
        page.tools.push(tool);
    }
    page
}

/// The answer about an invocation. `result` is that of the call itself, if it has just been made.
fn answer_about(invocation: &Invocation, result: Option<&CallResult>) -> Answer {
    let id = invocation.id;
    let text = match invocation.status {
        InvocationStatus::Completed => match &invocation.result {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        },
        InvocationStatus::Pending => {
            let until = invocation.expires_at.as_ref().map(iso::text).unwrap_or_default();
            format!(
                "This call waits for a person's approval and was not executed yet. It expires at {until}. Call \
                 {GET_INVOCATION} with {{\"invocationId\":\"{id}\"}} to fetch its result later; do not repeat it."
            )
        }
        InvocationStatus::Approved | InvocationStatus::Executing => {
            format!("This call is being executed. Call {GET_INVOCATION} again to fetch its result.")
        }
        _ if result.is_some_and(is_invalid) => reason(invocation, result),
        InvocationStatus::Denied => format!("Action denied: {}", reason(invocation, result)),
        InvocationStatus::Failed => format!("Action failed: {}", reason(invocation, result)),
        InvocationStatus::Expired => "Nobody approved this call in time; it was not executed".to_owned(),
        InvocationStatus::Unknown => {
            "The gateway stopped while this call was executed; it may have taken effect".to_owned()
        }
    };
    let failed = matches!(
        invocation.status,
        InvocationStatus::Denied
            | InvocationStatus::Failed
            | InvocationStatus::Expired
            | InvocationStatus::Unknown
    );
    let mut data = json!({"invocationId": id, "status": invocation.status});
    match invocation.status {
        InvocationStatus::Completed => data["result"] = invocation.result.clone(),
        InvocationStatus::Pending => data["expiresAt"] = json!(invocation.expires_at.as_ref().map(iso::text)),
        _ if failed => data["error"] = json!(text),
        _ => {}
    }
    Answer { text, data, failed }
}

/// Why an invocation has no result.
fn reason(invocation: &Invocation, result: Option<&CallResult>) -> String {
    if let Some(result) = result {
        return gate::shown_text(result.text());
    }
    let reason = invocation.error.clone().or_else(|| invocation.denial_text());
    reason.unwrap_or_else(|| "no reason is known".to_owned())
}
