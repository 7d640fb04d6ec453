//! What the agent of a session gets besides its program: instructions, tools, and files. The table of modes decides it
//! (`sources::modes`), and a launch writes it.

use agent::Tool;
use sandboxd::protocol::Place;

/// What the agent of a session gets.
pub(crate) struct AgentContents {
    pub(crate) instructions: String,
    pub(crate) tools: Vec<Tool>,
    pub(crate) files: &'static [AgentFile],
}

/// A file that we write for the agent to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentFile {
    /// The event that started the session.
    TriggerContext,
    /// How to use actions.
    ActionsGuide,
}

impl AgentFile {
    pub(crate) const ALL: [Self; 2] = [Self::ActionsGuide, Self::TriggerContext];

    pub(crate) fn place(self) -> Place {
        match self {
            Self::TriggerContext => Place::home(".proliferate/trigger-context.json"),
            // Agents read it with their own tools, and look for it where they work.
            Self::ActionsGuide => Place::workspace(".proliferate/actions-guide.md"),
        }
    }
}
