//! Questions of agents: stored once, settled once, and marked until the agent has the outcome.

use proto::socket::{OpenQuestion, QuestionItem, QuestionKind, QuestionOption, QuestionState};
use store::{NewQuestion, Settlement};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, own, session};

on_both! {
    a_question_is_settled_once_and_delivered_once
    due_questions_name_their_sessions
}

pub(crate) fn question(id: &str) -> NewQuestion {
    NewQuestion {
        question: OpenQuestion {
            question_id: id.to_owned(),
            kind: QuestionKind::Question,
            questions: vec![QuestionItem {
                question: "Which?\0".to_owned(),
                header: "Pick".to_owned(),
                options: vec![QuestionOption { label: "A".to_owned(), description: "a".to_owned() }],
                multiple: false,
                custom: true,
            }],
        },
        prompt_id: Some("p1".to_owned()),
        asked_at: at(10),
        expires_at: at(20),
    }
}

pub(crate) fn answered() -> Settlement {
    Settlement {
        state: QuestionState::Answered,
        answers: vec![vec!["A".to_owned()]],
        by: Some("ada".to_owned()),
        delivered: false,
    }
}

async fn a_question_is_settled_once_and_delivered_once(b: &Backend) {
    let one = org(&b.store, 1).await;
    let owner = own(&b.store, session(&b.store, one, 40).await).await;
    assert!(b.store.ask_question(&owner, question("q1")).await.unwrap());
    assert!(!b.store.ask_question(&owner, question("q1")).await.unwrap(), "the same question");
    let open = b.store.open_questions(id(40)).await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].question.questions[0].question, "Which?\u{fffd}");
    assert_eq!((open[0].state, open[0].prompt_id.as_deref()), (QuestionState::Open, Some("p1")));
    assert_eq!(b.store.org_questions(one, 10).await.unwrap(), open);
    assert!(b.store.org_questions(org(&b.store, 2).await, 10).await.unwrap().is_empty());

    let unstorable = "q1\0";
    assert!(b.store.question(id(40), unstorable).await.unwrap().is_none());
    assert!(!b.store.settle_question(&owner, unstorable, answered()).await.unwrap());
    b.store.mark_question_delivered(&owner, unstorable).await.unwrap();

    assert!(b.store.settle_question(&owner, "q1", answered()).await.unwrap());
    assert!(!b.store.settle_question(&owner, "q1", answered()).await.unwrap(), "it is not open any more");
    assert!(b.store.open_questions(id(40)).await.unwrap().is_empty());
    let settled = b.store.question(id(40), "q1").await.unwrap().unwrap();
    assert_eq!(
        (settled.state, settled.answers.clone()),
        (QuestionState::Answered, vec![vec!["A".to_owned()]])
    );
    assert_eq!(b.store.undelivered_questions(id(40)).await.unwrap(), [settled]);
    b.store.mark_question_delivered(&owner, "q1").await.unwrap();
    assert!(b.store.undelivered_questions(id(40)).await.unwrap().is_empty());
    assert_eq!(b.store.question(id(40), "q2").await.unwrap(), None);
}

async fn due_questions_name_their_sessions(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    let owner = b.store.own_session(work, "here").await.unwrap().owner;
    let due = async |now: i64| b.store.sessions_with_due_questions(at(now), "here", at(0), 10).await.unwrap();
    b.store.ask_question(&owner, question("q1")).await.unwrap();
    assert!(due(19).await.is_empty());
    assert_eq!(due(20).await, [work], "it has expired");
    b.store.settle_question(&owner, "q1", answered()).await.unwrap();
    assert_eq!(due(19).await, [work], "the agent does not have the answer");
    b.store.mark_question_delivered(&owner, "q1").await.unwrap();
    assert!(due(30).await.is_empty());
}
