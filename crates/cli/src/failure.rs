//! The error type of commands: one clear sentence, and an exit code that scripts can act on.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use gate::{CheckpointFailure, GateError, GovernanceError, SigningKeyError};
use gateway::DataDirError;
use gateway::StartError;
use gateway::config::ConfigErrors;
use gateway::keyring::KeyringError;
use gateway::runtime::SandboxesError;
use gateway::vault::VaultError;
use sandbox::SandboxError;
use sandboxd::ClientError;
use store::StoreError;

use crate::clean::{clean, clean_json};

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    /// The command was valid but did not succeed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }

    /// The command or a setting is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2 }
    }

    /// Something that the command needs is missing or unreachable.
    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 3 }
    }

    /// The program to run does not exist (127) or may not be executed (126): the exit codes of a shell.
    pub(crate) fn program(message: impl Into<String>, is_there: bool) -> Self {
        Self { message: message.into(), code: if is_there { 126 } else { 127 } }
    }

    /// Appends advice to the message.
    pub(crate) fn and(self, advice: &str) -> Self {
        Self { message: format!("{}; {advice}", self.message), code: self.code }
    }

    /// Prints the error to stderr, as text or as JSON, and returns the exit code.
    pub(crate) fn report(self, json: bool) -> ExitCode {
        let mut err = anstream::stderr();
        // Ignore write errors: stderr may be closed, and the exit code still reports the failure.
        let _ = if json {
            let value = serde_json::json!({ "error": self.message, "exitCode": self.code });
            writeln!(err, "{}", clean_json(&value.to_string()))
        } else {
            let red = anstyle::Style::new().bold().fg_color(Some(anstyle::AnsiColor::Red.into()));
            writeln!(err, "{red}error:{red:#} {}", clean(&self.message))
        };
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        match errors.0.as_slice() {
            [one] => Self::usage(one.clone()),
            many => Self::usage(format!("{} settings are wrong:\n  {}", many.len(), many.join("\n  "))),
        }
    }
}

impl From<KeyringError> for Failure {
    fn from(error: KeyringError) -> Self {
        match error {
            KeyringError::Missing(errors) => errors.into(),
            other => Self::missing(other.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unreachable { .. }
            | StoreError::Absent { .. }
            | StoreError::Served { .. }
            | StoreError::OlderSchema { .. }
            | StoreError::NewerSchema { .. }
            | StoreError::UnsupportedSchema { .. }
            | StoreError::ForeignSchema { .. } => Self::missing(error.to_string()),
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<VaultError> for Failure {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::BadName | VaultError::BadValue | VaultError::EmptyValue(_) => {
                Self::usage(error.to_string())
            }
            VaultError::Keyring(error) => error.into(),
            VaultError::Store(error) => error.into(),
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<DataDirError> for Failure {
    fn from(error: DataDirError) -> Self {
        Self::missing(error.to_string())
    }
}

impl From<SigningKeyError> for Failure {
    fn from(error: SigningKeyError) -> Self {
        Self::missing(error.to_string())
    }
}

impl From<CheckpointFailure> for Failure {
    fn from(error: CheckpointFailure) -> Self {
        match error {
            CheckpointFailure::Store(error) => error.into(),
            CheckpointFailure::Key(error) => error.into(),
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<GovernanceError> for Failure {
    fn from(error: GovernanceError) -> Self {
        match error {
            GovernanceError::Reason | GovernanceError::Ticket | GovernanceError::TimeBox { .. } => {
                Self::usage(error.to_string())
            }
            GovernanceError::NoKey => Self::missing(error.to_string()),
            GovernanceError::Key(error) => error.into(),
            GovernanceError::Store(error) => error.into(),
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<SandboxError> for Failure {
    fn from(error: SandboxError) -> Self {
        match error {
            SandboxError::BadId | SandboxError::BadSpec(_) => Self::usage(error.to_string()),
            SandboxError::BubblewrapMissing | SandboxError::NamespacesForbidden => {
                Self::missing(error.to_string())
            }
            other => Self::failed(other.to_string()),
        }
    }
}

impl From<SandboxesError> for Failure {
    fn from(error: SandboxesError) -> Self {
        match error {
            SandboxesError::Sandbox(error) => error.into(),
            SandboxesError::DataDir(error) => error.into(),
            SandboxesError::Insecure => Self::usage(error.to_string()),
            SandboxesError::Key { .. } | SandboxesError::Program(_) => Self::missing(error.to_string()),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let advice = match (&error, error.status()) {
            (_, Some(401)) => {
                "`proliferate login URL` logs in; beside the gateway, `proliferate keys create` makes a key"
            }
            (_, Some(404)) if error.reason().starts_with("Session not found") => {
                "`proliferate session ls` shows what there is"
            }
            (client::Error::Unreachable { .. }, _) => {
                "is it running? `proliferate up` starts one, --url names another"
            }
            (client::Error::UnexpectedResponse { .. }, _) => {
                "--url must be the address that `proliferate up` prints"
            }
            _ => return Self::failed(error.to_string()),
        };
        match error {
            client::Error::Unreachable { .. } => Self::missing(error.to_string()).and(advice),
            other => Self::failed(other.to_string()).and(advice),
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Keyring(error) => error.into(),
            StartError::Store(error) | StartError::Gate(GateError::Store(error)) => error.into(),
            StartError::Vault(error) => error.into(),
            StartError::Llm(error) => Self::usage(error.to_string()),
            StartError::DataDir(error) => error.into(),
            StartError::Sandboxes(error) => error.into(),
            StartError::Gate(error) => Self::usage(error.to_string()),
            StartError::Listen { .. } => Self::missing(error.to_string()),
        }
    }
}
