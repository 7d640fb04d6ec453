//! Short descriptions of invalid parameters. They are returned to callers and stored in the ledger, so they must not
//! reveal the parameters' content.

/// The maximum length of a path that is repeated.
const MAX_PATH_CHARS: usize = 100;

/// Describes the first problems and counts the rest. `None` if there are none.
pub(super) fn first<T>(
    limit: usize,
    problems: impl IntoIterator<Item = T>,
    words: impl Fn(T) -> String,
) -> Option<String> {
    let mut problems = problems.into_iter();
    let named: Vec<_> = problems.by_ref().take(limit).map(words).collect();
    let more = problems.count();
    match (named.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(named.join(", ")),
        (false, more) => Some(format!("{}, and {more} more", named.join(", "))),
    }
}

/// The path of an invalid parameter. The caller chose the names in it, so a long or unusual path may itself be content
/// and is not repeated.
pub(super) fn place(path: &str) -> &str {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '.');
    match path {
        "" => "/",
        path if path.len() <= MAX_PATH_CHARS && path.chars().all(plain) => path,
        _ => "a parameter",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_problems_are_counted_and_not_named() {
        let told = |count: usize| first(5, 0..count, |number| format!("p{number}"));
        assert_eq!(told(0), None);
        assert_eq!(told(5).unwrap(), "p0, p1, p2, p3, p4");
        assert_eq!(told(8000).unwrap(), "p0, p1, p2, p3, p4, and 7995 more");
    }

    #[test]
    fn only_a_short_and_plain_place_is_repeated() {
        for plain in ["/note", "/commands/0/name", "/a-b_c.d"] {
            assert_eq!(place(plain), plain);
        }
        assert_eq!(place(""), "/");
        for odd in ["/a\0b", "/two words", "/~1etc~1passwd", "/é", &format!("/{}", "k".repeat(100))] {
            assert_eq!(place(odd), "a parameter");
        }
    }
}
