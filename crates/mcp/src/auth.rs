//! How we authenticate to a server: a header that an organization's secret fills, or a token for client credentials.

use ledger::credential_parts;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use url::Url;

use crate::client::Reach;
use crate::problem::Problem;

/// The maximum number of bytes that a token endpoint may answer with.
const MAX_TOKEN_RESPONSE: usize = 64 * 1024;
/// Headers that the protocol or the connection needs for itself.
const RESERVED_HEADERS: [&str; 13] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// How to authenticate, with the values of the secrets.
pub enum Auth {
    None,
    Bearer(SecretString),
    Header { name: String, value: SecretString },
    ClientCredentials(ClientCredentials),
}

/// The parameters of the OAuth grant "client credentials".
pub struct ClientCredentials {
    pub token_url: Url,
    pub client_id: SecretString,
    pub client_secret: SecretString,
    pub scope: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("this is not the name of an HTTP header")]
    NotAName,
    #[error("the protocol uses this header for itself")]
    Reserved,
    #[error("a header cannot carry line breaks and other control characters")]
    NotAValue,
}

/// Checks that a credential can be sent under this name.
pub fn check_header_name(name: &str) -> Result<(), AuthError> {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| AuthError::NotAName)?;
    let reserved = RESERVED_HEADERS.contains(&name.as_str()) || name.as_str().starts_with("mcp-");
    if reserved { Err(AuthError::Reserved) } else { Ok(()) }
}

/// Checks that a secret can be sent in a header.
pub fn check_header_value(value: &SecretString) -> Result<(), AuthError> {
    HeaderValue::from_str(value.expose_secret()).map(drop).map_err(|_| AuthError::NotAValue)
}

/// The header that authenticates one operation. It does not implement `Debug`, so that it cannot end up in a log.
#[derive(Clone, Default)]
pub(crate) struct Credential {
    pub(crate) header: Option<(HeaderName, HeaderValue)>,
    /// The secrets to redact from responses: a server may repeat what we sent.
    pub(crate) secrets: Vec<String>,
}

impl Credential {
    fn new(name: &str, value: &str, mut secrets: Vec<String>) -> Result<Self, Problem> {
        secrets.extend(credential_parts(value));
        let unusable = Problem::Token("the credential cannot be sent in a header");
        check_header_name(name).map_err(|_| unusable.clone())?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable.clone())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| unusable)?;
        value.set_sensitive(true);
        Ok(Self { header: Some((name, value)), secrets })
    }

    fn bearer(token: &str, secrets: Vec<String>) -> Result<Self, Problem> {
        Self::new(AUTHORIZATION.as_str(), &format!("Bearer {token}"), secrets)
    }
}

/// Makes the header for one operation. For client credentials, this fetches a token for the server at `resource`.
pub(crate) async fn authorize(reach: &dyn Reach, auth: &Auth, resource: &Url) -> Result<Credential, Problem> {
    match auth {
        Auth::None => Ok(Credential::default()),
        Auth::Bearer(secret) => Credential::bearer(secret.expose_secret(), Vec::new()),
        Auth::Header { name, value } => Credential::new(name, value.expose_secret(), Vec::new()),
        Auth::ClientCredentials(client) => {
            let token = fetch_token(reach, client, resource).await?;
            let (id, secret) = (client.client_id.expose_secret(), client.client_secret.expose_secret());
            let pair = format!("{}:{}", encode(id), encode(secret));
            Credential::bearer(&token, vec![secret.to_owned(), encode(secret), pair])
        }
    }
}

async fn fetch_token(
    reach: &dyn Reach,
    client: &ClientCredentials,
    resource: &Url,
) -> Result<String, Problem> {
    let http = reach.client(&client.token_url).ok_or(Problem::Address)?;
    let mut form = vec![("grant_type", "client_credentials"), ("resource", resource.as_str())];
    form.extend(client.scope.as_deref().map(|scope| ("scope", scope)));
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
    let request = http
        .post(client.token_url.clone())
        .basic_auth(
            encode(client.client_id.expose_secret()),
            Some(encode(client.client_secret.expose_secret())),
        )
        .header("accept", "application/json")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(body);
    let response = request.send().await.map_err(|_| Problem::Token("it cannot be reached"))?;
    match response.status().as_u16() {
        200 => {}
        status @ (400 | 401 | 403) => return Err(Problem::Credential(status)),
        _ => return Err(Problem::Token("it answered with an error")),
    }
    read_token(response).await
}

/// RFC 6749 encodes id and secret as in a form before they are joined for `Basic`.
fn encode(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

async fn read_token(mut response: reqwest::Response) -> Result<String, Problem> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| Problem::Token("the connection broke"))? {
        if body.len() + chunk.len() > MAX_TOKEN_RESPONSE {
            return Err(Problem::Token("its answer is too large"));
        }
        body.extend_from_slice(&chunk);
    }
    let answer: Value =
        serde_json::from_slice(&body).map_err(|_| Problem::Token("its answer is not JSON"))?;
    let bearer = answer["token_type"].as_str().is_none_or(|kind| kind.eq_ignore_ascii_case("bearer"));
    match answer["access_token"].as_str() {
        Some(token) if bearer && !token.is_empty() => Ok(token.to_owned()),
        Some(_) => Err(Problem::Token("it is not a bearer token")),
        None => Err(Problem::Token("its answer has none")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_names_that_would_change_the_request_are_refused() {
        for name in ["x-api-key", "Authorization", "CONTEXT7_API_KEY", "cookie"] {
            assert_eq!(check_header_name(name), Ok(()), "{name}");
        }
        for name in ["", "a b", "a\r\nb", "a:b", "ä"] {
            assert_eq!(check_header_name(name), Err(AuthError::NotAName), "{name}");
        }
        for name in ["Host", "content-length", "Transfer-Encoding", "Mcp-Session-Id", "MCP-Protocol-Version"]
        {
            assert_eq!(check_header_name(name), Err(AuthError::Reserved), "{name}");
        }
    }

    #[test]
    fn what_a_header_encodes_must_not_come_back_either() {
        let basic = Credential::new("authorization", "Basic bWU6cGFzc3dvcmQ=", Vec::new()).ok().unwrap();
        assert!(basic.secrets.contains(&"password".to_owned()));
    }

    #[test]
    fn a_secret_with_a_line_break_is_not_sent() {
        let secret = Credential::bearer("a\r\nx-admin: 1", Vec::new());
        assert!(matches!(secret, Err(Problem::Token(_))));
    }
}
