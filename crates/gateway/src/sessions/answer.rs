//! Answers a question of a session's agent.

use proto::SessionId;

use super::{Requester, SessionError, SessionServices};
use crate::hub::{Answer, AnswerOutcome};

/// Answers an open question. If the agent that asked is gone, the answer becomes the next prompt. The same answer again
/// changes nothing.
pub async fn answer(
    services: &SessionServices,
    session: SessionId,
    requester: &Requester,
    question_id: String,
    answers: Vec<Vec<String>>,
) -> Result<(), SessionError> {
    let answer = Answer { question_id, answers, by: requester.name() };
    match services.hubs.open(session).await?.answer(answer).await? {
        AnswerOutcome::Accepted => Ok(()),
        AnswerOutcome::Unknown => Err(SessionError::UnknownQuestion),
        AnswerOutcome::Settled => Err(SessionError::QuestionSettled),
        AnswerOutcome::Invalid(reason) => Err(SessionError::InvalidAnswer(reason)),
        AnswerOutcome::Refused(refusal) => Err(refusal.into()),
    }
}
