//! The answers that were given last, for those who ask again. A run that has ended never changes, so they need not be
//! looked up, and they are true on whichever instance the call was done.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use ledger::Hash;
use policy::Claim;
use proto::OrgId;
use serde_json::Value;

use super::call::Answered;

/// Whoever asks again does it within seconds; what is older is asked of the database.
const MOST: usize = 1024;
/// An answer larger than this is not kept here: a few of them would be most of the memory that an idle gateway has.
const LARGEST: usize = 4096;

/// The answers, oldest first.
#[derive(Default)]
pub(super) struct Answers(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    answers: HashMap<Arc<Key>, (Question, Answered)>,
    order: VecDeque<Arc<Key>>,
}

/// The organisation and the run.
type Key = (OrgId, String);
/// What was asked, and by whom.
type Question = (Hash, Claim);

impl Answers {
    /// What the call was answered before. `None` also where somebody else asked, or for something else: what that comes
    /// to is decided where it is recorded.
    pub(super) fn find(&self, key: &Key, question: &Question) -> Option<Answered> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, answered) = kept.answers.get(key)?;
        (asked == question).then(|| answered.clone())
    }

    /// Keeps an answer that is in the database.
    pub(super) fn keep(&self, key: Key, question: Question, answered: &Answered) {
        if weight(&answered.body) > LARGEST {
            return;
        }
        let key = Arc::new(key);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.answers.insert(key.clone(), (question, answered.clone())).is_none() {
            kept.order.push_back(key);
        }
        if kept.order.len() > MOST
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.answers.remove(&oldest);
        }
    }
}

/// About how many bytes a value takes.
fn weight(value: &Value) -> usize {
    let content = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + weight(value)).sum(),
        _ => 0,
    };
    content + size_of::<Value>()
}

#[cfg(test)]
mod tests {
    use policy::ActorClass;
    use serde_json::json;

    use super::super::call::Outcome;
    use super::*;

    fn key(number: usize) -> Key {
        (OrgId::from(uuid::Uuid::from_u128(1)), format!("run-{number}"))
    }

    fn question(text: &str, who: &str) -> Question {
        let actor = Claim { actor_type: ActorClass::Agent, actor_id: who.to_owned() };
        (ledger::sha256(text.as_bytes()), actor)
    }

    fn answered(body: &Value) -> Answered {
        Answered { outcome: Outcome::Success, body: body.clone() }
    }

    #[test]
    fn an_answer_is_for_the_same_words_of_the_same_caller() {
        let answers = Answers::default();
        let yes = answered(&json!({"result": "yes"}));
        answers.keep(key(1), question("may I", "ada"), &yes);
        assert_eq!(answers.find(&key(1), &question("may I", "ada")), Some(yes));
        for (number, text, who) in [(1, "may I", "bob"), (1, "must I", "ada"), (2, "may I", "ada")] {
            assert_eq!(answers.find(&key(number), &question(text, who)), None, "{number} {text} {who}");
        }
    }

    #[test]
    fn what_is_kept_has_an_end() {
        let answers = Answers::default();
        let (asked, yes) = (question("may I", "ada"), answered(&json!("yes")));
        for number in 0..=MOST {
            answers.keep(key(number), asked.clone(), &yes);
            answers.keep(key(number), asked.clone(), &yes);
        }
        assert_eq!(answers.find(&key(0), &asked), None, "the oldest one makes room");
        assert_eq!(answers.find(&key(1), &asked), Some(yes));
        let kept = answers.0.lock().unwrap();
        assert_eq!((kept.answers.len(), kept.order.len()), (MOST, MOST));
    }

    #[test]
    fn a_large_answer_is_left_to_the_database() {
        let answers = Answers::default();
        let asked = question("tell me all", "ada");
        answers.keep(key(1), asked.clone(), &answered(&json!({"data": [["a".repeat(LARGEST)]]})));
        assert_eq!(answers.find(&key(1), &asked), None);
    }
}
