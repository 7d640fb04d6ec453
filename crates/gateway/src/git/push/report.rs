//! The forge's response to a push: a status for each ref, multiplexed with messages for people. Its size is bounded,
//! since a hook at the forge may print anything.

use super::super::pkt_line::{self, FLUSH_PACKET, Malformed, Packet};
use super::ForgeResponse;
use super::outcome::{PushOutcome, RejectionReason};
use super::request::PushRequest;

/// The most bytes of a response that are kept, and how many of them may be messages.
const MAX_RESPONSE: usize = 1024 * 1024;
const MAX_MESSAGES: usize = 256 * 1024;
/// The longest message that is kept for people.
const MAX_LINE: usize = 300;
/// The bands of a side-band packet.
const REPORT_BAND: u8 = 1;
const MESSAGE_BAND: u8 = 2;
const TRUNCATION_MARKER: &str = "\x02(the forge sent more messages, which are omitted here)\n";

/// An incremental parser of a response.
pub(super) struct ReportReader<'a> {
    request: &'a PushRequest,
    /// Bytes that are not a complete packet yet.
    unread: Vec<u8>,
    report: Vec<u8>,
    /// The report that git gets, with messages.
    response: Vec<u8>,
    message: Option<String>,
    truncated: bool,
}

impl<'a> ReportReader<'a> {
    pub(super) fn new(request: &'a PushRequest) -> Self {
        let (unread, report, response) = (Vec::new(), Vec::new(), Vec::new());
        Self { request, unread, report, response, message: None, truncated: false }
    }

    /// `None` if this is not a response to a push.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> Option<()> {
        self.unread.extend_from_slice(chunk);
        let mut read = 0;
        if !self.request.side_band {
            self.report.append(&mut self.unread);
        }
        while let Some(packet) = pkt_line::first(self.unread.get(read..).unwrap_or_default()).ok()? {
            read += packet.len();
            match packet {
                Packet::Flush => self.response.extend_from_slice(FLUSH_PACKET),
                Packet::Line([MESSAGE_BAND, ..]) if self.response.len() > MAX_MESSAGES => {
                    if !std::mem::replace(&mut self.truncated, true) {
                        pkt_line::write(&mut self.response, TRUNCATION_MARKER.as_bytes());
                    }
                }
                Packet::Line(line) => {
                    pkt_line::write(&mut self.response, line);
                    match line {
                        [REPORT_BAND, report @ ..] => self.report.extend_from_slice(report),
                        [MESSAGE_BAND, text @ ..] if self.message.is_none() => {
                            self.message = first_line(text);
                        }
                        _ => {}
                    }
                }
            }
        }
        self.unread.drain(..read);
        (self.response.len() + self.report.len() < MAX_RESPONSE).then_some(())
    }

    /// The outcome, and the response for git. `None` if the report is incomplete or malformed.
    pub(super) fn finish(self) -> Option<(PushOutcome, ForgeResponse)> {
        let complete = self.unread.is_empty();
        let outcome = if self.request.wants_report {
            parse_report(&self.report, self.request).ok().filter(|_| complete)?
        } else {
            PushOutcome::Unreported
        };
        let body = if self.request.side_band { self.response } else { self.report };
        Some((outcome, ForgeResponse { body, message: self.message }))
    }
}

fn first_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(MAX_LINE).collect())
}

fn parse_report(mut report: &[u8], request: &PushRequest) -> Result<PushOutcome, Malformed> {
    let mut unpacked = None;
    let (mut updated, mut reasons): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    loop {
        let packet = pkt_line::first(report)?.ok_or(Malformed)?;
        report = report.get(packet.len()..).unwrap_or_default();
        let Packet::Line(line) = packet else { break };
        let line = std::str::from_utf8(line).map_err(|_| Malformed)?.trim_end_matches('\n');
        match (unpacked, line.split_once(' ')) {
            (None, Some(("unpack", result))) => unpacked = Some(result == "ok"),
            (Some(_), Some(("ok", name))) => updated.push(name),
            (Some(_), Some(("ng", rest))) => {
                reasons.push(rest.split_once(' ').map_or("", |(_, reason)| reason));
            }
            (Some(_), Some(("option", _))) => {}
            _ => return Err(Malformed),
        }
    }
    let count = request.updates.iter().filter(|update| updated.contains(&update.name.as_str())).count();
    match unpacked {
        None => Err(Malformed),
        Some(false) => Ok(PushOutcome::UnpackFailed),
        Some(true) if count == request.updates.len() => Ok(PushOutcome::Updated),
        Some(true) => Ok(PushOutcome::Rejected { updated: count, reason: RejectionReason::of_all(reasons) }),
    }
}

/// The response to a push that is not forwarded, encoded as a forge would: git prints `message`. `None` if git did not
/// ask for a report.
pub(super) fn rejection(request: &PushRequest, reason: &str, message: &str) -> Option<Vec<u8>> {
    if !request.wants_report {
        return None;
    }
    let mut report = Vec::new();
    pkt_line::write(&mut report, b"unpack ok\n");
    for update in &request.updates {
        pkt_line::write(&mut report, format!("ng {} {reason}\n", update.name).as_bytes());
    }
    report.extend_from_slice(FLUSH_PACKET);
    if !request.side_band {
        return Some(report);
    }
    let mut out = Vec::new();
    pkt_line::write(&mut out, format!("\x02{message}\n").as_bytes());
    for chunk in report.chunks(32 * 1024) {
        pkt_line::write(&mut out, &[&[REPORT_BAND], chunk].concat());
    }
    out.extend_from_slice(FLUSH_PACKET);
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testkit::fuzz::{Shape, Target, encode, holds};

    use super::super::request::RefUpdate;
    use super::*;

    fn request(names: &[&str]) -> PushRequest {
        let id = "1".repeat(40);
        let update = |name: &&str| RefUpdate { name: (*name).to_owned(), old: id.clone(), new: id.clone() };
        let updates = names.iter().map(update).collect();
        PushRequest { updates, wants_report: true, side_band: true, has_options: false }
    }

    fn response(lines: &[&str], messages: &[&str]) -> Vec<u8> {
        let mut report = Vec::new();
        for line in lines {
            pkt_line::write(&mut report, line.as_bytes());
        }
        report.extend_from_slice(FLUSH_PACKET);
        let mut out = Vec::new();
        for text in messages {
            pkt_line::write(&mut out, format!("\x02{text}").as_bytes());
        }
        pkt_line::write(&mut out, &[&[REPORT_BAND], report.as_slice()].concat());
        out.extend_from_slice(FLUSH_PACKET);
        out
    }

    fn read(request: &PushRequest, bytes: &[u8], chunk: usize) -> Option<(PushOutcome, Vec<u8>)> {
        let mut reader = ReportReader::new(request);
        bytes.chunks(chunk).try_for_each(|chunk| reader.feed(chunk))?;
        reader.finish().map(|(outcome, response)| (outcome, response.body))
    }

    fn rejected(updated: usize) -> PushOutcome {
        PushOutcome::Rejected { updated, reason: RejectionReason::Other }
    }

    #[test]
    fn the_status_of_each_ref_is_parsed_and_passed_on() {
        let two = request(&["refs/heads/a", "refs/heads/b"]);
        let shallow = PushOutcome::Rejected { updated: 0, reason: RejectionReason::ShallowUpdate };
        for (lines, expected) in [
            (vec!["unpack ok\n", "ok refs/heads/a\n", "ok refs/heads/b\n"], Some(PushOutcome::Updated)),
            (vec!["unpack ok\n", "ok refs/heads/a\n", "ng refs/heads/b no\n"], Some(rejected(1))),
            (vec!["unpack ok\n", "ok refs/heads/x\n"], Some(rejected(0))),
            (vec!["unpack ok\n", "ng refs/heads/a shallow update not allowed\n"], Some(shallow)),
            (vec!["unpack ok\n", "ng refs/heads/a no shallow update not allowed\n"], Some(rejected(0))),
            (
                vec!["unpack ok", "ok refs/heads/a", "option old-oid 1", "ok refs/heads/b"],
                Some(PushOutcome::Updated),
            ),
            (vec!["unpack index-pack abnormal exit\n"], Some(PushOutcome::UnpackFailed)),
            (vec!["ok refs/heads/a\n"], None),
            (vec![], None),
        ] {
            let bytes = response(&lines, &["Resolving deltas\n"]);
            for chunk in [1, 7, 1000] {
                let read = read(&two, &bytes, chunk);
                let expected = expected.as_ref().map(|outcome| (outcome, &bytes));
                assert_eq!(read.as_ref().map(|(outcome, body)| (outcome, body)), expected, "{lines:?}");
            }
        }
        assert_eq!(read(&two, b"", 1), None);
        assert_eq!(read(&two, b"<html>", 1), None);
        let no_report = PushRequest { wants_report: false, ..two };
        assert_eq!(read(&no_report, b"", 1), Some((PushOutcome::Unreported, Vec::new())));
    }

    #[test]
    fn the_first_line_of_the_forges_messages_is_kept_for_people() {
        let one = request(&["refs/heads/a"]);
        let mut reader = ReportReader::new(&one);
        let lines = ["unpack ok\n", "ng refs/heads/a hook declined\n"];
        reader.feed(&response(&lines, &["\n", "this branch \u{7}is closed\nmore\n"])).unwrap();
        let (outcome, response) = reader.finish().unwrap();
        assert_eq!((outcome, response.message.as_deref()), (rejected(0), Some("this branch is closed")));
    }

    #[test]
    fn endless_messages_are_truncated_and_the_report_is_still_parsed() {
        let one = request(&["refs/heads/a"]);
        let line = "x".repeat(1000);
        let messages = vec![line.as_str(); 2000];
        let bytes = response(&["unpack ok\n", "ok refs/heads/a\n"], &messages);
        let (outcome, body) = read(&one, &bytes, 4096).unwrap();
        assert_eq!(outcome, PushOutcome::Updated);
        assert!(body.len() < 300 * 1024 && String::from_utf8_lossy(&body).contains("omitted"));
    }

    #[test]
    fn a_rejection_is_encoded_as_a_forge_would() {
        let two = request(&["refs/heads/a", "refs/heads/b"]);
        let bytes = rejection(&two, "denied", "Denied by policy: no").unwrap();
        let (outcome, body) = read(&two, &bytes, 5).unwrap();
        assert_eq!((outcome, &body), (rejected(0), &bytes));
        assert!(String::from_utf8_lossy(&bytes).contains("\x02Denied by policy: no\n"));
        assert_eq!(rejection(&PushRequest { wants_report: false, ..two }, "denied", "no"), None);
    }

    #[test]
    fn fuzzing_finds_no_report_whose_split_matters() {
        let one = request(&["refs/heads/a"]);
        let corpus = || {
            let good = response(&["unpack ok\n", "ok refs/heads/a\n"], &["hello\n"]);
            vec![good, response(&["unpack no\n"], &[]), b"0000".to_vec()]
        };
        let words = &["0000", "0005\x01", "0006\x02x", "unpack ok\n", "ok ", "ng ", "\n", "fff0"];
        let run = &|input: &[u8], _: &_| {
            let (at_once, split) = (read(&one, input, usize::MAX), read(&one, input, 3));
            if at_once == split {
                Ok(format!("{:?}", at_once.map(|(outcome, _)| outcome)))
            } else {
                Err("the split matters".to_owned())
            }
        };
        let shape = Shape::text(words, 4096);
        let target = Target { name: "push-reports", run, corpus: &corpus, write: encode, shape };
        holds(target, Duration::from_secs(2));
    }
}
