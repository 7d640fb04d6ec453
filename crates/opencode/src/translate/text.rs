//! The agent's text: deltas as they arrive, complete texts when they end, and nothing twice.

use agent::SecretFinder;
use proto::socket::ServerMessage;

use super::turn::{Kind, PendingText, Text, Turn};
use super::{Output, Translator, clear_retry_status, is_id, report_omission, truncate};
use crate::event::Part;

/// Maximum length of a token; longer pieces are split.
const MAX_TOKEN: usize = 64 * 1024;
/// Maximum length of the complete text that is sent at the end of a part. The tokens are not limited by it.
const MAX_TEXT: usize = 1024 * 1024;

/// A report about a text part.
struct Report<'a> {
    message: &'a str,
    part: &'a str,
    /// The complete text so far; empty if only the newest piece is reported.
    whole: &'a str,
    piece: &'a str,
    ended: bool,
    /// Pieces before this report may have been missed.
    from_history: bool,
}

impl Translator {
    /// The next piece of a part. An unknown part starts here if its message is the agent's, because some
    /// agents announce only messages.
    pub(super) fn delta(&mut self, message: &str, part: &str, piece: &str, now: i64, out: &mut Output) {
        let Some(turn) = &mut self.turn else { return };
        let is_current = turn.is_current(message);
        let report = Report { message, part, whole: "", piece, ended: false, from_history: false };
        // The usual case: the part is known and its text has no gap.
        if is_current
            && !turn.retrying
            && let Some(text) = turn.open_text(part, message)
        {
            return emit_new_text(text, &report, out);
        }
        let may_be_said = match turn.parts.get(part) {
            None => is_current && is_id(part) && !self.closed.contains(part),
            Some(_) => turn.open_text(part, message).is_some(),
        };
        // A growing text is the agent's, even if its message was not announced.
        if may_be_said && !piece.is_empty() && (is_current || self.step(message, now, out)) {
            self.emit(&report, out);
        }
    }

    pub(super) fn text(
        &mut self,
        part: &Part<'_>,
        piece: &str,
        from_history: bool,
        now: i64,
        out: &mut Output,
    ) {
        let report = Report {
            message: &part.message,
            part: &part.id,
            whole: &part.text,
            piece,
            ended: part.time.end.is_some(),
            from_history,
        };
        let is_current = self.turn.as_ref().is_some_and(|turn| turn.is_current(&part.message));
        let known = is_current || self.turn.as_ref().is_some_and(|turn| turn.step(&part.message).is_some());
        if known || !piece.is_empty() {
            if is_current || self.step(&part.message, now, out) {
                self.emit(&report, out);
            }
        } else if !self.prompts.contains(&part.message) && !self.finished.contains(&part.message) {
            self.wait_for_author(&report);
        }
    }

    /// Emits texts that arrived before this message was known to be the agent's.
    pub(super) fn emit_pending_texts(&mut self, message: &str, out: &mut Output) {
        let pending = self.turn.as_mut().map(|turn| turn.take_pending(message)).unwrap_or_default();
        for PendingText { message, part, text, ended } in pending {
            // Another message may have used this part id in the meantime.
            if self.closed.contains(&part) {
                continue;
            }
            let report = Report {
                message: &message,
                part: &part,
                whole: &text,
                piece: "",
                ended,
                from_history: false,
            };
            self.emit(&report, out);
        }
    }

    fn wait_for_author(&mut self, report: &Report<'_>) {
        let Some(turn) = &mut self.turn else { return };
        if report.whole.is_empty() {
            let new = || Kind::Text(Text::new(report.from_history));
            // If there is no capacity, its pieces are dropped like those of any unknown part.
            let _ = turn.part(report.part, report.message, new);
        } else {
            turn.store_pending(PendingText {
                message: report.message.to_owned(),
                part: report.part.to_owned(),
                text: report.whole.to_owned(),
                ended: report.ended,
            });
        }
    }

    fn emit(&mut self, report: &Report<'_>, out: &mut Output) {
        let Some(turn) = &mut self.turn else { return };
        if !report.whole.is_empty() || !report.piece.is_empty() {
            clear_retry_status(turn, out);
        }
        if !turn.parts.contains_key(report.part) {
            // The texts of a message are sequential: an unfinished one with a gap was restarted while we
            // missed the retry.
            discard_texts(turn, out, |_, of, text| text.has_gap && of == report.message);
        }
        let new = || Kind::Text(Text::new(report.from_history));
        let Ok((known, _)) = turn.part(report.part, report.message, new) else {
            return report_omission(turn, out);
        };
        let Kind::Text(text) = &mut known.kind else { return };
        if known.message != report.message || text.ended {
            return;
        }
        emit_new_text(text, report, out);
        if report.ended {
            end(text, report, &self.secrets, out);
            if report.whole.len() > MAX_TEXT {
                report_omission(turn, out);
            }
        }
    }
}

/// The agent restarts its answer after an error: what was emitted so far is void, and clients learn that the
/// part ended without text.
pub(super) fn discard_open_texts(turn: &mut Turn, out: &mut Output) {
    discard_texts(turn, out, |_, _, _| true);
}

/// The agent has restarted a message: a retry opens a new step in the same message, and the texts before it
/// stay in its history without an end. `before` lists the parts before the new step; `None` means all.
pub(super) fn discard_before_retry(
    turn: &mut Turn,
    message: &str,
    before: Option<&[&str]>,
    out: &mut Output,
) {
    discard_texts(turn, out, |id, of, _| of == message && before.is_none_or(|before| before.contains(&id)));
}

fn discard_texts(turn: &mut Turn, out: &mut Output, is_discarded: impl Fn(&str, &str, &Text) -> bool) {
    let mut ends = Vec::new();
    for (id, part) in &mut turn.parts {
        if let Kind::Text(text) = &mut part.kind
            && !text.ended
            && is_discarded(id, &part.message, text)
        {
            text.ended = true;
            if text.emitted.len() > 0 {
                ends.push(complete(&part.message, id, ""));
            }
        }
    }
    out.messages.append(&mut ends);
}

/// Emits the part of the text that is not emitted yet.
fn emit_new_text(text: &mut Text, report: &Report<'_>, out: &mut Output) {
    let mut more = if !report.whole.is_empty() {
        // We cannot know whether the following pieces are already part of it.
        text.has_gap |= report.piece.is_empty();
        // If the text does not continue what was emitted, the complete text follows at its end.
        text.emitted.unemitted_part(report.whole).unwrap_or_default()
    } else if !report.piece.is_empty() && !text.has_gap {
        report.piece
    } else {
        // A part that starts now has not missed any pieces.
        text.has_gap &= report.from_history || text.emitted.len() > 0;
        ""
    };
    while !more.is_empty() {
        let (token, rest) = more.split_at(more.floor_char_boundary(MAX_TOKEN));
        text.emitted.extend(token);
        out.messages.push(ServerMessage::Token {
            message_id: report.message.to_owned(),
            part_id: report.part.to_owned(),
            token: token.to_owned(),
        });
        more = rest;
    }
}

fn end(text: &mut Text, report: &Report<'_>, secrets: &SecretFinder, out: &mut Output) {
    text.ended = true;
    if !report.whole.is_empty() || text.emitted.len() > 0 {
        let whole = truncate::head(report.whole, MAX_TEXT, secrets);
        out.messages.push(complete(report.message, report.part, whole));
    }
}

fn complete(message: &str, part: &str, text: &str) -> ServerMessage {
    ServerMessage::TextPartComplete {
        message_id: message.to_owned(),
        part_id: part.to_owned(),
        text: text.to_owned(),
    }
}
