//! The two operations with a server: list its tools, and call one.

use std::collections::HashSet;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::Client;
use rmcp::RoleClient;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ClientConfig, ClientRequest,
    ElicitRequestParams, ElicitResult, ErrorCode, ErrorData, Implementation, JsonObject, ListToolsRequest,
    PaginatedRequestParams, ProtocolVersion, ServerResult,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RequestContext, RunningService, ServiceError,
    serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use tokio::time::timeout;
use url::Url;

use crate::auth::{Auth, authorize};
use crate::definition::Definition;
use crate::http::Http;
use crate::listing::Listing;
use crate::problem::Problem;
use crate::result::{ToolResult, read_result};

const CLIENT_NAME: &str = "proliferate-gateway";
const CLIENT_VERSION: &str = "1.0.0";
/// The newest version with a handshake.
const LEGACY_VERSION: ProtocolVersion = ProtocolVersion::V_2025_11_25;
/// The maximum number of pages of a list of tools. A page may be empty, so the number of tools is no bound.
const MAX_PAGES: usize = 100;

/// Chooses the HTTP client that may connect to a URL. It is asked about every URL of a connector, and its clients must
/// not follow redirects.
pub trait Reach: Send + Sync {
    /// `None` if the address must not be connected to.
    fn client(&self, url: &Url) -> Option<Client>;
}

/// How long an operation may take, and how much it may receive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub list: Duration,
    pub call: Duration,
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { list: Duration::from_secs(15), call: Duration::from_secs(30), bytes: 4 * 1024 * 1024 }
    }
}

/// One call of a tool.
pub struct Call<'a> {
    pub tool: &'a Definition,
    pub arguments: JsonObject,
}

/// The end of a call.
#[derive(Debug)]
pub struct CallOutcome {
    pub result: Result<ToolResult, Problem>,
    /// Whether the tool may have run.
    pub sent: bool,
    /// The credentials that were sent. A server may repeat them in its answer, so the caller must redact them.
    pub secrets: Vec<String>,
}

/// Lists the tools of a server.
pub async fn list_tools(
    reach: &dyn Reach,
    url: &Url,
    auth: &Auth,
    limits: Limits,
) -> Result<Listing, Problem> {
    let operation = async {
        let http = prepare(reach, url, auth, limits).await?;
        let listing = async {
            let service = connect(&http, url).await?;
            list_pages(&http, &service).await
        };
        until_aborted(&http, listing).await
    };
    timeout(limits.list, operation).await.unwrap_or(Err(Problem::Timeout))
}

/// Calls a tool of a server.
pub async fn call_tool(
    reach: &dyn Reach,
    url: &Url,
    auth: &Auth,
    call: Call<'_>,
    limits: Limits,
) -> CallOutcome {
    let prepared = OnceLock::new();
    let operation = async {
        let http = prepare(reach, url, auth, limits).await?;
        let http = prepared.get_or_init(|| http);
        until_aborted(http, call_in_session(http, url, call)).await
    };
    let result = timeout(limits.call, operation).await.unwrap_or(Err(Problem::Timeout));
    let http = prepared.get();
    let secrets = http.map(|http| http.secrets().to_vec()).unwrap_or_default();
    CallOutcome { result, sent: http.is_some_and(Http::call_sent), secrets }
}

/// Authenticates, and chooses the HTTP client.
async fn prepare(reach: &dyn Reach, url: &Url, auth: &Auth, limits: Limits) -> Result<Http, Problem> {
    let client = reach.client(url).ok_or(Problem::Address)?;
    Ok(Http::new(client, authorize(reach, auth, url).await?, limits.bytes))
}

/// Ends an operation that received too much. The SDK would ask for the rest of a stream again and again.
async fn until_aborted<T>(
    http: &Http,
    operation: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    tokio::select! {
        result = operation => result,
        () = http.aborted() => Err(http.problem().unwrap_or(Problem::Broken)),
    }
}

type Service = RunningService<RoleClient, Caller>;

/// Opens a connection: to a server of the newest protocol without a session, to an older one with its handshake.
async fn connect(http: &Http, url: &Url) -> Result<Service, Problem> {
    let newest = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(LEGACY_VERSION),
    };
    match start(http, url, newest).await {
        // Some old servers answer a method that they do not know as if they knew it.
        Err(
            ClientInitializeError::ExpectedInitResponse(_)
            | ClientInitializeError::ExpectedInitResult(_)
            | ClientInitializeError::ConflictInitResponseId(..)
            | ClientInitializeError::UncorrelatedErrorResponse { .. },
        ) => start(http, url, ClientLifecycleMode::Initialize).await,
        started => started,
    }
    .map_err(|error| explain_start(http, error))
}

/// Starts the SDK's service. When it is dropped, the SDK ends the session in the background.
async fn start(
    http: &Http,
    url: &Url,
    lifecycle: ClientLifecycleMode,
) -> Result<Service, ClientInitializeError> {
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
    let transport = StreamableHttpClientTransport::with_client(http.clone(), config);
    Box::pin(serve_client_with_lifecycle(Caller, transport, lifecycle)).await
}

async fn list_pages(http: &Http, service: &Service) -> Result<Listing, Problem> {
    let mut listing = Listing::default();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let request = ListToolsRequest::with_param(params);
        let result = service.send_request(ClientRequest::ListToolsRequest(request)).await;
        // The SDK drops tools whose headers it cannot send. If it cannot read the page at all, every tool is checked here.
        let names = match result.map_err(|error| explain(http, error))? {
            ServerResult::ListToolsResult(page) => {
                Some(page.tools.into_iter().map(|tool| tool.name.into_owned()).collect::<HashSet<_>>())
            }
            ServerResult::CustomResult(_) => None,
            _ => return Err(Problem::Protocol("the answer is not a list of tools")),
        };
        let page = http.take_page().ok_or(Problem::Protocol("the answer is not a list of tools"))?;
        cursor = listing.add(page, names.as_ref(), http.secrets())?;
        if cursor.is_none() {
            return Ok(listing);
        }
    }
    listing.truncated = true;
    Ok(listing)
}

async fn call_in_session(http: &Http, url: &Url, call: Call<'_>) -> Result<ToolResult, Problem> {
    let service = connect(http, url).await?;
    if call.tool.has_header_parameters() {
        // The SDK sends parameters in headers only for tools that it has seen in a list.
        list_pages(http, &service).await?;
    }
    let params = CallToolRequestParams::new(call.tool.name().to_owned()).with_arguments(call.arguments);
    match service.call_tool_once(params).await.map_err(|error| explain(http, error))? {
        CallToolResponse::Complete(result) => Ok(read_result(result)),
        CallToolResponse::InputRequired(_) => {
            Err(Problem::Protocol("it asks for input, which is not offered"))
        }
        CallToolResponse::Task(_) => Err(Problem::Protocol("it started a task, which is not offered")),
        _ => Err(Problem::Protocol("the answer is not a result")),
    }
}

fn explain(http: &Http, error: ServiceError) -> Problem {
    match error {
        ServiceError::McpError(error) => Problem::server(error.code.0, &error.message),
        ServiceError::UnexpectedResponse => Problem::Protocol("the answer has an unexpected form"),
        _ => http.problem().unwrap_or(Problem::Broken),
    }
}

fn explain_start(http: &Http, error: ClientInitializeError) -> Problem {
    match error {
        ClientInitializeError::JsonRpcError(error) => Problem::server(error.code.0, &error.message),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => explain_start(http, *fallback),
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => Problem::Protocol("no common version"),
        ClientInitializeError::TransportError { .. } | ClientInitializeError::ConnectionClosed(_) => {
            http.problem().unwrap_or(Problem::Broken)
        }
        _ => Problem::Protocol("the handshake failed"),
    }
}

/// Our side of a connection. It offers servers nothing: no sampling, no elicitation.
struct Caller;

impl ClientHandler for Caller {
    fn get_info(&self) -> ClientConfig {
        let client = Implementation::new(CLIENT_NAME, CLIENT_VERSION);
        ClientConfig::new(ClientCapabilities::default(), client).with_protocol_version(LEGACY_VERSION)
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "elicitation is not offered", None))
    }
}
