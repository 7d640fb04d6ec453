//! The agent's words: pieces as they come, whole texts when they end, and nothing twice.

use proto::socket::ServerMessage;

use super::turn::{Kind, Parked, Text, Turn};
use super::{Output, Translator, back_to_work, bound, cut, is_id};
use crate::event::Part;

/// The longest token; what is longer is said in several.
const MAX_TOKEN: usize = 64 * 1024;
/// The most of a whole text that is told at its end, after all of it was said in tokens.
const MAX_TEXT: usize = 1024 * 1024;

/// A text as it is reported.
struct Report<'a> {
    message: &'a str,
    part: &'a str,
    /// All of it so far; empty where only the newest piece is told.
    whole: &'a str,
    piece: &'a str,
    ended: bool,
    /// Pieces before this report may have been missed.
    from_history: bool,
}

impl Translator {
    /// The next piece of a part. Where the part is not known, it begins here, if its message is the agent's: some
    /// agents announce messages only.
    pub(super) fn delta(&mut self, message: &str, part: &str, piece: &str, now: i64, out: &mut Output) {
        let Some(turn) = &mut self.turn else { return };
        let speaks = turn.speaks(message);
        let report = Report { message, part, whole: "", piece, ended: false, from_history: false };
        // As it nearly always is: the part is known, and nothing is unusual.
        if speaks
            && !turn.retrying
            && let Some(text) = turn.open_text(part, message)
        {
            return say_more(text, &report, out);
        }
        let may_be_said = match turn.parts.get(part) {
            None => speaks && is_id(part) && !self.closed.contains(part),
            Some(_) => turn.open_text(part, message).is_some(),
        };
        // A text that grows is the agent's, even where its message was not announced.
        if may_be_said && !piece.is_empty() && (speaks || self.step(message, now, out)) {
            self.say(&report, out);
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
        let speaks = self.turn.as_ref().is_some_and(|turn| turn.speaks(&part.message));
        let known = speaks || self.turn.as_ref().is_some_and(|turn| turn.step(&part.message).is_some());
        if known || !piece.is_empty() {
            if speaks || self.step(&part.message, now, out) {
                self.say(&report, out);
            }
        } else if !self.prompts.contains(&part.message) && !self.finished.contains(&part.message) {
            self.wait_for_speaker(&report);
        }
    }

    /// Says what came for this message before it was known to be the agent's.
    pub(super) fn say_parked(&mut self, message: &str, out: &mut Output) {
        let parked = self.turn.as_mut().map(|turn| turn.unpark(message)).unwrap_or_default();
        for Parked { message, part, text, ended } in parked {
            // Meanwhile another message may have had a part of this id.
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
            self.say(&report, out);
        }
    }

    fn wait_for_speaker(&mut self, report: &Report<'_>) {
        let Some(turn) = &mut self.turn else { return };
        if report.whole.is_empty() {
            let new = || Kind::Text(Text::new(report.from_history));
            // Without room for it, its pieces are left out, as those of any unknown part.
            let _ = turn.part(report.part, report.message, new);
        } else {
            turn.park(Parked {
                message: report.message.to_owned(),
                part: report.part.to_owned(),
                text: report.whole.to_owned(),
                ended: report.ended,
            });
        }
    }

    fn say(&mut self, report: &Report<'_>, out: &mut Output) {
        let Some(turn) = &mut self.turn else { return };
        if !report.whole.is_empty() || !report.piece.is_empty() {
            back_to_work(turn, out);
        }
        if !turn.parts.contains_key(report.part) {
            // The texts of a message follow each other: one that was torn and has not ended was begun anew while we were
            // not there to hear of the retry.
            void(turn, out, |_, of, text| text.torn && of == report.message);
        }
        let new = || Kind::Text(Text::new(report.from_history));
        let Ok((known, _)) = turn.part(report.part, report.message, new) else {
            return cut(turn, out);
        };
        let Kind::Text(text) = &mut known.kind else { return };
        if known.message != report.message || text.ended {
            return;
        }
        say_more(text, report, out);
        if report.ended {
            end(text, report, out);
            if report.whole.len() > MAX_TEXT {
                cut(turn, out);
            }
        }
    }
}

/// The agent begins its answer anew after an error: what was said of it so far is void, and clients learn that
/// the part ended with no text.
pub(super) fn abandon(turn: &mut Turn, out: &mut Output) {
    void(turn, out, |_, _, _| true);
}

/// The agent has begun a message anew: a retry opens a new step in the same message, and what it had said before stays
/// in its memory as texts without an end. `before` names those that it lists before the new step; live, all of them.
pub(super) fn begin_anew(turn: &mut Turn, message: &str, before: Option<&[&str]>, out: &mut Output) {
    void(turn, out, |id, of, _| of == message && before.is_none_or(|before| before.contains(&id)));
}

fn void(turn: &mut Turn, out: &mut Output, is_void: impl Fn(&str, &str, &Text) -> bool) {
    let mut told = Vec::new();
    for (id, part) in &mut turn.parts {
        if let Kind::Text(text) = &mut part.kind
            && !text.ended
            && is_void(id, &part.message, text)
        {
            text.ended = true;
            if text.said.len() > 0 {
                told.push(complete(&part.message, id, ""));
            }
        }
    }
    out.messages.append(&mut told);
}

/// Says what has not been said of it.
fn say_more(text: &mut Text, report: &Report<'_>, out: &mut Output) {
    let mut more = if !report.whole.is_empty() {
        // Whether pieces that follow are already in it cannot be known.
        text.torn |= report.piece.is_empty();
        // A text that does not continue what was said is told whole at its end.
        text.said.rest_of(report.whole).unwrap_or_default()
    } else if !report.piece.is_empty() && !text.torn {
        report.piece
    } else {
        // A part that begins now has all its pieces before it.
        text.torn &= report.from_history || text.said.len() > 0;
        ""
    };
    while !more.is_empty() {
        let (token, rest) = more.split_at(more.floor_char_boundary(MAX_TOKEN));
        text.said.extend(token);
        out.messages.push(ServerMessage::Token {
            message_id: report.message.to_owned(),
            part_id: report.part.to_owned(),
            token: token.to_owned(),
        });
        more = rest;
    }
}

fn end(text: &mut Text, report: &Report<'_>, out: &mut Output) {
    text.ended = true;
    if !report.whole.is_empty() || text.said.len() > 0 {
        out.messages.push(complete(report.message, report.part, bound::head(report.whole, MAX_TEXT)));
    }
}

fn complete(message: &str, part: &str, text: &str) -> ServerMessage {
    ServerMessage::TextPartComplete {
        message_id: message.to_owned(),
        part_id: part.to_owned(),
        text: text.to_owned(),
    }
}
