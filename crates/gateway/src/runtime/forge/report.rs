//! What a forge answers to a push: what became of each ref, and between that messages for people. Kept within bounds,
//! since a hook over there may say anything.

use super::pkt::{self, FLUSH, NoPacket, Packet};
use super::updates::Wanted;

/// What is kept of the answer, and how much of it may be messages.
const LARGEST: usize = 1024 * 1024;
const MESSAGES: usize = 256 * 1024;
/// The kinds of what comes by the side band.
const REPORT: u8 = 1;
const MESSAGE: u8 = 2;
const LEFT_OUT: &str = "\x02(the forge said more, which is left out here)\n";

/// An answer as it comes.
pub(crate) struct AnswerReader<'a> {
    wanted: &'a Wanted,
    /// What is not a whole packet yet.
    open: Vec<u8>,
    report: Vec<u8>,
    told: Vec<u8>,
    left_out: bool,
}

/// How a push went.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    All,
    /// So many of the refs.
    Some(usize),
    NotUnpacked,
    /// Nobody asked, so the forge did not say.
    Untold,
}

impl<'a> AnswerReader<'a> {
    pub(crate) fn new(wanted: &'a Wanted) -> Self {
        Self { wanted, open: Vec::new(), report: Vec::new(), told: Vec::new(), left_out: false }
    }

    /// `None`: this is no answer to a push.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Option<()> {
        self.open.extend_from_slice(piece);
        let mut read = 0;
        if !self.wanted.side_band {
            self.report.append(&mut self.open);
        }
        while let Some(packet) = pkt::first(self.open.get(read..).unwrap_or_default()).ok()? {
            read += packet.len();
            match packet {
                Packet::Flush => self.told.extend_from_slice(FLUSH),
                Packet::Line([MESSAGE, ..]) if self.told.len() > MESSAGES => {
                    if !std::mem::replace(&mut self.left_out, true) {
                        pkt::write(&mut self.told, LEFT_OUT.as_bytes());
                    }
                }
                Packet::Line(line) => {
                    pkt::write(&mut self.told, line);
                    self.report.extend_from_slice(line.strip_prefix(&[REPORT]).unwrap_or_default());
                }
            }
        }
        self.open.drain(..read);
        (self.told.len() + self.report.len() < LARGEST).then_some(())
    }

    /// How it went, and what git is told. `None`: nobody knows.
    pub(crate) fn end(self) -> Option<(Pushed, Vec<u8>)> {
        let told = if self.wanted.side_band { self.told } else { self.report.clone() };
        if !self.wanted.report {
            return Some((Pushed::Untold, told));
        }
        let whole = self.open.is_empty();
        judged(&self.report, self.wanted).ok().filter(|_| whole).map(|pushed| (pushed, told))
    }
}

fn judged(mut report: &[u8], wanted: &Wanted) -> Result<Pushed, NoPacket> {
    let mut unpacked = None;
    let mut taken: Vec<&str> = Vec::new();
    loop {
        let packet = pkt::first(report)?.ok_or(NoPacket)?;
        report = report.get(packet.len()..).unwrap_or_default();
        let Packet::Line(line) = packet else { break };
        let line = std::str::from_utf8(line).map_err(|_| NoPacket)?.trim_end_matches('\n');
        match (unpacked, line.split_once(' ')) {
            (None, Some(("unpack", how))) => unpacked = Some(how == "ok"),
            (Some(_), Some(("ok", name))) => taken.push(name),
            (Some(_), Some(("ng" | "option", _))) => {}
            _ => return Err(NoPacket),
        }
    }
    let is_taken = |name: &str| taken.contains(&name);
    let count = wanted.updates.iter().filter(|update| is_taken(&update.name)).count();
    match unpacked {
        None => Err(NoPacket),
        Some(false) => Ok(Pushed::NotUnpacked),
        Some(true) if count == wanted.updates.len() => Ok(Pushed::All),
        Some(true) => Ok(Pushed::Some(count)),
    }
}

/// The answer to a push that was not passed on, in git's own words: it prints them to whoever pushed. `None` where git
/// has not asked to be told.
pub(crate) fn rejection(wanted: &Wanted, reason: &str, message: &str) -> Option<Vec<u8>> {
    if !wanted.report {
        return None;
    }
    let mut report = Vec::new();
    pkt::write(&mut report, b"unpack ok\n");
    for update in &wanted.updates {
        pkt::write(&mut report, format!("ng {} {reason}\n", update.name).as_bytes());
    }
    report.extend_from_slice(FLUSH);
    if !wanted.side_band {
        return Some(report);
    }
    let mut out = Vec::new();
    pkt::write(&mut out, format!("\x02{message}\n").as_bytes());
    for piece in report.chunks(32 * 1024) {
        pkt::write(&mut out, &[&[REPORT], piece].concat());
    }
    out.extend_from_slice(FLUSH);
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testkit::fuzz::{Shape, Target, encode, holds};

    use super::super::updates::Update;
    use super::*;

    fn wanted(names: &[&str]) -> Wanted {
        let id = "1".repeat(40);
        let update = |name: &&str| Update { name: (*name).to_owned(), old: id.clone(), new: id.clone() };
        Wanted { updates: names.iter().map(update).collect(), report: true, side_band: true, options: false }
    }

    fn answer(lines: &[&str], messages: &[&str]) -> Vec<u8> {
        let mut report = Vec::new();
        for line in lines {
            pkt::write(&mut report, line.as_bytes());
        }
        report.extend_from_slice(FLUSH);
        let mut out = Vec::new();
        for text in messages {
            pkt::write(&mut out, format!("\x02{text}").as_bytes());
        }
        pkt::write(&mut out, &[&[REPORT], report.as_slice()].concat());
        out.extend_from_slice(FLUSH);
        out
    }

    fn read(wanted: &Wanted, bytes: &[u8], piece: usize) -> Option<(Pushed, Vec<u8>)> {
        let mut reader = AnswerReader::new(wanted);
        bytes.chunks(piece).try_for_each(|piece| reader.feed(piece))?;
        reader.end()
    }

    #[test]
    fn what_became_of_each_ref_is_read_and_passed_on() {
        let two = wanted(&["refs/heads/a", "refs/heads/b"]);
        for (lines, expected) in [
            (vec!["unpack ok\n", "ok refs/heads/a\n", "ok refs/heads/b\n"], Some(Pushed::All)),
            (vec!["unpack ok\n", "ok refs/heads/a\n", "ng refs/heads/b no\n"], Some(Pushed::Some(1))),
            (vec!["unpack ok\n", "ok refs/heads/x\n"], Some(Pushed::Some(0))),
            (vec!["unpack ok", "ok refs/heads/a", "option old-oid 1", "ok refs/heads/b"], Some(Pushed::All)),
            (vec!["unpack index-pack abnormal exit\n"], Some(Pushed::NotUnpacked)),
            (vec!["ok refs/heads/a\n"], None),
            (vec![], None),
        ] {
            let bytes = answer(&lines, &["Resolving deltas\n"]);
            for piece in [1, 7, 1000] {
                let read = read(&two, &bytes, piece);
                let expected = expected.as_ref().map(|pushed| (pushed, &bytes));
                assert_eq!(read.as_ref().map(|(pushed, told)| (pushed, told)), expected, "{lines:?}");
            }
        }
        assert_eq!(read(&two, b"", 1), None);
        assert_eq!(read(&two, b"<html>", 1), None);
        let untold = Wanted { report: false, ..two };
        assert_eq!(read(&untold, b"", 1), Some((Pushed::Untold, Vec::new())));
    }

    #[test]
    fn a_forge_that_talks_without_end_is_cut_short_and_its_report_still_read() {
        let one = wanted(&["refs/heads/a"]);
        let line = "x".repeat(1000);
        let messages = vec![line.as_str(); 2000];
        let bytes = answer(&["unpack ok\n", "ok refs/heads/a\n"], &messages);
        let (pushed, told) = read(&one, &bytes, 4096).unwrap();
        assert_eq!(pushed, Pushed::All);
        assert!(told.len() < 300 * 1024 && String::from_utf8_lossy(&told).contains("left out"));
    }

    #[test]
    fn a_rejection_is_an_answer_as_a_forge_would_write_it() {
        let two = wanted(&["refs/heads/a", "refs/heads/b"]);
        let bytes = rejection(&two, "denied", "Denied by policy: no").unwrap();
        let (pushed, told) = read(&two, &bytes, 5).unwrap();
        assert_eq!((pushed, &told), (Pushed::Some(0), &bytes));
        assert!(String::from_utf8_lossy(&bytes).contains("\x02Denied by policy: no\n"));
        assert_eq!(rejection(&Wanted { report: false, ..two }, "denied", "no"), None);
    }

    #[test]
    fn seconds_of_broken_answers_find_nothing() {
        let one = wanted(&["refs/heads/a"]);
        let kept = || {
            let good = answer(&["unpack ok\n", "ok refs/heads/a\n"], &["hello\n"]);
            vec![good, answer(&["unpack no\n"], &[]), b"0000".to_vec()]
        };
        let words = &["0000", "0005\x01", "0006\x02x", "unpack ok\n", "ok ", "ng ", "\n", "fff0"];
        let run = &|input: &[u8], _: &_| {
            let (whole, cut) = (read(&one, input, usize::MAX), read(&one, input, 3));
            if whole == cut {
                Ok(format!("{:?}", whole.map(|(pushed, _)| pushed)))
            } else {
                Err("the pieces matter".to_owned())
            }
        };
        let shape = Shape::text(words, 4096);
        holds(Target { name: "reports", run, corpus: &kept, write: encode, shape }, Duration::from_secs(2));
    }
}
