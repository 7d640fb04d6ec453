//! The parts of the gateway that live sessions depend on.

use std::sync::Arc;

use clock::{Clock, Rng};
use gate::Gate;
use shares::Pool;
use store::Store;

use crate::admission::Admission;
use crate::config::QuestionTimes;
use crate::connectors::Connectors;
use crate::runtime::{Repositories, Runtime};
use crate::vault::Vault;

pub(crate) struct HubServices {
    pub(crate) store: Store,
    pub(crate) vault: Vault,
    pub(crate) clock: Clock,
    pub(crate) rng: Rng,
    pub(crate) gate: Arc<Gate>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) repositories: Arc<dyn Repositories>,
    pub(crate) connectors: Arc<Connectors>,
    pub(crate) admission: Arc<Admission>,
    /// The memory pool that prompts in flight to an agent are charged to.
    pub(crate) memory: Arc<Pool>,
    pub(crate) questions: QuestionTimes,
    /// The name of this gateway instance in the database.
    pub(crate) instance: String,
}
