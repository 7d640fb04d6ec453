//! The stream of changes: which sessions and inbox entries of the organization have changed.

use proto::http::Change;
use reqwest::Response;
use url::Url;

use crate::client::{Client, display_origin, send};
use crate::error::{Error, cause};

/// The maximum size of one event.
const MAX_EVENT: usize = 1024 * 1024;

/// What the gateway tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeEvent {
    /// The stream is open: read everything once, because later changes arrive as messages.
    Ready,
    Change(Change),
    /// Some changes were lost: read everything again.
    Reload,
}

/// The open stream.
pub struct ChangeStream {
    answer: Response,
    url: Url,
    received: Vec<u8>,
}

impl Client {
    /// Follows the changes of the organization.
    pub async fn changes(&self) -> Result<ChangeStream, Error> {
        let url = self.url(&["v1", "changes"]);
        let answer = send(self.get(url.clone())).await?;
        let status = answer.status();
        if !status.is_success() {
            let body = answer.text().await.unwrap_or_default();
            return Err(Error::from_response(status.as_u16(), &body));
        }
        Ok(ChangeStream { answer, url, received: Vec::new() })
    }
}

impl ChangeStream {
    /// The next event; `None` at the end of the stream, for example when the gateway stops or the credential ends.
    pub async fn next(&mut self) -> Result<Option<ChangeEvent>, Error> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\n\n") {
                let text: Vec<u8> = self.received.drain(..end + 2).collect();
                if let Some(event) = self.parse(&String::from_utf8_lossy(&text))? {
                    return Ok(Some(event));
                }
                continue;
            }
            if self.received.len() > MAX_EVENT {
                return Err(self.unexpected_error("an event is too large"));
            }
            match self.answer.chunk().await {
                Ok(Some(chunk)) => self.received.extend_from_slice(&chunk),
                Ok(None) => return Ok(None),
                Err(error) => {
                    let url = display_origin(&self.url);
                    let cause = cause(&error.without_url());
                    return Err(Error::Unreachable { url, cause, sent: true });
                }
            }
        }
    }

    /// Parses one event. Comments and events that a later gateway may send are `None`.
    fn parse(&self, text: &str) -> Result<Option<ChangeEvent>, Error> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        match (field("event:"), field("data:")) {
            (Some("ready"), _) => Ok(Some(ChangeEvent::Ready)),
            (Some("reload"), _) => Ok(Some(ChangeEvent::Reload)),
            (Some("change"), Some(data)) => match serde_json::from_str(data) {
                Ok(change) => Ok(Some(ChangeEvent::Change(change))),
                Err(error) => Err(self.unexpected_error(&error.to_string())),
            },
            _ => Ok(None),
        }
    }

    fn unexpected_error(&self, problem: &str) -> Error {
        Error::UnexpectedResponse { url: display_origin(&self.url), problem: problem.to_owned() }
    }
}
