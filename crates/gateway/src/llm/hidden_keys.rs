//! Removes the keys of the providers from what a provider answers: some repeat the key that they refuse.

use axum::body::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use ledger::{REDACTED, Redactor, RedactorError};
use secrecy::{ExposeSecret as _, SecretString};

/// The keys of all providers. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct HiddenKeys {
    keys: Vec<SecretString>,
    redactor: Redactor,
}

impl HiddenKeys {
    pub(super) fn new<'a>(keys: impl IntoIterator<Item = &'a SecretString>) -> Result<Self, RedactorError> {
        let keys: Vec<SecretString> = keys.into_iter().cloned().collect();
        let redactor = Redactor::new(keys.iter().map(SecretString::expose_secret))?;
        Ok(Self { keys, redactor })
    }

    /// Whether a text has a key in a usual encoding.
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.redactor.is_known_in(text)
    }

    /// A complete text without the keys in the usual encodings.
    pub(super) fn removed_from(&self, text: &[u8]) -> String {
        self.redactor.known_in_text(&String::from_utf8_lossy(text))
    }

    /// A stream without the keys as they are. It is not delayed, except for an end of a chunk with which a key begins.
    pub(super) fn removed_from_stream<E, S>(
        &self,
        chunks: S,
    ) -> impl Stream<Item = Result<Bytes, E>> + Send + use<E, S>
    where
        E: Send + 'static,
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
    {
        let scans = self.keys.iter().map(|key| KeyScan { key: key.clone(), held: Vec::new() }).collect();
        let chunks = chunks.map(Some).chain(stream::once(future::ready(None)));
        let cleaned = chunks.scan(scans, |scans: &mut Vec<KeyScan>, chunk| {
            let is_last = chunk.is_none();
            let chunk = chunk.unwrap_or_else(|| Ok(Bytes::new()));
            let pass = |chunk, scan: &mut KeyScan| scan.pass(chunk, is_last);
            future::ready(Some(chunk.map(|chunk| scans.iter_mut().fold(chunk, pass))))
        });
        cleaned.try_filter(|chunk| future::ready(!chunk.is_empty()))
    }
}

/// The search for one key in a stream.
struct KeyScan {
    key: SecretString,
    /// The end of what came so far, with which the key begins.
    held: Vec<u8>,
}

impl KeyScan {
    fn pass(&mut self, chunk: Bytes, is_last: bool) -> Bytes {
        let key = self.key.expose_secret().as_bytes();
        let text = if self.held.is_empty() {
            chunk
        } else {
            [std::mem::take(&mut self.held).as_slice(), &chunk].concat().into()
        };
        let (mut out, mut rest) = (Vec::new(), &text[..]);
        while let Some(at) = rest.windows(key.len()).position(|part| part == key) {
            out.extend_from_slice(&rest[..at]);
            out.extend_from_slice(REDACTED.as_bytes());
            rest = &rest[at + key.len()..];
        }
        let begun = (1..key.len()).rev().find(|length| rest.ends_with(&key[..*length])).unwrap_or_default();
        let (sent, held) = rest.split_at(rest.len() - if is_last { 0 } else { begun });
        self.held = held.to_vec();
        if sent.len() == text.len() {
            return text;
        }
        out.extend_from_slice(sent);
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const KEY: &str = "sk-sk-4711-the-key";

    fn streamed(chunks: &[&str]) -> Vec<String> {
        let hidden = HiddenKeys::new([&SecretString::from(KEY)]).unwrap();
        let chunks: Vec<Result<Bytes, ()>> =
            chunks.iter().map(|chunk| Ok(Bytes::copy_from_slice(chunk.as_bytes()))).collect();
        let cleaned = hidden.removed_from_stream(stream::iter(chunks)).try_collect::<Vec<_>>();
        let cleaned = cleaned.now_or_never().unwrap().unwrap();
        cleaned.iter().map(|chunk| String::from_utf8(chunk.to_vec()).unwrap()).collect()
    }

    #[test]
    fn a_key_is_removed_wherever_a_stream_is_split() {
        let text = format!("a {KEY} sk-{KEY}{KEY}. sk-sk-47");
        for size in 1..=text.len() {
            let chunks: Vec<&str> =
                text.as_bytes().chunks(size).map(|c| str::from_utf8(c).unwrap()).collect();
            let expected = "a [REDACTED] sk-[REDACTED][REDACTED]. sk-sk-47";
            assert_eq!(streamed(&chunks).concat(), expected, "in chunks of {size}");
        }
    }

    #[test]
    fn ordinary_chunks_are_sent_as_they_come() {
        assert_eq!(streamed(&["data: s\n\n", "data: k\n\n"]), ["data: s\n\n", "data: k\n\n"]);
        assert_eq!(streamed(&["ask-", "not", "", "x"]), ["a", "sk-not", "x"]);
        assert!(streamed(&[]).is_empty());
    }
}
