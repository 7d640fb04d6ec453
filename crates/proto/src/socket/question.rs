//! Questions of the agent to people. A request for a permission is a question with fixed answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::string_enums::string_enums;

string_enums! {
    /// The kind of the question: a question to people, or a permission.
    QuestionKind as "question kind" {
        /// The agent used its question tool.
        Question = "question",
        /// The agent needs a permission. The answer is `once`, `always` or `reject`.
        Permission = "permission",
    }

    /// The state of a question.
    QuestionState as "question state" {
        /// The question waits for an answer.
        Open = "open",
        /// Somebody answered it.
        Answered = "answered",
        /// The question was not answered in time, or its turn was cancelled.
        Rejected = "rejected",
    }
}

/// The answers to a request for a permission.
pub const PERMISSION_ANSWERS: [&str; 3] = ["once", "always", "reject"];

/// Limits of an answer: the number of texts per question, and the bytes of each.
const MAX_TEXTS: usize = 32;
const MAX_TEXT_BYTES: usize = 8 * 1024;

/// A request of the agent that waits for a person: one or more questions that are answered together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenQuestion {
    pub question_id: String,
    pub kind: QuestionKind,
    pub questions: Vec<QuestionItem>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionItem {
    /// The complete question.
    pub question: String,
    /// A very short label for it.
    pub header: String,
    pub options: Vec<QuestionOption>,
    /// Whether several options may be chosen.
    #[serde(default)]
    pub multiple: bool,
    /// Whether the answer may be a text that is not an option.
    #[serde(default)]
    pub custom: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuestionOption {
    pub label: String,
    pub description: String,
}

impl OpenQuestion {
    /// Checks answers: one list of texts for each question, in the same order. The error names the first that is wrong.
    pub fn check(&self, answers: &[Vec<String>]) -> Result<(), String> {
        if answers.len() != self.questions.len() {
            let (given, asked) = (answers.len(), self.questions.len());
            return Err(format!("answers: {asked} expected, one for each question, but {given} given"));
        }
        for (at, (item, texts)) in self.questions.iter().zip(answers).enumerate() {
            item.check(texts).map_err(|reason| format!("answers[{at}]: {reason}"))?;
        }
        Ok(())
    }
}

impl QuestionItem {
    fn check(&self, texts: &[String]) -> Result<(), String> {
        match texts.len() {
            0 => return Err("at least one text is needed".to_owned()),
            2.. if !self.multiple => return Err("only one text is allowed".to_owned()),
            count if count > MAX_TEXTS => return Err(format!("at most {MAX_TEXTS} texts are allowed")),
            _ => {}
        }
        for text in texts {
            if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES {
                return Err(format!("a text has 1 to {MAX_TEXT_BYTES} bytes"));
            }
            if !self.custom && self.options.iter().all(|option| option.label != *text) {
                let labels: Vec<&str> = self.options.iter().map(|option| option.label.as_str()).collect();
                return Err(format!("expected one of: {}", labels.join(", ")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(labels: &[&str], multiple: bool, custom: bool) -> QuestionItem {
        let option = |label: &&str| QuestionOption { label: (*label).to_owned(), description: String::new() };
        QuestionItem {
            question: "Which?".to_owned(),
            header: "Pick".to_owned(),
            options: labels.iter().map(option).collect(),
            multiple,
            custom,
        }
    }

    fn check(item: QuestionItem, answers: &[&[&str]]) -> Result<(), String> {
        let answers: Vec<Vec<String>> =
            answers.iter().map(|texts| texts.iter().map(|text| (*text).to_owned()).collect()).collect();
        let question = OpenQuestion {
            question_id: "que_1".to_owned(),
            kind: QuestionKind::Question,
            questions: vec![item],
        };
        question.check(&answers)
    }

    #[test]
    fn answers_match_their_questions() {
        assert_eq!(check(item(&["A", "B"], false, false), &[&["A"]]), Ok(()));
        assert_eq!(check(item(&["A", "B"], true, false), &[&["A", "B"]]), Ok(()));
        assert_eq!(check(item(&["A"], false, true), &[&["something else"]]), Ok(()));
        let wrong: [(QuestionItem, &[&[&str]], &str); 6] = [
            (item(&["A"], false, true), &[], "answers: 1 expected"),
            (item(&["A"], false, true), &[&["A"], &["A"]], "answers: 1 expected"),
            (item(&["A"], false, true), &[&[]], "answers[0]: at least one"),
            (item(&["A", "B"], false, true), &[&["A", "B"]], "answers[0]: only one"),
            (item(&["A", "B"], false, false), &[&["C"]], "answers[0]: expected one of: A, B"),
            (item(&["A"], false, true), &[&["  "]], "answers[0]: a text has"),
        ];
        for (item, answers, reason) in wrong {
            let error = check(item, answers).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }
}
