//! Answers MCP clients over streamable HTTP, in every version of the protocol that the SDK knows.
//!
//! Each request is answered by itself and with one JSON message. There is no session and no event stream, because we never
//! send anything that was not asked for, and a client cannot pile up what does not exist.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use policy::Hints;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData as McpError, ServerHandler};
use serde_json::{Map, Value, json};

/// What a client can do here: the tools of one caller.
pub trait Toolbox: Send + Sync + 'static {
    /// How to use the tools, for the model of the client.
    fn instructions(&self) -> &'static str;

    /// A page of the tools. `after` is the [`ToolPage::next`] of the page before.
    fn list(&self, after: Option<String>) -> BoxFuture<'_, Result<ToolPage, ToolboxError>>;

    fn call(
        &self,
        name: String,
        arguments: Map<String, Value>,
    ) -> BoxFuture<'_, Result<Answer, ToolboxError>>;
}

/// A tool as clients see it.
#[derive(Clone, Debug)]
pub struct OfferedTool {
    pub name: String,
    pub description: String,
    pub input_schema: Map<String, Value>,
    pub hints: Hints,
}

#[derive(Clone, Debug, Default)]
pub struct ToolPage {
    pub tools: Vec<OfferedTool>,
    /// Set if there are more.
    pub next: Option<String>,
}

/// The answer to a call: a text for the model, and the same as data.
#[derive(Clone, Debug)]
pub struct Answer {
    pub text: String,
    pub data: Value,
    /// Whether the model should treat the call as failed.
    pub failed: bool,
}

/// The request itself cannot be answered. What a model should read and react to is an [`Answer`] instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolboxError {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Unavailable(String),
}

/// Answers one request, whose body is complete. The caller of this function has authenticated it and checked its origin.
pub async fn answer(
    toolbox: Arc<dyn Toolbox>,
    (name, version): (&'static str, &'static str),
    request: Request<Bytes>,
) -> Response<Bytes> {
    // The gateway may be reached under any name; what protects it from DNS rebinding is the check of the origin, and that
    // browsers have no credential for it.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts()
        .with_max_request_body_bytes(request.body().len());
    let server = move || Ok(Server { toolbox: toolbox.clone(), name, version });
    let is_json = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let service = StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config);
    let (parts, body) = service.handle(request.map(Full::new)).await.into_parts();
    // The SDK answers JSON of the wrong shape as if it were of the wrong type.
    if is_json && parts.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return invalid_request();
    }
    let Ok(body) = body.collect().await;
    Response::from_parts(parts, body.to_bytes())
}

/// The error of JSON-RPC for a message that is none.
fn invalid_request() -> Response<Bytes> {
    let error = ErrorData::invalid_request("the body is not a message of the Model Context Protocol", None);
    let body = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

struct Server {
    toolbox: Arc<dyn Toolbox>,
    name: &'static str,
    version: &'static str,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(self.name, self.version))
            .with_instructions(self.toolbox.instructions())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, McpError> {
        let page = self.toolbox.list(request.and_then(|request| request.cursor)).await.map_err(error_data)?;
        let mut result = ListToolsResult::with_all_items(page.tools.into_iter().map(described).collect());
        result.next_cursor = page.next;
        Ok(result)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, McpError> {
        let arguments = request.arguments.unwrap_or_default();
        let answer = self.toolbox.call(request.name.into_owned(), arguments).await.map_err(error_data)?;
        let mut result = CallToolResult::success(vec![ContentBlock::text(answer.text)]);
        result.structured_content = Some(answer.data);
        result.is_error = Some(answer.failed);
        Ok(result.into())
    }
}

fn error_data(error: ToolboxError) -> ErrorData {
    match error {
        ToolboxError::Invalid(message) => ErrorData::invalid_params(message, None),
        ToolboxError::Unavailable(message) => ErrorData::internal_error(message, None),
    }
}

fn described(tool: OfferedTool) -> Tool {
    let OfferedTool { name, description, input_schema, hints } = tool;
    let hints = ToolAnnotations::new().read_only(hints.read_only).destructive(hints.destructive);
    Tool::new(name, description, schema_for_clients(input_schema)).with_annotations(hints)
}

/// The schema, if clients accept it. The official ones refuse a whole list for one schema that is not of an object, so such
/// a tool gets a schema that says less; the gate checks parameters against the real one anyway.
fn schema_for_clients(mut schema: Map<String, Value>) -> Map<String, Value> {
    let object = Value::from("object");
    schema.entry("type").or_insert_with(|| object.clone());
    let properties = schema.get("properties");
    let is_accepted = schema.get("type") == Some(&object)
        && properties.is_none_or(|all| all.as_object().is_some_and(|all| all.values().all(Value::is_object)))
        && schema.get("required").is_none_or(is_list_of_texts);
    if is_accepted { schema } else { Map::from_iter([("type".to_owned(), object)]) }
}

fn is_list_of_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_that_clients_would_refuse_says_less_instead() {
        let shown = |schema: Value| Value::Object(schema_for_clients(schema.as_object().unwrap().clone()));
        let plain = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        assert_eq!(shown(plain.clone()), plain);
        assert_eq!(shown(json!({"additionalProperties": false})), {
            json!({"type": "object", "additionalProperties": false})
        });
        for refused in [
            json!({"type": "array"}),
            json!({"type": ["object", "null"]}),
            json!({"properties": {"a": true}}),
            json!({"properties": []}),
            json!({"required": [1]}),
            json!({"required": "a"}),
        ] {
            assert_eq!(shown(refused), json!({"type": "object"}));
        }
    }
}
