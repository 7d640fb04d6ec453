//! `GET /v1/me`: the caller's identity, as the gateway sees it.

use axum::Json;
use proto::http::{ErrorBody, Me};

use super::auth::Caller;

#[utoipa::path(get, path = "/v1/me", tag = "identity",
    responses((status = 200, body = Me), (status = 401, body = ErrorBody)))]
pub(super) async fn me(caller: Caller) -> Json<Me> {
    Json(caller.me())
}
