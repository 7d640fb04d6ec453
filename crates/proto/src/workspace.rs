//! The vocabulary of repositories, configurations and queued prompts.

use crate::string_enums::string_enums;

string_enums! {
    /// The origin of a repository.
    RepoSource as "repo source" {
        /// A repository on GitHub.
        Github = "github",
        /// Any other git URL.
        Git = "git",
        /// A directory of a user's own machine.
        Local = "local",
    }

    /// The party that maintains a configuration.
    ConfigurationKind as "configuration kind" {
        /// Users maintain it.
        Manual = "manual",
        /// The gateway maintains it; it created it from the organization's repositories.
        Managed = "managed",
        /// The command line maintains it; it created it for one directory of one user.
        Cli = "cli",
    }

    /// The state of a configuration's snapshot.
    ConfigurationStatus as "configuration status" {
        /// The snapshot is not being built yet.
        Pending = "pending",
        /// The snapshot is being built.
        Building = "building",
        /// The snapshot contains only the repositories.
        Default = "default",
        /// The snapshot also contains the dependencies.
        Ready = "ready",
        /// The snapshot could not be built.
        Failed = "failed",
    }

    /// The state of a prompt.
    PromptState as "prompt state" {
        /// The prompt waits for its turn.
        Queued = "queued",
        /// The prompt was sent to the agent, or may have been.
        Dispatched = "dispatched",
        /// The prompt's turn is complete.
        Answered = "answered",
        /// Somebody cancelled the prompt.
        Cancelled = "cancelled",
        /// The prompt could not be sent to the agent.
        Failed = "failed",
    }
}
