//! `session`: the product from a terminal. Everything goes through the public API, so it works from any machine.

mod attach;
pub(crate) mod clean;
mod reach;
mod screen;
mod turns;

use std::io::Read as _;
use std::process::ExitCode;

use client::{Client, Event, Watch};
use proto::http::{AgentConfig, CreateSession, PostMessage, SessionQuery};
use proto::socket::{Message, MessageSource, ServerMessage};
use proto::{ClientType, Session, SessionId, SessionStatus, SessionType, iso};
use serde_json::json;

use crate::args::{NewArgs, SessionArgs, SessionCommand};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::line;
use attach::Attached;
use clean::{clean, shortened};
use screen::Screen;

/// Characters of a title in a table.
const TITLE: usize = 50;

pub(crate) async fn run(context: &Context, args: SessionArgs) -> Result<ExitCode, Failure> {
    let client = reach::client(context, args.reach).await?;
    match args.command {
        SessionCommand::New(new) => return make(context, client, new).await,
        SessionCommand::Attach { id } => return Attached::open(context, client, id).await?.run().await,
        SessionCommand::Prompt { id, text, wait } => return prompt(context, client, id, text, wait).await,
        SessionCommand::Cancel { id } => {
            client.cancel(id).await?;
            context.out.result(&json!({ "id": id }), "cancelled what ran");
        }
        SessionCommand::Ls { status, limit } => ls(context, &client, status, limit).await?,
        SessionCommand::Show { id } => show(context, &client, id).await?,
        SessionCommand::Stop { ids, discard } => {
            for id in &ids {
                client.stop(*id, discard).await?;
            }
            context.out.result(&json!({ "stopped": ids }), &format!("stopped {}", names(&ids)));
        }
        SessionCommand::Rm { ids } => {
            for id in &ids {
                client.delete(*id).await?;
            }
            context.out.result(&json!({ "removed": ids }), &format!("removed {}", names(&ids)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn make(context: &Context, client: Client, new: NewArgs) -> Result<ExitCode, Failure> {
    let wanted = CreateSession {
        organization_id: None,
        configuration_id: new.configuration.map(|id| id.to_string()),
        managed_configuration: None,
        cli_configuration: None,
        session_type: SessionType::Coding,
        client_type: ClientType::Cli,
        client_metadata: None,
        sandbox_mode: None,
        snapshot_id: None,
        initial_prompt: new.prompt.clone(),
        title: new.title,
        agent_config: new.model.map(|model| AgentConfig { model_id: Some(model.as_str().to_owned()) }),
        automation_id: None,
        trigger_id: None,
        trigger_event_id: None,
        trigger_context: None,
        ssh_options: None,
    };
    let made = client.create(&wanted, Some(&key(context))).await?;
    let id = made.session_id;
    let value = json!({ "id": id, "status": made.status, "configurationId": made.configuration_id });
    context.out.result(&value, &id.to_string());
    if new.attach {
        let attached = Attached::open(context, client, id).await?;
        return attached.expecting(new.prompt).run().await;
    }
    if new.prompt.is_some() {
        boot(&client, id).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lets a session begin with its prompt: whoever comes to watch it boots it, and it goes on when they leave.
async fn boot(client: &Client, id: SessionId) -> Result<(), Failure> {
    let mut stream = client.connect(id, Watch::default()).await?;
    while let Some(event) = stream.next().await {
        if matches!(event?, Event::Frame(frame) if matches!(frame.message, ServerMessage::Init { .. })) {
            break;
        }
    }
    Ok(())
}

async fn prompt(
    context: &Context,
    client: Client,
    id: SessionId,
    text: String,
    wait: bool,
) -> Result<ExitCode, Failure> {
    let text = if text == "-" { standard_input()? } else { text };
    if wait {
        return Attached::open(context, client, id).await?.answer(text).await;
    }
    send(context, &client, id, &text).await?;
    context.out.result(&json!({ "id": id }), "sent; `proliferate session attach` shows the answer");
    Ok(ExitCode::SUCCESS)
}

/// Sends a prompt, once however often the network repeats it.
async fn send(context: &Context, client: &Client, id: SessionId, text: &str) -> Result<(), Failure> {
    let message = PostMessage::Prompt {
        content: text.to_owned(),
        user_id: None,
        source: Some(MessageSource::Cli),
        images: None,
    };
    Ok(client.message(id, &message, Some(&key(context))).await?)
}

async fn ls(
    context: &Context,
    client: &Client,
    status: Option<SessionStatus>,
    limit: u32,
) -> Result<(), Failure> {
    let (mut found, mut after) = (Vec::<Session>::new(), None);
    while let Some(missing) =
        limit.checked_sub(u32::try_from(found.len()).unwrap_or(limit)).filter(|n| *n > 0)
    {
        let query = SessionQuery { status, limit: Some(missing.min(50)), after, ..SessionQuery::default() };
        let page = client.list(&query).await?;
        found.extend(page.sessions);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let rows: Vec<_> = found.iter().map(row).collect();
    let values = found.iter().map(|session| json!(session)).collect();
    context.out.list(values, &["ID", "STATUS", "TITLE", "CONFIGURATION", "LAST ACTIVITY"], &rows);
    Ok(())
}

fn row(session: &Session) -> Vec<String> {
    let title = session.title.as_deref().or(session.prompt_snippet.as_deref()).unwrap_or("-");
    vec![
        session.id.to_string(),
        session.status.to_string(),
        shortened(&clean(title), TITLE),
        shortened(&clean(session.configuration_name.as_deref().unwrap_or("-")), TITLE),
        iso::text(&session.last_activity_at),
    ]
}

async fn show(context: &Context, client: &Client, id: SessionId) -> Result<(), Failure> {
    let mut stream = client.connect(id, Watch { since: None, passive: true }).await?;
    while let Some(event) = stream.next().await {
        let Event::Frame(frame) = event? else { continue };
        let mut frame = *frame;
        if let ServerMessage::Init { messages, earlier, .. } = &mut frame.message {
            complete(client, id, messages, earlier).await?;
            if context.out.is_json() {
                line(&json!(frame).to_string());
            } else if let ServerMessage::Init { messages, .. } = &frame.message {
                Screen::new(anstream::stdout()).conversation(messages);
            }
            return Ok(());
        }
    }
    Err(Failure::failed("the gateway ended the stream before it showed the conversation: try again"))
}

/// Fetches what the beginning of a stream leaves out of a long conversation.
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

/// A name for one call, so that one that is repeated on the way counts once.
fn key(context: &Context) -> String {
    context.rng.uuid(context.clock.now()).to_string()
}

fn names(ids: &[SessionId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn standard_input() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
    Ok(text.trim_end().to_owned())
}
