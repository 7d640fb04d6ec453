//! The names of actions as MCP tools: `slug__action`, where the slug stands for the source. A name depends on nothing but
//! its own source and action, so it stays the same whatever else a catalog contains.

/// The maximum length of a name. Model APIs allow 64 characters, and the agent in a sandbox puts `proliferate_` before
/// each name.
const MAX_NAME: usize = 64 - "proliferate_".len();
/// The maximum length of the readable part of a slug.
const MAX_WORD: usize = 16;
/// The number of hexadecimal digits that tell apart what reads the same.
const HASH_DIGITS: usize = 6;

/// The name of an action of a source.
pub(super) fn tool_name(source: &str, display_name: Option<&str>, action: &str) -> String {
    let plain = format!("{}__{}", slug(source, display_name), to_tool_characters(action));
    if plain.len() <= MAX_NAME && plain.ends_with(action) {
        return plain;
    }
    // Another action of the source may read the same without the characters that are missing here.
    let kept: String = plain.chars().take(MAX_NAME - HASH_DIGITS - 1).collect();
    format!("{kept}_{}", short_hash(action))
}

/// The id of a source that has a name of its own, such as `linear`. For a connector, its name and a part of the hash of its
/// id, because several may have one name.
fn slug(source: &str, display_name: Option<&str>) -> String {
    let Some((kind, _)) = source.split_once(':') else {
        return to_tool_characters(source);
    };
    let name = to_tool_characters(display_name.unwrap_or(kind));
    // No slug contains two underscores in a row, so the first two of a name end its slug.
    let words: Vec<&str> = name.split('_').filter(|word| !word.is_empty()).collect();
    let word: String = words.join("_").chars().take(MAX_WORD).collect();
    let word = if word.is_empty() { kind } else { word.trim_end_matches('_') };
    format!("{word}_{}", short_hash(source))
}

/// The text in the characters that names of tools may have.
fn to_tool_characters(text: &str) -> String {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
    text.chars().map(|character| if allowed(character) { character } else { '_' }).collect()
}

fn short_hash(text: &str) -> String {
    ledger::sha256(text.as_bytes()).to_string().chars().take(HASH_DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of((source, display_name): &(String, String), action: &str) -> String {
        tool_name(source, Some(display_name), action)
    }

    fn source(id: &str, display_name: &str) -> (String, String) {
        (id.to_owned(), display_name.to_owned())
    }

    #[test]
    fn a_name_is_readable_where_it_can_be() {
        assert_eq!(name_of(&source("linear", "Linear"), "create_issue"), "linear__create_issue");
        let dotted = name_of(&source("tools", "tools"), "weather.look");
        assert!(dotted.starts_with("tools__weather_look_") && dotted.len() == 26, "{dotted}");
        let docs = source("connector:0190f5d2-7c3e-7a11-8000-5b1f6c2d9e40", "Our _ docs");
        let name = name_of(&docs, "search");
        assert!(name.starts_with("Our_docs_") && name.ends_with("__search") && name.len() == 23, "{name}");
    }

    #[test]
    fn names_are_short_plain_and_different_for_every_action() {
        let id = |last: char| format!("connector:0190f5d2-7c3e-7a11-8000-5b1f6c2d9e4{last}");
        let sources = [
            source("linear", "Linear"),
            source("tools", "tools"),
            source(&id('0'), "docs"),
            source(&id('1'), "docs"),
            source(&id('2'), "linear"),
            source(&id('3'), "☃☃__"),
            source(&id('4'), &"long ".repeat(50)),
        ];
        let long = "x".repeat(120);
        let actions = ["a.b", "a_b", "a/b", "a-b", "_a_b", "☃", long.as_str(), &long[..119]];
        let mut names = std::collections::BTreeSet::new();
        for (source, action) in sources.iter().flat_map(|source| actions.map(|action| (source, action))) {
            let name = name_of(source, action);
            assert!(name.len() <= MAX_NAME && to_tool_characters(&name) == name, "{name}");
            assert!(name.contains("__"), "{name} could be the name of a tool that is no action");
            assert_eq!(name, name_of(source, action));
            assert!(names.insert(name), "{}: {action}", source.0);
        }
    }
}
