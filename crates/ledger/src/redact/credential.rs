//! The parts of a header's value that open something on their own, all of which must be redacted.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const SCHEMES: [&str; 3] = ["bearer ", "basic ", "token "];

/// The parts of a credential: the whole value, what follows the scheme, and what `Basic` encodes.
pub fn credential_parts(value: &str) -> Vec<String> {
    let mut all = vec![value.to_owned()];
    let scheme = SCHEMES
        .iter()
        .find(|scheme| value.get(..scheme.len()).is_some_and(|found| found.eq_ignore_ascii_case(scheme)));
    let Some(secret) = scheme.map(|scheme| value[scheme.len()..].trim()) else { return all };
    let decoded = STANDARD.decode(secret).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    if let Some((user, password)) = decoded.as_deref().and_then(|pair| pair.split_once(':')) {
        all.extend([format!("{user}:{password}"), password.to_owned()]);
    }
    all.push(secret.to_owned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_that_opens_something_is_looked_for() {
        assert_eq!(credential_parts("Bearer tops3cret"), ["Bearer tops3cret", "tops3cret"]);
        let basic = format!("basic {}", STANDARD.encode("me:pass:word"));
        let parts = credential_parts(&basic);
        for part in [basic.as_str(), "me:pass:word", "pass:word", &STANDARD.encode("me:pass:word")] {
            assert!(parts.iter().any(|found| found == part), "{part}: {parts:?}");
        }
        assert_eq!(credential_parts("tops3cret"), ["tops3cret"]);
    }
}
