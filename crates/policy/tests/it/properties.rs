//! Properties that hold for every policy and every request.

use std::collections::BTreeSet;
use std::fmt::Write;

use policy::{Action, ActorClass, Claim, Flag, Outcome, Policy, Request, Risk, RunState, WriteMode, decide};
use proptest::prelude::*;

use crate::common::load;

/// A lane as data that the tests can modify, reorder and write as YAML.
#[derive(Clone, Debug)]
struct LaneData {
    id: u8,
    roles: BTreeSet<u8>,
    tools: BTreeSet<u8>,
    writes: BTreeSet<u8>,
    requires: BTreeSet<u8>,
    prohibits: BTreeSet<u8>,
    permits: BTreeSet<u8>,
}

#[derive(Clone, Debug)]
struct RuleData {
    roles: BTreeSet<u8>,
    lanes: BTreeSet<u8>,
    tools: BTreeSet<u8>,
}

/// Names with and without wildcards over a small alphabet, so that they often match each other.
const TOOLS: [&str; 6] = ["a", "b", "a.x", "b.x", "*.x", "a*"];

fn small_set(most: u8) -> impl Strategy<Value = BTreeSet<u8>> + Clone {
    proptest::collection::btree_set(0..most, 0..3)
}

fn lanes() -> impl Strategy<Value = Vec<LaneData>> {
    let lane = (0..4_u8, small_set(3), small_set(6), small_set(2), small_set(3), small_set(3), small_set(3))
        .prop_map(|(id, roles, tools, writes, requires, prohibits, permits)| LaneData {
            id,
            roles,
            tools,
            writes,
            requires,
            prohibits,
            permits,
        });
    let distinct = |mut lanes: Vec<LaneData>| {
        let mut seen = BTreeSet::new();
        lanes.retain(|lane| seen.insert(lane.id));
        lanes
    };
    proptest::collection::vec(lane, 0..4).prop_map(distinct)
}

fn rules() -> impl Strategy<Value = Vec<RuleData>> {
    let rule = (small_set(3), small_set(4), small_set(6)).prop_map(|(roles, lanes, tools)| RuleData {
        roles,
        lanes,
        tools,
    });
    let named = |rules: Vec<RuleData>| {
        rules
            .into_iter()
            .filter(|rule| !(rule.roles.is_empty() && rule.lanes.is_empty() && rule.tools.is_empty()))
            .collect()
    };
    proptest::collection::vec(rule, 0..3).prop_map(named)
}

fn names(prefix: &str, ids: &BTreeSet<u8>) -> String {
    ids.iter().map(|id| format!("{prefix}{id}")).collect::<Vec<_>>().join(", ")
}

fn tools(ids: &BTreeSet<u8>) -> String {
    ids.iter().map(|id| format!("'{}'", TOOLS[usize::from(*id)])).collect::<Vec<_>>().join(", ")
}

fn write_policy(lanes: &[LaneData], rules: &[RuleData]) -> Policy {
    let head = "version: '1'\ncontract_version: v1\n";
    let mut text = format!("{head}lanes:\n");
    if lanes.is_empty() {
        text = format!("{head}lanes: []\n");
    }
    for lane in lanes {
        let LaneData { id, roles, writes, requires, prohibits, permits, .. } = lane;
        let writes: Vec<_> =
            writes.iter().map(|table| format!("{{table: t{table}, mode: append}}")).collect();
        writeln!(text, "  - lane_id: l{id}\n    allowed_callers: {{roles: [{}]}}", names("R", roles))
            .unwrap();
        writeln!(
            text,
            "    allowed_actions: {{tools: [{}], writes: [{}]}}",
            tools(&lane.tools),
            writes.join(", ")
        )
        .unwrap();
        let (prohibits, permits) = (names("f", prohibits), names("f", permits));
        writeln!(
            text,
            "    scope: {{requires: [{}], prohibits: [{prohibits}], permits: [{permits}]}}",
            names("s", requires)
        )
        .unwrap();
    }
    if !rules.is_empty() {
        text += "prohibitions:\n";
    }
    for (number, rule) in rules.iter().enumerate() {
        let (who, place) = (names("R", &rule.roles), names("l", &rule.lanes));
        writeln!(
            text,
            "  - {{rule_id: p{number}, reason: no, roles: [{who}], lanes: [{place}], tools: [{}]}}",
            tools(&rule.tools)
        )
        .unwrap();
    }
    let mut file = format!("{head}roles:\n");
    for role in 0..3 {
        let open: Vec<_> = lanes
            .iter()
            .filter(|lane| lane.roles.contains(&role))
            .map(|lane| format!("l{}", lane.id))
            .collect();
        writeln!(
            file,
            "  - {{role_id: R{role}, class: agent, privileges: {{lanes: [{}]}}}}",
            open.join(", ")
        )
        .unwrap();
    }
    load(&text, &file).unwrap()
}

fn requests() -> impl Strategy<Value = Request> {
    let tool = (0..6_usize, 0..2_usize).prop_map(|(tool, operation)| Action::Tool {
        tool_name: ["a", "b", "c", "a.x", "b.x", "A"][tool].to_owned(),
        operation: ["x", "y"][operation].to_owned(),
        risk: Risk::Write,
        registered: true,
        writes: None,
    });
    let write = (0..3_u8, any::<bool>()).prop_map(|(table, append)| Action::Write {
        table: format!("t{table}"),
        mode: if append { WriteMode::Append } else { WriteMode::Upsert },
    });
    let parts = (
        0..4_u8,
        0..5_u8,
        prop_oneof![3 => tool, 1 => write],
        small_set(3),
        proptest::collection::btree_set(0..4_u8, 0..2),
    );
    parts.prop_map(|(role, lane, action, scope, flags)| Request {
        actor: Claim { actor_type: ActorClass::Agent, actor_id: "agent-1".to_owned() },
        claimed: None,
        role: format!("R{role}"),
        lane: format!("l{lane}"),
        action,
        scope: scope.iter().map(|id| format!("s{id}")).collect(),
        refs: Vec::new(),
        flags: flags.iter().map(|id| Flag::new(format!("f{id}"))).collect(),
        run: RunState::New,
        demanded: None,
        mode: None,
        locked: false,
        grant: None,
    })
}

/// The contract as one expression over the data: an independent implementation.
fn should_be_allowed(lanes: &[LaneData], rules: &[RuleData], request: &Request) -> bool {
    let id = |name: &str| name[1..].parse::<u8>().unwrap();
    let (role, lane_id) = (id(&request.role), id(&request.lane));
    let fits = |tool: &u8, names: &[String]| match TOOLS[usize::from(*tool)] {
        "*.x" => names.iter().any(|name| name.strip_suffix('x').is_some_and(|rest| rest.ends_with('.'))),
        "a*" => names.iter().any(|name| name.starts_with('a')),
        exact => names.iter().any(|name| name == exact),
    };
    let names = match &request.action {
        Action::Tool { tool_name, operation, .. } => {
            vec![tool_name.clone(), format!("{tool_name}.{operation}")]
        }
        Action::Write { .. } => Vec::new(),
    };
    let lane_allows = lanes.iter().find(|lane| lane.id == lane_id).is_some_and(|lane| {
        let action = match &request.action {
            Action::Tool { .. } => lane.tools.iter().any(|tool| fits(tool, &names)),
            Action::Write { table, mode } => *mode == WriteMode::Append && lane.writes.contains(&id(table)),
        };
        let scope = lane.requires.iter().all(|field| request.scope.contains(&format!("s{field}")));
        let flag = |flag: &Flag| {
            lane.permits.contains(&id(flag.as_str())) && !lane.prohibits.contains(&id(flag.as_str()))
        };
        lane.roles.contains(&role) && action && scope && request.flags.iter().all(flag)
    });
    let prohibited = rules.iter().any(|rule| {
        (rule.roles.is_empty() || rule.roles.contains(&role))
            && (rule.lanes.is_empty() || rule.lanes.contains(&lane_id))
            && (rule.tools.is_empty() || rule.tools.iter().any(|tool| fits(tool, &names)))
    });
    lane_allows && !prohibited
}

fn is_allowed(policy: &Policy, request: &Request) -> bool {
    decide(policy, request).outcome == Outcome::Allow
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Default deny: exactly the explicitly allowed calls are allowed.
    #[test]
    fn exactly_the_explicitly_allowed_calls_are_allowed(lanes in lanes(), rules in rules(), requests in proptest::collection::vec(requests(), 20)) {
        let policy = write_policy(&lanes, &rules);
        for request in requests {
            prop_assert_eq!(is_allowed(&policy, &request), should_be_allowed(&lanes, &rules, &request), "{:?}", request);
        }
    }

    #[test]
    fn an_empty_policy_allows_nothing(request in requests()) {
        prop_assert!(!is_allowed(&write_policy(&[], &[]), &request));
    }

    /// Verdict, rule and reason do not depend on the order in the file.
    #[test]
    fn the_order_of_rules_has_no_effect(lanes in lanes(), rules in rules(), requests in proptest::collection::vec(requests(), 10)) {
        let policy = write_policy(&lanes, &rules);
        let (mut lanes, rules) = (lanes, rules);
        lanes.reverse();
        // Prohibitions are named by their index, so after reordering them only the outcome can be compared.
        let reordered = write_policy(&lanes, &rules);
        let rules: Vec<_> = rules.into_iter().rev().collect();
        let reordered_rules = write_policy(&lanes, &rules);
        for request in requests {
            prop_assert_eq!(decide(&policy, &request), decide(&reordered, &request));
            prop_assert_eq!(is_allowed(&policy, &request), is_allowed(&reordered_rules, &request));
        }
    }

    /// Adding any kind of prohibition never allows more.
    #[test]
    fn prohibitions_never_allow_more(
        lanes in lanes(), rules in rules(), more in rules(), at in any::<prop::sample::Index>(), flag in 0..4_u8,
        requests in proptest::collection::vec(requests(), 20)
    ) {
        let policy = write_policy(&lanes, &rules);
        let with_rules = write_policy(&lanes, &[rules.clone(), more].concat());
        let mut changed = lanes.clone();
        if !changed.is_empty() {
            let lane = at.index(changed.len());
            changed[lane].prohibits.insert(flag.min(2));
            changed[lane].requires.insert(flag.min(2));
        }
        let with_flag = write_policy(&changed, &rules);
        for request in requests {
            let before = is_allowed(&policy, &request);
            prop_assert!(before || !is_allowed(&with_rules, &request));
            prop_assert!(before || !is_allowed(&with_flag, &request));
            let locked = Request { locked: true, ..request };
            prop_assert!(!is_allowed(&policy, &locked));
        }
    }

    /// A request with more scope fields and fewer flags is never denied if the original is allowed.
    #[test]
    fn requesting_less_never_turns_allow_into_deny(lanes in lanes(), rules in rules(), request in requests()) {
        let policy = write_policy(&lanes, &rules);
        let mut modest = request.clone();
        modest.flags.clear();
        modest.scope.extend(["s0", "s1", "s2"].map(String::from));
        prop_assert!(!is_allowed(&policy, &request) || is_allowed(&policy, &modest));
    }
}
