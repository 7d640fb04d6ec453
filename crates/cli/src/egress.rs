//! `egress`: shows and changes which hosts sandboxes may reach. A running gateway applies a change within a second.

use gate::AdminChange;
use gateway::runtime::check_rules;
use proto::http::EgressRules;
use proto::iso;
use serde_json::json;
use store::{EgressPolicy, EgressRecord};

use crate::args::EgressCommand;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: EgressCommand) -> Result<(), Failure> {
    match command {
        EgressCommand::Show { org } => show(context, org.org.as_deref()).await,
        EgressCommand::Mode { mode, org } => {
            change(context, org.org.as_deref(), |rules| rules.mode = mode).await
        }
        EgressCommand::Allow { hosts, org } => {
            change(context, org.org.as_deref(), |rules| add(&mut rules.allow, hosts)).await
        }
        EgressCommand::Deny { hosts, org } => {
            change(context, org.org.as_deref(), |rules| add(&mut rules.deny, hosts)).await
        }
        EgressCommand::Rm { hosts, org } => {
            let remove = |rules: &mut EgressRules| {
                rules.allow.retain(|host| !hosts.contains(host));
                rules.deny.retain(|host| !hosts.contains(host));
            };
            change(context, org.org.as_deref(), remove).await
        }
        EgressCommand::Log { session, limit, org } => {
            let store = context.store().await?;
            let org = context.org(&store, org.org.as_deref()).await?;
            let session = match session.as_deref() {
                Some(named) => Some(context.session(&store, named).await?),
                None => None,
            };
            log(context, &store.egress_records(org, session, limit).await?);
            Ok(())
        }
    }
}

async fn show(context: &Context, org: Option<&str>) -> Result<(), Failure> {
    let store = context.store().await?;
    let org = context.org(&store, org).await?;
    print(context, &rules_of(store.egress_policy(org).await?));
    Ok(())
}

async fn change(
    context: &Context,
    org: Option<&str>,
    change: impl FnOnce(&mut EgressRules),
) -> Result<(), Failure> {
    let store = context.store().await?;
    let org_id = context.org(&store, org).await?;
    let mut rules = rules_of(store.egress_policy(org_id).await?);
    change(&mut rules);
    check_rules(&rules).map_err(|error| Failure::usage(error.to_string()))?;
    let EgressRules { mode, allow, deny } = rules.clone();
    let change = AdminChange::egress(mode, &allow, &deny);
    let policy = EgressPolicy { org_id, mode, allow: allow.into(), deny: deny.into() };
    let store = context.administer(&store, org_id, &change).await?;
    store.put_egress_policy(policy, context.clock.now()).await?;
    print(context, &rules);
    Ok(())
}

fn rules_of(policy: EgressPolicy) -> EgressRules {
    EgressRules { mode: policy.mode, allow: policy.allow.0, deny: policy.deny.0 }
}

fn add(list: &mut Vec<String>, hosts: Vec<String>) {
    for host in hosts {
        if !list.contains(&host) {
            list.push(host);
        }
    }
}

fn print(context: &Context, rules: &EgressRules) {
    let EgressRules { mode, allow, deny } = rules;
    let list = |hosts: &[String]| if hosts.is_empty() { "none".to_owned() } else { hosts.join(", ") };
    let text = format!("mode   {mode}\nallow  {}\ndeny   {}", list(allow), list(deny));
    context.out.result(&json!({ "mode": mode.as_str(), "allow": allow, "deny": deny }), &text);
}

fn log(context: &Context, records: &[EgressRecord]) {
    let target = |record: &EgressRecord| match (&record.host, record.port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => "—".to_owned(),
    };
    let row = |record: &EgressRecord| {
        vec![
            context.ago(record.started_at),
            record.sandbox_id.clone(),
            target(record),
            record.address.clone().unwrap_or_default(),
            record.outcome.to_string(),
            record.bytes_up.to_string(),
            record.bytes_down.to_string(),
            record.reason.clone().unwrap_or_default(),
        ]
    };
    let value = |record: &EgressRecord| {
        json!({ "startedAt": iso::text(&record.started_at), "sandboxId": record.sandbox_id, "host": record.host,
            "port": record.port, "address": record.address, "outcome": record.outcome.as_str(), "reason": record.reason,
            "bytesUp": record.bytes_up, "bytesDown": record.bytes_down, "durationMs": record.duration_ms })
    };
    let columns = ["STARTED", "SANDBOX", "TARGET", "ADDRESS", "OUTCOME", "UP", "DOWN", "REASON"];
    let rows: Vec<_> = records.iter().map(row).collect();
    context.out.list(records.iter().map(value).collect(), &columns, &rows);
}
