//! Invalid scripts are rejected with helpful messages, and no script causes a panic.

use proptest::prelude::*;

use super::*;

fn refusal(text: &str) -> String {
    Script::parse(text).unwrap_err().to_string()
}

#[test]
fn invalid_scripts_are_rejected_with_location_and_advice() {
    let step = |line: &str| format!("[[rule]]\nwhen = \"a\"\n[[rule.step]]\ntext = \"b\"\n{line}\n");
    let table = [
        (String::new(), "the script has no rule"),
        ("[[rule]".to_owned(), "line 1"),
        ("rule = 3".to_owned(), "line 1"),
        ("[[rule]]\nname = \"x\"".to_owned(), "unknown field `name`"),
        ("\n[[rule]]\nwhen = \"a\"".to_owned(), "line 2, rule 1: it has no steps"),
        ("[[rule]]\nwhen = 3".to_owned(), "expected a phrase or a list of phrases"),
        ("[[rule]]\nwhen = []\n[[rule.step]]\ntext=\"x\"".to_owned(), "rule 1: an empty phrase"),
        ("[[rule]]\nsystem = \"\"\n[[rule.step]]\ntext=\"x\"".to_owned(), "rule 1: an empty phrase"),
        ("[[rule]]\n[[rule.step]]".to_owned(), "rule 1, step 1: it has no content"),
        (step("thinking = \" \""), "rule 1, step 1: its `text` or `thinking` is empty"),
        (step("chunk = 0"), "rule 1, step 1: `chunk` is 0"),
        (step("chunk = -1"), "line 5"),
        (step("colour = 1"), "unknown field `colour`"),
        (step("delay_ms = 60001"), "a delay is over"),
        (step("delta_delay_ms = 60001"), "a delay is over"),
        (step("drop_times = 1"), "`drop_times` without `drop_after`"),
        (step("drop_after = 1\ndrop_times = 0"), "happens 0 times"),
        (step("stop_reason = \"bored\""), "unknown variant `bored`"),
        (step("tool = [{ name = \" \" }]"), "a tool without a name"),
        (step("tool = [{ name = \"bash\", args = {} }]"), "unknown field `args`"),
        (step("error = { status = 418, message = \"x\", times = 1 }"), "error status 418"),
        (step("error = { status = 429, message = \"x\", times = 0 }"), "happens 0 times"),
        (step("error = { status = 429, message = \"x\" }"), "its content is never sent"),
        (step("error = { status = 429 }"), "missing field `message`"),
        (format!("{}{}", step(""), step("chunk = 0")), "line 6, rule 2, step 1"),
        (
            "[[rule]]\n[[rule.step]]\ntext=\"x\"\n[[rule]]\n[[rule.step]]\ntext=\"y\"".to_owned(),
            "rule 2: it is never reached",
        ),
        (step(&format!("thinking = \"{}\"", "x".repeat(MAX_TEXT + 1))), "make it shorter"),
        ("#".repeat(MAX_SCRIPT + 1), "split it"),
        (format!("rule = {}", "[".repeat(100_000)), "line 1"),
    ];
    for (text, expected) in table {
        let shown: String = text.chars().take(200).collect();
        let message = refusal(&text);
        assert!(message.contains(expected), "{shown}\n---\n{message}\n--- should contain: {expected}");
    }
}

#[test]
fn a_script_with_all_features_parses() {
    let script = Script::parse(
        "[[rule]]\nwhen = [\"A\", \"b\"]\nsystem = \"S\"\n[[rule.step]]\ndelay_ms = 7\ndelta_delay_ms = 8\nchunk = 9\n\
         stop_reason = \"max_tokens\"\ndrop_after = 1\ndrop_times = 2\nthinking = \"t\"\ntext = \"x\"\n\
         error = { status = 529, message = \"m\", retry_after_ms = 5, times = 1 }\n\
         tool = [{ name = \"n\", input = { when = 2026-01-02, list = [1, 2.5, true] } }, { name = \"o\" }]",
    )
    .unwrap();
    let rule = &script.rules[0];
    assert!(rule.matches("an a", "some s") && rule.matches("b", "s"));
    assert!(!rule.matches("a", "other") && !rule.matches("c", "s"));
    let step = &rule.steps[0];
    assert_eq!((step.delay().as_millis(), step.delta_delay().as_millis(), step.chunk), (7, 8, 9));
    assert_eq!(step.tools[0].input, serde_json::json!({ "when": "2026-01-02", "list": [1, 2.5, true] }));
    assert_eq!(step.tools[1].input, serde_json::json!({}));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics_the_parser(text in any::<String>()) {
        let _ = Script::parse(&text);
    }

    /// Damaged versions of a real script reach much deeper than random text.
    #[test]
    fn damaged_scripts_never_panic_the_parser(at in 0usize..4_000, remove in 0usize..40, put in ".{0,6}") {
        let letters: Vec<char> = include_str!("../default.toml").chars().collect();
        let at = at.min(letters.len());
        let end = (at + remove).min(letters.len());
        let damaged: String = letters[..at].iter().copied().chain(put.chars()).chain(letters[end..].iter().copied()).collect();
        let _ = Script::parse(&damaged);
    }
}
