//! Renders a session as lines of text: prompts, streamed answers, tool calls, and status changes.

use std::collections::HashSet;
use std::io::Write;

use proto::socket::{
    ActionOutcome, Message, MessageRole, OpenApproval, OpenQuestion, Part, ServerMessage, ToolStatus,
    TurnOutcome,
};
use serde_json::Value;

use crate::clean::{clean, cut, one_line, shortened};
use crate::output::{BOLD, DIM, GREEN, RED, YELLOW};

/// The maximum width of arguments, the maximum width of a result line, and the maximum number of result lines.
const MAX_ARGUMENTS_CHARS: usize = 120;
const RESULT_WIDTH: usize = 160;
const RESULT_LINES: usize = 5;

/// Renders a session to a writer.
pub(super) struct Screen<W> {
    out: W,
    /// Do not truncate arguments and results.
    full: bool,
    /// The id of the part whose text is being streamed.
    open: Option<String>,
    /// The last line has no line break yet.
    is_inside_line: bool,
    /// The ids of text parts that were streamed and of tool calls that were announced.
    shown: HashSet<String>,
    /// The last status printed, so that it is not repeated.
    state: String,
}

impl<W: Write> Screen<W> {
    pub(super) fn new(out: W, full: bool) -> Self {
        Self { out, full, open: None, is_inside_line: false, shown: HashSet::new(), state: String::new() }
    }

    /// Prints a complete conversation.
    pub(super) fn conversation(&mut self, messages: &[Message]) {
        self.finish();
        self.shown.clear();
        for message in messages {
            match message.role {
                MessageRole::User => self.prompt(message),
                MessageRole::Assistant => self.answer(message),
            }
        }
    }

    /// Prints what waits for people.
    pub(super) fn waiting(&mut self, questions: &[OpenQuestion], approvals: &[OpenApproval]) {
        for question in questions {
            self.question(question);
        }
        for approval in approvals {
            self.approval(approval);
        }
    }

    /// Prints one event of the session.
    pub(super) fn show(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::Message(message) if message.role == MessageRole::User => self.prompt(message),
            ServerMessage::Token { part_id, token, .. } => self.token(part_id, token),
            ServerMessage::TextPartComplete { part_id, text, .. } => self.text(part_id, text),
            ServerMessage::ToolStart { tool_call_id, tool, args, .. } => self.call(tool_call_id, tool, args),
            ServerMessage::ToolEnd { tool_call_id, tool, result, .. } => {
                self.announce(tool_call_id, tool, &Value::Null);
                self.result(result);
            }
            ServerMessage::Status { status, message } => {
                let state =
                    if message.is_empty() { status.to_string() } else { format!("{status}: {message}") };
                if self.state != state {
                    self.state.clone_from(&state);
                    self.dim(&format!("· {state}"));
                }
            }
            ServerMessage::Error { message } => self.red(message),
            ServerMessage::Gap { .. } => self.dim("· some of it was missed; this is the conversation so far"),
            ServerMessage::Queue { length: 0, .. } => {}
            ServerMessage::Queue { length } => self.dim(&format!("· {length} prompts wait for their turn")),
            ServerMessage::TitleUpdate { title } => self.dim(&format!("· title: {title}")),
            ServerMessage::ModelUpdate { model_id } => self.dim(&format!("· model: {model_id}")),
            ServerMessage::PreviewUrl { url } => self.dim(&format!("· preview: {url}")),
            ServerMessage::TurnComplete { outcome, .. } => self.turn_ends(*outcome),
            other => self.action(other),
        }
    }

    /// Prints the status of the session.
    pub(super) fn state(&mut self, state: &str) {
        self.dim(&format!("· {state}"));
    }

    /// Prints a message that is not part of the conversation.
    pub(super) fn note(&mut self, text: &str) -> std::io::Result<()> {
        self.finish();
        writeln!(self.out, "{text}")
    }

    /// Ends an unfinished line.
    pub(super) fn finish(&mut self) {
        self.open = None;
        if self.is_inside_line {
            self.write("\n");
        }
        // Ignore errors: a closed pipe (`| head`) is not an error.
        let _ = self.out.flush();
    }

    fn prompt(&mut self, message: &Message) {
        let images = message.parts.iter().filter(|part| matches!(part, Part::Image { .. })).count();
        let images = if images > 0 { format!(" {DIM}({images} images){DIM:#}") } else { String::new() };
        self.line(&format!("{BOLD}› {}{BOLD:#}{images}", clean(message.content.trim_end())));
        self.failure(message);
    }

    fn failure(&mut self, message: &Message) {
        if let Some(error) = &message.error {
            self.red(error);
        }
    }

    fn answer(&mut self, message: &Message) {
        // A message without parts has its text in `content`; the gateway omits parts that would only repeat it.
        if message.parts.is_empty() && !message.content.is_empty() {
            self.line(&clean(message.content.trim_end()));
        }
        for part in &message.parts {
            match part {
                Part::Text { text, .. } => self.line(&clean(text.trim_end())),
                Part::Image { .. } => self.dim("(an image)"),
                Part::Tool { tool_call_id, tool_name, args, result, status } => {
                    self.announce(tool_call_id, tool_name, args);
                    match result {
                        Some(result) if *status == ToolStatus::Error => self.red(result),
                        Some(result) => self.result(result),
                        None => {}
                    }
                }
            }
        }
        if message.interrupted {
            self.dim("(interrupted)");
        }
        self.failure(message);
    }

    fn token(&mut self, part: &str, token: &str) {
        if self.open.as_deref() != Some(part) {
            self.finish();
            self.open = Some(part.to_owned());
            self.shown.insert(part.to_owned());
        }
        self.write(&clean(token));
        let _ = self.out.flush();
    }

    /// Handles the end of a text part: prints the text unless it was streamed already.
    fn text(&mut self, part: &str, text: &str) {
        if self.shown.contains(part) {
            return self.finish();
        }
        self.shown.insert(part.to_owned());
        self.line(&clean(text.trim_end()));
    }

    /// Handles the start of a tool call. The gateway may send the start event before the arguments are known; then the
    /// call is announced later.
    fn call(&mut self, id: &str, tool: &str, args: &Value) {
        if args.as_object().is_some_and(|args| !args.is_empty()) {
            self.announce(id, tool, args);
        }
    }

    fn announce(&mut self, id: &str, tool: &str, args: &Value) {
        if !self.shown.insert(id.to_owned()) {
            return;
        }
        let args = match args {
            Value::Null => String::new(),
            args if self.full => clean(&args.to_string()),
            args => shortened(&clean(&args.to_string()), MAX_ARGUMENTS_CHARS),
        };
        self.line(&format!("{GREEN}→ {}{GREEN:#} {args}", clean(tool)));
    }

    fn result(&mut self, result: &str) {
        let result = clean(result.trim_end());
        let lines: Vec<&str> = result.lines().collect();
        let (most, width) = if self.full { (usize::MAX, usize::MAX) } else { (RESULT_LINES, RESULT_WIDTH) };
        for line in lines.iter().take(most) {
            self.dim(&format!("  {}", cut(line, width)));
        }
        if lines.len() > most {
            self.dim(&format!("  … {} more lines (--full shows them)", lines.len() - most));
        }
    }

    fn turn_ends(&mut self, outcome: TurnOutcome) {
        self.shown.clear();
        match outcome {
            TurnOutcome::Ok => self.finish(),
            TurnOutcome::Cancelled => self.dim("· cancelled"),
            TurnOutcome::Error => self.red("the turn failed"),
        }
    }

    /// Prints approval requests, their results, and the results of actions; other messages are for programs.
    fn action(&mut self, message: &ServerMessage) {
        match message {
            ServerMessage::ActionApprovalRequest(waiting) => self.approval(waiting),
            ServerMessage::Question(question) => self.question(question),
            ServerMessage::QuestionAnswered { answers, .. } if answers.is_empty() => {
                self.dim("· the question was withdrawn");
            }
            ServerMessage::QuestionAnswered { answers, .. } => {
                self.dim(&format!("· answered: {}", answers.concat().join(", ")));
            }
            ServerMessage::ActionApprovalResult { status, .. } => self.dim(&format!("· approval: {status}")),
            ServerMessage::ActionCompleted { outcome: ActionOutcome::Completed { result }, .. } => {
                self.result(&result.to_string());
            }
            ServerMessage::ActionCompleted { outcome: ActionOutcome::Failed { error }, .. } => {
                self.red(error);
            }
            _ => {}
        }
    }

    fn approval(&mut self, waiting: &OpenApproval) {
        let OpenApproval { invocation_id, integration, action, risk_level, mode_reason, params, .. } =
            waiting;
        let params = shortened(&clean(&params.to_string()), MAX_ARGUMENTS_CHARS);
        let why = mode_reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let what = clean(&format!("{integration} {action}{why}"));
        self.line(&format!("{YELLOW}approval wanted ({risk_level}): {what}{YELLOW:#} {params}"));
        self.dim(&format!("  `proliferate approvals approve {invocation_id}`, or `deny`"));
    }

    fn question(&mut self, question: &OpenQuestion) {
        for item in &question.questions {
            self.line(&format!("{YELLOW}? {}{YELLOW:#}", clean(item.question.trim_end())));
            for (index, option) in item.options.iter().enumerate() {
                let separator = if option.description.is_empty() { "" } else { ": " };
                self.line(&format!(
                    "  {}. {}{separator}{}",
                    index + 1,
                    one_line(&option.label),
                    one_line(&option.description)
                ));
            }
        }
        self.dim(&format!("  `proliferate questions answer {} TEXT`", question.question_id));
    }

    fn dim(&mut self, text: &str) {
        self.line(&format!("{DIM}{}{DIM:#}", clean(text)));
    }

    fn red(&mut self, text: &str) {
        self.line(&format!("{RED}{}{RED:#}", clean(text)));
    }

    fn line(&mut self, text: &str) {
        self.finish();
        self.write(text);
        self.write("\n");
        let _ = self.out.flush();
    }

    fn write(&mut self, text: &str) {
        if let Some(last) = text.chars().last() {
            self.is_inside_line = last != '\n';
        }
        let _ = self.out.write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use anstream::StripStream;
    use serde_json::json;

    use super::*;

    /// The screen contents without colours after these frames.
    fn shown(frames: &[Value]) -> String {
        seen(frames, false)
    }

    fn seen(frames: &[Value], full: bool) -> String {
        let mut screen = Screen::new(StripStream::new(Vec::new()), full);
        for frame in frames {
            screen.show(&serde_json::from_value(frame.clone()).unwrap());
        }
        screen.finish();
        String::from_utf8(screen.out.into_inner()).unwrap()
    }

    fn token(part: &str, token: &str) -> Value {
        json!({"type": "token", "payload": {"messageId": "m", "partId": part, "token": token}})
    }

    #[test]
    fn text_is_shown_once_whether_it_streams_or_not() {
        let whole = |part: &str, text: &str| json!({"type": "text_part_complete", "payload": {"messageId": "m", "partId": part, "text": text}});
        let said =
            shown(&[token("a", "one "), token("a", "two"), whole("a", "one two"), whole("b", "three")]);
        assert_eq!(said, "one two\nthree\n");
        assert_eq!(shown(&[token("a", "ends itself\n"), whole("b", "next")]), "ends itself\nnext\n");
    }

    #[test]
    fn a_call_is_announced_with_its_arguments_and_its_result_is_cut() {
        let start = |args: Value| json!({"type": "tool_start", "payload": {"partId": "p", "toolCallId": "c", "tool": "bash", "args": args}});
        let result = (1..=9).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        let end = json!({"type": "tool_end", "payload": {"partId": "p", "toolCallId": "c", "tool": "bash", "result": result, "durationMs": 0}});
        let said = shown(&[token("a", "I look"), start(json!({})), start(json!({"command": "seq 9"})), end]);
        let expected = "I look\n→ bash {\"command\":\"seq 9\"}\n  1\n  2\n  3\n  4\n  5\n  … 4 more lines (--full shows them)\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn code_keeps_its_indentation_and_can_be_shown_in_full() {
        let lines: Vec<_> = (0..8).map(|n| format!("{}line {n}", "    ".repeat(n))).collect();
        let code = lines.join("\n") + "\n\n";
        let end = json!({"type": "tool_end", "payload": {"partId": "p", "toolCallId": "c", "tool": "read", "result": code, "durationMs": 0}});
        let said = shown(std::slice::from_ref(&end));
        assert!(said.contains("\n          line 2\n") && said.contains("… 3 more lines"), "{said}");
        let said = seen(&[end], true);
        assert!(said.ends_with(&format!("  {}line 7\n", "    ".repeat(7))), "{said}");
        let text = "fn main() {\n    if true {\n\treturn;\n    }\n}";
        let whole =
            json!({"type": "text_part_complete", "payload": {"messageId": "m", "partId": "x", "text": text}});
        assert_eq!(shown(&[whole]), format!("{text}\n"));
    }

    #[test]
    fn text_of_an_agent_cannot_control_the_terminal() {
        let evil = "\u{1b}]0;pwned\u{7}\u{1b}[2J\r";
        let error = json!({"type": "error", "payload": {"message": evil}});
        let title = json!({"type": "title_update", "payload": {"title": evil}});
        let start = json!({"type": "tool_start", "payload": {"partId": "p", "toolCallId": "c", "tool": evil, "args": {"a": evil}}});
        let mut screen = Screen::new(Vec::new(), false);
        for frame in [token("a", evil), error, title, start] {
            screen.show(&serde_json::from_value(frame).unwrap());
        }
        let said = String::from_utf8(screen.out).unwrap();
        assert!(!said.contains("\u{1b}]") && !said.contains("\u{1b}[2J") && !said.contains('\r'), "{said:?}");
    }

    #[test]
    fn a_state_is_printed_once() {
        let status = |status: &str| json!({"type": "status", "payload": {"status": status}});
        assert_eq!(shown(&[status("running"), status("running"), status("paused")]), "· running\n· paused\n");
    }
}
