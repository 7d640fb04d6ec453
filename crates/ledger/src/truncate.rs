//! Truncates JSON values to a size; the result is valid JSON that says what is missing.

use serde_json::{Map, Value, json};

/// Returns `value` if its JSON has at most `limit` bytes, else the first items or fields that fit and the
/// number of those left out.
pub fn truncate(value: Value, limit: usize) -> Value {
    let size = length(&value);
    if size <= limit {
        return value;
    }
    match value {
        Value::Array(items) => {
            let omitted = |kept: usize| format!("{} more items", items.len() - kept);
            let overhead = |kept| {
                length(
                    &json!({"_truncated": true, "_originalSize": size, "items": [], "_omitted": omitted(kept)}),
                )
            };
            let kept = count_fitting(items.iter().map(length), overhead, false, limit);
            json!({"_truncated": true, "_originalSize": size, "items": items[..kept], "_omitted": omitted(kept)})
        }
        Value::Object(entries) => {
            let note = |kept: usize| json!({"_truncated": true, "_originalSize": size, "_omittedKeys": entries.len() - kept});
            let lengths = entries.iter().map(|(key, value)| length(&json!(key)) + 1 + length(value));
            let kept = count_fitting(lengths, |kept| length(&note(kept)), true, limit);
            let mut cut: Map<_, _> = entries.clone().into_iter().take(kept).collect();
            // Insert our fields last: a field of the same name must not hide that something is missing.
            if let Value::Object(note) = note(kept) {
                cut.extend(note);
            }
            Value::Object(cut)
        }
        _ => json!({"_truncated": true, "_originalSize": size}),
    }
}

/// How many parts fit into `limit` together with the text around them. Every part except the first needs a
/// comma; the first needs one if `first_has_comma`.
fn count_fitting(
    lengths: impl Iterator<Item = usize>,
    overhead: impl Fn(usize) -> usize,
    first_has_comma: bool,
    limit: usize,
) -> usize {
    let mut used = 0;
    let mut kept = 0;
    for length in lengths {
        used += length + usize::from(kept > 0 || first_has_comma);
        if used + overhead(kept + 1) > limit {
            break;
        }
        kept += 1;
    }
    kept
}

fn length(value: &Value) -> usize {
    value.to_string().len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn truncates_as_the_wire_format_specifies() {
        let items = json!(vec!["aaaaaaaaaa"; 40]);
        let expected = json!({"_truncated": true, "_originalSize": 521, "items": vec!["aaaaaaaaaa"; 5], "_omitted": "35 more items"});
        assert_eq!(truncate(items, 150), expected);
        let object = json!({"a": "x".repeat(30), "b": "y".repeat(30), "c": "z".repeat(30)});
        let expected =
            json!({"_truncated": true, "_originalSize": 112, "a": "x".repeat(30), "_omittedKeys": 2});
        assert_eq!(truncate(object, 100), expected);
        assert_eq!(truncate(json!("s".repeat(200)), 100), json!({"_truncated": true, "_originalSize": 202}));
        let large = json!({"only": "x".repeat(159)});
        assert_eq!(
            truncate(large, 100),
            json!({"_truncated": true, "_originalSize": 170, "_omittedKeys": 1})
        );
        assert_eq!(truncate(json!([1, 2]), 5), json!([1, 2]));
    }

    #[test]
    fn a_field_named_truncated_does_not_hide_the_marker() {
        let value = json!({"_truncated": false, "_omittedKeys": 0, "x": "x".repeat(200)});
        let cut = truncate(value, 100);
        assert_eq!((&cut["_truncated"], &cut["_omittedKeys"]), (&json!(true), &json!(1)));
    }

    proptest! {
        #[test]
        fn result_fits_and_small_values_are_unchanged(lengths in proptest::collection::vec(0_usize..60, 0..40), limit in 100_usize..800) {
            let items: Vec<_> = lengths.iter().map(|length| "é".repeat(*length)).collect();
            let object: Map<_, _> = items.iter().enumerate().map(|(at, item)| (format!("k{at}"), json!(item))).collect();
            for value in [json!(items), Value::Object(object)] {
                let cut = truncate(value.clone(), limit);
                prop_assert!(length(&cut) <= limit, "{} > {limit}", length(&cut));
                prop_assert_eq!(cut == value, length(&value) <= limit);
            }
        }
    }
}
