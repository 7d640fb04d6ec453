//! The use cases of sessions: create, prompt, answer, cancel, rename, change the model, stop, delete, save files, start
//! services, change the environment, run commands and write files. HTTP handlers, WebSocket connections and automations call them. The caller has
//! authenticated the [`Requester`] and decided that it may do this to the session.

mod answer;
mod configuration;
mod control;
mod create;
mod draft;
mod environment;
mod error;
mod idempotency;
mod model;
mod prompt;
mod requester;
mod sandbox;
mod setup;

use std::sync::Arc;

use clock::{Clock, Rng};
use gate::Gate;
use store::Store;

use crate::admission::Admission;
use crate::hub::Hubs;
use crate::runtime::Runtime;

pub use answer::answer;
pub use control::{cancel, delete, rename, stop};
pub use create::{CreatedSession, create};
pub use draft::{ConfigurationSource, SessionDraft, Title};
pub(crate) use environment::{
    Submission, SubmittedValues, Variable, apply_environment, running_sandbox, running_supervisor,
    scrub_environment, submit_environment,
};
pub use error::SessionError;
pub use model::{check_model, set_model};
pub use prompt::{PromptDraft, prompt};
pub use requester::{RequestContext, Requester};
pub(crate) use sandbox::{run_command, write_file};
pub use sandbox::{save_snapshot, start_services};
pub use setup::finish_setup;

/// The parts of the gateway that the use cases depend on.
pub struct SessionServices {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) gate: Arc<Gate>,
    pub(crate) hubs: Hubs,
    pub(crate) admission: Arc<Admission>,
    pub(crate) runtime: Arc<Runtime>,
    /// The name of this gateway instance in the database.
    pub(crate) instance: String,
}
