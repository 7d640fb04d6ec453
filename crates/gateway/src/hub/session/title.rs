//! The title of a session: the first sentence of its first prompt, until the agent's model makes one. A title that a
//! person has chosen stays.

use proto::socket::ServerMessage;
use proto::{TitleSource, text};

use super::{End, Session};

/// The maximum number of characters of a title that no person has chosen.
const MAX_TITLE: usize = 50;
/// The number of characters of a prompt in which the first sentence is searched.
const MAX_EXAMINED_CHARS: usize = 1_000;
/// The characters of Markdown markers at the start of a line.
const LINE_MARKERS: &str = "#>-*+=_`~";
/// The characters that end a sentence: before white space, or anywhere.
const SENTENCE_ENDS: [char; 3] = ['.', '!', '?'];
const WIDE_ENDS: [char; 3] = ['。', '！', '？'];

impl Session {
    /// Titles the session by its first prompt, if it has no title yet.
    pub(super) async fn set_prompt_title(&mut self, title: Option<String>) -> Result<(), End> {
        match title.filter(|_| self.record.title.is_none()) {
            Some(title) => self.store_title(title, TitleSource::Prompt).await,
            None => Ok(()),
        }
    }

    /// Titles the session by what the agent's model made. Only the first such title counts, because an agent could send
    /// titles without end.
    pub(super) async fn set_model_title(&mut self, title: &str) -> Result<(), End> {
        let is_wanted = matches!(self.record.title_source, None | Some(TitleSource::Prompt));
        if !is_wanted {
            return Ok(());
        }
        match one_line(&self.redactor().await?.known_in_text(title)) {
            Some(title) => self.store_title(title, TitleSource::Model).await,
            None => Ok(()),
        }
    }

    /// Stores and broadcasts a title. If a person has chosen one meanwhile, nothing happens.
    async fn store_title(&mut self, title: String, source: TitleSource) -> Result<(), End> {
        if self.services.store.set_title(&self.owner, &title, source).await? {
            self.record.title = Some(title.clone());
            self.record.title_source = Some(source);
            self.broadcast(vec![ServerMessage::TitleUpdate { title }]).await?;
        }
        Ok(())
    }
}

/// The first sentence of a prompt as a title; `None` if it has no words.
pub(crate) fn first_sentence(prompt: &str) -> Option<String> {
    let examined: String = prompt.chars().take(MAX_EXAMINED_CHARS).collect();
    let line = examined.lines().find(|line| line.contains(char::is_alphanumeric))?;
    let line = line.replace("**", "");
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || LINE_MARKERS.contains(c));
    let end = line.char_indices().find(|(at, end)| ends_sentence(*end, &line[at + end.len_utf8()..]));
    one_line(end.map_or(line, |(at, end)| &line[..at + end.len_utf8()]))
}

/// Whether a sentence ends with this character. An abbreviation is followed by a word in lower case.
fn ends_sentence(end: char, rest: &str) -> bool {
    let next = rest.trim_start().chars().next();
    WIDE_ENDS.contains(&end)
        || SENTENCE_ENDS.contains(&end)
            && rest.chars().next().is_none_or(char::is_whitespace)
            && next.is_none_or(|next| !next.is_lowercase())
}

/// Whether a title is shown without this character. Joiners stay, because emoji and several scripts need them.
fn is_hidden(c: char) -> bool {
    text::is_deceptive(c) && !matches!(c, '\u{200c}' | '\u{200d}')
}

/// The text as one line of limited length, cut between words; `None` if nothing is left.
fn one_line(text: &str) -> Option<String> {
    let visible: String = text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect();
    let line = visible.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MAX_TITLE {
        return Some(line).filter(|line| !line.is_empty());
    }
    let cut: String = line.chars().take(MAX_TITLE - 1).collect();
    let end = cut.rfind(' ').unwrap_or(cut.len());
    Some(format!("{}…", &cut[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sentence_of_a_prompt_is_its_title() {
        for (prompt, title) in [
            ("Fix the login. It fails on Mondays.", Some("Fix the login.")),
            ("  why?\nbecause", Some("why?")),
            ("# Fix `main.rs`\n\nIt does not compile.", Some("Fix `main.rs`")),
            ("Look at e.g. the parser! Now", Some("Look at e.g. the parser!")),
            ("Use version 1.2 of it", Some("Use version 1.2 of it")),
            ("ログインを直して。月曜に失敗する。", Some("ログインを直して。")),
            ("**Fix** it", Some("Fix it")),
            ("---\n```\n- tidy\tup\n", Some("tidy up")),
            ("a\u{1b}[31mb\u{0}c", Some("a [31mb c")),
            ("Merge \u{202e}txt.exe", Some("Merge txt.exe")),
            ("\n \t\n", None),
            ("...", None),
            ("", None),
        ] {
            assert_eq!(first_sentence(prompt).as_deref(), title, "{prompt:?}");
        }
    }

    #[test]
    fn a_long_sentence_is_cut_between_words() {
        let words = first_sentence(&"word ".repeat(1_000)).unwrap();
        assert!(words.ends_with("word…") && words.chars().count() <= MAX_TITLE, "{words}");
        let letters = first_sentence(&"ä".repeat(5_000)).unwrap();
        assert_eq!(letters, format!("{}…", "ä".repeat(MAX_TITLE - 1)));
    }
}
