//! Requests of the agent that wait for a person: questions, and requests for permissions. A request that is too large
//! or not understood is an error, so that it can be rejected; otherwise the agent would wait for it forever.

use std::borrow::Cow;

use agent::PendingRequest;
use proto::socket::{OpenQuestion, PERMISSION_ANSWERS, QuestionItem, QuestionKind, QuestionOption};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::lenient::text;

/// Limits of one request: its parts, and the options of a part. The gateway cuts the texts, after it has removed secrets.
const MAX_ITEMS: usize = 16;
const MAX_OPTIONS: usize = 32;
/// The maximum number of patterns of a permission that are shown.
const MAX_PATTERNS: usize = 8;

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    question: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    header: Cow<'a, str>,
    #[serde(borrow, default)]
    options: Vec<Choice<'a>>,
    #[serde(default)]
    multiple: bool,
    /// Absent means allowed.
    #[serde(default)]
    custom: Option<bool>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    label: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    description: Cow<'a, str>,
}

/// Parses the parts of a question. `None` if they are not understood or too many.
pub(super) fn question(id: &str, raw: Option<&RawValue>) -> Option<OpenQuestion> {
    let items: Vec<Item<'_>> = serde_json::from_str(raw?.get()).ok()?;
    let fits = |item: &Item<'_>| item.options.len() <= MAX_OPTIONS && !item.question.is_empty();
    if items.is_empty() || items.len() > MAX_ITEMS || !items.iter().all(fits) {
        return None;
    }
    let choice = |choice: Choice<'_>| QuestionOption {
        label: choice.label.into_owned(),
        description: choice.description.into_owned(),
    };
    let questions = items.into_iter().map(|item| QuestionItem {
        question: item.question.into_owned(),
        header: item.header.into_owned(),
        // Without options, only a text of the person's own is an answer.
        custom: item.custom.unwrap_or(true) || item.options.is_empty(),
        options: item.options.into_iter().map(choice).collect(),
        multiple: item.multiple,
    });
    let questions = questions.collect();
    Some(OpenQuestion { question_id: id.to_owned(), kind: QuestionKind::Question, questions })
}

/// A request for a permission, as a question with fixed answers. The header is the name of the permission.
pub(super) fn permission(id: &str, name: &str, patterns: Option<&RawValue>) -> Option<OpenQuestion> {
    if name.is_empty() {
        return None;
    }
    let mut shown: Vec<String> =
        patterns.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    shown.truncate(MAX_PATTERNS);
    let subject = if shown.is_empty() { String::new() } else { format!(": {}", shown.join(", ")) };
    let option = |label: &str| {
        let description = match label {
            "once" => "Allow this call",
            "always" => "Allow this and later calls of the same kind",
            _ => "Do not allow it",
        };
        QuestionOption { label: label.to_owned(), description: description.to_owned() }
    };
    let item = QuestionItem {
        question: format!("The agent asks for the permission \"{name}\"{subject}"),
        header: name.to_owned(),
        options: PERMISSION_ANSWERS.into_iter().map(option).collect(),
        multiple: false,
        custom: false,
    };
    Some(OpenQuestion { question_id: id.to_owned(), kind: QuestionKind::Permission, questions: vec![item] })
}

/// One entry of the agent's list of pending requests.
#[derive(Deserialize)]
struct ListedRequest<'a> {
    #[serde(borrow, default, deserialize_with = "text")]
    id: Cow<'a, str>,
    #[serde(borrow, rename = "sessionID", default, deserialize_with = "text")]
    session: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "text")]
    permission: Cow<'a, str>,
    #[serde(borrow, default)]
    questions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    patterns: Option<&'a RawValue>,
}

/// Parses the agent's list of pending requests of one kind.
pub fn parse_pending(kind: QuestionKind, body: &[u8]) -> Result<Vec<PendingRequest>, serde_json::Error> {
    let listed: Vec<ListedRequest<'_>> = serde_json::from_slice(body)?;
    let pending = listed.into_iter().map(|found| PendingRequest {
        question: match kind {
            QuestionKind::Question => question(&found.id, found.questions),
            QuestionKind::Permission => permission(&found.id, &found.permission, found.patterns),
        },
        session: found.session.into_owned(),
        id: found.id.into_owned(),
        kind,
    });
    Ok(pending.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_question_without_options_takes_a_text() {
        let asked = question("que_1", Some(&raw(r#"[{"question":"Why?","custom":false}]"#))).unwrap();
        assert!(asked.questions[0].custom);
        assert_eq!(asked.check(&[vec!["because".to_owned()]]), Ok(()));
    }

    #[test]
    fn requests_that_are_too_large_or_not_understood_are_refused() {
        let many = format!("[{}]", vec![r#"{"question":"Why?"}"#; MAX_ITEMS + 1].join(","));
        for text in ["[]", "{}", r#"[{"question":""}]"#, r#"[{"options":7}]"#, &many] {
            assert!(question("que_1", Some(&raw(text))).is_none(), "{text}");
        }
        assert!(question("que_1", None).is_none());
    }

    #[test]
    fn a_permission_is_a_question_with_three_answers() {
        let asked = permission("per_1", "bash", Some(&raw(r#"["echo hi","pwd"]"#))).unwrap();
        assert_eq!(asked.questions[0].question, "The agent asks for the permission \"bash\": echo hi, pwd");
        for answer in PERMISSION_ANSWERS {
            assert_eq!(asked.check(&[vec![answer.to_owned()]]), Ok(()));
        }
        assert!(asked.check(&[vec!["maybe".to_owned()]]).is_err());
    }
}
