//! What the agent of each mode gets: the parts of its instructions, its tools and its files. Nothing else decides this.

use agent::instructions::{Instructions, Part};
use proto::AgentMode;
use proto::http::AgentConfig;
use store::SessionRecord;

use super::platform::PlatformTool;
use super::{
    automation_complete, request_env_variables, save_env_files, save_service_commands, save_snapshot, verify,
};
use crate::runtime::{AgentContents, AgentFile};

/// The instructions, tools and files of one mode.
struct ModeContents {
    mode: AgentMode,
    /// The parts that a custom system prompt replaces.
    base: &'static [Part],
    /// The parts that every agent of this mode gets.
    rules: &'static [Part],
    tools: &'static [&'static PlatformTool],
    files: &'static [AgentFile],
}

static MODES: [ModeContents; 4] = [
    ModeContents {
        mode: AgentMode::Setup,
        base: &[Part::Proliferate, Part::Setup],
        rules: &[Part::CommandLine, Part::SetupRules, Part::SafetyRules],
        tools: &[
            &save_service_commands::TOOL,
            &save_env_files::TOOL,
            &request_env_variables::TOOL,
            &verify::TOOL,
            &save_snapshot::TOOL,
        ],
        files: &AgentFile::ALL,
    },
    ModeContents {
        mode: AgentMode::Coding,
        base: &[Part::Proliferate, Part::Coding],
        rules: &[Part::CommandLine, Part::SafetyRules],
        tools: &[&request_env_variables::TOOL, &verify::TOOL, &save_snapshot::TOOL],
        files: &AgentFile::ALL,
    },
    // Coding and more.
    ModeContents {
        mode: AgentMode::Automation,
        base: &[Part::Proliferate, Part::Coding, Part::Automation],
        rules: &[Part::CommandLine, Part::AutomationRules, Part::SafetyRules],
        tools: &[
            &request_env_variables::TOOL,
            &verify::TOOL,
            &save_snapshot::TOOL,
            &automation_complete::TOOL,
        ],
        files: &AgentFile::ALL,
    },
    ModeContents {
        mode: AgentMode::Scratch,
        base: &[Part::Proliferate, Part::Scratch],
        rules: &[Part::CommandLine, Part::SafetyRules],
        tools: &[&request_env_variables::TOOL, &verify::TOOL, &save_snapshot::TOOL],
        files: &AgentFile::ALL,
    },
];

/// Tools that `agentConfig.tools` cannot remove, because a session of their mode could not end without them.
const REQUIRED_TOOLS: &[&str] = &["automation_complete"];

fn contents(mode: AgentMode) -> &'static ModeContents {
    // A test looks every mode up.
    MODES.iter().find(|contents| contents.mode == mode).unwrap_or(&MODES[1])
}

/// The tools of an agent: those of its mode, without those that its session leaves out.
pub(crate) fn tools(mode: AgentMode, config: Option<&AgentConfig>) -> Vec<&'static PlatformTool> {
    let kept = config.and_then(|config| config.tools.as_ref());
    let is_kept = |tool: &&&PlatformTool| {
        let named = |name: &String| *name == tool.name || tool.aliases.contains(&name.as_str());
        REQUIRED_TOOLS.contains(&tool.name) || kept.is_none_or(|kept| kept.iter().any(named))
    };
    contents(mode).tools.iter().filter(is_kept).copied().collect()
}

/// The message for an agent that calls a tool that its mode does not have. `None` if they have it.
pub(crate) fn refusal(mode: AgentMode, tool: &PlatformTool) -> Option<String> {
    let has = |contents: &ModeContents| contents.tools.iter().any(|known| known.name == tool.name);
    if has(contents(mode)) {
        return None;
    }
    let modes: Vec<_> = MODES.iter().filter(|contents| has(contents)).map(|has| has.mode.as_str()).collect();
    Some(format!("{} is only available in {} sessions.", tool.name, modes.join(", ")))
}

/// Whether agents of this mode get this file.
pub(crate) fn has_file(mode: AgentMode, file: AgentFile) -> bool {
    contents(mode).files.contains(&file)
}

/// What a session's agent gets in this mode.
pub(crate) fn agent_contents(session: &SessionRecord, mode: AgentMode) -> AgentContents {
    configured(mode, session.agent_config.as_ref(), session.system_prompt.as_deref())
}

fn configured(mode: AgentMode, config: Option<&AgentConfig>, custom: Option<&str>) -> AgentContents {
    let (contents, tools) = (contents(mode), tools(mode, config));
    let instructions = Instructions {
        base: contents.base,
        custom,
        rules: contents.rules,
        tools: tools.iter().map(|tool| (tool.name, (tool.guidance)(mode))).collect(),
    };
    AgentContents {
        instructions: instructions.text(),
        tools: tools.iter().map(|tool| tool.for_agent()).collect(),
        files: contents.files,
    }
}

#[cfg(test)]
mod tests {
    use gate::agent_role;
    use policy::Policy;

    use super::super::platform::{PLATFORM_TOOLS, ToolHost};
    use super::*;

    fn names(tools: &[&PlatformTool]) -> Vec<&'static str> {
        tools.iter().map(|tool| tool.name).collect()
    }

    fn config(tools: &[&str]) -> AgentConfig {
        let tools = Some(tools.iter().map(|name| (*name).to_owned()).collect());
        AgentConfig { tools, ..AgentConfig::default() }
    }

    #[test]
    fn every_mode_is_in_the_table_once_and_every_tool_in_some_mode() {
        for mode in AgentMode::ALL {
            assert_eq!(MODES.iter().filter(|contents| contents.mode == *mode).count(), 1, "{mode}");
        }
        for tool in PLATFORM_TOOLS {
            assert!(AgentMode::ALL.iter().any(|mode| refusal(*mode, tool).is_none()), "{}", tool.name);
        }
    }

    #[test]
    fn the_instructions_of_an_agent_name_its_tools_and_no_others() {
        for mode in AgentMode::ALL {
            for config in [None, Some(config(&["save_snapshot"])), Some(config(&[]))] {
                let AgentContents { instructions, tools, .. } = configured(*mode, config.as_ref(), None);
                let named = PLATFORM_TOOLS.iter().filter(|tool| instructions.contains(tool.name));
                let mut named: Vec<_> = named.map(|tool| tool.name).collect();
                let mut have: Vec<_> = tools.iter().map(|tool| tool.name).collect();
                named.sort_unstable();
                have.sort_unstable();
                assert_eq!(named, have, "{mode}");
            }
        }
    }

    #[test]
    fn a_session_can_leave_tools_out_but_not_add_any() {
        let wanted = config(&["save_env_files", "save_snapshot", "bash"]);
        assert_eq!(names(&tools(AgentMode::Setup, Some(&wanted))), ["save_env_files", "save_snapshot"]);
        assert_eq!(names(&tools(AgentMode::Coding, Some(&wanted))), ["save_snapshot"]);
    }

    #[test]
    fn automation_is_coding_and_more() {
        let (coding, automation) = (contents(AgentMode::Coding), contents(AgentMode::Automation));
        assert!(automation.base.starts_with(coding.base));
        assert!(names(coding.tools).iter().all(|name| names(automation.tools).contains(name)));
        assert!(coding.files.iter().all(|file| automation.files.contains(file)));
    }

    #[test]
    fn the_built_in_lanes_agree_with_the_table() {
        let policy = Policy::load(policy::Files::default()).unwrap();
        for mode in AgentMode::ALL {
            let (_, lane) = agent_role(*mode);
            let lane = policy.lanes().find(|known| known.id == lane).unwrap();
            for tool in PLATFORM_TOOLS.iter().filter(|tool| matches!(tool.place, ToolHost::Gateway { .. })) {
                let allowed = lane.tools.iter().any(|pattern| pattern.matches(tool.name));
                assert_eq!(allowed, refusal(*mode, tool).is_none(), "{mode}: {}", tool.name);
            }
        }
    }
}
