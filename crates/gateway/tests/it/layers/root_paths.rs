//! Finds what a source text imports from the root of its crate, however the path is written.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The names that stand directly below the crate's root in the paths of a source text: `hub` in `crate::hub::Hub`, in
/// `use crate::{hub::Hub}`, and in `super::hub` if the text is a top-level module. Comments do not count. `depth` is how
/// far below the root the text's module is.
pub(super) fn names_below_root(text: &str, depth: usize) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    scan(text.parse().unwrap(), depth, &mut names);
    names
}

/// The names that `pub use module::…` statements of `lib.rs` export, with the module that each comes from.
pub(super) fn exports(text: &str) -> BTreeMap<String, String> {
    let tokens: TokenStream = text.parse().unwrap();
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut exports = BTreeMap::new();
    for (at, _) in tokens.iter().enumerate() {
        let [visibility, keyword, module, rest @ ..] = &tokens[at..] else { break };
        if is(visibility, "pub") && is(keyword, "use") {
            let tree: Vec<TokenTree> = rest.iter().take_while(|token| !is(token, ";")).cloned().collect();
            let names = match tree.last() {
                Some(TokenTree::Group(group)) => elements(group.stream()),
                _ => vec![tree],
            };
            // With `as`, the exported name is the last one too.
            let names = names.iter().filter_map(|name| name.last());
            exports.extend(names.map(|name| (name.to_string(), module.to_string())));
        }
    }
    exports
}

fn is(token: &TokenTree, text: &str) -> bool {
    token.to_string() == text
}

fn scan(tokens: TokenStream, depth: usize, names: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => {
                let inline_module =
                    group.delimiter() == Delimiter::Brace && at >= 2 && is(&tokens[at - 2], "mod");
                scan(group.stream(), depth + usize::from(inline_module), names);
            }
            TokenTree::Ident(start) if start == "crate" || start == "super" => {
                follow(&tokens[at..], depth, names);
            }
            _ => {}
        }
    }
}

/// Follows one path. `depth` is how far below the root the path has led so far.
fn follow(path: &[TokenTree], depth: usize, names: &mut BTreeSet<String>) {
    let Some((segment, rest)) = path.split_first() else { return };
    let next = match rest {
        [first, second, next @ ..] if is(first, ":") && is(second, ":") => Some(next),
        _ => None,
    };
    match (segment.to_string().as_str(), next) {
        ("crate", Some(next)) => follow(next, 0, names),
        ("super", Some(next)) => follow(next, depth.saturating_sub(1), names),
        ("self", Some(next)) => follow(next, depth, names),
        // The visibilities `pub(crate)` and `pub(super)`.
        ("crate" | "super", None) if rest.is_empty() => {}
        // `use crate as …`, and the same of a parent that is the root: what is used of it cannot be seen.
        ("crate", None) => {
            names.insert("crate".to_owned());
        }
        ("super", None) if depth == 1 => {
            names.insert("super".to_owned());
        }
        (name, _) => match segment {
            TokenTree::Group(group) => {
                for element in elements(group.stream()) {
                    follow(&element, depth, names);
                }
            }
            _ if depth == 0 => {
                names.insert(name.to_owned());
            }
            _ => {}
        },
    }
}

/// Splits at commas.
fn elements(tokens: TokenStream) -> Vec<Vec<TokenTree>> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let elements = tokens.split(|token| is(token, ","));
    elements.filter(|element| !element.is_empty()).map(<[TokenTree]>::to_vec).collect()
}
