//! The denial of a request by a person, who may say why. The agent and the ledger get the reason.

use proto::UserId;
use proto::text::is_line;

/// What the caller of a denied request is told, and the ledger.
pub(crate) const DENIED_BY_PERSON: &str = "denied by a person";
const MAX_REASON_CHARS: usize = 500;

/// Who denies a request, and why.
#[derive(Clone, Debug)]
pub struct Denial {
    pub by: UserId,
    pub reason: Option<DenialReason>,
}

/// A reason of a person: short, on one line, not empty, and shown as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialReason(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reason: expected 1 to {MAX_REASON_CHARS} characters on one line, without invisible ones")]
pub struct InvalidDenialReason;

impl std::str::FromStr for DenialReason {
    type Err = InvalidDenialReason;

    fn from_str(text: &str) -> Result<Self, InvalidDenialReason> {
        let text = text.trim();
        if is_line(text, MAX_REASON_CHARS) { Ok(Self(text.to_owned())) } else { Err(InvalidDenialReason) }
    }
}

impl DenialReason {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text of a denial, for the caller of the request.
pub(crate) fn denial_text(reason: Option<&str>) -> String {
    reason.map_or_else(|| DENIED_BY_PERSON.to_owned(), |reason| format!("{DENIED_BY_PERSON}: {reason}"))
}

/// The reason in the text of a denial.
pub fn denial_reason(text: &str) -> Option<&str> {
    text.strip_prefix(DENIED_BY_PERSON)?.strip_prefix(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_short_and_on_one_line() {
        let too_long = "ä".repeat(MAX_REASON_CHARS + 1);
        let deceptive = ["a\u{202e}b", "a\u{200b}b", "a\u{2028}b", "a\u{e0061}b"];
        for wrong in ["", "  ", "a\nb", "a\u{1b}[2J", "a\0", &too_long].into_iter().chain(deceptive) {
            assert_eq!(wrong.parse::<DenialReason>(), Err(InvalidDenialReason), "{wrong:?}");
        }
        let reason: DenialReason = " wrong channel: #dev\n".trim_end().parse().unwrap();
        assert_eq!(reason.as_str(), "wrong channel: #dev");
        let text = denial_text(Some(reason.as_str()));
        assert_eq!(denial_reason(&text), Some("wrong channel: #dev"));
        assert_eq!(denial_reason(&denial_text(None)), None);
        let longest = "x".repeat(MAX_REASON_CHARS).parse::<DenialReason>().unwrap();
        assert!(denial_text(Some(longest.as_str())).len() < crate::result::MAX_MESSAGE);
    }
}
