//! The head of a push: the list of ref updates that precedes the pack. It comes from a sandbox and determines what
//! policy decides about, so the parser accepts only what git itself writes.

use serde::Serialize;

use super::super::pkt_line::{self, Malformed, Packet};
use super::super::workspace::is_branch_name;

/// The largest accepted list, in bytes.
const MAX_LIST: usize = 512 * 1024;
const MAX_UPDATES: usize = 1000;
const MAX_SHALLOW: usize = 2000;
const MAX_NAME: usize = 250;

/// One ref update. An id of zeros means that the ref does not exist before, or is deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RefUpdate {
    #[serde(rename = "ref")]
    pub(crate) name: String,
    pub(crate) old: String,
    pub(crate) new: String,
}

impl RefUpdate {
    pub(crate) fn creates(&self) -> bool {
        self.old.bytes().all(|digit| digit == b'0')
    }

    pub(crate) fn deletes(&self) -> bool {
        self.new.bytes().all(|digit| digit == b'0')
    }
}

/// The ref updates that a push requests, and how its response must be encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PushRequest {
    /// Empty for the probe that git sends before a large push.
    pub(crate) updates: Vec<RefUpdate>,
    /// Git expects a status report for each ref.
    pub(crate) wants_report: bool,
    /// The response is multiplexed with messages for people.
    pub(crate) side_band: bool,
    /// Push options follow, which may trigger anything at the forge.
    pub(crate) has_options: bool,
}

/// Why a request is not accepted as a push.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PushRequestError {
    #[error("This is not a push as git writes it")]
    Malformed,
    #[error("A push may change at most 1000 refs at once")]
    TooMany,
    #[error(
        "The push requests a capability that the gateway does not support: use git itself, without extensions"
    )]
    Capability,
}

impl From<Malformed> for PushRequestError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// An incremental parser that keeps every byte, to forward it to the forge.
#[derive(Default)]
pub(crate) struct PushRequestReader {
    bytes: Vec<u8>,
    /// How many of the bytes are parsed.
    parsed: usize,
    shallow: usize,
    request: PushRequest,
}

impl PushRequestReader {
    /// `Some`, once, when the list is complete.
    pub(crate) fn feed(&mut self, chunk: &[u8]) -> Result<Option<PushRequest>, PushRequestError> {
        self.bytes.extend_from_slice(chunk);
        loop {
            if self.parsed > MAX_LIST {
                return Err(PushRequestError::TooMany);
            }
            let Some(packet) = pkt_line::first(self.bytes.get(self.parsed..).unwrap_or_default())? else {
                return Ok(None);
            };
            self.parsed += packet.len();
            match packet {
                Packet::Flush => return Ok(Some(std::mem::take(&mut self.request))),
                Packet::Line(line) => parse_line(line, &mut self.request, &mut self.shallow)?,
            }
        }
    }

    /// All bytes that have arrived, and where the pack starts in them.
    pub(crate) fn into_bytes(self) -> (Vec<u8>, usize) {
        (self.bytes, self.parsed)
    }
}

fn parse_line(line: &[u8], request: &mut PushRequest, shallow: &mut usize) -> Result<(), PushRequestError> {
    let line = std::str::from_utf8(line).map_err(|_| PushRequestError::Malformed)?;
    let line = line.strip_suffix('\n').unwrap_or(line);
    // The boundary of a shallow clone; precedes all updates.
    if let Some(id) = line.strip_prefix("shallow ") {
        *shallow += 1;
        let fits = is_object_id(id) && request.updates.is_empty() && *shallow <= MAX_SHALLOW;
        return if fits { Ok(()) } else { Err(PushRequestError::Malformed) };
    }
    let line = match (line.split_once('\0'), request.updates.is_empty()) {
        (Some((line, words)), true) => {
            words.split(' ').try_for_each(|word| parse_capability(word, request))?;
            line
        }
        (Some(_), false) => return Err(PushRequestError::Malformed),
        (None, _) => line,
    };
    let update = parse_update(line).ok_or(PushRequestError::Malformed)?;
    let others = &request.updates;
    if others.iter().any(|other| other.name == update.name || other.old.len() != update.old.len()) {
        return Err(PushRequestError::Malformed);
    }
    if others.len() == MAX_UPDATES {
        return Err(PushRequestError::TooMany);
    }
    request.updates.push(update);
    Ok(())
}

/// Accepts the capabilities that git and other clients send, and no others. Git at the forge splits the list at any
/// white space, so a tab or a line feed inside a word would hide another capability from us.
fn parse_capability(word: &str, request: &mut PushRequest) -> Result<(), PushRequestError> {
    match word {
        ""
        | "quiet"
        | "atomic"
        | "ofs-delta"
        | "delete-refs"
        | "object-format=sha1"
        | "object-format=sha256" => {}
        "report-status" | "report-status-v2" => request.wants_report = true,
        "side-band-64k" => request.side_band = true,
        "push-options" => request.has_options = true,
        _ => {
            let value = word.strip_prefix("agent=").or_else(|| word.strip_prefix("session-id="));
            value
                .filter(|value| value.bytes().all(|c| c.is_ascii_graphic()))
                .ok_or(PushRequestError::Capability)?;
        }
    }
    Ok(())
}

fn parse_update(line: &str) -> Option<RefUpdate> {
    let (old, rest) = line.split_once(' ')?;
    let (new, name) = rest.split_once(' ')?;
    let fits = is_object_id(old) && is_object_id(new) && old.len() == new.len() && is_ref_name(name);
    fits.then(|| RefUpdate { name: name.to_owned(), old: old.to_owned(), new: new.to_owned() })
}

pub(in crate::git) fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// A full ref name that git accepts. Branches have the same names as those that people create.
fn is_ref_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.strip_suffix(".lock").is_none();
    name.starts_with("refs/")
        && name.strip_prefix("refs/heads/").is_none_or(is_branch_name)
        && name.len() <= MAX_NAME
        && name.split('/').all(part)
        && !name.ends_with('.')
        && !["..", "@{"].iter().any(|wrong| name.contains(wrong))
        && !name.chars().any(forbidden)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testkit::fuzz::{Dice, Shape, Target, encode, finds, holds};

    use super::*;

    const OLD_COMMIT: &str = "1111111111111111111111111111111111111111";
    const NEW_COMMIT: &str = "2222222222222222222222222222222222222222";

    fn push(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            pkt_line::write(&mut bytes, line.as_bytes());
        }
        bytes.extend_from_slice(pkt_line::FLUSH_PACKET);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Option<PushRequest>, PushRequestError> {
        PushRequestReader::default().feed(bytes)
    }

    fn main() -> String {
        format!("{OLD_COMMIT} {NEW_COMMIT} refs/heads/main\0 report-status-v2 side-band-64k agent=git/2.47.3")
    }

    #[test]
    fn the_ref_updates_are_parsed_however_the_bytes_are_split() {
        let (shallow, tag) =
            (format!("shallow {OLD_COMMIT}"), format!("{OLD_COMMIT} {} refs/tags/v1", "0".repeat(40)));
        let bytes = [push(&[&shallow, &main(), &tag]), b"PACK....".to_vec()].concat();
        let parsed = read(&bytes).unwrap().unwrap();
        assert_eq!(parsed.updates.len(), 2);
        assert_eq!((&*parsed.updates[0].name, &*parsed.updates[0].new), ("refs/heads/main", NEW_COMMIT));
        assert!(!parsed.updates[0].deletes() && parsed.updates[1].deletes());
        assert!(parsed.wants_report && parsed.side_band && !parsed.has_options);
        let mut reader = PushRequestReader::default();
        let found = bytes.iter().find_map(|byte| reader.feed(&[*byte]).unwrap());
        assert_eq!(found, Some(parsed));
        assert!(bytes.starts_with(&reader.into_bytes().0));
        // The probe that git sends before a large push.
        assert_eq!(read(pkt_line::FLUSH_PACKET), Ok(Some(PushRequest::default())));
        assert_eq!(read(b"00"), Ok(None));
    }

    #[test]
    fn input_that_git_would_not_write_is_rejected() {
        let line = |ids: (&str, &str), name: &str| push(&[&format!("{} {} {name}", ids.0, ids.1)]);
        let (upper, long) = ("A".repeat(40), "3".repeat(64));
        for (wrong, why) in [
            (b"0004".to_vec(), "an empty line"),
            (b"0001".to_vec(), "a packet of another protocol version"),
            (b"fff1".to_vec(), "a packet that is too large"),
            (b"00A0".to_vec(), "digits that others may parse differently"),
            (b"POST / HTTP".to_vec(), "another protocol"),
            (line((OLD_COMMIT, NEW_COMMIT), "HEAD"), "not a full ref name"),
            (line((OLD_COMMIT, NEW_COMMIT), "refs/heads/a b"), "a space in a name"),
            (line((OLD_COMMIT, NEW_COMMIT), "refs/heads/../x"), "a parent path"),
            (line((OLD_COMMIT, NEW_COMMIT), "refs/heads/x.lock"), "a lock file"),
            (line((OLD_COMMIT, NEW_COMMIT), "refs//x"), "an empty component"),
            (
                line((OLD_COMMIT, NEW_COMMIT), "refs/heads/--upload-pack=x"),
                "a branch that looks like an option",
            ),
            (line((OLD_COMMIT, NEW_COMMIT), "refs/heads/HEAD"), "a branch that hides the head"),
            (line((OLD_COMMIT, NEW_COMMIT), "refs/heads/refs/tags/v9"), "a branch that looks like a tag"),
            (line((OLD_COMMIT, NEW_COMMIT), "refs/heads/a\rb"), "a control character"),
            (line((OLD_COMMIT, NEW_COMMIT), &format!("refs/heads/{}", "x".repeat(300))), "a long name"),
            (line((&upper, NEW_COMMIT), "refs/heads/a"), "an id in upper case"),
            (line((OLD_COMMIT, &long), "refs/heads/a"), "ids of two formats"),
            (line(("1", "2"), "refs/heads/a"), "ids that are too short"),
            (push(&["push-cert\0 report-status"]), "a signed push"),
            (push(&[&main(), &main()]), "capabilities after the first line"),
            (
                push(&[
                    &format!("{OLD_COMMIT} {NEW_COMMIT} refs/a"),
                    &format!("{OLD_COMMIT} {NEW_COMMIT} refs/a"),
                ]),
                "a ref twice",
            ),
            (
                push(&[&format!("{OLD_COMMIT} {NEW_COMMIT} refs/a"), &format!("shallow {OLD_COMMIT}")]),
                "shallow too late",
            ),
        ] {
            assert_eq!(read(&wrong), Err(PushRequestError::Malformed), "{why}");
        }
        let many: Vec<_> =
            (0..=MAX_UPDATES).map(|n| format!("{OLD_COMMIT} {NEW_COMMIT} refs/heads/b{n}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(read(&push(&many)), Err(PushRequestError::TooMany));
        assert_eq!(read(&push(&many[1..])).unwrap().unwrap().updates.len(), MAX_UPDATES);
    }

    #[test]
    fn only_known_capabilities_pass_and_only_spaces_separate_them() {
        let with =
            |words: &str| read(&push(&[&format!("{OLD_COMMIT} {NEW_COMMIT} refs/heads/main\0{words}")]));
        for known in [
            " report-status side-band-64k quiet atomic object-format=sha1 agent=git/2.47.3-Linux",
            "report-status delete-refs ofs-delta",
            " session-id=4-1-x agent=JGit/6.7.0(x)",
            "",
        ] {
            assert!(with(known).is_ok_and(|request| !request.unwrap().has_options), "{known}");
        }
        assert!(with(" push-options").unwrap().unwrap().has_options);
        for smuggled in [
            " report-status\tpush-options",
            " agent=git/2\tpush-options",
            " agent=git/2\npush-options",
            " agent=git/2\u{b}push-options",
            " agent=git/2\rpush-options agent=x",
            " push-cert=nonce",
            " unheard-of",
            " agent=\u{a0}push-options",
        ] {
            assert_eq!(with(smuggled), Err(PushRequestError::Capability), "{smuggled:?}");
        }
    }

    /// The parsed updates occur in the input, and how the input is split does not matter.
    fn check(
        reader: fn(&[u8]) -> Result<Option<PushRequest>, PushRequestError>,
        input: &[u8],
        dice: &Dice,
    ) -> Result<String, String> {
        let at_once = reader(input);
        let mut split = PushRequestReader::default();
        let middle = dice.below(input.len() + 1);
        let found = match split.feed(&input[..middle]) {
            Ok(None) => split.feed(&input[middle..]),
            done => done,
        };
        if found != at_once {
            return Err("the split matters".to_owned());
        }
        let Ok(Some(request)) = at_once else { return Ok(format!("{at_once:?}")) };
        let mut rest = input;
        for update in &request.updates {
            let text = format!("{} {} {}", update.old, update.new, update.name);
            let at = rest.windows(text.len()).position(|window| window == text.as_bytes());
            rest = at.and_then(|at| rest.get(at + text.len()..)).ok_or("an update is not in the input")?;
        }
        let plain = |update: &RefUpdate| !update.name.chars().any(char::is_whitespace);
        if !request.updates.iter().all(plain) {
            return Err("a name contains white space".to_owned());
        }
        Ok(format!("{} {} {}", request.updates.len(), request.wants_report, request.side_band))
    }

    fn corpus() -> Vec<Vec<u8>> {
        let two = format!("{NEW_COMMIT} {OLD_COMMIT} refs/heads/two\n");
        vec![push(&[&main()]), push(&[&format!("shallow {OLD_COMMIT}\n"), &main(), &two]), b"0000".to_vec()]
    }

    fn target(run: testkit::fuzz::Run<'_>) -> Target<'_> {
        let words =
            &["0000", "0001", "0004", "\0", "\n", " ", "refs/", "shallow ", "\t", "fff0", "push-options"];
        Target { name: "push-requests", run, corpus: &corpus, write: encode, shape: Shape::text(words, 4096) }
    }

    #[test]
    fn fuzzing_finds_no_misparsed_push() {
        holds(target(&|input, dice| check(read, input, dice)), Duration::from_secs(3));
    }

    #[test]
    fn fuzzing_finds_a_planted_bug() {
        let renames = |input: &[u8]| {
            read(input).map(|parsed| {
                parsed.map(|mut request| {
                    request
                        .updates
                        .iter_mut()
                        .for_each(|update| update.name = update.name.replace("ma", "mo"));
                    request
                })
            })
        };
        finds(target(&|input, dice| check(renames, input, dice)), "the split matters");
    }
}
