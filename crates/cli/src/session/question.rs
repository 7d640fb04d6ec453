//! The question of an agent that the next line typed in an attached terminal answers.

use proto::socket::{OpenQuestion, ServerMessage};

/// What waits for a typed answer. Questions of several parts need `proliferate questions answer`.
#[derive(Default)]
pub(super) struct TypedQuestion(Option<OpenQuestion>);

impl TypedQuestion {
    /// Follows one message of the stream. Returns whether a question has just begun to wait for a line.
    pub(super) fn observe(&mut self, message: &ServerMessage) -> bool {
        match message {
            ServerMessage::Question(question) => self.0 = Some(question.clone()),
            ServerMessage::Init { questions, .. } => self.0 = questions.first().cloned(),
            ServerMessage::QuestionAnswered { question_id, .. } if self.is(question_id) => self.0 = None,
            _ => return false,
        }
        self.waits()
    }

    /// Whether a typed line is an answer and not a prompt.
    pub(super) fn waits(&self) -> bool {
        self.0.as_ref().is_some_and(|question| question.questions.len() == 1)
    }

    /// The id of the question and the answer that this line gives: a text, or the number of an option. `None` if no
    /// question waits for a line.
    pub(super) fn answer(&self, line: &str) -> Option<(String, Result<Vec<Vec<String>>, String>)> {
        let question = self.0.as_ref().filter(|_| self.waits())?;
        let options = &question.questions.first()?.options;
        let text = line.trim();
        let is_label = options.iter().any(|option| option.label == text);
        let number = text.parse::<usize>().ok().filter(|_| !is_label);
        let chosen = number.and_then(|number| options.get(number.checked_sub(1)?));
        let text = chosen.map_or(text, |option| option.label.as_str());
        let answers = vec![vec![text.to_owned()]];
        let checked = question.check(&answers).map(|()| answers);
        Some((question.question_id.clone(), checked))
    }

    fn is(&self, id: &str) -> bool {
        self.0.as_ref().is_some_and(|question| question.question_id == id)
    }
}

#[cfg(test)]
mod tests {
    use proto::socket::{QuestionItem, QuestionKind, QuestionOption};

    use super::*;

    fn question(labels: &[&str], custom: bool, parts: usize) -> ServerMessage {
        let option = |label: &&str| QuestionOption { label: (*label).to_owned(), description: String::new() };
        let item = QuestionItem {
            question: "Which?".to_owned(),
            header: "Pick".to_owned(),
            options: labels.iter().map(option).collect(),
            multiple: false,
            custom,
        };
        ServerMessage::Question(OpenQuestion {
            question_id: "que_1".to_owned(),
            kind: QuestionKind::Question,
            questions: vec![item; parts],
        })
    }

    fn answer(message: &ServerMessage, line: &str) -> Result<Vec<Vec<String>>, String> {
        let mut waiting = TypedQuestion::default();
        assert!(waiting.observe(message));
        waiting.answer(line).unwrap().1
    }

    #[test]
    fn a_line_answers_by_label_by_number_or_in_own_words() {
        let colours = question(&["Red", "Blue"], true, 1);
        for (line, text) in [("Blue", "Blue"), (" 2 ", "Blue"), ("3", "3"), ("green", "green")] {
            assert_eq!(answer(&colours, line).unwrap(), [[text]], "{line}");
        }
        assert_eq!(answer(&question(&["2", "1"], false, 1), "2").unwrap(), [["2"]], "a label counts first");
        assert!(answer(&question(&["Red"], false, 1), "green").is_err());
    }

    #[test]
    fn a_line_is_a_prompt_without_an_open_question_of_one_part() {
        let mut waiting = TypedQuestion::default();
        assert!(waiting.answer("Blue").is_none());
        assert!(!waiting.observe(&question(&["Red"], true, 2)), "one line cannot answer two parts");
        assert!(waiting.observe(&question(&["Red"], true, 1)));
        let settled = |id: &str| ServerMessage::QuestionAnswered {
            question_id: id.to_owned(),
            answers: Vec::new(),
            by: None,
        };
        waiting.observe(&settled("que_0"));
        assert!(waiting.waits(), "another question was settled");
        waiting.observe(&settled("que_1"));
        assert!(waiting.answer("Blue").is_none());
    }
}
