//! `diff` and `replay`: what another version of the policy would change.

use policy::{
    Action, ActorClass, Change, Claim, Effect, Files, ModeDecision, Outcome, PastDecision, Policy, Replay,
    Request, Risk, RunState, TableWrite, ToolFacts, Verdict, Versions, WriteMode, apply_drift, decide, diff,
    replay,
};

use crate::common::{LANES, ROLES, load, override_request, policy, request, tool as common_tool, versions};

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
fn each_edit_is_reported_with_its_effect() {
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
        ("class: agent", "class: human", Effect::Changes, "role AGENT: it is now for another class of actor"),
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
fn a_changed_risk_of_a_tool_is_reported() {
    let with = |tool: &str| {
        let tools = format!("- {{name: a.b, url: 'http://x/', {tool}}}");
        Policy::load(Files { lanes: Some(LANES), roles: Some(ROLES), tools: Some(&tools) }).unwrap()
    };
    for (tool, effect, what) in [
        ("risk: read", Effect::Loosens, "its risk is lower"),
        ("risk: danger", Effect::Tightens, "its risk is higher"),
        ("risk: write, method: PUT", Effect::Changes, "its definition differs"),
    ] {
        let expected = Change { effect, subject: "tool a.b".to_owned(), what: what.to_owned() };
        assert_eq!(diff(&with("risk: write"), &with(tool)), [expected]);
    }
}

/// A candidate policy in which the recorded tools are unchanged.
fn unchanged_tool(tool: &str, _: &str, _: Option<Risk>) -> Option<ToolFacts> {
    ["transcription", "ocr", "x"].contains(&tool).then_some(ToolFacts {
        risk: Risk::Write,
        writes: None,
        mode_key: None,
    })
}

fn recorded(id: &str, request: Request) -> PastDecision {
    let Verdict { outcome, rule_id, .. } = decide(&policy(), &request);
    PastDecision { id: id.to_owned(), outcome, rule_id: Some(rule_id), request }
}

fn ids(done: &Replay) -> Vec<&str> {
    done.flips.iter().map(|flip| flip.id.as_str()).collect()
}

#[test]
fn replay_reports_exactly_the_flipped_decisions() {
    let mut pinned = request();
    pinned.run = RunState::Active(versions(&policy()));
    pinned.demanded = Some(versions(&policy()));
    let mut unscoped = request();
    unscoped.scope.clear();
    let all = [recorded("a", pinned), recorded("b", unscoped), recorded("c", override_request())];
    assert_eq!(replay(&policy(), unchanged_tool, all.clone()), Replay::default());
    let stricter = load(&LANES.replace("tools: [transcription", "tools: [other"), ROLES).unwrap();
    let done = replay(&stricter, unchanged_tool, all.clone());
    assert_eq!(ids(&done), ["a"]);
    assert_eq!((done.flips[0].was, done.flips[0].now.outcome), (Outcome::Allow, Outcome::Deny));
    let looser = load(&LANES.replace("requires: [case_id, run_id]", "requires: []"), ROLES).unwrap();
    assert_eq!(ids(&replay(&looser, unchanged_tool, all)), ["b"]);
}

#[test]
fn replay_uses_the_tools_of_the_candidate() {
    let one = || [recorded("a", request())];
    let gone = replay(&policy(), |_, _, _| None, one());
    assert_eq!((ids(&gone), gone.flips[0].now.reason.as_str()), (vec!["a"], "the tool is not available"));
    let danger = |_: &str, _: &str, _: Option<Risk>| {
        Some(ToolFacts { risk: Risk::Danger, writes: None, mode_key: None })
    };
    assert_eq!(ids(&replay(&policy(), danger, one())), ["a"]);
    let table = TableWrite { table: "elsewhere".to_owned(), mode: WriteMode::Append };
    let writes = |_: &str, _: &str, _: Option<Risk>| {
        Some(ToolFacts { risk: Risk::Write, writes: Some(table.clone()), mode_key: None })
    };
    assert_eq!(ids(&replay(&policy(), writes, one())), ["a"]);
    // A tool that did not exist at the time and exists now.
    let mut absent = request();
    let Action::Tool { registered, .. } = &mut absent.action else { panic!("a tool") };
    *registered = false;
    assert_eq!(ids(&replay(&policy(), unchanged_tool, [recorded("b", absent.clone())])), ["b"]);
    // A tool that is in no policy file.
    let as_recorded = |_: &str, _: &str, risk: Option<Risk>| {
        risk.map(|risk| ToolFacts { risk, writes: None, mode_key: None })
    };
    let both = [recorded("a", request()), recorded("b", absent)];
    assert_eq!(replay(&policy(), as_recorded, both), Replay::default());
}

#[test]
fn a_definition_that_nobody_had_reviewed_stays_unreviewed_in_a_replay() {
    let agent = Claim { actor_type: ActorClass::Agent, actor_id: "agent-1".to_owned() };
    let tool = |_: &str, _: &str, risk: Option<Risk>| {
        let mode_key = Some("connector:1:read".parse().unwrap());
        risk.map(|risk| ToolFacts { risk, writes: None, mode_key })
    };
    let action = common_tool("transcription", "transcription.run", Risk::Read);
    let unreviewed = apply_drift(ModeDecision::inferred(Risk::Read), None, "h1");
    for (mode, outcome) in [(ModeDecision::inferred(Risk::Read), Outcome::Allow), (unreviewed, Outcome::Ask)]
    {
        let (role, action) = ("AGENT".to_owned(), action.clone());
        let call = Request { actor: agent.clone(), role, action, mode: Some(mode), ..request() };
        let past = recorded("a", call);
        assert_eq!(past.outcome, outcome);
        assert_eq!(replay(&policy(), tool, [past]), Replay::default());
    }
}

/// A candidate always has other versions than those demanded, so past denials by version pins say nothing
/// about it.
#[test]
fn denials_by_pins_are_skipped_and_counted() {
    let other = || Versions { lanes: "a".repeat(40), roles: "b".repeat(40) };
    let demanding = Request { demanded: Some(other()), ..request() };
    let below = Request { run: RunState::Active(other()), ..request() };
    let by_pins = [recorded("a", demanding.clone()), recorded("b", below)];
    assert_eq!(replay(&policy(), unchanged_tool, by_pins), Replay { flips: Vec::new(), pinned: 2 });
    // Earlier versions did not record the rule.
    let old = PastDecision { rule_id: None, ..recorded("a", demanding) };
    assert_eq!(replay(&policy(), unchanged_tool, [old]).pinned, 1);
    // Every policy denies a call in an inactive run.
    let inactive = Request { run: RunState::Inactive, ..request() };
    assert_eq!(replay(&policy(), unchanged_tool, [recorded("c", inactive)]), Replay::default());
}
