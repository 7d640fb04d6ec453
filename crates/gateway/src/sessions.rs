//! The use cases of sessions: create, prompt, answer, cancel, rename, stop and delete. HTTP handlers, WebSocket connections and
//! automations call them. The caller has authenticated the [`Requester`] and decided that it may do this to the session.

mod answer;
mod configuration;
mod control;
mod create;
mod draft;
mod error;
mod idempotency;
mod prompt;
mod requester;
mod setup;

use std::sync::Arc;

use clock::{Clock, Rng};
use gate::Gate;
use store::Store;

use crate::admission::Admission;
use crate::hub::Hubs;

pub use answer::answer;
pub use control::{cancel, delete, rename, stop};
pub use create::{CreatedSession, create};
pub use draft::{ConfigurationSource, SessionDraft, Title};
pub use error::SessionError;
pub use prompt::{PromptDraft, prompt};
pub use requester::{RequestContext, Requester};

/// The parts of the gateway that the use cases depend on.
pub struct SessionServices {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) gate: Arc<Gate>,
    pub(crate) hubs: Hubs,
    pub(crate) admission: Arc<Admission>,
    /// The name of the sandbox provider in the database.
    pub(crate) sandbox_provider: String,
    /// The name of this gateway instance in the database.
    pub(crate) instance: String,
}
