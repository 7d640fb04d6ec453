//! The options of `questions`.

use clap::{Args, Subcommand};

use super::gateway::GatewayArgs;

#[derive(Args)]
pub(crate) struct InboxArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Print everything that waits now, then each new entry, until you press Ctrl-C
    #[arg(long)]
    pub(crate) watch: bool,
}

#[derive(Args)]
pub(crate) struct QuestionsArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: QuestionsCommand,
}

#[derive(Subcommand)]
pub(crate) enum QuestionsCommand {
    /// List the open questions of the organization's agents
    Ls,
    /// Answer a question
    ///
    /// Give one answer for each part of the question. If it has only one part, all answers are for that part.
    Answer {
        /// The question, as `questions ls` shows it: its id or the beginning of its id
        question: String,
        /// The answers: the label of an option, or your own text. For a permission: once, always or reject
        #[arg(required = true, value_name = "ANSWER")]
        answers: Vec<String>,
    },
    /// Print the open questions and then every new one, until you press Ctrl-C
    Watch,
}
