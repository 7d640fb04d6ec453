//! The encodings of a secret that are searched for. Percent-encoding and the escapes of JSON have too many variants, so texts
//! are decoded too.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Shorter secrets, and shorter encodings of them, match ordinary text by chance.
const MIN_BYTES: usize = 4;
/// Lines of a multi-line secret are secrets of their own from this length on, which excludes `-----` and the
/// like.
const MIN_LINE: usize = 16;

pub(super) fn encodings(secret: &str) -> Vec<String> {
    let whole = [secret, secret.trim()];
    // A multi-line key is often printed line by line.
    let lines =
        secret.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE && !line.starts_with("-----"));
    let texts = whole.into_iter().chain(lines).filter(|text| text.len() >= MIN_BYTES);
    texts.flat_map(spellings).filter(|spelling| spelling.len() >= MIN_BYTES).collect()
}

fn spellings(text: &str) -> Vec<String> {
    let escaped = json_escape(text);
    let mut all =
        vec![text.to_owned(), json_escape(&escaped), escaped, hex::encode(text), text.replace(' ', "+")];
    // Texts are also searched without their line breaks.
    all.push(text.replace(['\r', '\n'], ""));
    for before in 0..3 {
        all.push(stable_characters(&STANDARD_NO_PAD.encode(padded(text, before)), text.len(), before));
        all.push(stable_characters(&URL_SAFE_NO_PAD.encode(padded(text, before)), text.len(), before));
    }
    all
}

/// Escapes the text as in a JSON string, without the quotes.
fn json_escape(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(&quoted).to_owned()
}

fn padded(text: &str, before: usize) -> Vec<u8> {
    [&[0; 2][..before], text.as_bytes()].concat()
}

/// Extracts the base64 characters that depend on the secret alone when `before` bytes precede it within its
/// group of three. The characters at both ends also encode neighbouring bytes.
fn stable_characters(encoded: &str, length: usize, before: usize) -> String {
    let first = (before * 8).div_ceil(6);
    let last = (before + length) * 8 / 6;
    encoded.get(first..last).unwrap_or(encoded).to_owned()
}
