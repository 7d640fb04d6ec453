//! `session`: works with sessions from a terminal. It uses only the public API, so it works from any machine.

mod attach;
mod copy;
mod create;
mod editor;
mod env;
mod question;
mod screen;
mod services;
mod turns;
mod work;

use std::io::Read as _;
use std::process::ExitCode;

use client::{Client, Event, Watch};
use proto::http::{FinishSetup, PostMessage, SessionQuery};
use proto::socket::{Message, MessageSource, ServerMessage};
use proto::{Session, SessionId, SessionStatus};
use serde_json::json;

use crate::args::{SessionArgs, SessionCommand};
use crate::clean::{clean, shortened};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::lookup::{self, Candidate, pick};
use crate::output::{json_line, note};
use attach::AttachedSession;
use screen::Screen;

/// The maximum length of a title and of a failure reason in a table.
const MAX_TITLE_CHARS: usize = 50;
const MAX_REASON_CHARS: usize = 80;
/// The maximum number of sessions to search by name.
const MAX_SEARCHED: u32 = 1_000;

pub(crate) async fn run(context: &Context, args: SessionArgs) -> Result<ExitCode, Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        SessionCommand::New(new) => return create::create(context, client, new).await,
        SessionCommand::Attach { id, full } => {
            let id = find(&client, &id).await?;
            return AttachedSession::open(context, client, id, full).await?.run().await;
        }
        SessionCommand::Prompt { id, text, wait, full } => {
            let id = find(&client, &id).await?;
            let text = if text == "-" { standard_input()? } else { text };
            if text.trim().is_empty() {
                return Err(Failure::usage("TEXT is empty: say what the agent is to do"));
            }
            if wait {
                return AttachedSession::open(context, client, id, full).await?.answer(&text).await;
            }
            let message = send(context, &client, id, &text).await?;
            let sentence = format!("sent; `proliferate session attach {id}` shows the answer");
            context.out.result(&json!({ "id": id, "messageId": message }), &sentence);
        }
        SessionCommand::Cancel { id } => {
            let id = find(&client, &id).await?;
            client.cancel(id).await?;
            context.out.result(&json!({ "id": id }), "cancelled what ran");
        }
        SessionCommand::Model { id, model } => {
            let id = find(&client, &id).await?;
            let model = client.set_model(id, &model).await?;
            let sentence = format!("uses {} from the next prompt on", clean(&model));
            context.out.result(&json!({ "id": id, "modelId": model }), &sentence);
        }
        SessionCommand::Ls { status, limit } => ls(context, &client, status, limit).await?,
        SessionCommand::Show { id, full } => {
            let id = find(&client, &id).await?;
            show(context, &client, id, full).await?;
        }
        SessionCommand::Diff(args) => work::diff(context, &client, args).await?,
        SessionCommand::Exec(args) => return work::exec(context, &client, args).await,
        SessionCommand::Cp { from, to } => copy::cp(context, &client, &from, &to).await?,
        SessionCommand::Services { id } => services::ls(context, &client, &id).await?,
        SessionCommand::Logs(args) => work::logs(context, &client, args).await?,
        SessionCommand::Stop { ids, discard } => {
            let ids = find_all(&client, &ids).await?;
            for id in &ids {
                client.stop(*id, discard).await?;
            }
            context.out.result(&json!({ "stopped": ids }), &format!("stopped {}", names(&ids)));
        }
        SessionCommand::FinishSetup { id, name, stop } => {
            let id = find(&client, &id).await?;
            let done = client.finish_setup(id, &FinishSetup { name, keep_running: !stop }).await?;
            let sentence = format!("saved for the configuration {}", done.configuration_id);
            context.out.result(&json!(done), &sentence);
        }
        SessionCommand::Rm { ids } => {
            let ids = find_all(&client, &ids).await?;
            for id in &ids {
                client.delete(*id).await?;
            }
            context.out.result(&json!({ "removed": ids }), &format!("removed {}", names(&ids)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The id of the session with this name or id prefix. A complete id is returned without a lookup.
pub(crate) async fn find(client: &Client, named: &str) -> Result<SessionId, Failure> {
    if let Ok(id) = named.parse() {
        return Ok(id);
    }
    pick(lookup::SESSION, named, &candidates(client).await?)
}

pub(crate) async fn candidates(client: &Client) -> Result<Vec<Candidate<SessionId>>, Failure> {
    let all = list(client, None, MAX_SEARCHED).await?.into_iter();
    Ok(all.map(|session| Candidate::new(session.id, session.title)).collect())
}

async fn find_all(client: &Client, named: &[String]) -> Result<Vec<SessionId>, Failure> {
    let mut ids = Vec::new();
    for named in named {
        ids.push(find(client, named).await?);
    }
    Ok(ids)
}

/// Sends a prompt and returns its message id. An idempotency key makes network retries safe.
async fn send(context: &Context, client: &Client, id: SessionId, text: &str) -> Result<String, Failure> {
    let message = PostMessage::Prompt {
        content: text.to_owned(),
        user_id: None,
        source: Some(MessageSource::Cli),
        images: None,
    };
    Ok(client.message(id, &message, Some(&key(context))).await?.message_id)
}

async fn ls(
    context: &Context,
    client: &Client,
    status: Option<SessionStatus>,
    limit: u32,
) -> Result<(), Failure> {
    let found = list(client, status, limit).await?;
    let rows: Vec<_> = found.iter().map(|session| row(context, session)).collect();
    let values = found.iter().map(|session| json!(session)).collect();
    context.out.list(values, &["ID", "STATUS", "TITLE", "CONFIGURATION", "LAST ACTIVITY"], &rows);
    Ok(())
}

/// Lists sessions page by page, live ones first.
async fn list(client: &Client, status: Option<SessionStatus>, limit: u32) -> Result<Vec<Session>, Failure> {
    let (mut found, mut after) = (Vec::<Session>::new(), None);
    while let Some(missing) =
        limit.checked_sub(u32::try_from(found.len()).unwrap_or(limit)).filter(|n| *n > 0)
    {
        let query = SessionQuery { status, limit: Some(missing.min(50)), after, ..SessionQuery::default() };
        let page = client.list(&query).await.map_err(explain_list_error)?;
        found.extend(page.sessions);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(found)
}

/// Explains a failed listing. Every gateway has a session list, so a 404 means that the URL is not one of a gateway.
fn explain_list_error(error: client::Error) -> Failure {
    match error.status() {
        Some(404) => {
            Failure::failed(format!("{error}: --url must be the address that `proliferate up` prints"))
        }
        _ => error.into(),
    }
}

fn row(context: &Context, session: &Session) -> Vec<String> {
    let title = session.title.as_deref().or(session.prompt_snippet.as_deref()).unwrap_or("-");
    vec![
        session.id.to_string(),
        shortened(&state(session.status, session.stop_reason.as_deref()), MAX_REASON_CHARS),
        shortened(&clean(title), MAX_TITLE_CHARS),
        shortened(&clean(session.configuration_name.as_deref().unwrap_or("-")), MAX_TITLE_CHARS),
        context.ago(session.last_activity_at),
    ]
}

/// The status, with the reason if the session failed.
fn state(status: SessionStatus, reason: Option<&str>) -> String {
    match (status, reason) {
        (SessionStatus::Failed, Some(reason)) => format!("{status}: {}", clean(reason)),
        _ => status.to_string(),
    }
}

async fn show(context: &Context, client: &Client, id: SessionId, full: bool) -> Result<(), Failure> {
    let mut stream = client.connect(id, Watch { since: None, passive: true }).await?;
    while let Some(event) = stream.next().await {
        let Event::Frame(frame) = event? else { continue };
        let mut frame = *frame;
        if let ServerMessage::Init { messages, earlier, .. } = &mut frame.message {
            complete(client, id, messages, earlier).await?;
            if context.out.is_json() {
                json_line(&json!(frame));
            } else if let ServerMessage::Init { messages, .. } = &frame.message {
                let now = client.status(id).await?;
                if messages.is_empty() {
                    note("nobody has said anything in this session yet");
                }
                let mut screen = Screen::new(anstream::stdout(), full);
                screen.conversation(messages);
                if now.status == SessionStatus::Failed {
                    screen.state(&state(now.status, now.reason.as_deref()));
                }
            }
            return Ok(());
        }
    }
    Err(Failure::failed("the gateway ended the stream before it showed the conversation: try again"))
}

/// Fetches the earlier messages that the first frame of a stream omits from a long conversation.
async fn complete(
    client: &Client,
    id: SessionId,
    messages: &mut Vec<Message>,
    earlier: &mut u64,
) -> Result<(), Failure> {
    while let Some(first) = messages.first().filter(|_| *earlier > 0) {
        let page = client.messages(id, Some(&first.id)).await?;
        if page.messages.is_empty() {
            break;
        }
        *earlier = page.earlier;
        messages.splice(0..0, page.messages);
    }
    Ok(())
}

/// A new idempotency key, so that the gateway executes a retried call once.
fn key(context: &Context) -> String {
    context.rng.uuid(context.clock.now()).to_string()
}

fn names(ids: &[SessionId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(crate) fn standard_input() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
    Ok(text.trim_end().to_owned())
}
