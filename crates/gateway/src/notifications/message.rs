//! The body of a notification: a `text` for Slack, and fields for programs. It says that something waits, never what an agent
//! or a caller wrote: no parameters, questions, titles or reasons. The link only opens a page.

use proto::{NotificationKind, iso};
use serde_json::{Value, json};
use store::{Notification, NotificationSubject};
use url::Url;

/// The maximum number of characters of a name in a text.
const MAX_NAME: usize = 100;

/// The body of a notification. Repeated attempts have the same `id`.
pub(super) fn message(of: &Notification, subject: &NotificationSubject, page: &Url) -> Value {
    let mut body = json!({
        "type": of.kind.as_str(),
        "sessionId": subject.session,
        "since": iso::text(&subject.since),
        "expiresAt": subject.expires_at.as_ref().map(iso::text),
        "url": page.as_str(),
    });
    let (what, id) = match of.kind {
        NotificationKind::Approval => {
            let (integration, action, risk) = subject.action.clone().unwrap_or_else(unnamed_action);
            let what =
                format!("An action waits for approval: {} {} ({risk}).", name(&integration), name(&action));
            body["integration"] = json!(shorten(&integration));
            body["action"] = json!(shorten(&action));
            body["riskLevel"] = json!(risk);
            (what, of.subject_id.to_string())
        }
        NotificationKind::Question => ("An agent has a question.".to_owned(), of.question_id.clone()),
        NotificationKind::Run => {
            let (automation, status) = subject.run.clone().unwrap_or_default();
            body["automation"] = json!(shorten(&automation));
            body["status"] = json!(status);
            let ended = match status.as_str() {
                "needs_human" => "needs a human",
                "timed_out" => "timed out",
                _ => "failed",
            };
            (format!("A run of the automation {} {ended}.", name(&automation)), of.subject_id.to_string())
        }
    };
    body["id"] = json!(id);
    body["text"] = json!(format!("{what} {page}"));
    body
}

/// The body of a test.
pub(crate) fn test_message(page: &Url) -> Value {
    json!({"type": "test", "text": format!("Notifications of Proliferate arrive here. {page}"), "url": page.as_str()})
}

fn unnamed_action() -> (String, String, proto::Risk) {
    (String::new(), String::new(), proto::Risk::Danger)
}

/// A name as Slack shows it. Unescaped, it could contain links and mentions.
fn name(text: &str) -> String {
    shorten(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A name of an integration or an action comes from its server: one line, and not too long.
fn shorten(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_neither_a_link_nor_a_mention() {
        let of = Notification {
            org_id: uuid::Uuid::nil().into(),
            kind: NotificationKind::Approval,
            subject_id: uuid::Uuid::nil(),
            question_id: String::new(),
            attempts: 0,
        };
        let subject = NotificationSubject {
            session: None,
            action: Some((
                "docs".to_owned(),
                "<!channel>\n<https://evil.example|Open>".to_owned(),
                proto::Risk::Write,
            )),
            run: None,
            since: chrono::DateTime::UNIX_EPOCH,
            expires_at: None,
        };
        let body = message(&of, &subject, &Url::parse("https://gateway.example/#inbox").unwrap());
        assert_eq!(
            body["text"],
            "An action waits for approval: docs &lt;!channel&gt;&lt;https://evil.example|Open&gt; (write). \
             https://gateway.example/#inbox"
        );
    }
}
