//! What sessions work on: the words for repositories, configurations and the prompts that wait.

use crate::words::words;

words! {
    /// Where a repository comes from.
    RepoSource as "repo source" {
        /// A repository on GitHub.
        Github = "github",
        /// Any other git URL.
        Git = "git",
        /// A directory of somebody's own machine.
        Local = "local",
    }

    /// Who keeps a configuration.
    ConfigurationKind as "configuration kind" {
        /// People do.
        Manual = "manual",
        /// The gateway made it from the organisation's repositories.
        Managed = "managed",
        /// The command line made it for one directory of one user.
        Cli = "cli",
    }

    /// How far a configuration's snapshot is.
    ConfigurationStatus as "configuration status" {
        /// Nobody has begun.
        Pending = "pending",
        /// It is being made.
        Building = "building",
        /// It holds the repositories and nothing else.
        Default = "default",
        /// It holds the dependencies too.
        Ready = "ready",
        /// It could not be made.
        Failed = "failed",
    }

    /// What became of a prompt.
    PromptState as "prompt state" {
        /// It waits for its turn.
        Queued = "queued",
        /// The agent has it, or may have it.
        Dispatched = "dispatched",
        /// Its turn is complete.
        Answered = "answered",
        /// Somebody took it back.
        Cancelled = "cancelled",
        /// It could not be given to the agent.
        Failed = "failed",
    }
}
