//! `usage`: what the models of an organization have been used for, and what it cost.

use client::Client;
use proto::http::{UsageBy, UsageEntry, UsageQuery, UsageReport, UsageSums};
use serde_json::json;

use crate::args::UsageArgs;
use crate::clean::{clean, shortened};
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::output::{BOLD, line};
use crate::session;

/// The most lines that the gateway returns at once.
const MAX_ENTRIES: u32 = 1000;
const MAX_TITLE_CHARS: usize = 40;

pub(crate) async fn run(context: &Context, args: UsageArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    let session_id = match &args.session {
        Some(named) => Some(session::find(&client, named).await?),
        None => None,
    };
    let query = UsageQuery {
        by: Some(args.by),
        from: args.from.map(|day| day.to_string()),
        to: args.to.map(|day| day.to_string()),
        session_id,
        model: args.model,
        limit: None,
        after: None,
    };
    let report = read_pages(&client, query, args.limit).await?;
    if context.out.is_json() {
        context.out.result(&json!(report), "");
        return Ok(());
    }
    let name = match report.by {
        UsageBy::Day => "DAY",
        UsageBy::Model => "MODEL",
        UsageBy::Session => "SESSION",
    };
    let total = UsageEntry { key: "total".to_owned(), title: None, sums: report.total };
    let rows: Vec<_> = report.entries.iter().chain([&total]).map(row).collect();
    context.out.list(Vec::new(), &[name, "REQUESTS", "INPUT", "OUTPUT", "CACHED", "COST"], &rows);
    line(&budget(&report));
    Ok(())
}

/// Reads pages until `limit` entries are there. The total covers all pages anyway.
async fn read_pages(client: &Client, query: UsageQuery, limit: u32) -> Result<UsageReport, Failure> {
    let ask = |left: u32, after| UsageQuery { limit: Some(left.min(MAX_ENTRIES)), after, ..query.clone() };
    let mut report = client.usage(&ask(limit, None)).await?;
    while let Some(after) = report.next.take() {
        let left = limit.saturating_sub(u32::try_from(report.entries.len()).unwrap_or(limit));
        if left == 0 {
            report.next = Some(after);
            break;
        }
        let page = client.usage(&ask(left, Some(after))).await?;
        report.entries.extend(page.entries);
        report.next = page.next;
    }
    Ok(report)
}

fn row(entry: &UsageEntry) -> Vec<String> {
    let UsageSums {
        requests,
        input_tokens,
        output_tokens,
        cache_read_tokens,
        cache_write_tokens,
        cost_micros,
    } = entry.sums;
    let title = entry.title.as_deref().map(|title| format!(" {}", shortened(&clean(title), MAX_TITLE_CHARS)));
    let name = format!("{}{}", entry.key, title.unwrap_or_default());
    let numbers = [requests, input_tokens, output_tokens, cache_read_tokens + cache_write_tokens];
    [name].into_iter().chain(numbers.map(|number| number.to_string())).chain([dollars(cost_micros)]).collect()
}

fn budget(report: &UsageReport) -> String {
    let spent = dollars(report.spent_micros);
    match report.budget_micros {
        Some(budget) => format!("{BOLD}{spent}{BOLD:#} of the budget of {} is spent", dollars(budget)),
        None => format!("{BOLD}{spent}{BOLD:#} is spent in all; there is no budget"),
    }
}

/// Millionths of a dollar, with as many digits as there are down to a hundredth of a cent.
fn dollars(micros: i64) -> String {
    format!("${}.{:04}", micros / 1_000_000, micros % 1_000_000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_shown_in_dollars() {
        assert_eq!(
            [0, 100, 1_234_567, 20_000_000].map(dollars),
            ["$0.0000", "$0.0001", "$1.2345", "$20.0000"]
        );
    }
}
