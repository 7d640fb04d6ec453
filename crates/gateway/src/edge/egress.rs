//! `/v1/egress`: the egress rules of an organization's sandboxes, and the records of their connections.

use axum::Json;
use proto::SessionId;
use proto::http::{EgressEntry, EgressList, EgressQuery, EgressRules, ErrorBody, OkReply};
use store::{EgressPolicy, EgressRecord};

use super::administer::administer_as;
use super::auth::User;
use super::params::Query;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::runtime::check_rules;
use gate::AdminChange;

/// The most entries of one rule list. Every connection of a sandbox is compared with all of them.
const MAX_RULES: usize = 1000;
const DEFAULT_RECORDS: u32 = 100;
const MOST_RECORDS: u32 = 1000;

#[utoipa::path(get, path = "/v1/egress", tag = "sandboxes", responses((status = 200, body = EgressRules)))]
pub(super) async fn rules(app: AppState, user: User) -> Result<Json<EgressRules>, ApiError> {
    let EgressPolicy { mode, allow, deny, .. } = app.store.egress_policy(user.org).await?;
    Ok(Json(EgressRules { mode, allow: allow.0, deny: deny.0 }))
}

/// Replaces all rules. They apply to running sandboxes within a second; open tunnels stay open.
#[utoipa::path(put, path = "/v1/egress", tag = "sandboxes", request_body = EgressRules,
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(super) async fn set_rules(
    app: AppState,
    admin: User,
    Body(rules): Body<EgressRules>,
) -> Result<Json<OkReply>, ApiError> {
    if rules.allow.len() > MAX_RULES || rules.deny.len() > MAX_RULES {
        return Err(ApiError::bad_request(format!("A list has at most {MAX_RULES} entries")));
    }
    check_rules(&rules).map_err(|error| ApiError::bad_request(error.to_string()))?;
    let EgressRules { mode, allow, deny } = rules;
    let change = AdminChange::egress(mode, &allow, &deny);
    let policy = EgressPolicy { org_id: admin.org, mode, allow: allow.into(), deny: deny.into() };
    let store = administer_as(&app, &admin, &change);
    store.put_egress_policy(policy, app.clock.now()).await?;
    Ok(Json(OkReply::OK))
}

/// Lists connection attempts of the organization's sandboxes, newest first.
#[utoipa::path(get, path = "/v1/egress/records", tag = "sandboxes", params(EgressQuery),
    responses((status = 200, body = EgressList), (status = 400, body = ErrorBody)))]
pub(super) async fn records(
    app: AppState,
    user: User,
    Query(query): Query<EgressQuery>,
) -> Result<Json<EgressList>, ApiError> {
    let limit = query.limit.unwrap_or(DEFAULT_RECORDS).clamp(1, MOST_RECORDS);
    let found = app.store.egress_records(user.org, query.session_id, limit).await?;
    Ok(Json(EgressList { records: found.into_iter().map(entry).collect() }))
}

fn entry(record: EgressRecord) -> EgressEntry {
    let whole = |number: i64| u64::try_from(number).unwrap_or_default();
    EgressEntry {
        started_at: record.started_at,
        session_id: record.session_id.map(SessionId::from),
        sandbox_id: record.sandbox_id,
        kind: record.kind,
        host: record.host,
        port: record.port.and_then(|port| u16::try_from(port).ok()),
        outcome: record.outcome,
        reason: record.reason,
        bytes_up: whole(record.bytes_up),
        bytes_down: whole(record.bytes_down),
        duration_ms: whole(record.duration_ms),
    }
}
