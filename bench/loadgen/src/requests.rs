//! The commands that repeat one simple request: tool calls, the list of actions, new sessions, any GET.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use crate::Result;
use crate::closed_loop::{Length, Request, closed_loop};
use crate::context::Context;

#[derive(clap::Args)]
pub struct ToolsOptions {
    #[arg(long, default_value_t = 1)]
    conc: usize,
    #[arg(long, default_value_t = 5.0)]
    secs: f64,
    /// Reuse one tool_call_id per worker
    #[arg(long)]
    dup: bool,
    #[arg(long, default_value_t = 1)]
    repeat: usize,
}

#[derive(clap::Args)]
pub struct AvailableOptions {
    #[arg(long, default_value_t = 1)]
    conc: usize,
    #[arg(long, default_value_t = 5.0)]
    secs: f64,
    /// Use the user token instead of the sandbox token
    #[arg(long)]
    as_user: bool,
    #[arg(long, default_value_t = 1)]
    repeat: usize,
}

#[derive(clap::Args)]
pub struct CreateOptions {
    #[arg(long, default_value_t = 1)]
    conc: usize,
    #[arg(long, default_value_t = 5.0)]
    secs: f64,
    #[arg(long, default_value_t = 1)]
    repeat: usize,
}

#[derive(clap::Args)]
pub struct GetOptions {
    #[arg(long, default_value = "/health")]
    path: String,
    #[arg(long, default_value_t = 16)]
    conc: usize,
    #[arg(long, default_value_t = 5.0)]
    secs: f64,
    #[arg(long, default_value_t = 1)]
    repeat: usize,
}

pub async fn tools(context: &Arc<Context>, options: &ToolsOptions) -> Result<()> {
    let dup = options.dup;
    let sessions = context.create_sessions(options.conc, "setup").await?;
    let targets: Arc<Vec<(String, String)>> = Arc::new(
        sessions
            .iter()
            .map(|id| (format!("/proliferate/{id}/tools/save_service_commands"), context.sandbox_token(id)))
            .collect(),
    );
    let next = Arc::new(AtomicU64::new(0));
    for _ in 0..options.repeat {
        let (targets, next) = (targets.clone(), next.clone());
        let make = move |worker: usize, _| {
            let call = if dup {
                format!("call_dup_{worker}")
            } else {
                format!("call_{}", next.fetch_add(1, Ordering::Relaxed))
            };
            let (path, token) = targets[worker].clone();
            let body =
                json!({"tool_call_id": call, "args": {"commands": [{"name": "web", "command": "pnpm dev"}]}});
            Request::post(path, token, body.to_string())
        };
        let result = closed_loop(context, options.conc, Length::Secs(options.secs), &[200], make).await?;
        context.emit(result, if dup { "tools_dup" } else { "tools" });
    }
    Ok(())
}

pub async fn available(context: &Arc<Context>, options: &AvailableOptions) -> Result<()> {
    let sessions = context.create_sessions(options.conc, "coding").await?;
    let token =
        |id: &str| if options.as_user { context.user_token.clone() } else { context.sandbox_token(id) };
    let targets: Arc<Vec<(String, String)>> = Arc::new(
        sessions.iter().map(|id| (format!("/proliferate/{id}/actions/available"), token(id))).collect(),
    );
    for _ in 0..options.repeat {
        let targets = targets.clone();
        let make = move |worker: usize, _| {
            let (path, token) = targets[worker].clone();
            Request::get(path, token)
        };
        let result = closed_loop(context, options.conc, Length::Secs(options.secs), &[200], make).await?;
        context.emit(result, if options.as_user { "available_user" } else { "available" });
    }
    Ok(())
}

pub async fn create(context: &Arc<Context>, options: &CreateOptions) -> Result<()> {
    for _ in 0..options.repeat {
        let creator = context.clone();
        let make = move |worker: usize, number: u64| {
            let body = creator.create_body(worker + number as usize, "coding");
            Request::post("/proliferate/sessions".to_owned(), creator.user_token.clone(), body)
        };
        let result = closed_loop(context, options.conc, Length::Secs(options.secs), &[201], make).await?;
        context.emit(result, "create");
    }
    Ok(())
}

pub async fn get(context: &Arc<Context>, options: &GetOptions) -> Result<()> {
    for _ in 0..options.repeat {
        let path = options.path.clone();
        let make = move |_, _| Request::get(path.clone(), String::new());
        let result = closed_loop(context, options.conc, Length::Secs(options.secs), &[200], make).await?;
        context.emit(result, "get");
    }
    Ok(())
}
