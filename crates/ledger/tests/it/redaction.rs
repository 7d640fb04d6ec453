//! Known secrets are found in every spelling, however it is wrapped, and other text stays as it is.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ledger::{REDACTED, Redactor};
use proptest::prelude::*;
use serde_json::json;

/// How a program may write a text without losing a byte of it.
fn spellings(text: &str) -> Vec<String> {
    let json = json!(text).to_string();
    let json = &json[1..json.len() - 1];
    let units = || text.encode_utf16();
    let upper = text.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
    let escaped =
        |prefix: &str| units().map(|unit| format!("{prefix}u{unit:04x}")).collect::<Vec<_>>().concat();
    vec![
        text.to_owned(),
        hex::encode(text),
        hex::encode_upper(text),
        upper.to_lowercase(),
        upper,
        json.replace('/', r"\/"),
        escaped(r"\"),
        escaped(r"\\").to_uppercase().replace('U', "u"),
    ]
}

/// The text in lines of at most `width` characters.
fn wrap(text: &str, width: usize, line_break: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let lines: Vec<String> = letters.chunks(width).map(|line| line.iter().collect()).collect();
    lines.join(line_break)
}

const LINE_BREAKS: [&str; 4] = ["\n", "\r\n", r"\n", r"\r\n"];

proptest! {
    #[test]
    fn a_secret_is_removed_in_any_spelling_wrapped_at_any_width(
        secret in "[!-~é]{1}[ -~é€😀]{6,60}[!-~é]{1}",
        width in 1_usize..90,
        line_break in prop::sample::select(&LINE_BREAKS[..]),
    ) {
        let redactor = Redactor::new([&secret]).unwrap();
        for spelling in spellings(&secret) {
            // An escaped break within another escape is no wrapping of any program.
            let line_break = if spelling.contains(['\\', '%']) { "\n" } else { line_break };
            let text = format!("ab: {}\n:yz", wrap(&spelling, width, line_break));
            prop_assert_eq!(redactor.text(&text), format!("ab: {}\n:yz", REDACTED), "{}", text);
        }
    }

    #[test]
    fn a_secret_is_removed_in_base64_wrapped_at_any_width(
        secret in "[!-~é]{8,60}",
        before in "[a-z]{0,4}",
        width in 1_usize..90,
        line_break in prop::sample::select(&LINE_BREAKS[..]),
    ) {
        let redactor = Redactor::new([&secret]).unwrap();
        let whole = format!("{before}{secret}");
        for encoded in [STANDARD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
            let text = redactor.text(&wrap(&encoded, width, line_break));
            let rest = text.replacen(REDACTED, "", 1).replace(['\r', '\n'], "").replace(r"\r", "").replace(r"\n", "");
            // Characters that encode other bytes too stay: at most those of `before`, one at each edge, and the padding.
            let edges = before.len() * 8 / 6 + 5;
            prop_assert!(text.contains(REDACTED) && rest.len() <= edges, "{} {}", secret, text);
        }
    }

    #[test]
    fn text_without_a_secret_stays_as_it_is(text in r#"([a-z é%\\"/u0-9]|\\n|\n|\r\n|%4[0-9]){0,80}"#) {
        let redactor = Redactor::new(["SECRET-VALUE", "another\nsecret of lines"]).unwrap();
        prop_assert_eq!(redactor.known_in_text(&text), text);
    }
}

#[test]
fn keys_that_become_equal_are_numbered() {
    let redactor = Redactor::new(["hunter2"]).unwrap();
    let spelled = |bits: u32| -> String {
        let letters = "hunter".chars().enumerate();
        letters
            .map(|(at, c)| if bits >> at & 1 == 1 { c.to_ascii_uppercase() } else { c })
            .chain(['2'])
            .collect()
    };
    let mut value = json!({"[REDACTED]*7": "own"});
    value.as_object_mut().unwrap().extend((0..64).map(|bits| (spelled(bits), json!(bits))));
    let redacted = redactor.value(&value);
    let keys = redacted.as_object().unwrap();
    let longest = keys.keys().map(String::len).max().unwrap();
    assert!(keys.len() == 65 && longest <= "[REDACTED]*64*2".len(), "{redacted}");
}

#[test]
fn a_secret_of_several_lines_is_removed_with_other_line_breaks() {
    let redactor = Redactor::new(["first line\nsecond\n"]).unwrap();
    for text in
        ["first line\r\nsecond", r"first line\nsecond", r"first line\r\nsecond", "first line%0D%0Asecond"]
    {
        assert_eq!(redactor.text(&format!("a {text} b")), "a [REDACTED] b");
    }
}
