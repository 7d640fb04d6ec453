//! The guide to actions in an agent's workspace.

use agent::instructions::ACTIONS_GUIDE;
use sandboxd::protocol::{Code, Place};
use sandboxd::{ClientError, Sandboxd};

use super::agent_file::AgentFile;

/// Keeps both files and the agent's evidence out of commits of whatever repository contains them, also of one that the
/// agent makes later, without a change of anything that git tracks.
const IGNORE_PATH: &str = ".proliferate/.gitignore";
const GITIGNORE_CONTENT: &str =
    "# Written by Proliferate.\n/.gitignore\n/actions-guide.md\n/.verification/\n";

/// Writes the guide. Files of the user's own at these paths stay as they are.
pub(super) async fn write(inside: &Sandboxd) -> Result<(), ClientError> {
    let (ignore, guide) = (Place::workspace(IGNORE_PATH), AgentFile::ActionsGuide.place());
    for (place, text) in [(ignore, GITIGNORE_CONTENT), (guide, ACTIONS_GUIDE)] {
        if !is_ours(inside, &place, text).await? {
            return Ok(());
        }
        inside.write_file(place, text.as_bytes().to_vec(), Some(0o644)).await?;
    }
    Ok(())
}

/// Whether there is nothing at this place, or a file that we wrote: it has the first line of ours.
async fn is_ours(inside: &Sandboxd, place: &Place, text: &str) -> Result<bool, ClientError> {
    let mark = text.lines().next().unwrap_or_default().as_bytes();
    match inside.read_file(place.clone(), 0, mark.len() as u64).await {
        Ok(found) => Ok(found.bytes == mark),
        Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}
