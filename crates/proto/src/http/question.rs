//! Questions of agents to people: `GET /v1/questions` and `POST /proliferate/{id}/questions/{questionId}/answer`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::socket::OpenQuestion;
use crate::{SessionId, iso};

/// The open questions of an organization, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuestionList {
    pub questions: Vec<QuestionEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionEntry {
    pub session_id: SessionId,
    #[serde(flatten)]
    pub question: OpenQuestion,
    #[serde(with = "iso")]
    pub asked_at: DateTime<Utc>,
    /// The time at which the question is rejected if nobody answers it.
    #[serde(with = "iso")]
    pub expires_at: DateTime<Utc>,
}

/// The answer to a question: for each of its parts, the chosen labels or a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerQuestion {
    #[schema(min_items = 1)]
    pub answers: Vec<Vec<String>>,
}
