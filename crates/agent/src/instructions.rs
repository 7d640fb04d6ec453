//! The instructions of an agent, built from named parts. Which parts an agent gets is not decided here.

/// A part of the instructions. No part names a tool, because an agent may lack it: each tool brings its own sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The description of the place where the agent runs.
    Proliferate,
    Setup,
    Coding,
    Scratch,
    Automation,
    /// The command `proliferate` inside.
    CommandLine,
    /// Source code stays as it is, and a person finishes the setup.
    SetupRules,
    /// The outcome must be reported.
    AutomationRules,
    /// Secrets stay secret.
    SafetyRules,
}

/// The guide to actions, a file in the agent's workspace.
pub const ACTIONS_GUIDE: &str = include_str!("instructions/actions_guide.md");

impl Part {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Proliferate => include_str!("instructions/proliferate.md"),
            Self::Setup => include_str!("instructions/setup.md"),
            Self::Coding => include_str!("instructions/coding.md"),
            Self::Scratch => include_str!("instructions/scratch.md"),
            Self::Automation => include_str!("instructions/automation.md"),
            Self::CommandLine => include_str!("instructions/command_line.md"),
            Self::SetupRules => include_str!("instructions/setup_rules.md"),
            Self::AutomationRules => include_str!("instructions/automation_rules.md"),
            Self::SafetyRules => include_str!("instructions/safety_rules.md"),
        }
    }
}

/// The content of an agent's instructions.
pub struct Instructions<'a> {
    pub base: &'a [Part],
    /// A text that replaces the base.
    pub custom: Option<&'a str>,
    /// The rules that follow every base prompt.
    pub rules: &'a [Part],
    /// The name of each tool, and when to use it.
    pub tools: Vec<(&'a str, &'a str)>,
}

impl Instructions<'_> {
    pub fn text(&self) -> String {
        let base = match self.custom {
            Some(custom) => vec![custom],
            None => self.base.iter().map(|part| part.text()).collect(),
        };
        let mut sections: Vec<String> = base.into_iter().map(|text| text.trim_end().to_owned()).collect();
        if !self.tools.is_empty() {
            let lines = self.tools.iter().map(|(name, when)| format!("\n- `{name}`: {when}"));
            sections.push(format!("## Tools of the platform\n{}", lines.collect::<String>()));
        }
        sections.extend(self.rules.iter().map(|part| part.text().trim_end().to_owned()));
        sections.join("\n\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_text_replaces_the_base_and_nothing_else() {
        let rules = &[Part::SafetyRules];
        let text = |custom| {
            let tools = vec![("save_it", "when it is worth saving.")];
            Instructions { base: &[Part::Proliferate, Part::Coding], custom, rules, tools }.text()
        };
        let (usual, custom) = (text(None), text(Some("You are a pirate.\n")));
        assert!(usual.contains("smallest change") && usual.ends_with(Part::SafetyRules.text()));
        let tools = "\n\n## Tools of the platform\n\n- `save_it`: when it is worth saving.\n\n";
        assert_eq!(custom, format!("You are a pirate.{tools}{}", Part::SafetyRules.text()));
        assert!(usual.contains(tools));
    }
}
