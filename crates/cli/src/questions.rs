//! `questions`: lists what agents ask people, and answers it.

use std::collections::BTreeSet;
use std::time::Duration;

use client::Client;
use proto::http::{AnswerQuestion, QuestionEntry};
use proto::socket::QuestionItem;
use serde_json::json;

use crate::args::{QuestionsArgs, QuestionsCommand};
use crate::clean::one_line;
use crate::context::Context;
use crate::failure::Failure;
use crate::gateway_client::connect;
use crate::output::{json_line, line};

/// How often `watch` asks for new questions.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn run(context: &Context, args: QuestionsArgs) -> Result<(), Failure> {
    let client = connect(context, args.gateway).await?;
    match args.command {
        QuestionsCommand::Ls => {
            let questions = client.questions().await?.questions;
            let rows: Vec<_> = questions.iter().map(|entry| row(context, entry)).collect();
            let values = questions.iter().map(|entry| json!(entry)).collect();
            context.out.list(values, &["QUESTION", "SESSION", "KIND", "ASKED", "TEXT"], &rows);
        }
        QuestionsCommand::Answer { question, answers } => {
            let entry = find(&client, &question).await?;
            let answers = for_parts(&entry.question.questions, answers)?;
            entry.question.check(&answers).map_err(Failure::usage)?;
            let id = &entry.question.question_id;
            client.answer(entry.session_id, id, &AnswerQuestion { answers }).await?;
            context.out.result(&json!({ "questionId": id }), &format!("answered {id}"));
        }
        QuestionsCommand::Watch => watch(context, &client).await?,
    }
    Ok(())
}

fn row(context: &Context, entry: &QuestionEntry) -> Vec<String> {
    let texts: Vec<String> = entry.question.questions.iter().map(|item| one_line(&item.question)).collect();
    vec![
        one_line(&entry.question.question_id),
        entry.session_id.to_string(),
        entry.question.kind.to_string(),
        context.ago(entry.asked_at),
        texts.join(" / "),
    ]
}

/// The open question with this id or prefix of an id.
async fn find(client: &Client, named: &str) -> Result<QuestionEntry, Failure> {
    let all = client.questions().await?.questions;
    let exact = all.iter().find(|entry| entry.question.question_id == named);
    let begins = |entry: &&QuestionEntry| entry.question.question_id.starts_with(named);
    let found: Vec<&QuestionEntry> = match exact {
        Some(entry) => vec![entry],
        None => all.iter().filter(begins).collect(),
    };
    match found[..] {
        [one] => Ok(one.clone()),
        [] => Err(Failure::failed(format!(
            "there is no open question {named:?}: `proliferate questions ls` shows them"
        ))),
        _ => Err(Failure::usage(format!(
            "{named:?} can be any of {} questions: write more of its id",
            found.len()
        ))),
    }
}

/// Distributes answers over the parts of a question.
fn for_parts(parts: &[QuestionItem], answers: Vec<String>) -> Result<Vec<Vec<String>>, Failure> {
    if parts.len() == 1 {
        return Ok(vec![answers]);
    }
    if parts.len() != answers.len() {
        let (parts, given) = (parts.len(), answers.len());
        return Err(Failure::usage(format!(
            "the question has {parts} parts, but {given} answers were given"
        )));
    }
    Ok(answers.into_iter().map(|answer| vec![answer]).collect())
}

/// Prints each question once, as it appears.
async fn watch(context: &Context, client: &Client) -> Result<(), Failure> {
    let mut printed = BTreeSet::new();
    loop {
        for entry in client.questions().await?.questions {
            if !printed.insert((entry.session_id.to_string(), entry.question.question_id.clone())) {
                continue;
            }
            if context.out.is_json() {
                json_line(&entry);
            } else {
                line(&shown(&entry));
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn shown(entry: &QuestionEntry) -> String {
    let mut text = format!("{} (session {})", one_line(&entry.question.question_id), entry.session_id);
    for item in &entry.question.questions {
        text.push_str("\n  ");
        text.push_str(&one_line(&item.question));
        for option in &item.options {
            text.push_str("\n    ");
            text.push_str(&one_line(&option.label));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> QuestionItem {
        QuestionItem {
            question: "Which?".to_owned(),
            header: "Pick".to_owned(),
            options: Vec::new(),
            multiple: true,
            custom: true,
        }
    }

    #[test]
    fn answers_are_distributed_over_the_parts_of_a_question() {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(for_parts(&[part()], texts(&["A", "B"])).unwrap(), [texts(&["A", "B"])]);
        assert_eq!(for_parts(&[part(), part()], texts(&["A", "B"])).unwrap(), [texts(&["A"]), texts(&["B"])]);
        assert!(for_parts(&[part(), part()], texts(&["A"])).is_err());
    }
}
