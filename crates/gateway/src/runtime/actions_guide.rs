//! The guide to actions in an agent's workspace. Agents read it with their own tools, and look for it at this path.

use agent::instructions::ACTIONS_GUIDE;
use sandboxd::protocol::{Code, Place};
use sandboxd::{ClientError, Sandboxd};

/// Inside the workspace, where the agent works.
const PATH: &str = ".proliferate/actions-guide.md";
/// Keeps both files and the agent's evidence out of commits of whatever repository contains them, also of one that the
/// agent makes later, without a change of anything that git tracks.
const IGNORE_PATH: &str = ".proliferate/.gitignore";
const IGNORE: &str = "# Written by Proliferate.\n/.gitignore\n/actions-guide.md\n/.verification/\n";

/// Writes the guide. Files of the user's own at these paths stay as they are.
pub(super) async fn write(inside: &Sandboxd) -> Result<(), ClientError> {
    for (path, text) in [(IGNORE_PATH, IGNORE), (PATH, ACTIONS_GUIDE)] {
        if !is_ours(inside, path, text).await? {
            return Ok(());
        }
        inside.write_file(Place::workspace(path), text.as_bytes().to_vec(), Some(0o644)).await?;
    }
    Ok(())
}

/// Whether there is nothing at this path, or a file that we wrote: it has the first line of ours.
async fn is_ours(inside: &Sandboxd, path: &str, text: &str) -> Result<bool, ClientError> {
    let mark = text.lines().next().unwrap_or_default().as_bytes();
    match inside.read_file(Place::workspace(path), 0, mark.len() as u64).await {
        Ok(found) => Ok(found.bytes == mark),
        Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}
