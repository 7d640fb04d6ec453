//! `/v1/usage`: requests, tokens and cost of the organization's models, by day, model or session.

use std::collections::HashMap;

use axum::Json;
use chrono::{Days, NaiveDate};
use proto::SessionId;
use proto::http::{ErrorBody, UsageBy, UsageEntry, UsageQuery, UsageReport, UsageSums};
use store::{Usage, UsageFilter, UsageGroup, UsageKey};

use super::ApiError;
use super::auth::User;
use super::contract::is_name;
use super::params::Query;
use crate::app::AppState;

const DEFAULT_ENTRIES: u32 = 100;
const MOST_ENTRIES: u32 = 1000;
/// The days before the last one that are shown if the caller names no first day.
const DAYS_BEFORE: Days = Days::new(29);

/// Sums the organization's model usage. The default is the last 30 days, by day.
#[utoipa::path(get, path = "/v1/usage", tag = "workspaces", params(UsageQuery),
    responses((status = 200, body = UsageReport), (status = 400, body = ErrorBody)))]
pub(super) async fn usage(
    app: AppState,
    user: User,
    Query(query): Query<UsageQuery>,
) -> Result<Json<UsageReport>, ApiError> {
    let by = query.by.unwrap_or(UsageBy::Day);
    let to = day("to", query.to.as_deref())?.unwrap_or_else(|| app.clock.now().date_naive());
    let first = day("from", query.from.as_deref())?;
    let from = first.unwrap_or_else(|| to.checked_sub_days(DAYS_BEFORE).unwrap_or(to));
    check(by, &query)?;
    let limit = query.limit.unwrap_or(DEFAULT_ENTRIES).clamp(1, MOST_ENTRIES);
    let filter = UsageFilter {
        days: (from.to_string(), to.to_string()),
        session: query.session_id,
        model: query.model,
        after: query.after,
        limit: i64::from(limit) + 1,
    };
    let mut groups = app.store.usage_by(user.org, key_of(by), &filter).await?;
    let more = groups.len() > limit as usize;
    groups.truncate(limit as usize);
    let next = groups.last().filter(|_| more).map(|group| group.key.clone());
    let titles = if by == UsageBy::Session { titles(&app, &user, &groups).await? } else { HashMap::new() };
    let budget = app.store.org_budget(user.org).await?;
    let (from, to) = filter.days.clone();
    Ok(Json(UsageReport {
        by,
        from,
        to,
        total: sums(app.store.total_usage(user.org, &filter).await?),
        entries: groups.into_iter().map(|group| entry(group, &titles)).collect(),
        budget_micros: budget.budget_micros,
        spent_micros: budget.spent_micros,
        next,
    }))
}

fn check(by: UsageBy, query: &UsageQuery) -> Result<(), ApiError> {
    if [&query.model, &query.after].into_iter().flatten().any(|text| !is_name(text)) {
        return Err(ApiError::bad_request("model and after are names of at most 200 characters"));
    }
    let session = |text: &str| text.parse::<SessionId>().is_ok();
    if by == UsageBy::Session && query.after.as_deref().is_some_and(|after| !session(after)) {
        return Err(ApiError::bad_request("after is not a cursor of this list"));
    }
    Ok(())
}

fn day(name: &str, given: Option<&str>) -> Result<Option<NaiveDate>, ApiError> {
    let parse = |text: &str| text.parse::<NaiveDate>().ok().filter(|day| day.to_string().len() == 10);
    match given.map(parse) {
        Some(None) => Err(ApiError::bad_request(format!("{name} must be a day, YYYY-MM-DD"))),
        day => Ok(day.flatten()),
    }
}

fn key_of(by: UsageBy) -> UsageKey {
    match by {
        UsageBy::Day => UsageKey::Day,
        UsageBy::Model => UsageKey::Model,
        UsageBy::Session => UsageKey::Session,
    }
}

/// The titles of the sessions that still exist.
async fn titles(
    app: &AppState,
    user: &User,
    groups: &[UsageGroup],
) -> Result<HashMap<String, String>, ApiError> {
    let mut found = HashMap::new();
    for group in groups {
        let Ok(id) = group.key.parse::<SessionId>() else { continue };
        let session = app.store.session_any(id).await?.filter(|session| session.org_id == user.org);
        if let Some(title) = session.and_then(|session| session.title) {
            found.insert(group.key.clone(), title);
        }
    }
    Ok(found)
}

fn entry(group: UsageGroup, titles: &HashMap<String, String>) -> UsageEntry {
    UsageEntry { title: titles.get(&group.key).cloned(), key: group.key, sums: sums(group.usage) }
}

fn sums(usage: Usage) -> UsageSums {
    UsageSums {
        requests: usage.requests,
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        cache_read_tokens: usage.cache_read_tokens,
        cache_write_tokens: usage.cache_write_tokens,
        cost_micros: usage.cost_micros,
    }
}
