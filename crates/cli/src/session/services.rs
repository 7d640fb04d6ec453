//! `session services`: the services in the sandbox of a session.

use client::Client;
use proto::http::ServiceEntry;
use serde_json::json;

use super::find;
use super::work::wake;
use crate::clean::{clean, shortened};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::line;

/// The maximum length of a command in a table.
const MAX_COMMAND_CHARS: usize = 60;

pub(super) async fn ls(context: &Context, client: &Client, named: &str) -> Result<(), Failure> {
    let id = find(client, named).await?;
    let _watching = wake(client, id).await?;
    let found = client.services(id).await?;
    if context.out.is_json() {
        context.out.result(&json!(found), "");
        return Ok(());
    }
    let rows: Vec<_> = found.services.iter().map(row).collect();
    context.out.list(Vec::new(), &["NAME", "STATUS", "PID", "RESTARTS", "COMMAND"], &rows);
    if let Some(port) = found.exposed_port {
        line(&format!("The app listens on port {port} of the sandbox. It cannot be opened from outside."));
    }
    Ok(())
}

fn row(service: &ServiceEntry) -> Vec<String> {
    vec![
        clean(&service.name),
        service.status.to_string(),
        service.pid.map_or("-".to_owned(), |pid| pid.to_string()),
        service.restarts.to_string(),
        shortened(&clean(&service.command), MAX_COMMAND_CHARS),
    ]
}
