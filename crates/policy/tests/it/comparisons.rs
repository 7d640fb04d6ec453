//! What another version of the policy would change.

use policy::{Change, Effect, Outcome, Recorded, RunState, decide, diff, replay};

use crate::common::{LANES, ROLES, load, override_request, policy, request, versions};

fn changes(edits: &[(&str, &str)]) -> Vec<(Effect, String)> {
    let edit = |text: &str| edits.iter().fold(text.to_owned(), |text, (from, to)| text.replacen(from, to, 1));
    let new = load(&edit(LANES), &edit(ROLES)).unwrap();
    diff(&policy(), &new)
        .into_iter()
        .map(|Change { effect, subject, what }| (effect, format!("{subject}: {what}")))
        .collect()
}

#[test]
fn a_policy_does_not_differ_from_itself() {
    assert_eq!(diff(&policy(), &policy()), []);
    assert_eq!(changes(&[("lanes:\n", "lanes:\n  # a remark\n")]), []);
}

#[test]
fn each_edit_is_told_with_its_effect() {
    for (from, to, effect, text) in [
        ("ocr.run]", "ocr.run, x]", Effect::Loosens, "lane intake: tool x added"),
        ("ocr.run]", "x]", Effect::Loosens, "lane intake: tool x added"),
        (
            "requires: [case_id, run_id]",
            "requires: [case_id]",
            Effect::Loosens,
            "lane intake: required scope field run_id removed",
        ),
        (
            "requires: [case_id, run_id]",
            "requires: [case_id, run_id, x]",
            Effect::Tightens,
            "lane intake: required scope field x added",
        ),
        (
            "prohibits: [raw_case_text]",
            "prohibits: []",
            Effect::Loosens,
            "lane intake: prohibition raw_case_text removed",
        ),
        (
            "permits: [cross_case_lookup, external_export]",
            "permits: [external_export]",
            Effect::Tightens,
            "lane shared: permission cross_case_lookup removed",
        ),
        ("mode: append", "mode: upsert", Effect::Loosens, "lane intake: write notes Upsert added"),
        (
            "max_minutes: 60",
            "max_minutes: 90",
            Effect::Loosens,
            "lane glass: the time box of grants is longer",
        ),
        (
            "    override: {max_minutes: 60}\n",
            "",
            Effect::Loosens,
            "lane glass: the time box of grants is longer",
        ),
        ("      risks: [read, write]\n", "", Effect::Loosens, "lane intake: more risks are allowed"),
        ("risks: [read, write]", "risks: [read]", Effect::Tightens, "lane intake: fewer risks are allowed"),
        ("risks: [read, write]", "risks: [danger]", Effect::Changes, "lane intake: other risks are allowed"),
        (
            "tools: ['*.delete']",
            "tools: ['x.delete']",
            Effect::Loosens,
            "prohibitions: prohibition no-deleting (roles any, lanes any, tools *.delete) removed",
        ),
        ("class: agent", "class: human", Effect::Changes, "role AGENT: it is for another kind of actor"),
    ] {
        let found = changes(&[(from, to)]);
        assert_eq!(
            found.first().map(|(effect, text)| (*effect, text.as_str())),
            Some((effect, text)),
            "{found:?}"
        );
    }
    let role = changes(&[
        ("[SERVICE, AGENT]", "[SERVICE]"),
        ("AGENT, class: agent, privileges: {lanes: [intake]}", "AGENT, class: agent"),
    ]);
    assert_eq!(role, [(Effect::Tightens, "lane intake: role AGENT removed".to_owned())]);
}

#[test]
fn replaying_shows_what_would_flip_and_nothing_else() {
    let mut pinned = request();
    pinned.run = RunState::Active(versions(&policy()));
    pinned.demanded = Some(versions(&policy()));
    let mut unscoped = request();
    unscoped.scope.clear();
    let recorded: Vec<_> = [("a", pinned), ("b", unscoped), ("c", override_request())]
        .into_iter()
        .map(|(id, request)| Recorded {
            id: id.to_owned(),
            outcome: decide(&policy(), &request).outcome,
            request,
        })
        .collect();
    assert_eq!(replay(&policy(), recorded.clone()), []);
    let stricter = load(&LANES.replace("tools: [transcription", "tools: [other"), ROLES).unwrap();
    let flips = replay(&stricter, recorded.clone());
    assert_eq!(flips.len(), 1);
    assert_eq!(
        (flips[0].id.as_str(), flips[0].was, flips[0].now.outcome),
        ("a", Outcome::Allow, Outcome::Deny)
    );
    let looser = load(&LANES.replace("requires: [case_id, run_id]", "requires: []"), ROLES).unwrap();
    let flips = replay(&looser, recorded);
    assert_eq!(flips.iter().map(|flip| flip.id.as_str()).collect::<Vec<_>>(), ["b"]);
}
