//! The lanes that the gateway names itself for what members, agents and the gateway do in sessions. A policy of an
//! operator's own may be older than one of them.

use policy::Policy;

use super::services::ServiceAct;
use crate::git::FETCH_TOOL;

/// Each lane with the tools that it must allow.
const NEEDED_LANES: [(&str, &[&str]); 4] = [
    ("session.change", &["save_snapshot", "start_services", "run_command", "write_file"]),
    ("platform.system", &["save_snapshot", "start_services", FETCH_TOOL]),
    (
        "services",
        &[
            ServiceAct::Start.tool(),
            ServiceAct::Stop.tool(),
            ServiceAct::Restart.tool(),
            ServiceAct::Test.tool(),
        ],
    ),
    ("git.read", &[FETCH_TOOL]),
];

/// What a policy does not allow although the gateway needs it, as sentences for the operator.
pub fn missing_lanes(policy: &Policy) -> Vec<String> {
    let missing = |(id, tools): &(&str, &[&str])| {
        let Some(lane) = policy.lane(id) else {
            return Some(format!("there is no lane {id}, so calls of {} are refused", tools.join(", ")));
        };
        let refused = |tool: &&&str| !lane.tools.iter().any(|pattern| pattern.matches(tool));
        let refused: Vec<&str> = tools.iter().filter(refused).copied().collect();
        (!refused.is_empty()).then(|| format!("the lane {id} does not allow {}", refused.join(", ")))
    };
    NEEDED_LANES.iter().filter_map(missing).collect()
}

#[cfg(test)]
mod tests {
    use policy::Files;

    use super::*;

    #[test]
    fn a_policy_without_a_needed_lane_or_tool_is_described() {
        let built_in = Policy::load(Files::default()).unwrap();
        assert_eq!(missing_lanes(&built_in), Vec::<String>::new());
        let lanes = include_str!("../../../../policy/lanes.yaml");
        let older = lanes.replace("start_services, run_command, write_file]", "start_services]");
        let older =
            older.replace("        - {role: OPERATOR, tool: run_command, scope: [case_id, run_id]}\n", "");
        let load = |lanes: &str, roles: &str| {
            Policy::load(Files { lanes: Some(lanes), roles: Some(roles), tools: None })
        };
        let roles = include_str!("../../../../policy/roles.yaml");
        let older = load(&older, roles).unwrap();
        assert_eq!(missing_lanes(&older), ["the lane session.change does not allow run_command, write_file"]);
        let renamed = |text: &str| text.replace("git.read", "git.other");
        let without = load(&renamed(lanes), &renamed(roles)).unwrap();
        assert_eq!(missing_lanes(&without), ["there is no lane git.read, so calls of git.fetch are refused"]);
    }
}
