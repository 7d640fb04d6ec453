//! Each check on its own: a request with exactly one flaw is denied for that reason.

use policy::{
    Action, ActorClass, Check, Claim, Flag, Grant, Mode, ModeDecision, ModeSource, Outcome, Request, Risk,
    RunState, TableWrite, Versions, WriteMode, apply_drift, decide, explain,
};

use crate::common::{LANES, ROLES, load, override_request, policy, request, tool, versions};

fn denied(request: &Request, rule: &str, reason: &str) {
    let verdict = decide(&policy(), request);
    assert_eq!((verdict.outcome, verdict.rule_id.as_str()), (Outcome::Deny, rule), "{verdict:?}");
    assert!(verdict.reason.contains(reason), "{verdict:?}");
}

fn allowed(request: &Request) {
    let verdict = decide(&policy(), request);
    assert_eq!(verdict.outcome, Outcome::Allow, "{verdict:?}");
}

#[test]
fn a_valid_request_is_allowed_by_its_lane() {
    let verdict = decide(&policy(), &request());
    assert_eq!((verdict.outcome, verdict.rule_id.as_str()), (Outcome::Allow, "lane:intake"));
    allowed(&override_request());
    let run = RunState::Active(versions(&policy()));
    allowed(&Request { run, demanded: Some(versions(&policy())), ..request() });
    allowed(&Request { claimed: Some(request().actor), ..request() });
}

#[test]
fn the_claimed_actor_must_own_the_credential() {
    let nobody = Claim { actor_id: String::new(), ..request().actor };
    denied(&Request { actor: nobody, ..request() }, "gate:identity", "no identity");
    let other = Claim { actor_id: "svc-2".to_owned(), ..request().actor };
    denied(&Request { claimed: Some(other), ..request() }, "gate:identity", "not the owner");
    let kind = Claim { actor_type: ActorClass::Agent, ..request().actor };
    denied(&Request { claimed: Some(kind), ..request() }, "gate:identity", "not the owner");
}

#[test]
fn a_role_needs_its_lane_and_actor_class() {
    denied(&Request { role: "NOBODY".to_owned(), ..request() }, "lane:intake:role", "no such role");
    denied(&Request { role: "AGENT".to_owned(), ..request() }, "lane:intake:role", "kind of actor");
    let agent = Request {
        role: "AGENT".to_owned(),
        actor: Claim { actor_type: ActorClass::Agent, actor_id: "agent-1".to_owned() },
        ..request()
    };
    allowed(&agent);
    denied(&Request { lane: "shared".to_owned(), ..agent }, "lane:shared:role", "not open");
    denied(&Request { lane: "none".to_owned(), ..request() }, "gate:lane", "no such lane");
}

#[test]
fn a_call_that_needs_approval_says_how_an_admin_can_change_that() {
    let set = |mode| ModeDecision::new(mode, ModeSource::OrgDefault);
    for (mode, command) in [
        (set(Mode::RequireApproval), "`proliferate actions modes set`"),
        (apply_drift(set(Mode::Allow), Some("h0"), "h1"), "`proliferate connectors review`"),
    ] {
        let agent = Claim { actor_type: ActorClass::Agent, actor_id: "agent-1".to_owned() };
        let request = Request { role: "AGENT".to_owned(), actor: agent, mode: Some(mode), ..request() };
        let verdict = decide(&policy(), &request);
        assert!(verdict.outcome == Outcome::Ask && verdict.reason.contains(command), "{verdict:?}");
    }
}

#[test]
fn tools_and_operations_must_be_listed() {
    for (name, operation, listed) in [
        ("transcription", "transcription.run", true),
        ("transcription", "run", true),
        ("ocr", "ocr.run", true),
        ("ocr", "run", true),
        ("ocr.run", "ocr.run", true),
        ("ocr", "ocr.read", false),
        ("ocr", "transcription", false),
        ("evil", "transcription.run", false),
        ("evil", "ocr.run", false),
        ("", "", false),
    ] {
        let outcome =
            decide(&policy(), &Request { action: tool(name, operation, Risk::Read), ..request() }).outcome;
        assert_eq!(outcome == Outcome::Allow, listed, "{name} {operation}");
    }
    let Action::Tool { tool_name, operation, risk, .. } = request().action else { panic!("not a tool") };
    let gone = Action::Tool { tool_name, operation, risk, registered: false, writes: None };
    denied(&Request { action: gone, ..request() }, "lane:intake:registered", "not available");
    let dangerous = tool("transcription", "transcription.run", Risk::Danger);
    denied(&Request { action: dangerous, ..request() }, "lane:intake:risk", "risk");
}

#[test]
fn writes_must_be_listed_with_their_mode() {
    let write = |table: &str, mode| Action::Write { table: table.to_owned(), mode };
    allowed(&Request { action: write("notes", WriteMode::Append), ..request() });
    for action in [write("notes", WriteMode::Upsert), write("other", WriteMode::Append)] {
        denied(&Request { action, ..request() }, "lane:intake:action", "write");
    }
}

/// A tool that writes needs both its name among the lane's tools and its table among the lane's writes. A
/// lane that lists only writes allows them by any tool, but a prohibition of the tool still applies.
#[test]
fn a_tool_that_writes_needs_a_lane_that_lists_the_write() {
    let lane = "  - lane_id: notes\n    allowed_callers: {roles: [SERVICE]}\n    \
        allowed_actions: {writes: [{table: notes, mode: append}]}\nprohibitions:";
    let lanes = LANES.replace("prohibitions:", lane);
    let policy = load(&lanes, &ROLES.replace("[intake, shared]", "[intake, notes, shared]")).unwrap();
    let reason = |lane: &str, name: &str, writes: Option<(&str, WriteMode)>| {
        let writes = writes.map(|(table, mode)| TableWrite { table: table.to_owned(), mode });
        let (tool_name, operation) = (name.to_owned(), name.to_owned());
        let action = Action::Tool { tool_name, operation, risk: Risk::Write, registered: true, writes };
        decide(&policy, &Request { action, lane: lane.to_owned(), ..request() }).reason
    };
    let notes = Some(("notes", WriteMode::Append));
    let passed = "all checks of the lane passed";
    assert_eq!(reason("intake", "transcription", notes), passed);
    assert_eq!(reason("notes", "notes.add", notes), passed);
    assert_eq!(reason("intake", "notes.add", notes), "lane prohibits requested tool");
    assert_eq!(reason("notes", "notes.add", None), "lane prohibits requested tool");
    assert_eq!(reason("notes", "notes.delete", notes), "nothing is deleted");
    for lane in ["intake", "notes", "shared"] {
        for other in [("notes", WriteMode::Upsert), ("other", WriteMode::Append)] {
            assert_eq!(reason(lane, "transcription", Some(other)), "lane prohibits requested write");
        }
    }
}

#[test]
fn required_scope_fields_must_be_present() {
    let partial = Request { scope: ["case_id".to_owned()].into(), ..request() };
    denied(&partial, "lane:intake:scope", "lane requires the scope field run_id");
}

#[test]
fn flags_are_denied_unless_the_lane_permits_them() {
    let with = |lane: &str, flag: &str| Request {
        lane: lane.to_owned(),
        flags: [Flag::new(flag)].into(),
        ..request()
    };
    denied(&with("intake", "raw_case_text"), "lane:intake:flags", "lane prohibits raw_case_text");
    denied(&with("intake", "cross_case_lookup"), "lane:intake:flags", "does not permit");
    allowed(&with("shared", "cross_case_lookup"));
    denied(&with("shared", "external_export"), "lane:shared:flags", "lane prohibits external_export");
}

#[test]
fn the_run_must_be_active_and_versions_must_match() {
    denied(&Request { run: RunState::Inactive, ..request() }, "gate:run", "not active");
    let old = Versions { lanes: "0".repeat(40), roles: versions(&policy()).roles };
    denied(&Request { run: RunState::Active(old.clone()), ..request() }, "gate:pins", "pinned to another");
    denied(&Request { demanded: Some(old), ..request() }, "gate:pins", "demands");
    let missing = Versions { lanes: String::new(), roles: String::new() };
    denied(&Request { run: RunState::Active(missing), ..request() }, "gate:pins", "pinned to another");
    let pins = policy().pins().clone();
    allowed(&Request {
        demanded: Some(Versions { lanes: pins.lanes.sha256, roles: pins.roles.sha256 }),
        ..request()
    });
}

#[test]
fn the_safety_lock_denies_everything() {
    denied(&Request { locked: true, ..request() }, "gate:safety_lock", "safety lock");
    denied(&Request { locked: true, ..override_request() }, "gate:safety_lock", "safety lock");
}

#[test]
fn an_override_needs_ticket_reason_and_time_box() {
    let right = override_request().grant.unwrap();
    let cases: [(Option<Grant>, &str); 8] = [
        (None, "needs a grant"),
        (Some(Grant { ticket: " ".to_owned(), ..right.clone() }), "ticket"),
        (Some(Grant { reason: String::new(), ..right.clone() }), "reason"),
        (Some(Grant { until: right.from + 3_601, ..right.clone() }), "longer"),
        (Some(Grant { until: right.from, ..right.clone() }), "longer"),
        (Some(Grant { from: i64::MIN, until: i64::MAX, ..right.clone() }), "longer"),
        (Some(Grant { now: right.until, ..right.clone() }), "in force"),
        (Some(Grant { now: right.from - 1, ..right.clone() }), "in force"),
    ];
    for (grant, reason) in cases {
        denied(&Request { grant, ..override_request() }, "lane:glass:override", reason);
    }
    allowed(&Request { grant: Some(Grant { now: right.until - 1, ..right }), ..override_request() });
}

#[test]
fn a_prohibition_denies_in_every_lane() {
    let delete = tool("transcription", "transcription.delete", Risk::Write);
    for base in [request(), override_request()] {
        denied(&Request { action: delete.clone(), ..base }, "prohibition:no-deleting", "nothing is deleted");
    }
}

#[test]
fn the_verdict_never_repeats_caller_input() {
    let canary = "canary-9f3b";
    let mut odd = request();
    odd.lane = canary.to_owned();
    odd.role = canary.to_owned();
    odd.action = tool(canary, canary, Risk::Read);
    odd.flags = [Flag::new(canary)].into();
    odd.scope = [canary.to_owned()].into();
    let text = format!("{:?}", explain(&policy(), &odd));
    assert!(!text.contains(canary), "{text}");
}

#[test]
fn an_explanation_shows_every_check_and_the_same_verdict() {
    let mut wrong = request();
    wrong.locked = true;
    wrong.scope.clear();
    let explanation = explain(&policy(), &wrong);
    assert_eq!(explanation.verdict, decide(&policy(), &wrong));
    assert_eq!(explanation.steps.len(), 14);
    let failed: Vec<_> =
        explanation.steps.iter().filter(|step| step.failed.is_some()).map(|step| step.check).collect();
    assert_eq!(failed, [Check::SafetyLock, Check::Scope]);
}

#[test]
fn a_request_round_trips_through_json() {
    for request in [request(), override_request()] {
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }
}

#[test]
fn agents_push_only_to_refs_of_their_lane() {
    let agent = Claim { actor_type: ActorClass::Agent, actor_id: "agent-1".to_owned() };
    let push = |name: &str| Request {
        actor: agent.clone(),
        role: "AGENT".to_owned(),
        refs: vec!["refs/heads/agent/one".to_owned(), name.to_owned()],
        ..request()
    };
    for name in ["refs/heads/main", "refs/tags/v1"] {
        allowed(&push(name));
    }
    for name in ["refs/for/main", "refs/meta/config", "refs/heads"] {
        denied(&push(name), "lane:intake:action", "does not let agents push");
    }
    let narrow =
        LANES.replace("risks: [read, write]", "risks: [read, write]\n      refs: [refs/heads/agent/*]");
    let narrow = load(&narrow, ROLES).unwrap();
    assert_eq!(decide(&narrow, &push("refs/heads/agent/two")).outcome, Outcome::Allow);
    assert_eq!(decide(&narrow, &push("refs/heads/main")).outcome, Outcome::Deny);
    // Only agents are restricted to the lane's refs.
    let person = Request { refs: vec!["refs/heads/main".to_owned()], ..request() };
    assert_eq!(decide(&narrow, &person).outcome, Outcome::Allow);
}
