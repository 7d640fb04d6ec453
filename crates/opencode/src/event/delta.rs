//! A fast path for the event that arrives thousands of times per second: it is parsed by fixed prefixes if it
//! has the usual form.
//!
//! Anything unusual yields `None`, and the general parser handles the event.

use std::borrow::Cow;

use super::{Body, Event};

/// A text delta with its keys in the usual order, without spaces and without escapes.
pub(super) fn read(text: &str) -> Option<Event<'_>> {
    let text = text.strip_prefix('{')?;
    let text = match text.strip_prefix(r#""id":""#) {
        Some(named) => plain_text(named)?.1.strip_prefix(',')?,
        None => text,
    };
    let text = text.strip_prefix(r#""type":"message.part.delta","properties":{"sessionID":""#)?;
    let (session, text) = plain_text(text)?;
    let (message, text) = plain_text(text.strip_prefix(r#","messageID":""#)?)?;
    let (part, text) = plain_text(text.strip_prefix(r#","partID":""#)?)?;
    let (delta, text) = plain_text(text.strip_prefix(r#","field":"text","delta":""#)?)?;
    let body = Body::Delta {
        message: Cow::Borrowed(message),
        part: Cow::Borrowed(part),
        delta: Cow::Borrowed(delta),
    };
    (text == "}}").then_some(Event { session: Cow::Borrowed(session), body })
}

/// Splits a string without escapes from the text after its closing quote.
fn plain_text(text: &str) -> Option<(&str, &str)> {
    let special = |byte: u8| byte == b'"' || byte == b'\\' || byte < b' ';
    let end = text.bytes().position(special)?;
    let (string, rest) = text.split_at(end);
    Some((string, rest.strip_prefix('"')?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TYPICAL_EVENT: &str = r#"{"id":"evt_1","type":"message.part.delta","properties":{"sessionID":"ses_1","messageID":"msg_1","partID":"prt_1","field":"text","delta":"Grüße, \u00e4"}}"#;

    /// Characters and sequences that are significant in JSON or to this parser.
    const SIGNIFICANT_TEXTS: [&str; 14] =
        ["\"", "\\", "{", "}", ",", ":", " ", "\n", "\u{1}", "ü", "a", "\"id\":\"x\",", "\\u00e4", "text"];

    #[test]
    fn the_usual_form_takes_the_fast_path() {
        let usual = TYPICAL_EVENT.replace("\\u00e4", "ä");
        let anonymous = usual.replace(r#""id":"evt_1","#, "");
        for text in [&usual, &anonymous] {
            let Some(Event { session, body: Body::Delta { message, part, delta } }) = read(text) else {
                panic!("{text}")
            };
            assert_eq!([&*session, &*message, &*part, &*delta], ["ses_1", "msg_1", "prt_1", "Grüße, ä"]);
        }
        assert!(read(TYPICAL_EVENT).is_none(), "escapes are left to the general parser");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is cut, inserted or replaced, this parser agrees with the general one.
        #[test]
        fn the_fast_path_agrees_with_the_parser(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 0..3_usize, 0..SIGNIFICANT_TEXTS.len()), 0..3),
        ) {
            let mut characters: Vec<String> = TYPICAL_EVENT.replace("\\u00e4", "ä").chars().map(String::from).collect();
            for (place, cut, piece) in changes {
                let place = place.index(characters.len());
                let end = (place + cut).min(characters.len());
                characters.splice(place..end, [SIGNIFICANT_TEXTS[piece].to_owned()]);
            }
            let text = characters.concat();
            if let Some(event) = read(&text) {
                prop_assert_eq!(format!("{event:?}"), format!("{:?}", Event::from_envelope(serde_json::from_str(&text).unwrap()).unwrap()));
            }
        }
    }
}
