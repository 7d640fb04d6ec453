//! The session's WebSocket: one JSON object per text frame, in both directions.

mod client;
mod close;
mod frame;
mod git;
mod message;
mod question;
mod server;

pub use client::{AutoStartCommand, AutoStartMode, ClientMessage};
pub use close::CloseCode;
pub use frame::{Frame, FrameError};
pub use git::{GitAction, GitChange, GitCode, GitCommit, GitResult, GitState};
pub use message::{Message, MessageRole, MessageSource, Part, ToolCall, ToolStatus};
pub use question::{
    OpenQuestion, PERMISSION_ANSWERS, QuestionItem, QuestionKind, QuestionOption, QuestionState,
};
pub use server::{
    ActionOutcome, AutoStartEntry, InitConfig, OpenApproval, ServerMessage, SnapshotTarget, TurnOutcome,
    WireStatus,
};
