//! What a push wants: the list of refs with what they were and are to be, which stands before the pack. It comes out of
//! a sandbox, and it decides what is asked of policy, so nothing is understood that git itself would not write.

use serde::Serialize;

use super::pkt::{self, NoPacket, Packet};

/// The list, with everything around it.
const LARGEST: usize = 512 * 1024;
const MOST_UPDATES: usize = 1000;
const MOST_SHALLOW: usize = 2000;
const LONGEST_NAME: usize = 250;

/// One ref that is to change. An id of zeros: there is none before, or none afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Update {
    #[serde(rename = "ref")]
    pub(crate) name: String,
    pub(crate) old: String,
    pub(crate) new: String,
}

impl Update {
    pub(crate) fn creates(&self) -> bool {
        self.old.bytes().all(|digit| digit == b'0')
    }

    pub(crate) fn deletes(&self) -> bool {
        self.new.bytes().all(|digit| digit == b'0')
    }
}

/// What a push wants, and how its answer is to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Empty for a push that only asks whether it may.
    pub(crate) updates: Vec<Update>,
    /// Git wants to be told what became of each ref.
    pub(crate) report: bool,
    /// Answers come with messages for people between them.
    pub(crate) side_band: bool,
    /// There are options for the forge, which can do anything there.
    pub(crate) options: bool,
}

/// What came is no push.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UpdatesError {
    #[error("This is no push as git makes them")]
    Malformed,
    #[error("A push may change at most 1000 refs at once")]
    TooMany,
    #[error(
        "The push asks for a capability that the gateway does not know: use git itself, without extensions"
    )]
    Capability,
}

impl From<NoPacket> for UpdatesError {
    fn from(_: NoPacket) -> Self {
        Self::Malformed
    }
}

/// Reads the list as it comes, and keeps every byte of it for the forge.
#[derive(Default)]
pub(crate) struct UpdatesReader {
    bytes: Vec<u8>,
    /// How far it is understood.
    read: usize,
    shallow: usize,
    wanted: Wanted,
}

impl UpdatesReader {
    /// `Some`, once, when the list is whole.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> Result<Option<Wanted>, UpdatesError> {
        self.bytes.extend_from_slice(piece);
        loop {
            if self.read > LARGEST {
                return Err(UpdatesError::TooMany);
            }
            let Some(packet) = pkt::first(self.bytes.get(self.read..).unwrap_or_default())? else {
                return Ok(None);
            };
            self.read += packet.len();
            match packet {
                Packet::Flush => return Ok(Some(std::mem::take(&mut self.wanted))),
                Packet::Line(line) => understand(line, &mut self.wanted, &mut self.shallow)?,
            }
        }
    }

    /// Everything that came so far, and where the pack starts in it.
    pub(crate) fn into_bytes(self) -> (Vec<u8>, usize) {
        (self.bytes, self.read)
    }
}

fn understand(line: &[u8], wanted: &mut Wanted, shallow: &mut usize) -> Result<(), UpdatesError> {
    let line = std::str::from_utf8(line).map_err(|_| UpdatesError::Malformed)?;
    let line = line.strip_suffix('\n').unwrap_or(line);
    // Where the history of a shallow clone ends; before all updates.
    if let Some(id) = line.strip_prefix("shallow ") {
        *shallow += 1;
        let fits = is_id(id) && wanted.updates.is_empty() && *shallow <= MOST_SHALLOW;
        return if fits { Ok(()) } else { Err(UpdatesError::Malformed) };
    }
    let line = match (line.split_once('\0'), wanted.updates.is_empty()) {
        (Some((line, words)), true) => {
            words.split(' ').try_for_each(|word| capability(word, wanted))?;
            line
        }
        (Some(_), false) => return Err(UpdatesError::Malformed),
        (None, _) => line,
    };
    let update = update(line).ok_or(UpdatesError::Malformed)?;
    let others = &wanted.updates;
    if others.iter().any(|other| other.name == update.name || other.old.len() != update.old.len()) {
        return Err(UpdatesError::Malformed);
    }
    if others.len() == MOST_UPDATES {
        return Err(UpdatesError::TooMany);
    }
    wanted.updates.push(update);
    Ok(())
}

/// Takes the capabilities that git and other clients send, and no others. Git at the forge splits the list at any white
/// space, so a tab or a line feed within a word would hide another word from us.
fn capability(word: &str, wanted: &mut Wanted) -> Result<(), UpdatesError> {
    match word {
        ""
        | "quiet"
        | "atomic"
        | "ofs-delta"
        | "delete-refs"
        | "object-format=sha1"
        | "object-format=sha256" => {}
        "report-status" | "report-status-v2" => wanted.report = true,
        "side-band-64k" => wanted.side_band = true,
        "push-options" => wanted.options = true,
        _ => {
            let value = word.strip_prefix("agent=").or_else(|| word.strip_prefix("session-id="));
            value
                .filter(|value| value.bytes().all(|c| c.is_ascii_graphic()))
                .ok_or(UpdatesError::Capability)?;
        }
    }
    Ok(())
}

fn update(line: &str) -> Option<Update> {
    let (old, rest) = line.split_once(' ')?;
    let (new, name) = rest.split_once(' ')?;
    let fits = is_id(old) && is_id(new) && old.len() == new.len() && is_ref(name);
    fits.then(|| Update { name: name.to_owned(), old: old.to_owned(), new: new.to_owned() })
}

pub(crate) fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// The names that git takes for refs, in full.
fn is_ref(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || " ~^:?*[\\".contains(c);
    let part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.strip_suffix(".lock").is_none();
    name.starts_with("refs/")
        && name.len() <= LONGEST_NAME
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

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";

    fn push(lines: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for line in lines {
            pkt::write(&mut bytes, line.as_bytes());
        }
        bytes.extend_from_slice(pkt::FLUSH);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Option<Wanted>, UpdatesError> {
        UpdatesReader::default().feed(bytes)
    }

    fn main() -> String {
        format!("{OLD} {NEW} refs/heads/main\0 report-status-v2 side-band-64k agent=git/2.47.3")
    }

    #[test]
    fn the_list_of_a_push_is_read_however_it_is_cut() {
        let (shallow, tag) = (format!("shallow {OLD}"), format!("{OLD} {} refs/tags/v1", "0".repeat(40)));
        let bytes = [push(&[&shallow, &main(), &tag]), b"PACK....".to_vec()].concat();
        let whole = read(&bytes).unwrap().unwrap();
        assert_eq!(whole.updates.len(), 2);
        assert_eq!((&*whole.updates[0].name, &*whole.updates[0].new), ("refs/heads/main", NEW));
        assert!(!whole.updates[0].deletes() && whole.updates[1].deletes());
        assert!(whole.report && whole.side_band && !whole.options);
        let mut reader = UpdatesReader::default();
        let found = bytes.iter().find_map(|byte| reader.feed(&[*byte]).unwrap());
        assert_eq!(found, Some(whole));
        assert!(bytes.starts_with(&reader.into_bytes().0));
        // What git sends to learn whether it may send more.
        assert_eq!(read(pkt::FLUSH), Ok(Some(Wanted::default())));
        assert_eq!(read(b"00"), Ok(None));
    }

    #[test]
    fn nothing_is_understood_that_git_would_not_write() {
        let line = |ids: (&str, &str), name: &str| push(&[&format!("{} {} {name}", ids.0, ids.1)]);
        let (upper, long) = ("A".repeat(40), "3".repeat(64));
        for (wrong, why) in [
            (b"0004".to_vec(), "an empty line"),
            (b"0001".to_vec(), "a mark of another version"),
            (b"fff1".to_vec(), "a packet that is too large"),
            (b"00A0".to_vec(), "digits that others may read differently"),
            (b"POST / HTTP".to_vec(), "another protocol"),
            (line((OLD, NEW), "HEAD"), "no ref in full"),
            (line((OLD, NEW), "refs/heads/a b"), "a space in a name"),
            (line((OLD, NEW), "refs/heads/../x"), "a way out"),
            (line((OLD, NEW), "refs/heads/x.lock"), "a lock"),
            (line((OLD, NEW), "refs//x"), "an empty part"),
            (line((OLD, NEW), "refs/heads/a\rb"), "a control character"),
            (line((OLD, NEW), &format!("refs/heads/{}", "x".repeat(300))), "a long name"),
            (line((&upper, NEW), "refs/heads/a"), "an id in another spelling"),
            (line((OLD, &long), "refs/heads/a"), "ids of two kinds"),
            (line(("1", "2"), "refs/heads/a"), "ids that are too short"),
            (push(&["push-cert\0 report-status"]), "a signed push"),
            (push(&[&main(), &main()]), "words after the first line"),
            (push(&[&format!("{OLD} {NEW} refs/a"), &format!("{OLD} {NEW} refs/a")]), "a ref twice"),
            (push(&[&format!("{OLD} {NEW} refs/a"), &format!("shallow {OLD}")]), "shallow too late"),
        ] {
            assert_eq!(read(&wrong), Err(UpdatesError::Malformed), "{why}");
        }
        let many: Vec<_> = (0..=MOST_UPDATES).map(|n| format!("{OLD} {NEW} refs/heads/b{n}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(read(&push(&many)), Err(UpdatesError::TooMany));
        assert_eq!(read(&push(&many[1..])).unwrap().unwrap().updates.len(), MOST_UPDATES);
    }

    #[test]
    fn only_capabilities_that_are_known_pass_and_only_spaces_part_them() {
        let with = |words: &str| read(&push(&[&format!("{OLD} {NEW} refs/heads/main\0{words}")]));
        for known in [
            " report-status side-band-64k quiet atomic object-format=sha1 agent=git/2.47.3-Linux",
            "report-status delete-refs ofs-delta",
            " session-id=4-1-x agent=JGit/6.7.0(x)",
            "",
        ] {
            assert!(with(known).is_ok_and(|wanted| !wanted.unwrap().options), "{known}");
        }
        assert!(with(" push-options").unwrap().unwrap().options);
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
            assert_eq!(with(smuggled), Err(UpdatesError::Capability), "{smuggled:?}");
        }
    }

    /// What was understood, written again, is what came; and the pieces it came in do not matter.
    fn same(
        reader: fn(&[u8]) -> Result<Option<Wanted>, UpdatesError>,
        input: &[u8],
        dice: &Dice,
    ) -> Result<String, String> {
        let whole = reader(input);
        let mut cut = UpdatesReader::default();
        let middle = dice.below(input.len() + 1);
        let pieces = [&input[..middle], &input[middle..]];
        let found = match cut.feed(pieces[0]) {
            Ok(None) => cut.feed(pieces[1]),
            done => done,
        };
        if found != whole {
            return Err("the pieces matter".to_owned());
        }
        let Ok(Some(wanted)) = whole else { return Ok(format!("{whole:?}")) };
        let mut rest = input;
        for update in &wanted.updates {
            let text = format!("{} {} {}", update.old, update.new, update.name);
            let at = rest.windows(text.len()).position(|window| window == text.as_bytes());
            rest = at.and_then(|at| rest.get(at + text.len()..)).ok_or("it was written otherwise")?;
        }
        let plain = |update: &Update| !update.name.chars().any(char::is_whitespace);
        if !wanted.updates.iter().all(plain) {
            return Err("a name with space in it".to_owned());
        }
        Ok(format!("{} {} {}", wanted.updates.len(), wanted.report, wanted.side_band))
    }

    fn corpus() -> Vec<Vec<u8>> {
        let two = format!("{NEW} {OLD} refs/heads/two\n");
        vec![push(&[&main()]), push(&[&format!("shallow {OLD}\n"), &main(), &two]), b"0000".to_vec()]
    }

    fn target(run: testkit::fuzz::Run<'_>) -> Target<'_> {
        let words =
            &["0000", "0001", "0004", "\0", "\n", " ", "refs/", "shallow ", "\t", "fff0", "push-options"];
        Target { name: "updates", run, corpus: &corpus, write: encode, shape: Shape::text(words, 4096) }
    }

    #[test]
    fn seconds_of_broken_pushes_find_nothing() {
        holds(target(&|input, dice| same(read, input, dice)), Duration::from_secs(3));
    }

    #[test]
    fn planted_bugs_are_found() {
        let trims = |input: &[u8]| {
            read(input).map(|wanted| {
                wanted.map(|mut wanted| {
                    wanted
                        .updates
                        .iter_mut()
                        .for_each(|update| update.name = update.name.replace("ma", "mo"));
                    wanted
                })
            })
        };
        finds(target(&|input, dice| same(trims, input, dice)), "the pieces matter");
    }
}
