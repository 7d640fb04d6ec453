//! The questions of an agent that a line typed in an attached terminal can answer.

use proto::socket::{OpenQuestion, ServerMessage};

/// The open questions of one part, the oldest first. Those of several parts need `proliferate questions answer`.
#[derive(Default)]
pub(super) struct TypedQuestions {
    open: Vec<OpenQuestion>,
    /// The question that the visible prompt is for.
    answering: Option<String>,
}

impl TypedQuestions {
    /// Follows one message of the stream. Returns whether a question was asked that a line can answer.
    pub(super) fn observe(&mut self, message: &ServerMessage) -> bool {
        let is_simple = |question: &&OpenQuestion| question.questions.len() == 1;
        let before = self.open.len();
        match message {
            ServerMessage::Question(question) => self.open.extend(Some(question).filter(is_simple).cloned()),
            ServerMessage::Init { questions, .. } => {
                self.open = questions.iter().filter(is_simple).cloned().collect();
                return !self.open.is_empty();
            }
            ServerMessage::QuestionAnswered { question_id, .. } => self.forget(question_id),
            _ => {}
        }
        self.open.len() > before
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.open.retain(|question| question.question_id != id);
    }

    /// Whether a line can answer a question now.
    pub(super) fn wait(&self) -> bool {
        !self.open.is_empty()
    }

    /// Binds the prompt that appears now to the oldest question. Returns whether there is one.
    pub(super) fn bind_prompt(&mut self) -> bool {
        self.answering = self.open.first().map(|question| question.question_id.clone());
        self.answering.is_some()
    }

    /// The question that the prompt was bound to.
    pub(super) fn take_bound(&mut self) -> Option<String> {
        self.answering.take()
    }

    /// The answer that a line gives to this question: a text, or the number of an option. `None` if the question is not
    /// open any more.
    pub(super) fn answer(&self, id: &str, line: &str) -> Option<Result<Vec<Vec<String>>, String>> {
        let question = self.open.iter().find(|question| question.question_id == id)?;
        let options = &question.questions.first()?.options;
        let text = line.trim();
        let is_label = options.iter().any(|option| option.label == text);
        let number = text.parse::<usize>().ok().filter(|_| !is_label);
        let chosen = number.and_then(|number| options.get(number.checked_sub(1)?));
        let answers = vec![vec![chosen.map_or(text, |option| &option.label).to_owned()]];
        Some(question.check(&answers).map(|()| answers))
    }
}

#[cfg(test)]
mod tests {
    use proto::socket::{QuestionItem, QuestionKind, QuestionOption};

    use super::*;

    fn question(id: &str, labels: &[&str], custom: bool, parts: usize) -> ServerMessage {
        let option = |label: &&str| QuestionOption { label: (*label).to_owned(), description: String::new() };
        let item = QuestionItem {
            question: "Which?".to_owned(),
            header: "Pick".to_owned(),
            options: labels.iter().map(option).collect(),
            multiple: false,
            custom,
        };
        ServerMessage::Question(OpenQuestion {
            question_id: id.to_owned(),
            kind: QuestionKind::Question,
            questions: vec![item; parts],
        })
    }

    fn answer(message: &ServerMessage, line: &str) -> Result<Vec<Vec<String>>, String> {
        let mut waiting = TypedQuestions::default();
        assert!(waiting.observe(message));
        waiting.answer("que_1", line).unwrap()
    }

    #[test]
    fn a_line_answers_by_label_by_number_or_in_own_words() {
        let colours = question("que_1", &["Red", "Blue"], true, 1);
        for (line, text) in [("Blue", "Blue"), (" 2 ", "Blue"), ("3", "3"), ("0", "0"), ("green", "green")] {
            assert_eq!(answer(&colours, line).unwrap(), [[text]], "{line}");
        }
        assert_eq!(answer(&question("que_1", &["2", "1"], false, 1), "2").unwrap(), [["2"]], "labels first");
        assert!(answer(&question("que_1", &["Red"], false, 1), "green").is_err());
    }

    #[test]
    fn the_oldest_question_is_answered_first_and_only_while_it_is_open() {
        let mut waiting = TypedQuestions::default();
        assert!(!waiting.observe(&question("que_0", &["Red"], true, 2)), "one line cannot answer two parts");
        assert!(waiting.observe(&question("que_1", &["Red"], true, 1)));
        assert!(waiting.observe(&question("que_2", &["Red"], true, 1)));
        assert!(waiting.bind_prompt());
        assert_eq!(waiting.take_bound().as_deref(), Some("que_1"));
        let settled = |id: &str| ServerMessage::QuestionAnswered {
            question_id: id.to_owned(),
            answers: Vec::new(),
            by: None,
        };
        waiting.observe(&settled("que_1"));
        assert!(waiting.answer("que_1", "Red").is_none());
        assert!(waiting.bind_prompt());
        assert_eq!(waiting.take_bound().as_deref(), Some("que_2"));
        waiting.observe(&settled("que_2"));
        assert!(!waiting.wait() && !waiting.bind_prompt() && waiting.take_bound().is_none());
    }
}
