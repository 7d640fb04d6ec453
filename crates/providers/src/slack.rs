//! Slack: messages. Slack answers 200 even when it refuses; `ok` tells.

use policy::{Method, Risk};
use serde_json::{Value, json};
use url::Url;

use crate::schema::{id, object, optional, required, text};
use crate::{Action, ApiError, InvalidParams, Params, Provider, Request, bearer};

/// Slack cuts longer texts.
const LONGEST_TEXT: usize = 40_000;

pub(crate) const PROVIDER: Provider = Provider {
    id: "slack",
    name: "Slack",
    base_url: "https://slack.com/api",
    actions: &[Action {
        name: "post_message",
        description: "Post a message to a channel, or a reply to a thread.",
        risk: Risk::Write,
        schema: post_message_schema,
        request: post_message,
        result: posted_message,
    }],
    introduction: "Posts messages to Slack as the connected app. The app must be a member of the channel. Texts use \
        Slack's mrkdwn: `*bold*`, `_italic_`, `<https://example.com|link>`.",
    headers: &[("content-type", "application/json; charset=utf-8")],
    authorization: bearer,
};

fn post_message_schema() -> Value {
    object([
        required("channel", id("Id or name of the channel, for example `C0123456789` or `#general`.")),
        required("text", text("Text of the message in mrkdwn.", LONGEST_TEXT)),
        optional("thread_ts", id("Timestamp (`ts`) of the message to reply to in its thread.")),
    ])
}

fn post_message(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let request = Request::new(Method::Post, base, &["chat.postMessage"])?;
    Ok(request.with_body(params.only(&["channel", "text", "thread_ts"])))
}

fn posted_message(body: &Value) -> Result<Value, ApiError> {
    if body["ok"] != true {
        let code = body["error"].as_str().unwrap_or("unknown_error").to_owned();
        let limited = matches!(code.as_str(), "ratelimited" | "rate_limited");
        return Err(if limited { ApiError::RateLimited(code) } else { ApiError::Refused(code) });
    }
    Ok(json!({"ts": body["ts"], "channel": body["channel"]}))
}
