//! The command that invokes actions. It rotates sessions, because a gateway limits the invocations per
//! session.

use std::sync::Arc;

use serde_json::json;

use crate::Result;
use crate::closed_loop::{Length, Request, closed_loop};
use crate::context::{Context, OPENERS};

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value = "danger_thing")]
    action: String,
    #[arg(long, default_value_t = 1)]
    conc: usize,
    /// Total number of requests
    #[arg(long, default_value_t = 1000)]
    n: usize,
    /// Number of requests per session (limits: 60 per minute, 10 pending)
    #[arg(long, default_value_t = 50)]
    per_session: usize,
    #[arg(long, default_value_t = 1)]
    repeat: usize,
}

/// Session ids with their sandbox tokens.
type Sessions = Arc<Vec<(String, String)>>;

pub async fn run(context: &Arc<Context>, options: &Options) -> Result<()> {
    let integration = format!("connector:{}", context.common.connector);
    let body =
        json!({"integration": integration, "action": options.action, "params": {"q": "x"}}).to_string();
    for _ in 0..options.repeat {
        let sessions = sessions_with_tools(context, options.n.div_ceil(options.per_session)).await?;
        let body = body.clone();
        let make = move |_, number: u64| {
            let (id, token) = &sessions[number as usize % sessions.len()];
            Request::post(format!("/proliferate/{id}/actions/invoke"), token.clone(), body.clone())
        };
        let length = Length::Requests(options.n);
        let result = closed_loop(context, options.conc, length, expected(&options.action), make).await?;
        context.emit(result, &format!("invoke_{}", options.action));
    }
    Ok(())
}

/// The statuses of an action of the fake server. An invocation that is treated in another way costs something else.
fn expected(action: &str) -> &'static [u16] {
    match action {
        "read_thing" => &[200],
        "write_thing" => &[202],
        "danger_thing" => &[403],
        _ => &[200, 202, 403],
    }
}

/// Creates sessions and fetches the connector's tool list for each, outside the measurement.
async fn sessions_with_tools(context: &Arc<Context>, count: usize) -> Result<Sessions> {
    let ids = context.create_sessions(count, "coding").await?;
    let sessions: Sessions = Arc::new(
        ids.into_iter()
            .map(|id| {
                let token = context.sandbox_token(&id);
                (id, token)
            })
            .collect(),
    );
    let warmed = sessions.clone();
    let make = move |_, number: u64| {
        let (id, token) = &warmed[number as usize];
        Request::get(format!("/proliferate/{id}/actions/available"), token.clone())
    };
    closed_loop(context, OPENERS, Length::Requests(count), &[200], make).await?;
    Ok(sessions)
}
