//! The vocabulary of repositories, configurations and queued prompts.

use crate::string_enums::string_enums;

string_enums! {
    /// Where a repository comes from.
    RepoSource as "repo source" {
        /// A repository on GitHub.
        Github = "github",
        /// Any other git URL.
        Git = "git",
        /// A directory of a user's own machine.
        Local = "local",
    }

    /// Who maintains a configuration.
    ConfigurationKind as "configuration kind" {
        /// Users.
        Manual = "manual",
        /// The gateway, which created it from the organisation's repositories.
        Managed = "managed",
        /// The command line, which created it for one directory of one user.
        Cli = "cli",
    }

    /// The state of a configuration's snapshot.
    ConfigurationStatus as "configuration status" {
        /// Not started.
        Pending = "pending",
        /// It is being built.
        Building = "building",
        /// It contains only the repositories.
        Default = "default",
        /// It also contains the dependencies.
        Ready = "ready",
        /// It could not be built.
        Failed = "failed",
    }

    /// The state of a prompt.
    PromptState as "prompt state" {
        /// It waits for its turn.
        Queued = "queued",
        /// It was sent to the agent, or may have been.
        Dispatched = "dispatched",
        /// Its turn is complete.
        Answered = "answered",
        /// Somebody cancelled it.
        Cancelled = "cancelled",
        /// It could not be sent to the agent.
        Failed = "failed",
    }
}
