//! `connectors`: the remote MCP servers of an organization, and the review of what they offer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use client::Client;
use proto::http::{
    ChangeConnector, ConnectorDetail, ConnectorEntry, ConnectorToolEntry, CreateConnector, ReviewConnector,
    ReviewState, RiskPolicy,
};
use proto::{ConnectorId, text};
use serde_json::{Value, json};

use crate::args::{AddConnector, ConnectorsCommand, GatewayArgs, OneConnector};
use crate::clean::{clean_json, one_line};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect_to_org;
use crate::lookup::{Candidate, Kind, pick};
use crate::output::line;

const CONNECTOR_KIND: Kind = Kind("connector", "proliferate connectors ls");
/// The maximum number of characters of a value in an overview.
const MAX_VALUE_CHARS: usize = 120;
/// The warning about a definition that agents read differently than people.
const HIDDEN_CHARACTERS: &str = " · WARNING: its definition has characters that people do not see, or that change the \
     direction of the text; they are shown as escapes";

pub(crate) async fn run(context: &Context, command: ConnectorsCommand) -> Result<(), Failure> {
    match command {
        ConnectorsCommand::Add(new) => add(context, new).await,
        ConnectorsCommand::Ls { place } => {
            let client = connect_to_org(context, place.gateway, place.org.org.as_deref()).await?;
            ls(context, &client).await
        }
        ConnectorsCommand::Show { connector } => {
            let (client, id) = find(context, connector).await?;
            show(context, &client.connector(id).await?);
            Ok(())
        }
        ConnectorsCommand::Review { connector, tools, all, yes } => {
            if tools.is_empty() && !all {
                return Err(Failure::usage(
                    "name tools with --tool, or review them --all; nothing is pinned without --yes",
                ));
            }
            let (client, id) = find(context, connector).await?;
            review(context, &client, id, &tools, yes).await
        }
        ConnectorsCommand::Enable { connector } => switch(context, connector, true).await,
        ConnectorsCommand::Disable { connector } => switch(context, connector, false).await,
        ConnectorsCommand::Rm { connector } => {
            let (client, id) = find(context, connector).await?;
            client.remove_connector(id).await?;
            context.out.result(&json!({ "removed": id }), &format!("removed {id}"));
            Ok(())
        }
    }
}

async fn add(context: &Context, new: AddConnector) -> Result<(), Failure> {
    let request = CreateConnector {
        auth: new.auth()?,
        risk_policy: RiskPolicy { default_risk: Some(new.default_risk.into()), overrides: BTreeMap::new() },
        name: new.name,
        url: new.url.to_string(),
    };
    let gateway = GatewayArgs { url: None, token: new.token };
    let client = connect_to_org(context, gateway, new.org.org.as_deref()).await?;
    let connector = client.add_connector(&request).await?;
    let id = connector.id;
    let next = format!(
        "added {} ({id}); `proliferate connectors review {id} --all` shows its tools",
        connector.name
    );
    context.out.result(&json!(connector), &next);
    Ok(())
}

async fn ls(context: &Context, client: &Client) -> Result<(), Failure> {
    let connectors = client.connectors().await?.connectors;
    let row = |connector: &ConnectorEntry| {
        let state = if connector.enabled { "enabled" } else { "disabled" };
        let risk = connector.risk_policy.default_risk.map(|risk| risk.to_string()).unwrap_or_default();
        vec![
            connector.id.to_string(),
            one_line(&connector.name),
            state.to_owned(),
            risk,
            one_line(&connector.url),
        ]
    };
    let rows: Vec<_> = connectors.iter().map(row).collect();
    let values = connectors.iter().map(|connector| json!(connector)).collect();
    context.out.list(values, &["ID", "NAME", "STATE", "RISK", "URL"], &rows);
    Ok(())
}

/// The connector that a person named.
async fn find(context: &Context, named: OneConnector) -> Result<(Client, ConnectorId), Failure> {
    let place = named.place;
    let client = connect_to_org(context, place.gateway, place.org.org.as_deref()).await?;
    let all = client.connectors().await?.connectors.into_iter();
    let all: Vec<_> = all.map(|connector| Candidate::new(connector.id, [connector.name])).collect();
    let id = pick(CONNECTOR_KIND, &named.connector, &all)?;
    Ok((client, id))
}

fn show(context: &Context, detail: &ConnectorDetail) {
    if context.out.is_json() {
        context.out.result(&json!(detail), "");
        return;
    }
    let ConnectorDetail { connector, offer } = detail;
    let state = if connector.enabled { "enabled" } else { "disabled" };
    line(&format!("{} ({}), {state}: {}", one_line(&connector.name), connector.id, one_line(&connector.url)));
    if let Some(error) = &offer.error {
        line(&format!("its server cannot be asked: {}", one_line(error)));
    }
    for tool in &offer.tools {
        line(&outline(tool));
    }
    for name in &offer.gone {
        line(&format!("  {}: reviewed, but no longer offered", one_line(name)));
    }
    if !offer.refused.is_empty() {
        line(&format!("  {} tools are left out: {}", offer.refused.len(), offer.refused.join("; ")));
    }
}

fn headline(tool: &ConnectorToolEntry) -> String {
    let state = match tool.state {
        ReviewState::Reviewed => "reviewed",
        ReviewState::New => "new",
        ReviewState::Changed => "CHANGED since its review",
    };
    let hidden = if text::has_deceptive(&tool.definition.to_string()) { HIDDEN_CHARACTERS } else { "" };
    format!("  {} · {} · {} · {state}{hidden}", one_line(&tool.name), tool.risk_level, tool.mode)
}

/// A tool in an overview. Long values are cut.
fn outline(tool: &ConnectorToolEntry) -> String {
    let mut text = headline(tool);
    if tool.state == ReviewState::New {
        let _ = write!(text, "\n    {}", cut(&one_line(&tool.description)));
    }
    text + &list_changes(tool, cut)
}

/// Everything that a review of the tool pins: a new definition completely, of a changed one the differences.
fn describe_fully(tool: &ConnectorToolEntry) -> String {
    let mut text = headline(tool) + &list_changes(tool, str::to_owned);
    if tool.state == ReviewState::New || tool.changes_truncated {
        let _ = write!(text, "\n    {}", one_line(&tool.description));
        text += &indented_json(&tool.definition);
    }
    if let (true, Some(before)) = (tool.changes_truncated, &tool.reviewed_definition) {
        let _ = write!(text, "\n    reviewed was:{}", indented_json(before));
    }
    text
}

fn list_changes(tool: &ConnectorToolEntry, shorten: fn(&str) -> String) -> String {
    let mut text = String::new();
    for change in &tool.changes {
        let shown = |value: &Option<Value>| {
            value
                .as_ref()
                .map_or_else(|| "(absent)".to_owned(), |value| shorten(&one_line(&value.to_string())))
        };
        let (before, after) = (shown(&change.before), shown(&change.after));
        let _ = write!(text, "\n    {}\n      - {before}\n      + {after}", one_line(&change.path));
    }
    if tool.changes_truncated {
        let _ = write!(text, "\n    There are more differences than these {}.", tool.changes.len());
    }
    text
}

/// JSON over several lines below a tool.
fn indented_json(value: &Value) -> String {
    let text = clean_json(&format!("{value:#}"));
    text.lines().fold(String::new(), |all, line| all + "\n    " + line)
}

fn cut(text: &str) -> String {
    if text.chars().count() <= MAX_VALUE_CHARS {
        return text.to_owned();
    }
    text.chars().take(MAX_VALUE_CHARS).chain(['…']).collect()
}

/// Pins what the server offers now and this command has shown.
async fn review(
    context: &Context,
    client: &Client,
    id: ConnectorId,
    tools: &[String],
    yes: bool,
) -> Result<(), Failure> {
    let detail = client.connector(id).await?;
    if let Some(error) = &detail.offer.error {
        return Err(Failure::failed(format!("its server cannot be asked: {}", one_line(error))));
    }
    let offered = detail.offer.tools.iter();
    let wanted: Vec<&ConnectorToolEntry> = match tools {
        [] => offered.filter(|tool| tool.state != ReviewState::Reviewed).collect(),
        named => offered.filter(|tool| named.contains(&tool.name)).collect(),
    };
    if let Some(missing) = tools.iter().find(|name| !wanted.iter().any(|tool| tool.name == **name)) {
        return Err(Failure::failed(format!("the server does not offer a tool {missing:?}")));
    }
    if !context.out.is_json() {
        for tool in &wanted {
            line(&describe_fully(tool));
        }
    }
    let names: Vec<&str> = wanted.iter().map(|tool| tool.name.as_str()).collect();
    if !yes {
        let text = format!("{} tools to review; give --yes to pin them", names.len());
        context.out.result(&json!({ "pinned": [], "toReview": names }), &text);
        return Ok(());
    }
    let hashes = wanted.iter().map(|tool| (tool.name.clone(), tool.hash.clone())).collect();
    let reply = client.review_connector(id, &ReviewConnector { tools: hashes }).await?;
    context.out.result(&json!(reply), &format!("pinned {} tools", reply.pinned.len()));
    Ok(())
}

async fn switch(context: &Context, connector: OneConnector, enabled: bool) -> Result<(), Failure> {
    let (client, id) = find(context, connector).await?;
    let change = ChangeConnector { enabled: Some(enabled), ..ChangeConnector::default() };
    let connector = client.change_connector(id, &change).await?;
    let done = if enabled { "enabled" } else { "disabled" };
    context.out.result(&json!(connector), &format!("{done} {}", connector.name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(state: ReviewState, truncated: bool) -> ConnectorToolEntry {
        let long = "x".repeat(500) + "END";
        let definition =
            json!({"name": "a", "description": long, "inputSchema": {"title": format!("\u{1b}[2J{long}")}});
        let change = json!({"path": "/description", "before": "old", "after": long});
        serde_json::from_value(json!({
            "name": "a", "description": long, "riskLevel": "read", "key": "connector:a", "mode": "allow",
            "modeSource": "inferred_default", "state": state, "hash": "", "definition": definition,
            "reviewedDefinition": {"name": "a", "title": "THE OLD ONE"},
            "changes": if state == ReviewState::Changed { json!([change]) } else { json!([]) },
            "changesTruncated": truncated,
        }))
        .unwrap()
    }

    #[test]
    fn a_review_warns_of_characters_that_nobody_sees() {
        let mut tool = entry(ReviewState::New, false);
        tool.definition = json!({"name": "a", "description": "🙂 ❤\u{fe0f} Grüße"});
        assert!(!describe_fully(&tool).contains("WARNING"));
        // Tag characters spell a text that only the agent reads.
        tool.definition = json!({"name": "a", "description": "fine\u{e0072}\u{e006d}"});
        tool.description = "fine\u{e0072}\u{e006d}".to_owned();
        let shown = describe_fully(&tool);
        assert!(shown.contains("WARNING") && shown.contains("fine\\u{e0072}\\u{e006d}"), "{shown}");
        assert!(
            shown.contains("\\udb40\\udc72") && !text::has_deceptive(&shown.replace('\n', " ")),
            "{shown}"
        );
        tool.definition = json!({"name": "a", "description": "no\u{200b}thing"});
        assert!(outline(&tool).contains("WARNING"), "an overview warns too");
    }

    #[test]
    fn a_review_shows_everything_that_it_pins() {
        let new = describe_fully(&entry(ReviewState::New, false));
        assert_eq!(new.matches("END").count(), 3, "{new}");
        assert!(
            new.contains("inputSchema") && !new.contains('\u{1b}') && !new.contains("more differences"),
            "{new}"
        );
        let changed = describe_fully(&entry(ReviewState::Changed, false));
        assert!(changed.contains("END") && !changed.contains("THE OLD ONE"), "{changed}");
        let truncated = describe_fully(&entry(ReviewState::Changed, true));
        for part in ["more differences", "inputSchema", "THE OLD ONE"] {
            assert!(truncated.contains(part), "{part}: {truncated}");
        }
        assert!(!outline(&entry(ReviewState::Changed, false)).contains("END"), "an overview is short");
    }
}
