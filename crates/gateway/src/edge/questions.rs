//! Questions of agents to people: the open ones of an organization, and their answers.

use axum::Json;
use proto::http::{AnswerQuestion, ErrorBody, OkReply, OrgQuery, QuestionEntry, QuestionList};

use super::auth::{Caller, SessionAccess};
use super::params::{Path, Query};
use super::{ApiError, Body, contract};
use crate::app::AppState;
use crate::sessions;

/// The maximum number of questions in one list.
const MAX_LISTED: i64 = 500;

/// Lists the open questions of the organization, the oldest first. At most 500.
#[utoipa::path(get, path = "/v1/questions", tag = "sessions", params(OrgQuery),
    responses((status = 200, body = QuestionList), (status = 400, body = ErrorBody), (status = 401, body = ErrorBody)))]
pub(super) async fn list(
    app: AppState,
    caller: Caller,
    Query(query): Query<OrgQuery>,
) -> Result<Json<QuestionList>, ApiError> {
    let (_, org) =
        contract::identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let found = app.store.org_questions(org, MAX_LISTED).await?;
    let questions = found
        .into_iter()
        .map(|stored| QuestionEntry {
            session_id: stored.session_id,
            question: stored.question,
            asked_at: stored.asked_at,
            expires_at: stored.expires_at,
        })
        .collect();
    Ok(Json(QuestionList { questions }))
}

/// Answers a question of the session's agent. If the agent is gone, the answer becomes the next prompt.
/// The same answer again changes nothing.
#[utoipa::path(post, path = "/proliferate/{id}/questions/{questionId}/answer", tag = "sessions",
    params(("id" = proto::SessionId, Path), ("questionId" = String, Path)), request_body = AnswerQuestion,
    responses((status = 200, body = OkReply), (status = 400, body = ErrorBody), (status = 402, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn answer(
    app: AppState,
    access: SessionAccess,
    Path((_, question_id)): Path<(String, String)>,
    Body(request): Body<AnswerQuestion>,
) -> Result<Json<OkReply>, ApiError> {
    let requester = access.caller.requester()?;
    sessions::answer(&app.sessions, access.session.id, &requester, question_id, request.answers).await?;
    Ok(Json(OkReply::OK))
}
